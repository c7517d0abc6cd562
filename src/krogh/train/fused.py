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
from jaxtyping import Array, Bool, Float

from krogh.nn.activations import ACTIVATIONS
from krogh.nn.mlp import TwoLayer
from krogh.nn.products import pieces
from krogh.tasks.base import Task
from krogh.train.learners import SGD, Learner, per_field
from krogh.train.losses import loss_function

LOSSES = ("hinge", "square")
# Inputs and neurons of the largest network that fits registers; neurons of a larger one that are updated together.
SMALL = 64, 128
TILE = 64
PART = 32
STAGES = 3
# Inputs that a network passes by at a time.
ROWS = 128
# Steps that one launch takes at most.
LAUNCH = 128
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


def block_of(length: int, batch: int, n: int) -> int:
    """How many of `length` steps a launch takes: as many as it may where networks are passed through least often."""
    divisors = [d for d in range(1, min(length, LAUNCH) + 1) if length % d == 0]
    return max(divisors, key=lambda d: (batches_per_pass(d, batch, n), d))


def steps(
    network: TwoLayer,
    x: Float[Array, "steps batch n"],
    y: Float[Array, "steps batch"],
    learner: Learner,
    warps: int = 4,
    live: Bool[Array, ""] | bool = True,
    interpret: bool = False,
) -> tuple[TwoLayer, Float[Array, ""]]:
    """The network after one step on each batch, and the sum of the losses before the steps.

    A network of several tiles that is not `live` may be left as it is, at no cost.
    """
    batch = x.shape[1]
    loss = loss_function(learner.loss)
    decay = 0.0 if learner.weight_decay is None else learner.weight_decay
    rates, decays = (
        jnp.stack([jnp.asarray(v, jnp.float32) for v in jax.tree.leaves(per_field(name, value, network))])
        for name, value in (("lr", learner.lr), ("weight_decay", decay))
    )

    def of_loss(outputs, labels):
        """The mean loss, and its derivative by the outputs."""
        values, back = jax.vjp(lambda f: jax.vmap(loss)(f, labels), outputs)
        return jnp.sum(values) / batch, back(jnp.full((batch,), 1 / batch, jnp.float32))[0]

    if _is_small(network):
        parameters, total = _in_registers(network, x, y, of_loss, rates, decays, warps, interpret)
    else:
        live, exact = jnp.asarray(live, jnp.int32), learner.loss == "hinge"
        parameters, total = _tile_by_tile(network, x, y, live, of_loss, exact, rates, decays, warps, interpret)
    where = lambda net: (net.weights, net.bias, net.output, net.output_bias)  # noqa: E731
    return eqx.tree_at(where, network, parameters), total


def _call(kernel, shapes, aliases, warps, interpret):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    return pl.pallas_call(
        kernel,
        out_shape=shapes,
        input_output_aliases=aliases,
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=warps, num_stages=STAGES),
    )


def _in_registers(network, x, y, of_loss, rates, decays, warps, interpret):
    batch, n = x.shape[1:]
    (width,) = network.bias.shape
    inputs, neurons = _power_of_two(n), _power_of_two(width)

    def kernel(x_ref, y_ref, _w, _b, _u, c_ref, rate_ref, decay_ref, w_ref, b_ref, u_ref, c_out, loss_ref):
        moved = _mover(rate_ref, decay_ref)

        def step(i, state):
            w, b, u, c, total = state
            xs = x_ref[i]
            h = _times(w, xs, transposed=True) + b[:, None]
            value, slope = of_loss(jnp.sum(jnp.maximum(h, 0) * u[:, None], axis=0) + c, y_ref[i, :])
            inward = jnp.where(h > 0, u[:, None] * slope, 0.0)
            outward = jnp.sum(jnp.maximum(h, 0) * slope, axis=1)
            w, b, u = moved(0, w, _times(inward, xs)), moved(1, b, jnp.sum(inward, axis=1)), moved(2, u, outward)
            return w, b, u, moved(3, c, jnp.sum(slope)), total + value

        start = w_ref[...], b_ref[...], u_ref[...], c_ref[...], jnp.float32(0)
        end = lax.fori_loop(0, x_ref.shape[0], step, start)
        w_ref[...], b_ref[...], u_ref[...], c_out[...], loss_ref[...] = end

    w, b, u, x = _padded(network, x, neurons, inputs)
    parameters = [w, b, u, network.output_bias]
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (*(p.shape for p in parameters), ())]
    call = _call(kernel, shapes, {2: 0, 3: 1, 4: 2, 5: 3}, warps, interpret)
    w, b, u, c, total = call(x, y, *parameters, rates, decays)
    return (w[:width, :n].T, b[:width], u[:width], c), total


