"""Gradient descent of two-layer ReLU networks on ±1 inputs as one GPU kernel for many steps.

Every replica is one thread block. A network of a single tile stays in registers from the first step to the last; a
larger one passes through once per step: when a tile has been updated, its pre-activations of the next batch follow.
Inputs being ±1, a product with a matrix that is split into three bfloat16 summands is exact but for the order of its
sums: full precision at the speed of the matrix units.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from krogh.nn.activations import ACTIVATIONS
from krogh.nn.mlp import TwoLayer
from krogh.tasks.base import Task
from krogh.train.learners import SGD, Learner, per_field
from krogh.train.losses import loss_function

LOSSES = ("hinge", "square")
# Rows and columns of the weights that are worked on together.
TILE = 64, 128
# A network of several tiles needs so many replicas to keep a GPU's multiprocessors busy.
ENOUGH_REPLICAS = 100
MANY_REPLICAS = 256


def applies(network: Any, task: Task, learner: Learner, replicas: int) -> bool:
    """Whether a stage that trains all of `network` by `learner` on fresh examples can run in the kernel."""
    if not (isinstance(network, TwoLayer) and task.signs and type(learner) is SGD):
        return False
    plain = learner.momentum is learner.objective is learner.schedule is learner.truncate is learner.noise is None
    decay = learner.weight_decay is None or (learner.decay == "gradient" and not learner.decay_matrices)
    batch = learner.batch or 0
    one_tile = all(side <= tile for side, tile in zip(network.weights.shape, TILE, strict=True))
    return (
        plain
        and decay
        and learner.loss in LOSSES
        and 16 <= batch <= 64
        and batch & (batch - 1) == 0
        and network.activation is ACTIVATIONS["relu"]
        and network.weights.dtype == jnp.float32
        and network.bias is not None
        and network.output is not None
        and network.output.ndim == 1
        and network.output_bias is not None
        and (one_tile or replicas >= ENOUGH_REPLICAS)
    )


def warps(replicas: int) -> int:
    """Of a thread block: where there is room on the multiprocessors, one replica takes more of it."""
    return 8 if replicas < MANY_REPLICAS else 4


def steps(
    network: TwoLayer,
    x: Float[Array, "steps batch n"],
    y: Float[Array, "steps batch"],
    learner: Learner,
    warps: int = 4,
    interpret: bool = False,
) -> tuple[TwoLayer, Float[Array, ""]]:
    """The network after one step on each batch, and the sum of the losses before the steps."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    count, batch, n = x.shape
    (width,) = network.bias.shape  # type: ignore[union-attr]
    blocks = [(start, _power_of_two(min(TILE[0], n - start))) for start in range(0, n, TILE[0])]
    alone = len(blocks) == 1
    columns = min(TILE[1] if alone else TILE[1] // 2, _power_of_two(width))
    tiles = -(-width // columns)
    loss = loss_function(learner.loss)

    def kernel(x_ref, y_ref, _w, _b, _u, c_ref, rate_ref, decay_ref, w_ref, b_ref, u_ref, c_out, loss_ref, before_ref):
        rates, decays = [[ref[i] for i in range(4)] for ref in (rate_ref, decay_ref)]

        def moved(i, value, slope):
            return value - rates[i] * (slope + decays[i] * value)

        def columns_of(tile):
            return pl.ds(tile * columns, columns), tile * columns + jnp.arange(columns) < width

        def inputs_of(block, index):
            # What reaches over the edge is masked, but slices are refused that are known to: their start is not.
            start, rows = block
            return pl.ds(start + 0 * index, rows), start + jnp.arange(rows) < n

        def tile_of(block, tile):
            (rows, real_rows), (at, real) = inputs_of(block, tile), columns_of(tile)
            return w_ref.at[rows, at], real_rows[:, None] & real[None]

        def read(block, tile):
            ref, mask = tile_of(block, tile)
            return triton.load(ref, mask=mask, other=0.0)

        def write(block, tile, values):
            ref, mask = tile_of(block, tile)
            triton.store(ref, values, mask=mask)

        def read_vectors(tile):
            at, real = columns_of(tile)
            return [triton.load(ref.at[at], mask=real, other=0.0) for ref in (b_ref, u_ref)]

        def write_vectors(tile, *values):
            at, real = columns_of(tile)
            for ref, value in zip((b_ref, u_ref), values, strict=True):
                triton.store(ref.at[at], value, mask=real)

        def inputs(step):
            places = [inputs_of(block, step) for block in blocks]
            masks = [jnp.broadcast_to(real, (batch, len(real))) for _, real in places]
            return [
                triton.load(x_ref.at[step, pl.ds(0, batch), at], mask=mask, other=0.0)
                for (at, _), mask in zip(places, masks, strict=True)
            ]

        def contribution(before, u):
            return jnp.sum(jnp.maximum(before, 0) * u, axis=1)

        def of_loss(outputs, labels):
            values, back = jax.vjp(lambda f: jax.vmap(loss)(f, labels), outputs)
            return jnp.sum(values) / batch, back(jnp.full((batch,), 1 / batch, jnp.float32))[0]

        def of_vectors(before, b, u, slope):
            """The new bias and output weights, and the loss's derivative by the pre-activations."""
            inward = jnp.where(before > 0, slope[:, None] * u[None], 0.0)
            outward = jnp.sum(jnp.maximum(before, 0) * slope[:, None], axis=0)
            return moved(1, b, jnp.sum(inward, axis=0)), moved(2, u, outward), inward

        def in_registers():
            def step(i, state):
                w, b, u, c, total = state
                (xs,) = inputs(i)
                before = _times(xs, w) + b
                value, slope = of_loss(contribution(before, u) + c, y_ref[i, :])
                b, u, inward = of_vectors(before, b, u, slope)
                return moved(0, w, _times(xs, inward, True)), b, u, moved(3, c, jnp.sum(slope)), total + value

            start = (read(blocks[0], 0), *read_vectors(0), c_ref[...], jnp.float32(0))
            w, b, u, c, total = lax.fori_loop(0, count, step, start)
            write(blocks[0], 0, w)
            write_vectors(0, b, u)
            return c, total

        def synchronise():
            """What a thread wrote may be read by another from here on."""
            if not interpret:
                triton.debug_barrier()

        def tile_by_tile():
            def before_of(tile):
                at, real = columns_of(tile)
                return before_ref.at[pl.ds(0, batch), at], jnp.broadcast_to(real, (batch, columns))

            def keep(tile, before):
                ref, mask = before_of(tile)
                triton.store(ref, before, mask=mask)

            def first(tile, outputs):
                b, u = read_vectors(tile)
                xs = inputs(jnp.int32(0))
                before = sum(_times(part, read(block, tile)) for part, block in zip(xs, blocks, strict=True)) + b
                keep(tile, before)
                return outputs + contribution(before, u)

            def step(i, state):
                outputs, c, total = state
                xs, following = inputs(i), inputs(jnp.minimum(i + 1, count - 1))
                value, slope = of_loss(outputs + c, y_ref[i, :])

                def update(tile, outputs):
                    ref, mask = before_of(tile)
                    before = triton.load(ref, mask=mask, other=0.0)
                    b, u = read_vectors(tile)
                    b, u, inward = of_vectors(before, b, u, slope)
                    write_vectors(tile, b, u)
                    then = jnp.broadcast_to(b, inward.shape)
                    for part, later, block in zip(xs, following, blocks, strict=True):
                        w = moved(0, read(block, tile), _times(part, inward, True))
                        write(block, tile, w)
                        then = then + _times(later, w)
                    keep(tile, then)
                    return outputs + contribution(then, u)

                outputs = lax.fori_loop(0, tiles, update, jnp.zeros(batch, jnp.float32))
                synchronise()
                return outputs, moved(3, c, jnp.sum(slope)), total + value

            outputs = lax.fori_loop(0, tiles, first, jnp.zeros(batch, jnp.float32))
            synchronise()
            return lax.fori_loop(0, count, step, (outputs, c_ref[...], jnp.float32(0)))[1:]

        c_out[...], loss_ref[...] = in_registers() if alone and tiles == 1 else tile_by_tile()

    parameters = [network.weights, network.bias, network.output, network.output_bias]
    shapes = [parameter.shape for parameter in parameters]
    call = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (*shapes, (), (batch, width))],
        input_output_aliases={2: 0, 3: 1, 4: 2, 5: 3},
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=warps, num_stages=2 if alone else 1),
    )
    decay = 0.0 if learner.weight_decay is None else learner.weight_decay
    rates, decays = (
        jnp.stack([jnp.asarray(v, jnp.float32) for v in jax.tree.leaves(per_field(name, value, network))])
        for name, value in (("lr", learner.lr), ("weight_decay", decay))
    )
    *parameters, total, _ = call(x.astype(jnp.bfloat16), y, *parameters, rates, decays)
    where = lambda net: (net.weights, net.bias, net.output, net.output_bias)  # noqa: E731
    return eqx.tree_at(where, network, tuple(parameters)), total


def _power_of_two(size: int) -> int:
    """The smallest side of a kernel's tile that holds `size`."""
    return max(16, 1 << (size - 1).bit_length())


def _times(signs: Array, matrix: Array, transposed: bool = False) -> Array:
    """signs @ matrix, or signsᵀ @ matrix: three products that are exact, because every summand has eight bits."""
    from jax.experimental.pallas import triton

    out: Any = 0.0
    for _ in range(3):
        part = matrix.astype(jnp.bfloat16)
        matrix = matrix - part.astype(jnp.float32)
        out = out + triton.dot(signs, part, trans_a=transposed)
    return out
