"""The parts every transformer here is made of: attention, position codes, norms, feed-forward layers, dropout."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt32

# ------------------------------------------------------------------------------------------- who sees whom


def causal(n: int, first: int = 0) -> Bool[np.ndarray, "queries {n}"]:
    """Position i sees j ≤ i, for the queries i = first, …, n − 1."""
    return np.arange(n) <= np.arange(first, n)[:, None]


def earlier(n: int) -> Bool[np.ndarray, "1 n1"]:
    """The closing position n sees the n before it and not itself: a prompt's query and its examples."""
    return np.arange(n + 1)[None] < n


# ------------------------------------------------------------------------------------------- weights


def softmax_weights(
    scores: Float[Array, "*heads queries n"], visible: Bool[Any, "queries n"] | None = None
) -> Float[Array, "*heads queries n"]:
    """softmax over the visible positions, 0 elsewhere."""
    return jax.nn.softmax(scores if visible is None else jnp.where(visible, scores, -jnp.inf), axis=-1)


def linear_weights(
    scores: Float[Array, "*heads queries n"], visible: Bool[Any, "queries n"] | None = None
) -> Float[Array, "*heads queries n"]:
    """The scores themselves at the visible positions, 0 elsewhere: attention without softmax."""
    return scores if visible is None else jnp.where(visible, scores, 0.0)


def by_lag(products: Float[Array, "*heads queries lags"], first: int = 0) -> Float[Array, "*heads queries lags"]:
    """From products[i, l] of query first + i with lag l the scores s[i, j] = products[i, first + i − j], j ≤ first + i.

    Shifting every row by its own number is a change of row length; entries with j > first + i are meaningless.
    """
    *heads, queries, n = products.shape
    padded = jnp.pad(products[..., ::-1], [(0, 0)] * (len(heads) + 1) + [(1, 0)])
    return padded.reshape(*heads, -1)[..., n - first :].reshape(*heads, queries, n)


# ------------------------------------------------------------------------------------------- layers


# Added to the variance by every layer norm.
EPS = 1e-5


class LayerNorm(eqx.Module):
    """(x − mean)/std · scale + shift over the last axis."""

    scale: Float[Array, " emb"]
    shift: Float[Array, " emb"]

    def __call__(self, x: Float[Array, "*batch emb"]) -> Float[Array, "*batch emb"]:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred * lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + EPS) * self.scale + self.shift


def layer_norm(emb: int) -> LayerNorm:
    """A layer norm as it starts: scale 1, shift 0."""
    return LayerNorm(jnp.ones(emb), jnp.zeros(emb))


class Affine(eqx.Module):
    """x W + b; W may have several output axes."""

    weight: Array
    bias: Array

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Array:
        return jnp.tensordot(x, self.weight, 1) + self.bias


class FeedForward(eqx.Module):
    """W_2 GELU(W_1 x + b_1) + b_2 at every position."""

    inner: Affine
    outer: Affine

    def __call__(self, x: Float[Array, "*batch emb"]) -> Float[Array, "*batch emb"]:
        return self.outer(jax.nn.gelu(self.inner(x)))


class Attention(eqx.Module):
    """Σ_h softmax_j(x_i Q_h (x_j K_h + r_{i−j,h})ᵀ/√d_attn) x_j V_h O_h over the visible j; no biases.

    out    O; None for none, where heads are as wide as the sequence
    lags   r, vectors of relative positions added to the keys; None for none
    """

    query: Float[Array, "emb heads attn"]
    key: Float[Array, "emb heads attn"]
    value: Float[Array, "emb heads attn"]
    out: Float[Array, "heads attn emb"] | None
    lags: Float[Array, "lags heads attn"] | None = None

    def scores(self, sequence: Float[Array, "n emb"], first: int = 0) -> Float[Array, "heads queries n"]:
        """x_i Q_h (x_j K_h + r_{i−j,h})ᵀ/√d_attn for the queries i ≥ first and all j."""
        n, emb = sequence.shape
        _, heads, attn = self.key.shape
        query = jnp.einsum("qe,eha->hqa", sequence[first:], self.query) / math.sqrt(attn)
        if len(query[0]) * (attn + n) * emb < n * attn * (emb + len(query[0])):  # few queries: keys are never made
            scores = jnp.einsum("hqa,eha->hqe", query, self.key) @ sequence.T
        else:
            scores = jnp.einsum("hqa,hna->hqn", query, jnp.einsum("ne,eha->hna", sequence, self.key))
        if self.lags is None:
            return scores
        # the vectors are laid out once for all sequences of a batch, which is cheaper than shifting each one's scores
        lags = self.lags[:n].transpose(1, 2, 0)[:, :, None]
        laid_out = by_lag(jnp.broadcast_to(lags, (heads, attn, n - first, n)), first)
        return scores + jnp.einsum("hqa,haqn->hqn", query, laid_out)

    def weights(
        self, sequence: Float[Array, "n emb"], first: int = 0, visible: Bool[Any, "queries n"] | None = None
    ) -> Float[Array, "heads queries n"]:
        """How much the queries from `first` on look at every position; causally unless `visible` says otherwise."""
        return softmax_weights(
            self.scores(sequence, first), causal(len(sequence), first) if visible is None else visible
        )

    def mix(
        self, weights: Float[Array, "heads queries n"], sequence: Float[Array, "n emb"]
    ) -> Float[Array, "queries emb"]:
        """What weights bring: Σ_h weights_h x V_h O_h."""
        queries, n = weights.shape[1:]
        if queries < n:  # the projections act on the few queries and never on every position
            mixed = jnp.einsum("hqe,eha->hqa", weights @ sequence, self.value)
        else:
            mixed = weights @ jnp.einsum("ne,eha->hna", sequence, self.value)
        return mixed.sum(axis=0) if self.out is None else jnp.einsum("hqa,hae->qe", mixed, self.out)

    def __call__(
        self, sequence: Float[Array, "n emb"], first: int = 0, visible: Bool[Any, "queries n"] | None = None
    ) -> Float[Array, "queries emb"]:
        return self.mix(self.weights(sequence, first, visible), sequence)


