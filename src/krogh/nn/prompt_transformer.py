"""The one-layer Transformer of in-context classification: softmax attention of the query on the examples, ReLU MLP."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from krogh.nn.attention import earlier, softmax_weights
from krogh.nn.base import Architecture, Buffer, width_of
from krogh.tasks.base import Task


class PromptNetwork(eqx.Module):
    """F(P) = aᵀ relu(W_O Σ_h Σ_i W_V^h p_i s_i^h), s^h = softmax_i((W_K^h p_i)ᵀ W_Q^h p_query) over the examples
    (004 (6.2), (E.1)); every matrix is stored (in, out).

    Unlike `Attention` the scores are not divided by √d, the heads share one output matrix, and there are no residuals.

    itself   the softmax runs over the query's own row too, as it does in the proofs
    """

    query: Float[Array, "d heads ma"]
    key: Float[Array, "d heads ma"]
    value: Float[Array, "d heads mb"]
    hidden: Float[Array, "mb m"]
    output: Buffer
    itself: bool = eqx.field(static=True, default=False)

    def attention(self, x: Float[Array, "l1 d"], visible: Bool[Any, " l1"] | None = None) -> Float[Array, "heads l1"]:
        """s^h on every row of the prompt; on the `visible` ones alone where these are given."""
        looks_for = jnp.einsum("ha,dha->hd", jnp.einsum("d,dha->ha", x[-1], self.query), self.key)
        if visible is None and not self.itself:
            visible = earlier(len(x) - 1)[0]
        scores = (looks_for @ x.T)[:, None]
        return softmax_weights(scores, None if visible is None else visible[None])[:, 0]  # type: ignore[index]

    def mixed(self, x: Float[Array, "l1 d"], visible: Bool[Any, " l1"] | None = None) -> Float[Array, " mb"]:
        """V = Σ_h Σ_i W_V^h p_i s_i^h."""
        return jnp.einsum("hd,dhb->b", self.attention(x, visible) @ x, self.value)

    def activations(self, x: Float[Array, "l1 d"], visible: Bool[Any, " l1"] | None = None) -> Float[Array, " m"]:
        """relu(W_O V)."""
        return jax.nn.relu(self.mixed(x, visible) @ self.hidden)

    def __call__(self, x: Float[Array, "l1 d"], visible: Bool[Any, " l1"] | None = None) -> Float[Array, ""]:
        return self.activations(x, visible) @ self.output.value

    def neurons(self) -> Float[Array, "m d"]:
        """r_i, the rows of W_O Σ_h W_V^h."""
        return (jnp.sum(self.value, axis=1) @ self.hidden).T


class PromptTransformer(Architecture):
    """W_V = δI, W_Q = W_K = δI on the features and 0 on the labels, W_O ~ N(0, 1/m), a = ±m^{−output_power}, fixed
    (004 §6.2.3); heads start alike. The task tells its number of features."""

    width: int = eqx.field(static=True, default=100)
    heads: int = eqx.field(static=True, default=1)
    itself: bool = eqx.field(static=True, default=False)
    delta: float = 0.1
    output_power: float = 1.0

    def __check_init__(self):
        width_of(width=self.width, heads=self.heads)

    def build(self, task: Task, key: PRNGKeyArray) -> PromptNetwork:
        d, m = task.in_shape[1], self.width
        hidden_key, sign_key = jax.random.split(key)

        def diagonal(entries: Float[Array, " d"]) -> Float[Array, "d heads d"]:
            return self.delta * jnp.repeat(jnp.diag(entries)[:, None], self.heads, axis=1)

        on_features = diagonal((jnp.arange(d) < task.features).astype(float))  # type: ignore[attr-defined]
        return PromptNetwork(
            query=on_features,
            key=on_features,
            value=diagonal(jnp.ones(d)),
            hidden=jax.random.normal(hidden_key, (d, m)) / m**0.5,
            output=Buffer(jax.random.rademacher(sign_key, (m,), jnp.zeros(()).dtype) * float(m) ** -self.output_power),
            itself=self.itself,
        )
