"""Attention of one query per example over dropped-out and layer-normed rows, as GPU kernels.

A program takes a tile of positions through all examples of a batch: the table its rows come from stays in registers,
dropout comes as bits, and the normed rows, which would be most of a training step's traffic, are never written.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from krogh.nn.attention import EPS

# Positions of a program, and its warps on the way forward and back.
TILE = 64
WARPS, WARPS_BACK = 4, 8
# Numbers of eleven bits are multiplied three times: single precision on the matrix units.
PRODUCT = lax.DotAlgorithmPreset.TF32_TF32_F32_X3
# Heads of a tile: no side of a product is shorter.
HEADS = 16
WORD = 32


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
    batch, heads, emb = head.shape
    n1 = bits.shape[1]
    tail, unused = -n1 % TILE, HEADS - heads
    if attended is None:
        on = jnp.uint32(2**HEADS - 1)
    else:
        on = jnp.sum(attended.astype(jnp.uint32) << jnp.arange(heads, dtype=jnp.uint32)[:, None, None], axis=0)
    # A position's word: its bit, whether there is such a position, and the heads that keep their weight.
    known = jnp.pad(bits.astype(jnp.uint32) | 2 | on << HEADS, ((0, 0), (0, tail)))
    # The mean of a row falls out of the scores if heads are centred, and out of the sums if these are.
    head = jnp.pad(head - head.mean(axis=-1, keepdims=True), ((0, 0), (0, unused), (0, 0)))
    table, kept = (jnp.pad(a, ((0, 0), (0, tail), (0, 0))) for a in (table, kept))
    mixed, total = _attend(table, head, kept, known, jnp.asarray(counted, jnp.int32), interpret)
    mixed, total = mixed[:, :heads], total[:, :heads]
    return mixed - mixed.mean(axis=-1, keepdims=True), total


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(table, head, kept, known, counted, interpret):
    """Σ_n w_bhn r_bn/std_bn and Σ_n w_bhn for w_bhn = a_bhn softmax_n(head_bh · r_bn/std_bn)."""
    return _forward(table, head, kept, known, counted, interpret)[0]


def _forward(table, head, kept, known, counted, interpret):
    from jax.experimental import pallas as pl

    batch, heads, emb = head.shape
    tiles = known.shape[1] // TILE

    def kernel(table_ref, head_ref, kept_ref, known_ref, counted_ref, top_ref, norm_ref, total_ref, mixed_ref):
        tile = pl.program_id(0)
        at = pl.ds(tile * TILE, TILE)
        tables = table_ref[0, at], table_ref[1, at]

        def example(b, _):
            known = known_ref[b, at]
            rows, _, _, over_std = _rows(tables, [kept_ref[b, at, i] for i in range(kept_ref.shape[2])], known)
            scores = _dot(rows, head_ref[b], interpret, trans_b=True) * over_std[:, None]
            scores = jnp.where(_inside(known)[:, None], scores, -jnp.inf)
            top = jnp.max(scores, axis=0)
            weights = jnp.exp(scores - top)
            kept_weights = jnp.where(_attended(known), weights, 0.0)
            top_ref[tile, b] = top
            norm_ref[tile, b] = jnp.sum(weights, axis=0)
            total_ref[tile, b] = jnp.sum(kept_weights, axis=0)
            mixed_ref[tile, b] = _dot(kept_weights * over_std[:, None], rows, interpret, trans_a=True)

        lax.fori_loop(0, counted_ref[...], example, None)

    shapes = [jax.ShapeDtypeStruct((tiles, batch, heads, *end), jnp.float32) for end in ((), (), (), (emb,))]
    parts = _call(kernel, tiles, shapes, WARPS, interpret)(table, head, kept, known, counted)
    # What was not looked at was not written either.
    counts = jnp.arange(batch)[:, None] < counted
    top, norm, total = (jnp.where(counts, part, 0.0) for part in parts[:3])
    highest = top.max(axis=0)
    share = jnp.exp(top - highest)
    norm = jnp.where(counts, jnp.sum(share * norm, axis=0), 1.0)
    share = share / norm
    mixed = jnp.sum(share[..., None] * jnp.where(counts[..., None], parts[3], 0.0), axis=0)
    total = jnp.sum(share * total, axis=0)
    return (mixed, total), (table, head, kept, known, counted, mixed, total, highest + jnp.log(norm))


def _backward(interpret, saved, slopes):
    from jax.experimental import pallas as pl

    table, head, kept, known, counted, mixed, total, log_norm = saved
    of_mixed, of_total = slopes
    _, heads, emb = head.shape
    tiles = known.shape[1] // TILE
    # Σ_n softmax_n times the slope by it.
    level = jnp.sum(of_mixed * mixed, axis=-1) + of_total * total

    def kernel(
        table_ref, head_ref, kept_ref, known_ref, counted_ref, log_norm_ref, level_ref, of_total_ref, of_mixed_ref,
        of_table_ref, of_head_ref,
    ):  # fmt: skip
        tile = pl.program_id(0)
        at = pl.ds(tile * TILE, TILE)
        tables = table_ref[0, at], table_ref[1, at]

        def example(b, slopes):
            known = known_ref[b, at]
            rows, stays, mean, over_std = _rows(tables, [kept_ref[b, at, i] for i in range(kept_ref.shape[2])], known)
            head, of_mixed = head_ref[b], of_mixed_ref[b]
            scores = _dot(rows, head, interpret, trans_b=True) * over_std[:, None]
            gains = _dot(rows, of_mixed, interpret, trans_b=True) * over_std[:, None]
            weights = jnp.where(_inside(known)[:, None], jnp.exp(scores - log_norm_ref[b]), 0.0)
            kept_weights = jnp.where(_attended(known), weights, 0.0)
            of_scores = kept_weights * (gains + of_total_ref[b]) - weights * level_ref[b]
            along = jnp.sum(kept_weights * gains + of_scores * scores, axis=1) * over_std / emb
            kept_weights, of_scores = kept_weights * over_std[:, None], of_scores * over_std[:, None]
            of_head_ref[tile, b] = _dot(of_scores, rows, interpret, trans_a=True)
            of_rows = _dot(kept_weights, of_mixed, interpret) + _dot(of_scores, head, interpret)
            along = along * over_std
            of_rows = of_rows - along[:, None] * rows + (along * mean)[:, None]
            of_rows = jnp.where(stays, of_rows, 0.0)
            return slopes[0] + of_rows, slopes[1] + _bit(known)[:, None] * of_rows

        nothing = jnp.zeros((TILE, emb), jnp.float32)
        both, second = lax.fori_loop(0, counted_ref[...], example, (nothing, nothing))
        of_table_ref[0, at], of_table_ref[1, at] = both - second, second

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (table.shape, (tiles, *head.shape))]
    call = _call(kernel, tiles, shapes, WARPS_BACK, interpret)
    of_table, of_head = call(table, head, kept, known, counted, log_norm, level, of_total, of_mixed)
    counts = jnp.arange(len(head))[:, None, None] < counted
    return of_table, jnp.where(counts, of_head, 0.0).sum(axis=0), None, None, None


_attend.defvjp(_forward, _backward)


def _call(kernel, tiles, shapes, warps, interpret):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    return pl.pallas_call(
        kernel,
        grid=(tiles,),
        out_shape=shapes,
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=warps, num_stages=1),
    )


def _dot(left, right, interpret, **transposed):
    from jax.experimental.pallas import triton

    return triton.dot(left, right, precision=lax.Precision.HIGHEST if interpret else PRODUCT, **transposed)


def _rows(tables, words, known):
    """Rows after dropout, where they stay, and their means and inverse standard deviations."""
    tile, emb = tables[0].shape
    place = lax.broadcasted_iota(jnp.uint32, (tile, emb), 1)
    word = words[0][:, None]
    for i, later in enumerate(words[1:], 1):
        word = jnp.where(place >= i * WORD, later[:, None], word)
    stays = (word >> place % WORD) & 1 != 0
    rows = jnp.where(stays, jnp.where((known & 1 != 0)[:, None], tables[1], tables[0]), 0.0)
    mean = jnp.sum(rows, axis=1) / emb
    # Dropout alone keeps the variance above a tenth of the squared mean or so: nothing cancels.
    variance = jnp.maximum(jnp.sum(rows * rows, axis=1) / emb - mean * mean, 0)
    return rows, stays, mean, lax.rsqrt(variance + EPS)


def _bit(known):
    return (known & 1).astype(jnp.float32)


def _inside(known):
    return known & 2 != 0


def _attended(known):
    places = lax.broadcasted_iota(jnp.uint32, (known.shape[0], HEADS), 1)
    return (known[:, None] >> places + HEADS) & 1 != 0
