"""Transformers on sequences of signs."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.nn.base import Architecture, width_of, xavier
from krogh.tasks.base import Task


class SignTransformer(eqx.Module):
    """One attention block and one GELU block read out at a [CLS] token (003 §B.4.1).

    X = [E_{x_i} + P_i ; E_CLS];  a = X_CLS + Σ_h softmax(X_CLS Q_h (X K_h)ᵀ/√d_attn) X V_h O_h;
    f = uᵀ(a + W_2 GELU(W_1 a + b_1) + b_2). No layer norm, no dropout.
    """

    tokens: Float[Array, "3 emb"]
    positions: Float[Array, "n emb"]
    query: Float[Array, "emb heads attn"]
    key: Float[Array, "emb heads attn"]
    value: Float[Array, "emb heads attn"]
    out: Float[Array, "heads attn emb"]
    mlp_in: Float[Array, "emb mlp"]
    mlp_in_bias: Float[Array, " mlp"]
    mlp_out: Float[Array, "mlp emb"]
    mlp_out_bias: Float[Array, " emb"]
    output: Float[Array, " emb"]

    def attention(self, x: Float[Array, " n"]) -> tuple[Float[Array, "heads n1"], Float[Array, "n1 emb"]]:
        """Attention weights of [CLS] over (positions, [CLS]) for each head, and the embedded sequence."""
        body = jnp.where(x[:, None] > 0, self.tokens[1], self.tokens[0]) + self.positions
        sequence = jnp.concatenate([body, self.tokens[2:]])
        # Scores through (emb, heads) projections of the query avoid materialising every key.
        query = jnp.einsum("e,eha->ha", self.tokens[2], self.query)
        probe = jnp.einsum("ha,eha->he", query, self.key) / jnp.sqrt(self.query.shape[-1])
        return jax.nn.softmax(probe @ sequence.T, axis=-1), sequence

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        weights, sequence = self.attention(x)
        mixed = jnp.einsum("he,eha->ha", weights @ sequence, self.value)
        a = self.tokens[2] + jnp.einsum("ha,hae->e", mixed, self.out)
        hidden = jax.nn.gelu(a @ self.mlp_in + self.mlp_in_bias)
        return self.output @ (a + hidden @ self.mlp_out + self.mlp_out_bias)


class ParityTransformer(Architecture):
    """The Transformer of the parity study; every matrix Xavier uniform, biases zero."""

    emb: int = eqx.field(static=True, default=1024)
    attn: int = eqx.field(static=True, default=8)
    heads: int = eqx.field(static=True, default=128)
    mlp: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        width_of(emb=self.emb, attn=self.attn, heads=self.heads, mlp=self.mlp or 1)

    def build(self, task: Task, key: PRNGKeyArray) -> SignTransformer:
        n, emb, heads, attn = task.in_shape[0], self.emb, self.heads, self.attn
        mlp = self.mlp or 4 * emb
        keys = jax.random.split(key, 9)
        project = [xavier(keys[i], (emb, heads, attn), emb, attn) for i in range(3)]
        return SignTransformer(
            tokens=xavier(keys[3], (3, emb), 3, emb),
            positions=xavier(keys[4], (n, emb), n, emb),
            query=project[0],
            key=project[1],
            value=project[2],
            out=xavier(keys[5], (heads, attn, emb), attn, emb),
            mlp_in=xavier(keys[6], (emb, mlp), emb, mlp),
            mlp_in_bias=jnp.zeros(mlp),
            mlp_out=xavier(keys[7], (mlp, emb), mlp, emb),
            mlp_out_bias=jnp.zeros(emb),
            output=xavier(keys[8], (emb,), emb, 1),
        )