class Block(eqx.Module):
    """s ← s + Attention(LN s), then s ← s + FeedForward(LN s); either norm and the feed-forward part may be absent."""

    attention: Attention
    norm: LayerNorm | None = None
    mlp: FeedForward | None = None
    mlp_norm: LayerNorm | None = None

    def normed(self, sequence: Float[Array, "n emb"]) -> Float[Array, "n emb"]:
        """What the attention sees."""
        return sequence if self.norm is None else self.norm(sequence)

    def fed(self, state: Float[Array, "*batch n emb"], mask: Any = 1.0) -> Float[Array, "*batch n emb"]:
        """After the feed-forward part, if there is one; `mask` drops out what it adds."""
        if self.mlp is None:
            return state
        return state + mask * self.mlp(state if self.mlp_norm is None else self.mlp_norm(state))

    def __call__(
        self, sequence: Float[Array, "n emb"], first: int = 0, masks: Sequence[Any] = (1.0, 1.0, 1.0)
    ) -> Float[Array, "queries emb"]:
        """The positions from `first` on; `masks` drop out attention weights and both residual branches."""
        seen = self.normed(sequence)
        brought = self.attention.mix(masks[0] * self.attention.weights(seen, first), seen)
        return self.fed(sequence[first:] + masks[1] * brought, masks[-1])


# ------------------------------------------------------------------------------------------- initialisation and noise


def sinusoidal(n: int, emb: int) -> Float[Array, "{n} {emb}"]:
    """sin(i/10000^{2j/emb}) at column 2j and the cosine at 2j + 1, for the positions i = 0, …, n − 1."""
    angles = np.arange(n)[:, None] / 10_000 ** (np.arange(0, emb, 2) / emb)
    return jnp.asarray(np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(n, -1)[:, :emb], jnp.float32)


class Pool:
    """Random numbers for all matrices of a network from one draw: compiling each apart outlasts a short training."""

    def __init__(self, numbers: Float[Array, " total"]):
        self.numbers, self.used = numbers, 0

    def take(self, *shape: int) -> Array:
        """The next numbers in this shape."""
        start, self.used = self.used, self.used + math.prod(shape)
        return self.numbers[start : self.used].reshape(shape)


def dropout_masks(key: PRNGKeyArray, rate: float, *shapes: tuple[int, ...]) -> list[Array]:
    """Factors that are 0 with probability `rate`, in steps of 1/256, and 1/(1 − rate) otherwise, of these shapes.

    All come from one draw, because every further call of the generator would cost a second of compilation. A word of it
    serves four numbers: drawn as bytes, every one of them would cost a word.
    """
    if rate == 0:
        return [jnp.ones(shape) for shape in shapes]
    sizes = [math.prod(shape) for shape in shapes]
    numbers = lax.bitcast_convert_type(_words(key, sum(sizes)), jnp.uint8).ravel()
    factors = jnp.where(numbers >= _dropped(rate), kept_factor(rate), 0.0)
    parts = jnp.split(factors, list(accumulate(sizes)))
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=False)]


def dropout_bits(key: PRNGKeyArray, rate: float, shape: tuple[int, ...]) -> UInt32[Array, "*shape words"]:
    """Where `dropout_masks` of one shape is not 0: entry 32 j + i of its last axis, of 32 entries or a multiple, is bit
    i of word j."""
    words = _words(key, math.prod(shape)).reshape(*shape[:-1], -1, 8)
    four = sum(((words >> 8 * i & 255) >= _dropped(rate)).astype(jnp.uint32) << i for i in range(4))
    return jnp.sum(four << 4 * jnp.arange(8, dtype=jnp.uint32), axis=-1, dtype=jnp.uint32)


def unpacked(words: UInt32[Array, "*shape words"]) -> Bool[Array, "*shape numbers"]:
    """The bits of words, one after the other."""
    bits = words[..., None] >> jnp.arange(32, dtype=jnp.uint32) & 1
    return bits.reshape(*words.shape[:-1], -1) != 0


def kept_factor(rate: float) -> float:
    """What dropout multiplies by where it keeps."""
    return 256 / (256 - _dropped(rate))


def _dropped(rate: float) -> int:
    return round(rate * 256)


def _words(key: PRNGKeyArray, numbers: int) -> UInt32[Array, " words"]:
    """Random words that hold so many bytes, the first in the lowest bits."""
    return jax.random.bits(key, (-(-numbers // 4),), jnp.uint32)
