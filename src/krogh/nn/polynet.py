"""Products of affine forms (003 §5.2 and §5.4)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.errors import InputError
from krogh.nn.base import Architecture, initialiser
from krogh.tasks.base import Task


class Product(eqx.Module):
    """f(x) = ∏_i (⟨w_i, x⟩ + b_i); the factors are the columns of `weights`."""

    weights: Float[Array, "n k"]
    bias: Float[Array, " k"]

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        return jnp.prod(x @ self.weights + self.bias)


class PolyNet(Architecture):
    """A product of as many affine forms as the parity has relevant bits."""

    init: str = eqx.field(static=True, default="uniform")

    def build(self, task: Task, key: PRNGKeyArray) -> Product:
        n, k = task.in_shape[0], task.k  # type: ignore[attr-defined]
        weight_key, bias_key = jax.random.split(key)
        draw = initialiser(self.init)
        return Product(draw(weight_key, (n, k), n, k), draw(bias_key, (k,), n, k))


class DisjointProduct(eqx.Module):
    """f(x) = ∏_i ⟨w_i, x_{P_i}⟩ over k equal blocks P_i of coordinates."""

    weights: Float[Array, "k block"]

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        return jnp.prod(jnp.sum(self.weights * x.reshape(self.weights.shape), axis=1))


class DisjointPolyNet(Architecture):
    """One linear form per block: `init` is "ones", "signs" or "normal".

    `positive=True` flips the first relevant weight where needed, so that the product of the relevant
    weights starts positive: the half of initialisations from which the theorems speak.
    """

    init: str = eqx.field(static=True, default="normal")
    positive: bool = eqx.field(static=True, default=False)

    def build(self, task: Task, key: PRNGKeyArray) -> DisjointProduct:
        n, k = task.in_shape[0], task.k  # type: ignore[attr-defined]
        shape = (k, n // k)
        draws = {
            "ones": lambda: jnp.ones(shape),
            "signs": lambda: jax.random.rademacher(key, shape, dtype=jnp.float32),
            "normal": lambda: jax.random.normal(key, shape),
        }
        if self.init not in draws:
            raise InputError(f"DisjointPolyNet's init must be one of {', '.join(draws)}, got {self.init!r}")
        weights = draws[self.init]()
        if self.positive:
            weights = weights.at[0, 0].multiply(jnp.sign(jnp.prod(weights[:, 0])))
        return DisjointProduct(weights)
