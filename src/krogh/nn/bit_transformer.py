"""A one-layer pre-norm transformer on bits, read out at [CLS] (003 §A.3.1)."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from krogh.nn import dropped_attention
from krogh.nn.attention import Affine, LayerNorm, Pool, dropout_bits, dropout_masks, kept_factor, layer_norm, unpacked
from krogh.nn.base import Architecture, Buffer, width_of
from krogh.tasks.base import Task

# In the tables a head's largest score becomes e^60 and those 140 or more below it e^-80: sums stay finite.
LARGEST, SCORE_RANGE = 60.0, 140.0


@jax.custom_jvp
def quotient(a: Array, b: Array) -> Array:
    """a/b, whose derivative never makes b²: that of e^±60 is no longer a float32."""
    return a / b


@quotient.defjvp
def _quotient_jvp(values: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (a, b), (da, db) = values, tangents
    ratio = a / b
    return ratio, (da - ratio * db) / b


class BitTransformer(eqx.Module):
    """Unlike a `Decoder` it has one layer of which only the [CLS] row is computed, and biased projections:

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
    attention_dropout: bool = eqx.field(static=True)

    @property
    def _asking(self) -> Float[Array, " emb"]:
        """The [CLS] row as it enters the layer."""
        return self.tokens[2] + self.positions[-1]

    def _head(self, query: Float[Array, "*batch heads attn"]) -> Float[Array, "*batch heads emb"]:
        """Each head's query carried through the key matrix: its product with a normed row is the score."""
        return jnp.einsum("...ha,eha->...he", query, self.key) / math.sqrt(self.key.shape[-1])

    def _scores(self) -> tuple[Array, Array, Array, Array]:
        """Scores (2, heads, n) of either bit and (heads,) of [CLS], the normed rows (2, n, emb) and [CLS]'s (emb,)."""
        bits = self.norm(self.tokens[:2, None] + self.positions[:-1])
        last = self.norm(self._asking)
        head = self._head(self.query(last))
        return jnp.einsum("he,vne->vhn", head, bits), head @ last, bits, last

    def _values(self, bits: Float[Array, "2 n emb"]) -> Float[Array, "2 heads n attn"]:
        return jnp.einsum("vne,eha->vhna", bits, self.value.weight) + self.value.bias[:, None]

    def attention(self, x: Float[Array, " n"]) -> Float[Array, "heads n1"]:
        """Attention weights of [CLS] over (positions, [CLS]) for each head."""
        scores, own, _, _ = self._scores()
        chosen = jnp.where(x > 0.5, scores[1], scores[0])
        return jax.nn.softmax(jnp.concatenate([chosen, own[:, None]], axis=1), axis=1)

    def _read(self, row: Array, mixed: Float[Array, "*batch heads attn"], masks: Sequence[Any] = (1.0, 1.0)) -> Array:
        """From the [CLS] row and what the heads bring it to the outputs; masks drop out the residual branches."""
        row = row + masks[0] * self.out(mixed.reshape(*mixed.shape[:-2], -1))
        row = row + masks[1] * self.mlp_out(jax.nn.gelu(self.mlp_in(self.mlp_norm(row))))
        return self.last_norm(row) @ self.output

    def _mixed(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch heads attn"]:
        """What the heads bring to [CLS] where nothing they look at is dropped out, by the two tables."""
        scores, own, bits, last = self._scores()
        # what is divided out again has no gradient
        top = jax.lax.stop_gradient(jnp.maximum(scores.max(axis=(0, 2)), own))
        weight = jnp.exp(LARGEST + jnp.maximum(scores - top[:, None], -SCORE_RANGE))[..., None]
        own_weight = jnp.exp(LARGEST + jnp.maximum(own - top, -SCORE_RANGE))[:, None]
        both = jnp.concatenate([weight * self._values(bits), weight], axis=-1)
        both = both.transpose(0, 2, 1, 3).reshape(2, x.shape[-1], -1)
        # Each bit picks from its own table: a difference of the two would cancel where one score dwarfs the other.
        sums = (x @ both[1] + (1 - x) @ both[0]).reshape(*x.shape[:-1], len(own_weight), -1)
        return quotient(sums[..., :-1] + own_weight * self.value(last), sums[..., -1:] + own_weight)

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " outputs"]:
        return self._read(self._asking, self._mixed(x))

    def _row_by_row(
        self, x: Float[Array, "batch n"], key: PRNGKeyArray, dropped: Array | float
    ) -> tuple[Float[Array, "batch emb"], Float[Array, "batch heads attn"]]:
        """The [CLS] rows and what the heads bring to them where embeddings are dropped out."""
        body = jnp.where(x[..., None] > 0.5, self.tokens[1], self.tokens[0]) + self.positions[:-1]
        row = jnp.broadcast_to(self._asking, (len(x), 1, body.shape[-1]))
        (mask,) = dropout_masks(key, self.embedding_dropout, (len(x), *self.positions.shape))
        rows = jnp.concatenate([body, row], axis=1) * mask
        normed = self.norm(rows)
        scores = jnp.einsum("bhe,bne->hbn", self._head(self.query(normed[:, -1])), normed)
        weights = dropped * jax.nn.softmax(scores, axis=-1)
        seen = jnp.einsum("hbn,bne->bhe", weights, normed)
        return rows[:, -1], self._valued(seen, weights.sum(axis=-1).T)

    def _in_kernel(
        self,
        x: Float[Array, "batch n"],
        key: PRNGKeyArray,
        dropped: Array | float,
        counted: Int[Array, ""] | int,
    ) -> tuple[Float[Array, "batch emb"], Float[Array, "batch heads attn"]]:
        """As row by row, but that nothing is brought to examples from the first `counted` on."""
        kept = dropout_bits(key, self.embedding_dropout, (len(x), *self.positions.shape))
        ends = jnp.broadcast_to(self._asking, (2, 1, self.tokens.shape[-1]))
        table = jnp.concatenate([self.tokens[:2, None] + self.positions[:-1], ends], axis=1)
        table = kept_factor(self.embedding_dropout) * table
        row = jnp.where(unpacked(kept[:, -1]), table[0, -1], 0.0)
        head = self.norm.scale * self._head(self.query(self.norm(row)))
        bits = jnp.pad(x > 0.5, ((0, 0), (0, 1)))
        attended = dropped > 0 if isinstance(dropped, Array) else None
        seen, total = dropped_attention.attend(table, head, bits, kept, attended, counted)
        if attended is not None:
            seen, total = kept_factor(self.dropout) * seen, kept_factor(self.dropout) * total
        return row, self._valued(seen * self.norm.scale + total[..., None] * self.norm.shift, total)

    def _valued(
        self, seen: Float[Array, "batch heads emb"], total: Float[Array, "batch heads"]
    ) -> Float[Array, "batch heads attn"]:
        """What sums of normed rows bring, with weights of these totals."""
        return jnp.einsum("bhe,eha->bha", seen, self.value.weight) + total[..., None] * self.value.bias

    def batch(
        self, x: Float[Array, "batch n"], key: PRNGKeyArray, counted: Int[Array, ""] | None = None
    ) -> tuple[Array, "BitTransformer"]:
        """Outputs with dropout on embeddings, attention weights and both residual branches.

        Where that is cheaper, outputs from the first `counted` on are not those of the examples.
        """
        # The masks depend on the initialisation too: a restart on the same data has its own.
        keys = jax.random.split(jax.random.fold_in(key, self.masks.value))
        size, (_, heads, _) = len(x), self.key.shape
        n1, emb = self.positions.shape
        attended = [(heads, size, n1)] if self.attention_dropout else []
        *attending, brought, fed = dropout_masks(keys[0], self.dropout, *attended, (size, emb), (size, emb))
        if not (self.attention_dropout or self.embedding_dropout):
            return self._read(self._asking, self._mixed(x), (brought, fed)), self
        dropped = attending[0] if attending else 1.0
        if self.embedding_dropout and dropped_attention.applies(heads, emb):
            row, mixed = self._in_kernel(x, keys[1], dropped, size if counted is None else counted)
        elif self.embedding_dropout:
            row, mixed = self._row_by_row(x, keys[1], dropped)
        else:
            row = self._asking
            table, own, bits, last = self._scores()
            chosen = jnp.where(x > 0.5, table[1, :, None], table[0, :, None])
            own = jnp.broadcast_to(own[:, None, None], (heads, size, 1))
            weights = dropped * jax.nn.softmax(jnp.concatenate([chosen, own], axis=2), axis=-1)
            body, values = weights[..., :-1], self._values(bits)
            mixed = jnp.einsum("hbn,hna->bha", body * x, values[1]) + weights[..., -1].T[..., None] * self.value(last)
            mixed = mixed + jnp.einsum("hbn,hna->bha", body * (1 - x), values[0])
        return self._read(row, mixed, (brought, fed)), self


