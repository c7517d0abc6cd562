"""Transformers on sequences of signs."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.nn.attention import Affine, Attention, FeedForward
from krogh.nn.base import Architecture, width_of, xavier
from krogh.tasks.base import Task


class SignTransformer(eqx.Module):
    """One attention block and one GELU block read out at a [CLS] token (003 §B.4.1).

    X = [E_{x_i} + P_i ; E_CLS];  a = X_CLS + Σ_h softmax(X_CLS Q_h (X K_h)ᵀ/√d_attn) X V_h O_h;
    f = uᵀ(a + W_2 GELU(W_1 a + b_1) + b_2). No layer norm, no dropout.
    """

    tokens: Float[Array, "3 emb"]
    positions: Float[Array, "n emb"]
    attention: Attention
    mlp: FeedForward
    output: Float[Array, " emb"]

    def sequence(self, x: Float[Array, " n"]) -> Float[Array, "n1 emb"]:
        """The embedded signs and [CLS], which is last."""
        body = jnp.where(x[:, None] > 0, self.tokens[1], self.tokens[0]) + self.positions
        return jnp.concatenate([body, self.tokens[2:]])

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        a = self.tokens[2] + self.attention(self.sequence(x), first=len(x))[0]
        return self.output @ (a + self.mlp(a))


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
        query, key_matrix, value = (xavier(keys[i], (emb, heads, attn), emb, attn) for i in range(3))
        return SignTransformer(
            tokens=xavier(keys[3], (3, emb), 3, emb),
            positions=xavier(keys[4], (n, emb), n, emb),
            attention=Attention(query, key_matrix, value, xavier(keys[5], (heads, attn, emb), attn, emb)),
            mlp=FeedForward(
                Affine(xavier(keys[6], (emb, mlp), emb, mlp), jnp.zeros(mlp)),
                Affine(xavier(keys[7], (mlp, emb), mlp, emb), jnp.zeros(emb)),
            ),
            output=xavier(keys[8], (emb,), emb, 1),
        )
