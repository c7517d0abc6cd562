"""Attention without softmax on prompts, with a key-query matrix of full or limited rank (000 §5.3)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from krogh.nn.attention import linear_weights
from krogh.nn.base import Architecture, Buffer, width_of
from krogh.tasks.base import Task


class LowRank(eqx.Module):
    """W_Qᵀ W_K, a matrix of rank at most r."""

    query: Float[Array, "rank emb"]
    key: Float[Array, "rank emb"]

    @property
    def matrix(self) -> Float[Array, "emb emb"]:
        return self.query.T @ self.key

    def __rmatmul__(self, rows: Float[Array, "*batch emb"]) -> Float[Array, "*batch emb"]:
        return (rows @ self.query.T) @ self.key


class LinearAttention(eqx.Module):
    """f(E) = (mask ∘ (E W_QK Eᵀ)) E W_PV on the rows of E; no softmax, no scaling, no residual.

    On columns, as documents write it, this is P E (Eᵀ W E) with W = W_QKᵀ and P = W_PVᵀ.
    """

    query_key: Float[Array, "emb emb"] | LowRank
    value: Float[Array, "emb emb"]

    def weights(
        self, sequence: Float[Array, "n emb"], first: int = 0, visible: Bool[Any, "queries n"] | None = None
    ) -> Float[Array, "queries n"]:
        """mask ∘ (E W_QK Eᵀ) for the queries from `first` on; every position is seen where `visible` is None."""
        return linear_weights((sequence[first:] @ self.query_key) @ sequence.T, visible)

    def __call__(
        self, sequence: Float[Array, "n emb"], first: int = 0, visible: Bool[Any, "queries n"] | None = None
    ) -> Float[Array, "queries emb"]:
        return (self.weights(sequence, first, visible) @ sequence) @ self.value


class InContextRegressor(eqx.Module):
    """ŷ = u ((1/N) Σ_i y_i x_i)ᵀ U x_q on a prompt of rows (x_i, y_i) and (x_q, 0) (000 eq. 5.2, 5.3).

    The last entry of linear attention whose key-query matrix is U on the inputs and whose value matrix copies the
    labels u times, over the number of examples.
    """

    query_key: Float[Array, "d d"] | LowRank
    value: Float[Array, ""] | Buffer

    @property
    def U(self) -> Float[Array, "d d"]:
        """U = W_Kᵀ W_Q."""
        return (self.query_key.matrix if isinstance(self.query_key, LowRank) else self.query_key).T

    def attention(self) -> LinearAttention:
        """The attention of eq. 5.3, for inputs and labels together."""
        inputs, scale = self.query_key, self.value.value if isinstance(self.value, Buffer) else self.value
        if isinstance(inputs, LowRank):
            padded = jax.tree.map(lambda factor: jnp.pad(factor, ((0, 0), (0, 1))), inputs)
            d = inputs.key.shape[1]
        else:
            padded, d = jnp.pad(inputs, (0, 1)), len(inputs)
        return LinearAttention(padded, jnp.zeros((d + 1, d + 1)).at[d, d].set(scale))

    def __call__(self, prompt: Float[Array, "n d1"]) -> Float[Array, ""]:
        examples = len(prompt) - 1
        return self.attention()(prompt, first=examples)[0, -1] / examples


class RankLimited(Architecture):
    """Linear attention with U = W_Kᵀ W_Q, W_K and W_Q in R^{rank × d}, that reads the query's answer (000 §5.4).

    Both factors start as N(0, scale²); u = 1 stays, because the loss depends on u U alone.
    """

    rank: int = eqx.field(static=True, default=1)
    scale: float = 0.1

    def __check_init__(self):
        width_of(rank=self.rank)

    def build(self, task: Task, key: PRNGKeyArray) -> InContextRegressor:
        query, keys = self.scale * jax.random.normal(key, (2, self.rank, task.in_shape[1] - 1))
        return InContextRegressor(LowRank(query, keys), Buffer(jnp.ones(())))


class ReluHeads(eqx.Module):
    """g = Σ_h a_h ReLU(((1/N) Σ_i y_i x_i)ᵀ W^(h) x_q): heads of linear attention, rectified and summed (000 §5.5)."""

    weights: Float[Array, "heads d d"]
    output: Float[Array, " heads"]

    def __call__(self, prompt: Float[Array, "n d1"]) -> Float[Array, ""]:
        heads = jax.vmap(lambda W: InContextRegressor(W.T, jnp.ones(()))(prompt))(self.weights)
        return self.output @ jax.nn.relu(heads)
