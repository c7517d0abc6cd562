"""Gradient descent of two-layer ReLU networks on ±1 inputs as one GPU kernel for many steps.

Every replica is one thread block. A network of a single tile stays in registers from the first step to the last; a
larger one passes through once per step, a neuron a row: when a tile has been updated, what it contributes to the next
batch's outputs follows at once. Inputs being ±1, a product with a matrix that is split into three bfloat16 summands is
exact but for the order of its sums: full precision at the speed of the matrix units.
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
# Inputs and neurons of the largest network that fits registers; neurons of a larger one that are updated together.
SMALL = 64, 128
TILE = 64
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
        and (_is_small(network) or replicas >= ENOUGH_REPLICAS)
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
    small = _is_small(network)
    parts = [(0, _power_of_two(n))] if small else _parts(n)
    neurons = _power_of_two(width) if small else TILE
    tiles = -(-width // neurons)
    loss = loss_function(learner.loss)

    def kernel(x_ref, y_ref, outputs_ref, _w, _b, _u, c_ref, rate_ref, decay_ref, w_ref, b_ref, u_ref, c_out, loss_ref):
        rates, decays = [[ref[i] for i in range(4)] for ref in (rate_ref, decay_ref)]

        def moved(i, value, slope):
            return value - rates[i] * (slope + decays[i] * value)

        def inputs(step):
            return [x_ref[step, :, pl.ds(start, size)] for start, size in parts]

        def of_loss(outputs, step):
            """The loss, and its derivative by the outputs."""
            labels = y_ref[step, :]
            values, back = jax.vjp(lambda f: jax.vmap(loss)(f, labels), outputs)
            return jnp.sum(values) / batch, back(jnp.full((batch,), 1 / batch, jnp.float32))[0]

        def of_vectors(before, b, u, slope):
            """The new bias and output weights, and the loss's derivative by the pre-activations."""
            inward = jnp.where(before > 0, u[:, None] * slope, 0.0)
            outward = jnp.sum(jnp.maximum(before, 0) * slope, axis=1)
            return moved(1, b, jnp.sum(inward, axis=1)), moved(2, u, outward), inward

        def in_registers(i, state):
            w, b, u, c, total = state
            (xs,) = inputs(i)
            before = _times(w, xs, transposed=True) + b[:, None]
            value, slope = of_loss(jnp.sum(jnp.maximum(before, 0) * u[:, None], axis=0) + c, i)
            b, u, inward = of_vectors(before, b, u, slope)
            return moved(0, w, _times(inward, xs)), b, u, moved(3, c, jnp.sum(slope)), total + value

        def tile_by_tile(i, state):
            outputs, c, total = state
            xs, following = inputs(i), inputs(jnp.minimum(i + 1, count - 1))
            value, slope = of_loss(outputs + c, i)

            def update(tile, outputs):
                at = pl.ds(tile * neurons, neurons)
                b, u = b_ref[at], u_ref[at]
                ws = [w_ref[at, pl.ds(start, size)] for start, size in parts]
                # Pre-activations are computed again, which is faster than keeping them in memory.
                before = sum(_times(w, part, transposed=True) for w, part in zip(ws, xs, strict=True)) + b[:, None]
                b, u, inward = of_vectors(before, b, u, slope)
                b_ref[at], u_ref[at] = b, u
                then = jnp.broadcast_to(b[:, None], inward.shape)
                for w, part, later, (start, size) in zip(ws, xs, following, parts, strict=True):
                    w = w_ref[at, pl.ds(start, size)] = moved(0, w, _times(inward, part))
                    then = then + _times(w, later, transposed=True)
                return outputs + jnp.maximum(then, 0) * u[:, None]

            outputs = lax.fori_loop(0, tiles, update, jnp.zeros((neurons, batch), jnp.float32))
            if not interpret:
                # What a thread wrote may be read by another from here on.
                triton.debug_barrier()
            return jnp.sum(outputs, axis=0), moved(3, c, jnp.sum(slope)), total + value

        if small:
            start = w_ref[...], b_ref[...], u_ref[...], c_ref[...], jnp.float32(0)
            w_ref[...], b_ref[...], u_ref[...], c_out[...], loss_ref[...] = lax.fori_loop(0, count, in_registers, start)
        else:
            start = outputs_ref[...], c_ref[...], jnp.float32(0)
            _, c_out[...], loss_ref[...] = lax.fori_loop(0, count, tile_by_tile, start)

    # What is added to fill the tiles is zero and stays so.
    more_inputs, more_neurons = sum(size for _, size in parts) - n, tiles * neurons - width
    w = jnp.pad(network.weights.T, ((0, more_neurons), (0, more_inputs)))
    b, u = (jnp.pad(vector, (0, more_neurons)) for vector in (network.bias, network.output))  # type: ignore[arg-type]
    x = jnp.pad(x, ((0, 0), (0, 0), (0, more_inputs)))
    outputs = jnp.zeros(batch) if small else u @ jax.nn.relu(w @ x[0].T + b[:, None])
    parameters = [w, b, u, network.output_bias]
    decay = 0.0 if learner.weight_decay is None else learner.weight_decay
    rates, decays = (
        jnp.stack([jnp.asarray(v, jnp.float32) for v in jax.tree.leaves(per_field(name, value, network))])
        for name, value in (("lr", learner.lr), ("weight_decay", decay))
    )
    call = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (*(p.shape for p in parameters), ())],
        input_output_aliases={3: 0, 4: 1, 5: 2, 6: 3},
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=warps, num_stages=2),
    )
    w, b, u, c, total = call(x.astype(jnp.bfloat16), y, outputs, *parameters, rates, decays)
    where = lambda net: (net.weights, net.bias, net.output, net.output_bias)  # noqa: E731
    return eqx.tree_at(where, network, (w[:width, :n].T, b[:width], u[:width], c)), total


def _is_small(network: TwoLayer) -> bool:
    return all(side <= most for side, most in zip(network.weights.shape, SMALL, strict=True))


def _power_of_two(size: int) -> int:
    """The smallest side of a kernel's tile that holds `size`."""
    return max(16, 1 << (size - 1).bit_length())


def _parts(n: int) -> list[tuple[int, int]]:
    """Starts and sizes of the pieces in which n inputs pass: powers of two up to 64 that exceed n by less than 16."""
    parts, start = [], 0
    while start < n:
        whole = _power_of_two(n - start)
        size = min(64, whole if start + whole - n < 16 else whole // 2)
        parts.append((start, size))
        start += size
    return parts


def _times(matrix: Array, signs: Array, transposed: bool = False) -> Array:
    """matrix @ signs, or matrix @ signsᵀ: three products that are exact, because every summand has eight bits."""
    from jax.experimental.pallas import triton

    out: Any = 0.0
    for _ in range(3):
        # Bits are cut off, not rounded, which needs no conversion.
        bits = lax.bitcast_convert_type(matrix, jnp.uint32)
        upper = lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
        out = out + triton.dot(upper, signs, trans_b=transposed)
        matrix = matrix - lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
    return out
