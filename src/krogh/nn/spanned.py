"""Causal attention on sequences that lie in the span of a few vectors: those of few symbols without absolute positions.

Embeddings of k symbols span k dimensions, and what a first layer brings depends on the shares of the symbols alone, so
that k + (k − 1) coordinates say everything about a position. All matrices act on the few vectors instead of on every
position, and positions come last in every array, where they lie side by side.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from krogh.nn.attention import EPS, Attention, Block, LayerNorm, by_lag, causal, softmax_weights

# Queries are taken in so many parts, each of which sees the positions up to its own end only.
PARTS = 2


def everywhere(matrix: Float[Array, "out inputs"], x: Float[Array, "inputs *batch n"]) -> Float[Array, "out *batch n"]:
    """matrix · x at every position: one product of two matrices, forwards and backwards."""
    return (matrix @ x.reshape(len(x), -1)).reshape(-1, *x.shape[1:])


class Spanned(NamedTuple):
    """Sequences s_i = Σ_c coordinates[c, …, i] basis[c]: each position has its coordinates, all share the basis."""

    coordinates: Float[Array, "rank *batch n"]
    basis: Float[Array, "rank emb"]

    @classmethod
    def whole(cls, sequence: Float[Array, "emb *batch n"]) -> "Spanned":
        """Any sequences, with their entries as coordinates."""
        return cls(sequence, jnp.eye(len(sequence)))

    def times(self, matrix: Float[Array, "emb out"]) -> Float[Array, "out *batch n"]:
        """s_i · matrix at every position."""
        return everywhere((self.basis @ matrix).T, self.coordinates)

    def plus(self, other: "Spanned") -> "Spanned":
        """The sum of two sequences; never in more coordinates than there are dimensions."""
        both = Spanned(*(jnp.concatenate(parts) for parts in zip(self, other, strict=True)))
        rank, emb = both.basis.shape
        return Spanned.whole(both.times(jnp.eye(emb))) if rank > emb else both

    def normed(self, norm: LayerNorm | None) -> "Spanned":
        """After a layer norm, whose shift is one more vector of the span."""
        if norm is None:
            return self
        centred = self.basis - self.basis.mean(axis=1, keepdims=True)
        values = everywhere(centred.T, self.coordinates)
        scaled = self.coordinates * jax.lax.rsqrt(jnp.mean(values**2, axis=0) + EPS)
        one = jnp.ones_like(scaled[:1])
        return Spanned(jnp.concatenate([scaled, one]), jnp.concatenate([centred * norm.scale, norm.shift[None]]))


# ------------------------------------------------------------------------------------------- attention


def parts(n: int) -> list[tuple[int, int]]:
    """First query and end of every part."""
    bounds = sorted({n * part // PARTS for part in range(PARTS + 1)})
    return list(zip(bounds, bounds[1:], strict=False))


@jax.custom_vjp
def attend(
    query: Float[Array, "attn n"],
    key: Float[Array, "attn n"],
    value: Float[Array, "out n"],
    lags: Float[Array, "attn n"],
) -> Float[Array, "out n"]:
    """Σ_{j ≤ i} softmax_j(q_i · (k_j + r_{i−j})) v_j.

    Products of few dimensions are sums that run together with what follows them; the weights are kept for the gradient
    without their normalisation.
    """
    return _attend(query, key, value, lags)[0]


def _attend(query, key, value, lags):
    n = key.shape[1]
    # With one query more before a part its gradients can be shifted to lags as one piece of memory.
    query = jnp.pad(query, ((0, 0), (1, 0)))
    mixed, kept = [], []
    for first, end in parts(n):
        laid_out = by_lag(jnp.broadcast_to(lags[:, None, :end], (len(lags), end - first + 1, end)), first - 1)
        scores = sum(
            q[:, None] * (k[:end] + r) for q, k, r in zip(query[:, first : end + 1], key, laid_out, strict=True)
        )
        visible = np.arange(end) <= np.maximum(np.arange(first - 1, end), 0)[:, None]
        scores = jnp.where(visible, scores, -jnp.inf)
        weights = jnp.exp(scores - scores.max(axis=1, keepdims=True))
        total = weights.sum(axis=1)[1:]
        mixed.append((value[:, :end] @ weights.T)[:, 1:] / total)
        kept.append((weights, total))
    outputs = jnp.concatenate(mixed, axis=1)
    return outputs, (query, key, value, lags, outputs, kept)


def _gradients(residuals, slope):
    query, key, value, lags, outputs, kept = residuals
    centre = jnp.sum(slope * outputs, axis=0)
    for_query = []
    for_key, for_value, for_lags = (jnp.zeros_like(a) for a in (key, value, lags))
    for (first, end), (weights, total) in zip(parts(key.shape[1]), kept, strict=True):
        of_weights = jnp.pad(slope[:, first:end] / total, ((0, 0), (1, 0)))
        shift = jnp.pad(centre[first:end] / total, (1, 0))
        of_scores = weights * (
            sum(s[:, None] * v[:end] for s, v in zip(of_weights, value, strict=True)) - shift[:, None]
        )
        for_value = for_value.at[:, :end].add(of_weights @ weights)
        for_key = for_key.at[:, :end].add(query[:, first : end + 1] @ of_scores)
        # rows that are longer by one: the column of lag l is end − l
        of_lags = of_scores.reshape(-1)[first:].reshape(end - first, end + 1)
        backwards = jnp.pad(lags[:, :end], ((0, 0), (0, 1)))[:, ::-1]
        for_query.append((key[:, :end] @ of_scores.T)[:, 1:] + (of_lags @ backwards.T).T)
        for_lags = for_lags.at[:, :end].add((query[:, first + 1 : end + 1] @ of_lags)[:, :0:-1])
    return jnp.concatenate(for_query, axis=1), for_key, for_value, for_lags


attend.defvjp(_attend, _gradients)


def attend_last(
    query: Float[Array, "attn *batch n"],
    key: Float[Array, "attn *batch n"],
    value: Float[Array, "out *batch n"],
    lags: Float[Array, "attn n"],
) -> Float[Array, "out *batch 1"]:
    """`attend` at the last position alone."""
    between = [1] * (key.ndim - 2)
    seen_from_last = key + lags[:, ::-1].reshape(len(lags), *between, -1)
    weights = jax.nn.softmax(jnp.sum(query[..., -1:] * seen_from_last, axis=0), axis=-1)
    return jnp.sum(value * weights, axis=-1, keepdims=True)


def heads_of(attention: Attention, n: int) -> Iterator[tuple[Array, ...]]:
    """Each head's matrices: queries (divided by √attn), keys, values, output, and lags as (attn, n)."""
    emb, heads, attn = attention.key.shape
    for h in range(heads):
        out = jnp.eye(emb) if attention.out is None else attention.out[h]
        lags = jnp.zeros((attn, n)) if attention.lags is None else attention.lags[:n, h].T
        yield attention.query[:, h] / math.sqrt(attn), attention.key[:, h], attention.value[:, h], out, lags


