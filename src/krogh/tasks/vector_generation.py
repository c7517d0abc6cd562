"""Linear vector generation: from (X, Xθ*) and a number α find q with ⟨q, θ*⟩ = α (000 §8.3.2)."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.errors import check_integer
from krogh.tasks.base import Batch, Task
from krogh.tasks.prompts import prompt


class VectorGeneration(Task):
    """Prompts [X, Xθ*; q⁰ᵀ, α]: Gaussian X (n × d), θ* uniform on the unit sphere, no label noise (000 Def 8.2–8.5).

    The layout is that of `prompt`, with α in the place of the query's answer. α is N(0, 1) outside (−least, least).
    The label is αθ*, the shortest right answer.

    start   standard deviation of the entries of q⁰; 0 is the document's q⁰ = 0
    """

    n: int = eqx.field(static=True)
    d: int = eqx.field(static=True)
    start: float = 0.0
    least: float = 0.1

    def __check_init__(self):
        check_integer("n", self.n, least=1)
        check_integer("d", self.d, least=1)

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.n + 1, self.d + 1)

    @property
    def outputs(self) -> int:
        return self.d

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        rows, direction, query, magnitude, sign = jr.split(key, 5)
        x = jr.normal(rows, (size, self.n, self.d))
        theta = jr.normal(direction, (size, self.d))
        theta = theta / jnp.linalg.norm(theta, axis=1, keepdims=True)
        alpha = jr.truncated_normal(magnitude, self.least, jnp.inf, (size,)) * jr.rademacher(sign, (size,), x.dtype)
        z = prompt(x, x @ theta[:, :, None], self.start * jr.normal(query, (size, self.d)))
        return Batch(z.at[:, -1, -1].set(alpha), alpha[:, None] * theta)


def missed(q: Float[Array, "*batch d"], answer: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
    """⟨q, θ*⟩ − α for the label αθ*, up to the sign of α: ⟨q, αθ*⟩/|α| − |α| (000 Def 8.4)."""
    size = jnp.linalg.norm(answer, axis=-1)
    return jnp.sum(q * answer, axis=-1) / size - size


def squared_miss(q: Float[Array, " d"], answer: Float[Array, " d"]) -> Float[Array, ""]:
    """(⟨q, θ*⟩ − α)², a loss."""
    return missed(q, answer) ** 2


def gram(key: PRNGKeyArray, n: Float[Array, ""] | float, d: int) -> Float[Array, "{d} {d}"]:
    """XᵀX of n Gaussian rows in R^d without drawing them, n ≥ d: AAᵀ with A lower triangular (Bartlett).

    A_ii² is χ² with n − i degrees of freedom, i = 0, …, d − 1, and the entries below are N(0, 1).
    """
    diagonal, below = jr.split(key)
    a = jnp.tril(jr.normal(below, (d, d)), -1) + jnp.diag(jnp.sqrt(jr.chisquare(diagonal, n - jnp.arange(d))))
    return a @ a.T
