"""A one-layer pre-norm transformer on bits, read out at [CLS] (003 §A.3.1)."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from krogh.nn.base import Architecture, Buffer, width_of
from krogh.tasks.base import Task

# Scores further than this below a head's largest one are raised to it: e^-80 is still a normal float.
SCORE_RANGE = 80.0


class LayerNorm(eqx.Module):
    """(x − mean)/std · scale + shift over the last axis."""

    scale: Float[Array, " emb"]
    shift: Float[Array, " emb"]

    def __call__(self, x: Float[Array, "*batch emb"]) -> Float[Array, "*batch emb"]:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5) * self.scale + self.shift


class Affine(eqx.Module):
    """x W + b; W may have several output axes."""

    weight: Array
    bias: Array

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Array:
        return jnp.tensordot(x, self.weight, 1) + self.bias


def dropout(key: PRNGKeyArray, x: Array, rate: float) -> Array:
    """Each entry is 0 with probability `rate` (to 16 bits) and divided by 1 − rate otherwise."""
    if rate == 0:
        return x
    keep = jax.random.bits(key, x.shape, jnp.uint16) >= round(rate * 2**16)
    return jnp.where(keep, x / (1 - rate), 0.0)


class BitTransformer(eqx.Module):
    """Of the one layer only the [CLS] row is computed:

        z = [E_{b_t} + P_t; E_CLS + P_CLS];  a = z_CLS + Attention(LN z)_CLS;  f = LN(a + MLP(LN a)) W.

    A score depends on its position and bit alone, so without dropout numerator and denominator of the softmax mixture
    are linear in b: two tables of size (n, heads, attn + 1) serve all inputs. A bias of the keys would cancel.
    """

    tokens: Float[Array, "3 emb"]
    positions: Float[Array, "n1 emb"]
    norm: LayerNorm
    query: Affine
    key: Float[Array, "emb heads attn"]
    value: Affine
    out: Affine
    mlp_norm: LayerNorm
    mlp_in: Affine
    mlp_out: Affine
    last_norm: LayerNorm
    output: Float[Array, "emb outputs"]
    masks: Buffer
    dropout: float = eqx.field(static=True)
    embedding_dropout: float = eqx.field(static=True)

    def _head(self, query: Float[Array, "*batch heads attn"]) -> Float[Array, "*batch heads emb"]:
        """Each head's query carried through the key matrix: its product with a normed row is the score."""
        return jnp.einsum("...ha,eha->...he", query, self.key) / math.sqrt(self.key.shape[-1])

    def _table(self) -> tuple[Array, Array, Array, Array, Array]:
        """Scores (2, heads, n) and values (2, n, heads, attn) of either bit, those of [CLS], and the [CLS] row."""
        row = self.tokens[2] + self.positions[-1]
        last = self.norm(row)
        bits = self.norm(self.tokens[:2, None] + self.positions[:-1])
        head = self._head(self.query(last))
        return jnp.einsum("he,vne->vhn", head, bits), self.value(bits), head @ last, self.value(last), row

    def attention(self, x: Float[Array, " n"]) -> Float[Array, "heads n1"]:
        """Attention weights of [CLS] over (positions, [CLS]) for each head."""
        scores, _, own, _, _ = self._table()
        chosen = jnp.where(x > 0.5, scores[1], scores[0])
        return jax.nn.softmax(jnp.concatenate([chosen, own[:, None]], axis=1), axis=1)

    def _read(self, row: Array, mixed: Float[Array, "*batch heads attn"], key: PRNGKeyArray | None) -> Array:
        """From the [CLS] row and what the heads bring it to the outputs; with dropout where there is a key."""

        def dropped(x: Array, number: int) -> Array:
            return x if key is None else dropout(jax.random.fold_in(key, number), x, self.dropout)

        row = row + dropped(self.out(mixed.reshape(*mixed.shape[:-2], -1)), 0)
        row = row + dropped(self.mlp_out(jax.nn.gelu(self.mlp_in(self.mlp_norm(row)))), 1)
        return self.last_norm(row) @ self.output

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " outputs"]:
        scores, values, own, own_value, row = self._table()
        top = jnp.maximum(scores.max(axis=(0, 2)), own)
        weight = jnp.exp(jnp.maximum(scores - top[:, None], -SCORE_RANGE)).transpose(0, 2, 1)[..., None]
        table = jnp.concatenate([weight * values, weight], axis=-1).reshape(2, len(x), -1)
        own_weight = jnp.exp(jnp.maximum(own - top, -SCORE_RANGE))[:, None]
        start = jnp.concatenate([own_weight * own_value, own_weight], axis=-1)
        # Each bit picks from its own table: a difference of the two would cancel where one score dwarfs the other.
        sums = (x @ table[1] + (1 - x) @ table[0]).reshape(start.shape) + start
        return self._read(row, sums[:, :-1] / sums[:, -1:], None)

    def batch(self, x: Float[Array, "batch n"], key: PRNGKeyArray) -> tuple[Array, "BitTransformer"]:
        """Outputs with dropout on embeddings, attention weights and both residual branches."""
        # The masks depend on the initialisation too: a restart on the same data has its own.
        keys = jax.random.split(jax.random.fold_in(key, self.masks.value), 3)
        one = x[:, None, :] > 0.5
        if self.embedding_dropout:
            body = jnp.where(one.transpose(0, 2, 1), self.tokens[1], self.tokens[0]) + self.positions[:-1]
            row = jnp.broadcast_to(self.tokens[2] + self.positions[-1], (len(x), 1, body.shape[-1]))
            rows = dropout(keys[0], jnp.concatenate([body, row], axis=1), self.embedding_dropout)
            normed, row = self.norm(rows), rows[:, -1]
            scores = jnp.einsum("bhe,bne->bhn", self._head(self.query(normed[:, -1])), normed)
            weights = dropout(keys[1], jax.nn.softmax(scores, axis=-1), self.dropout)
            mixed = jnp.einsum("bhe,eha->bha", jnp.einsum("bhn,bne->bhe", weights, normed), self.value.weight)
            mixed = mixed + weights.sum(axis=-1)[..., None] * self.value.bias
        else:
            table, values, own, own_value, row = self._table()
            own = jnp.broadcast_to(own[None, :, None], (len(x), len(own), 1))
            scores = jnp.concatenate([jnp.where(one, table[1], table[0]), own], axis=2)
            weights = dropout(keys[1], jax.nn.softmax(scores, axis=-1), self.dropout)
            body = weights[..., :-1]
            mixed = jnp.einsum("bhn,nha->bha", jnp.where(one, body, 0.0), values[1])
            mixed = mixed + jnp.einsum("bhn,nha->bha", jnp.where(one, 0.0, body), values[0])
            mixed = mixed + weights[..., -1:] * own_value
        return self._read(row, mixed, keys[2]), self