def brought(attention: Attention, seen: Spanned, last: bool) -> Spanned:
    """What causal attention brings, at every position or at the last alone.

    Where the span has no more dimensions than a head, queries and values are the coordinates c themselves:
    q_i · k_j = c_iᵀ (B Q Kᵀ Bᵀ) c_j and Σ_j w_ij v_j = (Σ_j w_ij c_j) B V with the basis B.
    """
    coordinates, basis = seen
    mix = attend_last if last else attend
    for _ in range(0 if last else coordinates.ndim - 2):
        mix = jax.vmap(mix, (1, 1, 1, None), 1)

    def head(query, key, value, out, lags):
        if len(basis) > key.shape[1]:
            return mix(seen.times(query), seen.times(key), seen.times(value), lags), out
        query = basis @ query
        keys = everywhere(query @ (basis @ key).T, coordinates)
        return mix(coordinates, keys, coordinates, query @ lags), basis @ value @ out

    mixed = (head(*matrices) for matrices in heads_of(attention, coordinates.shape[-1]))
    return Spanned(*(jnp.concatenate(parts) for parts in zip(*mixed, strict=True)))


def shares_of_symbols(
    attention: Attention, table: Float[Array, "symbols emb"], code: Float[Array, "symbols *batch n"]
) -> Iterator[tuple[Float[Array, "symbols *batch n"], Float[Array, "symbols emb"]]]:
    """For every head each symbol's share of the weights, and what it brings, on sequences of one-hot codes.

    The weight of j at i is ∝ exp(S[x_i, x_j]) exp(R[x_i, i − j]), so that the shares are products of the codes with
    `symbols` matrices that all sequences have in common: no pair of positions of a sequence is looked at.
    """
    symbols, n = len(table), code.shape[-1]
    for query, key, value, out, lags in heads_of(attention, n):
        scores = table @ query @ (table @ key).T
        by_place = jnp.broadcast_to((table @ query @ lags)[:, None], (symbols, n, n))
        seen = jnp.einsum("c...j,sij->c...si", code, softmax_weights(by_lag(by_place), causal(n)))
        factors = jnp.exp(scores - scores.max(axis=1, keepdims=True)).reshape(symbols, symbols, *[1] * (code.ndim - 1))
        share = sum(code[s] * seen[..., s, :] * factors[s] for s in range(symbols))
        yield share / jnp.sum(share, axis=0), table @ value @ out


# ------------------------------------------------------------------------------------------- blocks


def after_first(block: Block, table: Float[Array, "symbols emb"], x: Int[Array, "*batch n"]) -> Spanned:
    """The sequences table[x] after a block; shares sum to one, so that the last symbol's needs no coordinate."""
    code = jax.nn.one_hot(x, len(table), axis=0)
    shares, vectors = zip(*shares_of_symbols(block.attention, block.normed(table), code), strict=True)
    others = jnp.concatenate([share[:-1] for share in shares]), jnp.concatenate([v[:-1] - v[-1] for v in vectors])
    return fed(block, Spanned(code, table + sum(v[-1] for v in vectors)).plus(Spanned(*others)))


def after(block: Block, state: Spanned, last: bool = False) -> Spanned:
    """The sequences after a block, at every position or at the last alone."""
    brings = brought(block.attention, state.normed(block.norm), last)
    return fed(block, Spanned(state.coordinates[..., -1:] if last else state.coordinates, state.basis).plus(brings))


def fed(block: Block, state: Spanned) -> Spanned:
    """The sequences after the block's feed-forward part, if it has one."""
    if block.mlp is None:
        return state
    sequence = jnp.moveaxis(state.times(jnp.eye(state.basis.shape[1])), 0, -1)
    return Spanned.whole(jnp.moveaxis(block.fed(sequence), -1, 0))