def _tile_by_tile(network, x, y, live, of_loss, exact, rates, decays, warps, interpret):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    count, batch, n = x.shape
    (width,) = network.bias.shape
    ahead = batches_per_pass(count, batch, n)
    blocks, tiles, parts = count // ahead, -(-width // TILE), -(-n // PART)
    word = jnp.uint32 if batch <= 32 else jnp.uint64

    def rows(j):
        return pl.ds(j * batch, batch)

    def kernel(
        x_ref, gram_ref, y_ref, live_ref, _w, _b, _u, c_ref, _h, _bits, _us, rate_ref, decay_ref,
        w_ref, b_ref, u_ref, c_out, h_ref, bits_ref, us_ref, loss_ref,
    ):  # fmt: skip
        moved = _mover(rate_ref, decay_ref)
        rate, kept = rate_ref[0], 1 - rate_ref[0] * decay_ref[0]
        places = lax.broadcasted_iota(jnp.int32, (TILE, batch), 1).astype(word)

        def wait():
            # What a thread wrote may be read by another from here on.
            if not interpret:
                triton.debug_barrier()

        def driven(on, slope):
            """Pieces of the loss's derivative by the pre-activations, but for the output weights."""
            return [jnp.where(on, piece, 0) for piece in pieces(slope, 1 if exact else 3)]

        def of_vectors(h, b, u, slope, live: Array | float = 1.0):
            on = h > 0
            inward = u * jnp.sum(jnp.where(on, slope, 0.0), axis=1)
            outward = jnp.sum(jnp.maximum(h, 0) * slope, axis=1)
            return moved(1, b, inward, live), moved(2, u, outward, live), on

        def block(m, state):
            slopes, c, total = state
            # Before the first block nothing has been learned; after the last one nothing is left to learn.
            live = jnp.minimum(m, 1).astype(jnp.float32)
            more = m < blocks
            before, following = jnp.maximum(m - 1, 0), jnp.minimum(m, blocks - 1)
            keeps = [jnp.where(m > 0, kept ** (ahead - 1 - i), 1.0) for i in range(ahead)]
            keep_all = jnp.where(m > 0, kept**ahead, 1.0)

            def pass_through(tile, outputs):
                at = pl.ds(tile * TILE, TILE)
                b, u = b_ref[at], u_ref[at]
                scales = [live * rate * keeps[i] * us_ref[i, at] for i in range(ahead - 1)] + [live * rate * u]
                b, u, on = of_vectors(h_ref[ahead - 1, at, :], b, u, slopes[-1], live)
                signals = [driven(_unpacked(bits_ref[i, at], places), slopes[i]) for i in range(ahead - 1)]
                signals.append(driven(on, slopes[-1]))
                b_ref[at], u_ref[at] = b, u

                def move(part, h):
                    w = w_ref[tile, part] * keep_all
                    for i in range(ahead):
                        change = sum(triton.dot(s, x_ref[before, part, rows(i), :]) for s in signals[i])
                        w = w - scales[i][:, None] * change
                    w_ref[tile, part] = w
                    for piece in pieces(w, 3):
                        h = h + triton.dot(piece, x_ref[following, part], trans_b=True)
                    return h

                h = lax.fori_loop(0, parts, move, jnp.zeros((TILE, ahead * batch), jnp.float32))
                first, *later = lax.split(h, [batch] * ahead, axis=1)
                first = first + b[:, None]
                for j, h in enumerate([first, *later]):
                    h_ref[j, at, :] = h
                return outputs + jnp.maximum(first, 0) * u[:, None]

            def look(j, slopes):
                scales = [rate * kept ** (j - i) for i in range(j + 1)]
                grams = [gram_ref[following, rows(i), rows(j + 1)] for i in range(j + 1)]

                def advance(tile, outputs):
                    at = pl.ds(tile * TILE, TILE)
                    u, h = u_ref[at], h_ref[j + 1, at, :] * kept ** (j + 1)
                    us = [us_ref[i, at] for i in range(j)] + [u]
                    b, u, on = of_vectors(h_ref[j, at, :], b_ref[at], u, slopes[-1])
                    b_ref[at], u_ref[at], us_ref[j, at] = b, u, us[-1]
                    bits_ref[j, at] = jnp.sum(on.astype(word) << places, axis=1).astype(word)
                    ons = [_unpacked(bits_ref[i, at], places) for i in range(j)] + [on]
                    for scale, weight, one, slope, gram in zip(scales, us, ons, slopes, grams, strict=True):
                        change = sum(triton.dot(s, gram) for s in driven(one, slope))
                        h = h - (scale * weight)[:, None] * change
                    h = h + b[:, None]
                    h_ref[j + 1, at, :] = h
                    return outputs + jnp.maximum(h, 0) * u[:, None]

                return advance

            outputs = lax.fori_loop(0, tiles, pass_through, jnp.zeros((TILE, batch), jnp.float32))
            wait()
            new = []
            for j in range(ahead):
                value, slope = of_loss(jnp.sum(outputs, axis=0) + c, y_ref[following * ahead + j, :])
                new.append(slope)
                c, total = jnp.where(more, moved(3, c, jnp.sum(slope)), c), total + jnp.where(more, value, 0.0)
                if j < ahead - 1:
                    nothing = jnp.zeros((TILE, batch), jnp.float32)
                    outputs = lax.fori_loop(0, jnp.minimum(blocks - m, 1) * tiles, look(j, new), nothing)
                    wait()
            return tuple(new), c, total

        slopes = tuple(jnp.zeros((batch,), jnp.float32) for _ in range(ahead))
        start = slopes, c_ref[...], jnp.float32(0)
        _, c_out[...], loss_ref[...] = lax.fori_loop(0, live_ref[...] * (blocks + 1), block, start)

    w, b, u, x = _padded(network, x, tiles * TILE, parts * PART)
    # What is read together lies together.
    w = w.reshape(tiles, TILE, parts, PART).swapaxes(1, 2)
    x = x.reshape(blocks, ahead * batch, parts * PART)
    gram = jnp.einsum("mrn,msn->mrs", x, x, preferred_element_type=jnp.float32).astype(jnp.bfloat16)
    x = x.reshape(blocks, ahead * batch, parts, PART).swapaxes(1, 2)
    h = jnp.zeros((ahead, len(b), batch), jnp.float32)
    bits, us = jnp.zeros((ahead, len(b)), word), jnp.zeros((ahead, len(b)), jnp.float32)
    parameters = [w, b, u, network.output_bias, h, bits, us]
    shapes = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in parameters] + [jax.ShapeDtypeStruct((), jnp.float32)]
    call = _call(kernel, shapes, {i + 4: i for i in range(7)}, warps, interpret)
    w, b, u, c, *_, total = call(x, gram, y, live, *parameters, rates, decays)
    w = w.swapaxes(1, 2).reshape(tiles * TILE, parts * PART)
    return (w[:width, :n].T, b[:width], u[:width], c), total


