"""Gradient descent of two-layer ReLU networks on ±1 inputs as one GPU kernel for many steps.

Every replica is one thread block. A network of a single tile stays in registers from the first step to the last; a
larger one passes through once for several steps, a neuron a row: when a tile has been updated, its pre-activations on
the next batches follow at once, and what the first of these batches change in the others follows from the products of
their inputs. Inputs being ±1, a product with a matrix that is split into three bfloat16 summands is
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
# Inputs and neurons of the largest network that fits registers; loads of its loop that are under way together.
SMALL = 64, 128
STAGES = 3
# Inputs by which a tile of a larger network, 16 neurons for each warp, is updated: less to wait for, or to spill.
PART = 64
# Inputs that a network passes by at a time, and the shared memory that these and those before them may take.
ROWS = 128
SHARED = 200 * 1024
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
        and (_is_small(network) or (replicas >= ENOUGH_REPLICAS and _shared(batch, network.weights.shape[0]) <= SHARED))
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


def _call(kernel, shapes, aliases, warps, stages, interpret):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    return pl.pallas_call(
        kernel,
        out_shape=shapes,
        input_output_aliases=aliases,
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=warps, num_stages=stages),
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
    call = _call(kernel, shapes, {2: 0, 3: 1, 4: 2, 5: 3}, warps, STAGES, interpret)
    w, b, u, c, total = call(x, y, *parameters, rates, decays)
    return (w[:width, :n].T, b[:width], u[:width], c), total


def _tile_by_tile(network, x, y, live, of_loss, exact, rates, decays, warps, interpret):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    count, batch, n = x.shape
    (width,) = network.bias.shape
    ahead = batches_per_pass(count, batch, n)
    inputs, rows = _up(n, 16), 16 * warps
    blocks, tiles, parts = count // ahead, -(-width // rows), _parts(inputs)
    words = -(-batch // 32)

    def kernel(
        x_ref, gram_ref, y_ref, live_ref, _w, _v, c_ref, _h, _bits, rate_ref, decay_ref,
        w_ref, v_ref, c_out, h_ref, bits_ref, loss_ref,
    ):  # fmt: skip
        moved = _mover(rate_ref, decay_ref)
        rate, kept = rate_ref[0], 1 - rate_ref[0] * decay_ref[0]
        places = lax.broadcasted_iota(jnp.uint32, (rows, batch), 1)

        def wait():
            # What a thread wrote may be read by another from here on.
            if not interpret:
                triton.debug_barrier()

        def from_batch(j, many=1):
            return pl.ds(j * batch, many * batch)

        def of_batches(j, many=1):
            return pl.ds(rows * j * batch, rows * many * batch)

        def pack(on):
            """A bit for each example, in words of 32."""
            bits = on.astype(jnp.uint32) << places % 32
            return [jnp.sum(jnp.where(places // 32 == k, bits, 0), axis=1).astype(jnp.uint32) for k in range(words)]

        def unpack(packed):
            of_place = packed[0][:, None]
            for k in range(1, words):
                of_place = jnp.where(places // 32 == k, packed[k][:, None], of_place)
            return ((of_place >> places % 32) & 1) != 0

        def driven(on, slope):
            """Pieces of the loss's derivative by the pre-activations, but for the output weights.

            An exact derivative by the outputs is left to the other factor; ones that come from it lie as it does.
            """
            factors = pieces(0 * slope + 1, 1) if exact else pieces(slope, 3)
            return [jnp.where(on, factor, 0) for factor in factors]

        def driving(x, slope):
            """What such pieces are multiplied by."""
            return slope.astype(jnp.bfloat16)[:, None] * x if exact else x

        def of_vectors(h, b, u, slope, live: Array | float = 1.0):
            on = h > 0
            inward = u * jnp.sum(jnp.where(on, slope, 0.0), axis=1)
            outward = jnp.sum(jnp.maximum(h, 0) * slope, axis=1)
            return moved(1, b, inward, live), moved(2, u, outward, live), on

        def learned_from(h, u, signals, products):
            """Pre-activations after a step on a batch, by the products of their inputs with its inputs."""
            return kept * h - (rate * u)[:, None] * sum(triton.dot(s, products) for s in signals)

        def vectors(tile, j):
            """Biases and output weights at batch j; output weights and signals at those before it."""
            before = [(v_ref[tile, i, :], [bits_ref[tile, i, k, :] for k in range(words)]) for i in range(j)]
            return v_ref[tile, ahead, :], v_ref[tile, j, :], before

        def place(part):
            start, size = part
            return pl.ds(rows * start, rows * size)

        def weights(tile, part):
            # They are read once and leave the caches to what is read often.
            return triton.load(w_ref.at[tile, place(part)], eviction_policy="evict_first")

        def block(m, state):
            slopes, c, total = state
            # Before the first block nothing has been learned; after the last one nothing is left to learn.
            live = jnp.minimum(m, 1).astype(jnp.float32)
            more = m < blocks
            before, following = jnp.maximum(m - 1, 0), jnp.minimum(m, blocks - 1)
            keeps = [jnp.where(m > 0, kept ** (ahead - 1 - i), 1.0) for i in range(ahead)]
            keep_all = jnp.where(m > 0, kept**ahead, 1.0)
            # These lie in shared memory while all tiles pass.
            learned = [
                [driving(x_ref[before, from_batch(i), pl.ds(*part)], slope) for i, slope in enumerate(slopes)]
                for part in parts
            ]
            coming = [x_ref[following, :, pl.ds(*part)] for part in parts]

            def load(tile):
                return h_ref[tile, of_batches(ahead - 1)], vectors(tile, ahead - 1)

            def pass_through(tile, state):
                outputs, (h, (b, u, earlier)), w = state
                after = jnp.minimum(tile + 1, tiles - 1)
                scales = [live * rate * keep * v for keep, v in zip(keeps, [v for v, _ in earlier] + [u], strict=True)]
                b, u, on = of_vectors(_matrix(h, warps) + b[:, None], b, u, slopes[-1], live)
                ons = [unpack(bits) for _, bits in earlier] + [on]
                signals = [driven(one, slopes[-1 if exact else i]) for i, one in enumerate(ons)]
                v_ref[tile, ahead, :], v_ref[tile, 0, :] = b, u
                h = jnp.zeros((rows, ahead * batch), jnp.float32)
                for k, part in enumerate(parts):
                    if k + 1 < len(parts):
                        next_w = weights(tile, parts[k + 1])
                    else:
                        next_w, loaded = weights(after, parts[0]), load(after)
                    # What is loaded for later is not to be put off until then.
                    wait()
                    w = keep_all * _matrix(w, warps)
                    for scale, signal, x in zip(scales, signals, learned[k], strict=True):
                        w = w - scale[:, None] * sum(triton.dot(s, x) for s in signal)
                    w_ref[tile, place(part)] = _flat(w, warps)
                    for piece in pieces(w, 3):
                        h = h + triton.dot(piece, coming[k], trans_b=True)
                    w = next_w
                h_ref[tile, :] = _flat(h, warps)
                first, *_ = lax.split(h, [batch] * ahead, axis=1)
                return outputs + jnp.maximum(first + b[:, None], 0) * u[:, None], loaded, w

            def look(j, slopes):
                # Of batches that are learned from, products with this one and with the next.
                grams = [driving(gram_ref[following, from_batch(i), from_batch(j, 2)], slopes[i]) for i in range(j)]
                gram = driving(gram_ref[following, from_batch(j), from_batch(j + 1)], slopes[j])

                def at(i):
                    # What was last is still in the cache.
                    return i if j % 2 else tiles - 1 - i

                def load(tile):
                    return h_ref[tile, of_batches(j, 2)], vectors(tile, j)

                def advance(i, state):
                    outputs, (h, (b, u, earlier)) = state
                    tile, loaded = at(i), load(at(jnp.minimum(i + 1, tiles - 1)))
                    h = _matrix(h, warps)
                    for (v, bits), slope, products in zip(earlier, slopes, grams, strict=False):
                        h = learned_from(h, v, driven(unpack(bits), slope), products)
                    present, h = lax.split(h, [batch, batch], axis=1)
                    before = u
                    b, u, on = of_vectors(present + b[:, None], b, u, slopes[-1])
                    h = learned_from(h, before, driven(on, slopes[-1]), gram)
                    v_ref[tile, ahead, :], v_ref[tile, j + 1, :] = b, u
                    for k, bits in enumerate(pack(on)):
                        bits_ref[tile, j, k, :] = bits
                    if j == ahead - 2:
                        h_ref[tile, of_batches(j + 1)] = _flat(h, warps)
                    return outputs + jnp.maximum(h + b[:, None], 0) * u[:, None], loaded

                return lax.fori_loop(0, jnp.minimum(blocks - m, 1) * tiles, advance, (nothing, load(at(0))))[0]

            nothing = jnp.zeros((rows, batch), jnp.float32)
            start = nothing, load(0), weights(jnp.int32(0), parts[0])
            outputs = lax.fori_loop(0, tiles, pass_through, start)[0]
            wait()
            new = []
            for j in range(ahead):
                value, slope = of_loss(jnp.sum(outputs, axis=0) + c, y_ref[following * ahead + j, :])
                new.append(slope)
                c, total = jnp.where(more, moved(3, c, jnp.sum(slope)), c), total + jnp.where(more, value, 0.0)
                if j < ahead - 1:
                    outputs = look(j, new)
                    wait()
            return tuple(new), c, total

        slopes = tuple(jnp.zeros((batch,), jnp.float32) for _ in range(ahead))
        start = slopes, c_ref[...], jnp.float32(0)
        _, c_out[...], loss_ref[...] = lax.fori_loop(0, live_ref[...] * (blocks + 1), block, start)

    w, b, u, x = _padded(network, x, tiles * rows, inputs)
    # A tile lies as the matrix units hold it: what a thread needs, it reads where it needs it.
    w = jax.vmap(lambda tile: _flat(tile, warps))(w.reshape(tiles, rows, inputs))
    x = x.reshape(blocks, ahead * batch, inputs)
    gram = jnp.einsum("mrn,msn->mrs", x, x, preferred_element_type=jnp.float32).astype(jnp.bfloat16)
    h = jnp.zeros((tiles, ahead * rows * batch), jnp.float32)
    bits = jnp.zeros((tiles, ahead, words, rows), jnp.uint32)
    # Output weights at each batch of a block, and biases.
    b, u = b.reshape(tiles, 1, rows), u.reshape(tiles, 1, rows)
    v = jnp.concatenate([u] * ahead + [b], axis=1)
    parameters = [w, v, network.output_bias, h, bits]
    shapes = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in parameters] + [jax.ShapeDtypeStruct((), jnp.float32)]
    call = _call(kernel, shapes, {i + 4: i for i in range(5)}, warps, 1, interpret)
    w, v, c, *_, total = call(x, gram, y, live, *parameters, rates, decays)
    u, b = v[:, 0].reshape(-1), v[:, ahead].reshape(-1)
    w = jax.vmap(lambda tile: _matrix(tile, warps))(w).reshape(tiles * rows, inputs)
    return (w[:width, :n].T, b[:width], u[:width], c), total


def _flat(matrix: Array, warps: int) -> Array:
    """The entries of a product in the order in which the matrix units leave them: four to a thread, all threads, ..."""
    return matrix.reshape(warps, 2, 8, -1, 4, 2).transpose(3, 0, 2, 4, 1, 5).reshape(-1)


def _matrix(flat: Array, warps: int) -> Array:
    return flat.reshape(-1, warps, 8, 4, 2, 2).transpose(1, 4, 2, 0, 3, 5).reshape(16 * warps, -1)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _parts(inputs: int) -> list[tuple[int, int]]:
    """First inputs and sizes of parts, powers of two, that together have all inputs."""
    parts, start = [], 0
    while start < inputs:
        size = min(PART, 1 << (inputs - start).bit_length() - 1)
        parts.append((start, size))
        start += size
    return parts


def batches_per_pass(count: int, batch: int, n: int) -> int:
    """Most of `count` batches for which a network passes through once: products of their inputs must be exact."""
    products_have_eight_bits = n <= (256 if n % 2 else 512)
    most = ROWS // batch if products_have_eight_bits else 1
    most = min(most, SHARED // _shared(batch, n))
    return max(k for k in (1, 2, 4, 8) if k <= max(most, 1) and count % k == 0)


def _shared(batch: int, n: int) -> int:
    """Bytes of a batch of inputs, once to learn from and once to be answered."""
    return 4 * batch * _up(n, 16)


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
