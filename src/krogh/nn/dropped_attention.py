"""Attention of one query per example over dropped-out and layer-normed rows, as GPU kernels.

A program takes a tile of positions through all examples of a batch: the tables its rows come from stay in registers,
dropout comes as bits, and the normed rows, which would be most of a training step's traffic, are never written.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from krogh.nn.attention import EPS
from krogh.nn.products import pieces

# Positions of a program, and its warps: one for every sixteen.
TILE, WARPS = 64, 4
# Heads of a tile: no side of a product is shorter.
HEADS = 16
WORD = 32
# Factors of products are below 128; multiplied by this they are half-precision numbers with as much room below.
SPAN = 256.0


def applies(heads: int, emb: int) -> bool:
    """Whether the kernels run here and their tiles fit registers."""
    return jax.default_backend() == "gpu" and heads <= HEADS and emb in (32, 64)


def attend(
    table: Float[Array, "2 n1 emb"],
    head: Float[Array, "batch heads emb"],
    bits: Bool[Array, "batch n1"],
    kept: UInt32[Array, "batch n1 words"],
    attended: Bool[Array, "heads batch n1"] | None,
    counted: Int[Array, ""] | int,
    interpret: bool = False,
) -> tuple[Float[Array, "batch heads emb"], Float[Array, "batch heads"]]:
    """Σ_n w_bhn c_bn and Σ_n w_bhn, with w_bhn = a_hbn softmax_n(head_bh · c_bn) and c_bn = (r_bn − mean)/std.

    r_bn = k_bn ∘ table[bits_bn, n]; k_bn, whose entries are the bits of `kept`, and a = `attended` are 0 or 1. Examples
    from the first `counted` on bring 0 and cost nothing.
    """
    heads = head.shape[1]
    tail, unused = -bits.shape[1] % TILE, HEADS - heads
    if attended is None:
        on = jnp.uint32(2**HEADS - 1)
    else:
        on = jnp.sum(attended.astype(jnp.uint32) << jnp.arange(heads, dtype=jnp.uint32)[:, None, None], axis=0)
    # A position's word: its bit, whether there is such a position, and the heads that keep their weight.
    known = jnp.pad(bits.astype(jnp.uint32) | 2 | on << HEADS, ((0, 0), (0, tail)))
    table, kept = (jnp.pad(a, ((0, 0), (0, tail), (0, 0))) for a in (table, kept))
    head = jnp.pad(head - head.mean(axis=-1, keepdims=True), ((0, 0), (0, unused), (0, 0)))
    mixed, total = _attend(table, head, kept, known, jnp.asarray(counted, jnp.int32), interpret)
    return mixed[:, :heads], total[:, :heads]


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(table, head, kept, known, counted, interpret):
    """As above, for full tiles and for heads of mean zero: what is common to a row's entries has no slope then."""
    return _forward(table, head, kept, known, counted, interpret)[0]


