"""Parity of Gaussian clusters on the vertices of a hypercube."""

from itertools import product

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key

from krogh.tasks.base import Batch, Task


class ClusterParity(Task):
    """x = sum_{i<=k} eps_i M_i + g, y = prod_i eps_i with fair signs eps and g ~ N(0, sigma_r^2 (k/d) I_d); M is k
    orthonormal columns, drawn per replica (000 eq. A.288).
    """

    d: int = eqx.field(static=True, default=100)
    k: int = eqx.field(static=True, default=4)
    sigma_r: float | Array = 1.0
    dictionary: Float[Array, "d k"] | None = None

    def __post_init__(self):
        # NaN until `instance` draws it: a run's tasks keep one tree structure.
        if self.dictionary is None:
            self.dictionary = jnp.full((self.d, self.k), jnp.nan)

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.d,)

    @property
    def outputs(self) -> int:
        return 1

    def instance(self, key: Key[Array, ""]) -> "ClusterParity":
        matrix = jnp.linalg.qr(jr.normal(key, (self.d, self.k)))[0]
        return eqx.tree_at(lambda t: t.dictionary, self, matrix)

    @property
    def centres(self) -> Float[Array, "clusters d"]:
        """The 2^k vertices sum_i +-M_i, signs in lexicographic order."""
        assert self.dictionary is not None
        signs = jnp.array(list(product((-1.0, 1.0), repeat=self.k)))
        return signs @ self.dictionary.T

    def sample(self, key: Key[Array, ""], size: int) -> Batch:
        assert self.dictionary is not None
        sign, spread = jr.split(key)
        eps = jr.rademacher(sign, (size, self.k), float)
        noise = jnp.sqrt(self.k / self.d) * self.sigma_r * jr.normal(spread, (size, self.d))
        return Batch(eps @ self.dictionary.T + noise, jnp.prod(eps, axis=1))