class OneLayerTransformer(Architecture):
    """GPT-style weights: matrices and embeddings N(0, `scale`²), biases 0, layer norms the identity.

    `dropout` is that of the residual branches and, unless `attention_dropout` is False, of the attention weights. Where
    neither these nor embeddings are dropped out, training goes through the tables, which on CPUs is 4 times (n = 100)
    to 8 times (n = 400) cheaper.
    """

    emb: int = eqx.field(static=True, default=64)
    heads: int = eqx.field(static=True, default=16)
    attn: int = eqx.field(static=True, default=4)
    mlp: int = eqx.field(static=True, default=256)
    dropout: float = eqx.field(static=True, default=0.1)
    embedding_dropout: float = eqx.field(static=True, default=0.1)
    attention_dropout: bool = eqx.field(static=True, default=True)
    scale: float = 0.02

    def __check_init__(self):
        width_of(emb=self.emb, heads=self.heads, attn=self.attn, mlp=self.mlp)

    def build(self, task: Task, key: PRNGKeyArray) -> BitTransformer:
        emb, heads, attn, mlp = self.emb, self.heads, self.attn, self.mlp
        n1, outputs = task.in_shape[0] + 1, task.outputs
        normal_key, mask_key = jax.random.split(key)
        total = emb * (3 + n1 + 4 * heads * attn + 2 * mlp + outputs)
        pool = Pool(self.scale * jax.random.normal(normal_key, (total,)))

        def affine(inputs: int, *outputs: int) -> Affine:
            return Affine(pool.take(inputs, *outputs), jnp.zeros(outputs))

        return BitTransformer(
            tokens=pool.take(3, emb),
            positions=pool.take(n1, emb),
            norm=layer_norm(emb),
            query=affine(emb, heads, attn),
            key=pool.take(emb, heads, attn),
            value=affine(emb, heads, attn),
            out=affine(heads * attn, emb),
            mlp_norm=layer_norm(emb),
            mlp_in=affine(emb, mlp),
            mlp_out=affine(mlp, emb),
            last_norm=layer_norm(emb),
            output=pool.take(emb, outputs),
            masks=Buffer(jax.random.bits(mask_key)),
            dropout=self.dropout,
            embedding_dropout=self.embedding_dropout,
            attention_dropout=self.attention_dropout and self.dropout > 0,
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