def _forward(table, head, kept, known, counted, interpret):
    from jax.experimental import pallas as pl

    batch, heads, emb = head.shape
    tiles = known.shape[1] // TILE
    size = jnp.maximum(_size(head), 1)

    def kernel(
        table_ref, high_ref, low_ref, kept_ref, known_ref, counted_ref, size_ref,
        top_ref, norm_ref, total_ref, mixed_ref,
    ):  # fmt: skip
        tile = pl.program_id(0)
        at = pl.ds(tile * TILE, TILE)
        tables = _tables(table_ref, at)
        size = size_ref[...]

        def example(b, _):
            centred, known, _, _ = _rows(tables, kept_ref, known_ref, b, at)
            rows = _halves(centred)
            scores = _product(rows, (high_ref[b], low_ref[b]), trans_b=True) * (size / SPAN)
            scores = jnp.where(_inside(known), scores, -jnp.inf)
            top = jnp.max(scores, axis=0)
            weights = jnp.exp(scores - top)
            kept_weights = jnp.where(_attended(known), weights, 0.0)
            top_ref[tile, b] = top
            norm_ref[tile, b] = _sums(weights)
            total_ref[tile, b] = _sums(kept_weights)
            mixed_ref[tile, b] = _product(_halves(SPAN * kept_weights), rows, trans_a=True)

        lax.fori_loop(0, counted_ref[...], example, None)

    ends = (heads,), (TILE // 16, heads), (TILE // 16, heads), (heads, emb)
    shapes = [jax.ShapeDtypeStruct((tiles, batch, *end), jnp.float32) for end in ends]
    call = _call(kernel, tiles, shapes, 2 * _operations(head, known), interpret)
    top, norm, total, mixed = call(table, *_halves(SPAN / size * head), kept, known, counted, size)
    # What was not looked at was not written either.
    counts = jnp.arange(batch)[:, None] < counted
    top, norm, total = (jnp.where(counts, part, 0.0) for part in (top, norm.sum(axis=2), total.sum(axis=2)))
    mixed = jnp.where(counts[..., None], mixed, 0.0)
    highest = top.max(axis=0)
    share = jnp.exp(top - highest)
    norm = jnp.where(counts, jnp.sum(share * norm, axis=0), 1.0)
    share = share / norm
    mixed = jnp.sum(share[..., None] / SPAN * mixed, axis=0)
    total = jnp.sum(share * total, axis=0)
    return (mixed, total), (table, head, kept, known, counted, size, mixed, total, highest + jnp.log(norm))


def _backward(interpret, saved, slopes):
    from jax.experimental import pallas as pl

    table, head, kept, known, counted, size, mixed, total, log_norm = saved
    of_mixed, of_total = slopes
    batch, heads, emb = head.shape
    tiles = known.shape[1] // TILE
    of_mixed = of_mixed - of_mixed.mean(axis=-1, keepdims=True)
    unit = jnp.maximum(jnp.maximum(_size(of_mixed), _size(of_total)), 1e-30)
    of_mixed, of_total = SPAN / unit * of_mixed, SPAN / unit * of_total
    # Σ_n of the softmax times the slope by it.
    level = jnp.sum(of_mixed * mixed, axis=-1) + of_total * total

    def kernel(
        table_ref, high_ref, low_ref, kept_ref, known_ref, counted_ref, size_ref, log_norm_ref, of_total_ref, level_ref,
        of_table_ref, of_head_ref,
    ):  # fmt: skip
        tile = pl.program_id(0)
        at = pl.ds(tile * TILE, TILE)
        tables = _tables(table_ref, at)
        size = size_ref[...]

        def example(b, slopes):
            centred, known, stays, over_std = _rows(tables, kept_ref, known_ref, b, at)
            rows, both = _halves(centred), (high_ref[b], low_ref[b])
            scores, gains = _apart(_product(rows, both, trans_b=True))
            scores = scores * (size / SPAN)
            weights = jnp.where(_inside(known), jnp.exp(scores - log_norm_ref[b]), 0.0)
            kept_weights = jnp.where(_attended(known), weights, 0.0)
            of_scores = kept_weights * (gains + of_total_ref[b]) - weights * level_ref[b]
            of_head_ref[tile, b] = _product(_halves(of_scores), rows, trans_a=True)
            of_rows = _product(_halves(_beside(of_scores, SPAN / size * kept_weights)), both)
            # The norm takes out what lies along the row itself.
            along = jnp.sum(kept_weights * gains + of_scores * scores, axis=1) / (SPAN * emb)
            of_rows = (size / SPAN**2 * over_std)[:, None] * of_rows - (over_std * along)[:, None] * centred
            of_rows = jnp.where(stays, of_rows, 0.0)
            return slopes[0] + of_rows, slopes[1] + _bit(known) * of_rows

        nothing = jnp.zeros((TILE, emb), jnp.float32)
        every, second = lax.fori_loop(0, counted_ref[...], example, (nothing, nothing))
        of_table_ref[0, at], of_table_ref[1, at] = every - second, second

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (table.shape, (tiles, *head.shape))]
    call = _call(kernel, tiles, shapes, 4 * _operations(head, known), interpret)
    # Chosen and not stacked, because choosing becomes part of what makes the two.
    is_slope = jnp.arange(2)[:, None] == 1
    both = jnp.where(is_slope, of_mixed[:, :, None], (SPAN / size * head)[:, :, None])
    both = _halves(both.reshape(batch, 2 * heads, emb))
    of_table, of_head = call(table, *both, kept, known, counted, size, log_norm, of_total, level)
    of_head = jnp.where(jnp.arange(batch)[:, None, None] < counted, of_head, 0.0)
    return unit * of_table, unit / SPAN * jnp.sum(of_head, axis=0), None, None, None