class OneLayerTransformer(Architecture):
    """GPT-style weights: matrices and embeddings N(0, `scale`²), biases 0, layer norms the identity."""

    emb: int = eqx.field(static=True, default=64)
    heads: int = eqx.field(static=True, default=16)
    attn: int = eqx.field(static=True, default=4)
    mlp: int = eqx.field(static=True, default=256)
    dropout: float = eqx.field(static=True, default=0.1)
    embedding_dropout: float = eqx.field(static=True, default=0.1)
    scale: float = 0.02

    def __check_init__(self):
        width_of(emb=self.emb, heads=self.heads, attn=self.attn, mlp=self.mlp)

    def build(self, task: Task, key: PRNGKeyArray) -> BitTransformer:
        emb, heads, attn, mlp = self.emb, self.heads, self.attn, self.mlp
        keys = iter(jax.random.split(key, 10))

        def normal(*shape: int) -> Array:
            return self.scale * jax.random.normal(next(keys), shape)

        def affine(inputs: int, *outputs: int) -> Affine:
            return Affine(normal(inputs, *outputs), jnp.zeros(outputs))

        def norm() -> LayerNorm:
            return LayerNorm(jnp.ones(emb), jnp.zeros(emb))

        noise: UInt32[Array, ""] = jax.random.bits(next(keys))
        return BitTransformer(
            tokens=normal(3, emb),
            positions=normal(task.in_shape[0] + 1, emb),
            norm=norm(),
            query=affine(emb, heads, attn),
            key=normal(emb, heads, attn),
            value=affine(emb, heads, attn),
            out=affine(heads * attn, emb),
            mlp_norm=norm(),
            mlp_in=affine(emb, mlp),
            mlp_out=affine(mlp, emb),
            last_norm=norm(),
            output=normal(emb, task.outputs),
            masks=Buffer(noise),
            dropout=self.dropout,
            embedding_dropout=self.embedding_dropout,
        )


def attention_norms(network: Any) -> dict[str, Float[Array, " heads"]]:
    """Norms of every head in the notation of 003 §4.4: W_QK = W_Q W_Kᵀ/√k and W_V W_C, spectral and (2,1).

    ‖M‖_{2,1} sums the 2-norms of columns. Biases and layer norms are not part of the analysed head.
    """
    product = jnp.einsum("eha,fha->hef", network.query.weight, network.key) / math.sqrt(network.key.shape[-1])
    emb, heads, attn = network.value.weight.shape
    through = jnp.einsum("eha,haf->hef", network.value.weight, network.out.weight.reshape(heads, attn, emb))
    return {
        "qk": jnp.linalg.norm(product, 2, axis=(1, 2)),
        "qk_21": jnp.linalg.norm(product, axis=2).sum(axis=1),  # of the transpose: columns of W_QKᵀ are rows here
        "value": jnp.linalg.norm(through, 2, axis=(1, 2)),
        "value_21": jnp.linalg.norm(through, axis=1).sum(axis=1),
    }