def batches_per_pass(count: int, batch: int, n: int) -> int:
    """Most of `count` batches for which a network passes through once: products of their inputs must be exact."""
    products_have_eight_bits = n <= (256 if n % 2 else 512)
    most = ROWS // batch if products_have_eight_bits else 1
    return max(k for k in (1, 2, 4, 8) if k <= max(most, 1) and count % k == 0)


def _mover(rate_ref, decay_ref):
    rates, decays = [[ref[i] for i in range(4)] for ref in (rate_ref, decay_ref)]

    def moved(i, value, slope, live: Array | float = 1.0):
        return value - live * rates[i] * (slope + decays[i] * value)

    return moved


def _padded(network, x, neurons, inputs):
    """What is added to fill the tiles is zero and stays so."""
    more_neurons, more_inputs = neurons - network.bias.shape[0], inputs - x.shape[-1]
    w = jnp.pad(network.weights.T, ((0, more_neurons), (0, more_inputs)))
    b, u = (jnp.pad(vector, (0, more_neurons)) for vector in (network.bias, network.output))
    return w, b, u, jnp.pad(x, ((0, 0), (0, 0), (0, more_inputs))).astype(jnp.bfloat16)


def _unpacked(words, places):
    return ((words[:, None] >> places) & 1) != 0


def _is_small(network: TwoLayer) -> bool:
    return all(side <= most for side, most in zip(network.weights.shape, SMALL, strict=True))


def _power_of_two(size: int) -> int:
    """The smallest side of a kernel's tile that holds `size`."""
    return max(16, 1 << (size - 1).bit_length())


def _times(matrix: Array, signs: Array, transposed: bool = False) -> Array:
    """matrix @ signs, or matrix @ signsᵀ: three products that are exact, because every summand has eight bits."""
    from jax.experimental.pallas import triton

    first, *rest = (triton.dot(piece, signs, trans_b=transposed) for piece in pieces(matrix, 3))
    return sum(rest, first)