_attend.defvjp(_forward, _backward)


def _call(kernel, tiles, shapes, operations, interpret):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    return pl.pallas_call(
        kernel,
        grid=(tiles,),
        out_shape=shapes,
        interpret=interpret,
        cost_estimate=pl.CostEstimate(flops=operations, transcendentals=0, bytes_accessed=0),
        compiler_params=None if interpret else triton.CompilerParams(num_warps=WARPS, num_stages=1),
    )


def _operations(head, known):
    """Of one product of all heads and rows."""
    return 2 * head.size * known.shape[1]


# ------------------------------------------------------------------------------------------- products


def _size(values):
    """The largest power of two that is not above the largest magnitude."""
    return jnp.exp2(jnp.floor(jnp.log2(jnp.max(jnp.abs(values)))))


def _halves(values):
    """Two half-precision summands, which together have the bits of single precision."""
    high = values.astype(jnp.float16)
    return high, (values - high.astype(jnp.float32)).astype(jnp.float16)


def _product(left, right, **transposed):
    """Of numbers in halves, in single precision: the product of the low halves is below it."""
    from jax.experimental.pallas import triton

    first, *rest = (triton.dot(left[i], right[j], **transposed) for i, j in ((1, 0), (0, 1), (0, 0)))
    return sum(rest, first)


def _beside(first, second):
    """Columns of the two in turn."""
    return jnp.concatenate([first[..., None], second[..., None]], axis=-1).reshape(len(first), -1)


def _apart(columns):
    """What lies beside each other."""
    first, second = lax.split(columns.reshape(len(columns), -1, 2), (1, 1), axis=2)
    return first[..., 0], second[..., 0]


def _sums(weights):
    """Over sixteen positions each: these are one warp's, which need not wait for the others."""
    return jnp.sum(weights.reshape(-1, 16, weights.shape[1]), axis=1)


# ------------------------------------------------------------------------------------------- rows


def _tables(table_ref, at):
    """A tile of either table, whose numbers lie as those of a product do: so the next product wants its factor."""
    from jax.experimental.pallas import triton

    emb = table_ref.shape[2]
    row, column = (lax.broadcasted_iota(jnp.int32, (emb, emb), axis) for axis in (0, 1))
    one = (row == column).astype(jnp.bfloat16)

    def laid_out(values):
        first, *rest = (triton.dot(piece, one) for piece in pieces(values))
        return sum(rest, first)

    return laid_out(table_ref[0, at]), laid_out(table_ref[1, at])


def _rows(tables, kept_ref, known_ref, b, at):
    """Normed rows after dropout, what is known of their positions, where they stay, and 1/std."""
    tile, emb = tables[0].shape
    known = known_ref[b, at][:, None]
    words = [kept_ref[b, at, i][:, None] for i in range(kept_ref.shape[2])]
    place = lax.broadcasted_iota(jnp.uint32, (tile, emb), 1)
    word = words[0] if len(words) == 1 else jnp.where(place < WORD, words[0], words[1])
    stays = (word >> place % WORD) & 1 != 0
    rows = jnp.where(stays, jnp.where(known & 1 != 0, tables[1], tables[0]), 0.0)
    mean = jnp.sum(rows, axis=1) / emb
    # Dropping a tenth alone keeps the variance above a tenth of the squared mean or so: nothing cancels.
    variance = jnp.maximum(jnp.sum(rows * rows, axis=1) / emb - mean * mean, 0)
    over_std = lax.rsqrt(variance + EPS)
    return rows * over_std[:, None] - (mean * over_std)[:, None], known, stays, over_std


def _bit(known):
    return (known & 1).astype(jnp.float32)


def _inside(known):
    return known & 2 != 0


def _attended(known):
    places = lax.broadcasted_iota(jnp.uint32, (len(known), HEADS), 1)
    return (known >> places + HEADS) & 1 != 0
