"""One attention head that a prompt's query turns on everything before it, with a single trained matrix (004 §7.2)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from krogh.nn.attention import softmax_weights
from krogh.nn.base import Architecture
from krogh.tasks.base import Task


class QueryReader(eqx.Module):
    """F(P) = Σ_i W_V p_i softmax_i(p_iᵀ W p_query) over the rows before the last, W_V = (0 I) (004 (7.2)).

    Unlike `Attention` it has W = W_Kᵀ W_Q in one piece, no scaling of the scores, no output projection, and the query
    does not see itself. Rows of zeros are no columns of the prompt and are not seen.
    """

    weights: Float[Array, "width width"]

    def scores(self, columns: Float[Array, "*batch width"], query: Float[Array, " width"]) -> Float[Array, "*batch"]:
        """p_iᵀ W p_query."""
        return columns @ (self.weights @ query)

    def attention(self, x: Float[Array, "rows width"]) -> Float[Array, " columns"]:
        """The query's weights on the columns before it."""
        present: Bool[Array, " columns"] = jnp.any(x[:-1] != 0, axis=1)
        return softmax_weights(self.scores(x[:-1], x[-1])[None], present[None])[0]

    def __call__(self, x: Float[Array, "rows width"]) -> Float[Array, " half"]:
        return self.attention(x) @ x[:-1, x.shape[1] // 2 :]


class QueryAttention(Architecture):
    """A `QueryReader` whose W starts as N(0, scale²)."""

    scale: float = 0.01

    def build(self, task: Task, key: PRNGKeyArray) -> QueryReader:
        width = task.in_shape[-1]
        return QueryReader(self.scale * jax.random.normal(key, (width, width)))
