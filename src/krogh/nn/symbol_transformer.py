"""Transformers on sequences of symbols."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from krogh.nn.base import Architecture, uniform, width_of
from krogh.tasks.base import Task


class Block(eqx.Module):
    """Pre-norm causal attention and a GELU block: s ← s + Σ_h softmax(n_q Q_h (n K_h)ᵀ/√d_attn) n V_h O_h with
    n = LN(s), then s ← s + W_2 GELU(W_1 LN(s) + b_1) + b_2. Projections have no biases."""

    norm: eqx.nn.LayerNorm
    query: Float[Array, "emb heads attn"]
    key: Float[Array, "emb heads attn"]
    value: Float[Array, "emb heads attn"]
    out: Float[Array, "heads attn emb"]
    mlp_norm: eqx.nn.LayerNorm
    mlp_in: Float[Array, "emb mlp"]
    mlp_in_bias: Float[Array, " mlp"]
    mlp_out: Float[Array, "mlp emb"]
    mlp_out_bias: Float[Array, " emb"]

    def __call__(self, sequence: Float[Array, "n emb"], first: int = 0) -> Float[Array, "rest emb"]:
        """The positions from `first` on, each looking at itself and at those before it."""
        places = jnp.arange(len(sequence))
        normed = jax.vmap(self.norm)(sequence)
        query = jnp.einsum("qe,eha->qha", normed[first:], self.query)
        # The projections act on the few queries and never on every position.
        probe = jnp.einsum("qha,eha->qhe", query, self.key) / jnp.sqrt(self.query.shape[-1])
        later = places > places[first:, None, None]
        weights = jax.nn.softmax(jnp.where(later, -jnp.inf, jnp.einsum("qhe,ne->qhn", probe, normed)), axis=-1)
        seen = jnp.einsum("qhn,ne->qhe", weights, normed)
        mixed = jnp.einsum("qhe,eha->qha", seen, self.value)
        state = sequence[first:] + jnp.einsum("qha,hae->qe", mixed, self.out)
        hidden = jax.nn.gelu(jax.vmap(self.mlp_norm)(state) @ self.mlp_in + self.mlp_in_bias)
        return state + hidden @ self.mlp_out + self.mlp_out_bias


class SymbolTransformer(eqx.Module):
    """Blocks over x_1, …, x_n and a closing symbol "=", at which the logits are read after a last layer norm.

    The sequence is √d_emb · tokens[x_i] + positions[i]; the last block is computed at "=" alone.
    """

    tokens: Float[Array, "symbols emb"]
    positions: Float[Array, "n1 emb"]
    blocks: tuple[Block, ...]
    norm: eqx.nn.LayerNorm
    output: Float[Array, "emb outputs"]
    output_bias: Float[Array, " outputs"]

    def embedded(self) -> Float[Array, "symbols emb"]:
        """Every symbol as it enters the first block, "=" last, before its position is added."""
        return jnp.sqrt(self.tokens.shape[1]) * self.tokens

    def __call__(self, x: Int[Array, " n"]) -> Float[Array, " outputs"]:
        symbols = jnp.append(x, len(self.tokens) - 1)
        sequence = self.embedded()[symbols] + self.positions
        for block in self.blocks[:-1]:
            sequence = block(sequence)
        (state,) = self.blocks[-1](sequence, first=len(x))
        return self.norm(state) @ self.output + self.output_bias


class Transformer(Architecture):
    """A Transformer on the symbols of a task with `elements` values per input (000 §4.5).

    Embeddings start as N(0, 1), matrices as U[−1/√fan_in, 1/√fan_in], biases at zero. A head's dimension
    `attn` does not depend on how many there are.
    """

    layers: int = eqx.field(static=True, default=1)
    heads: int = eqx.field(static=True, default=160)
    emb: int = eqx.field(static=True, default=128)
    attn: int = eqx.field(static=True, default=32)
    mlp: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        width_of(layers=self.layers, heads=self.heads, emb=self.emb, attn=self.attn, mlp=self.mlp or 1)

    def build(self, task: Task, key: PRNGKeyArray) -> SymbolTransformer:
        symbols, places = task.elements + 1, task.in_shape[0] + 1  # type: ignore[attr-defined]
        embedding_key, output_key, *keys = jax.random.split(key, 2 + self.layers)
        embeddings = jax.random.normal(embedding_key, (symbols + places, self.emb))
        return SymbolTransformer(
            tokens=embeddings[:symbols],
            positions=embeddings[symbols:],
            blocks=tuple(self._block(key) for key in keys),
            norm=eqx.nn.LayerNorm(self.emb),
            output=uniform(output_key, (self.emb, task.outputs), self.emb, task.outputs),
            output_bias=jnp.zeros(task.outputs),
        )

    def _block(self, key: PRNGKeyArray) -> Block:
        emb, heads, attn, mlp = self.emb, self.heads, self.attn, self.mlp or 4 * self.emb
        shapes = [(emb, heads, attn)] * 3 + [(heads, attn, emb), (emb, mlp), (mlp, emb)]
        fans = emb, emb, emb, heads * attn, emb, mlp
        # one draw for all matrices: compiling six takes longer than a short training
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        parts = jnp.split(jax.random.uniform(key, (int(ends[-1]),), minval=-1.0, maxval=1.0), ends[:-1])
        query, key_weights, value, out, mlp_in, mlp_out = (
            part.reshape(shape) / math.sqrt(fan) for part, shape, fan in zip(parts, shapes, fans, strict=True)
        )
        return Block(
            norm=eqx.nn.LayerNorm(emb),
            query=query,
            key=key_weights,
            value=value,
            out=out,
            mlp_norm=eqx.nn.LayerNorm(emb),
            mlp_in=mlp_in,
            mlp_in_bias=jnp.zeros(mlp),
            mlp_out=mlp_out,
            mlp_out_bias=jnp.zeros(emb),
        )
