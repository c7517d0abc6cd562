"""Polynomials of a few directions of a Gaussian input (000 §B.5.7)."""

import math

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task

Terms = tuple[tuple[tuple[int, ...], float], ...]
QUADRATIC: Terms = (((1, 1), 1.0), ((2, 0), 0.5))
CUBIC: Terms = (*QUADRATIC, ((0, 3), 0.3))


def hermite(degree: int, z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """He_n(z), by He_{n+1} = z He_n - n He_{n-1}."""
    below, value = jnp.zeros_like(z), jnp.ones_like(z)
    for n in range(degree):
        below, value = value, z * value - n * below
    return value


class MultiIndex(Task):
    """x ~ N(0, I_d), y = sum_t c_t prod_i He_{n_ti}(x_i) over the first r coordinates, scaled to variance one; terms
    are ((n_t1, …, n_tr), c_t), of degree at least two, so that E y = 0 and E[y x] = 0 (000 §B.5.7).

        QUADRATIC: z1 z2 + (z1^2 - 1)/2        CUBIC: the same + 0.3 (z2^3 - 3 z2)
    """

    d: int = eqx.field(static=True)
    terms: Terms = eqx.field(static=True, default=QUADRATIC)

    def __check_init__(self):
        if any(sum(degrees) < 2 for degrees, _ in self.terms):
            raise InputError(
                "MultiIndex terms must have degree at least 2: lower ones are removed before the first step."
            )

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.d,)

    @property
    def r(self) -> int:
        return len(self.terms[0][0])

    @property
    def directions(self) -> Float[Array, "r d"]:
        return jnp.eye(self.r, self.d)

    @property
    def scale(self) -> float:
        """1 / standard deviation of the unscaled polynomial: Hermite products are orthogonal, E He_n^2 = n!."""
        return sum(c**2 * math.prod(map(math.factorial, n)) for n, c in self.terms) ** -0.5

    @property
    def hessian(self) -> Float[Array, "r r"]:
        """E of the second derivatives along the directions: only the terms of degree two contribute."""
        matrix = jnp.zeros((self.r, self.r))
        for degrees, c in self.terms:
            if sum(degrees) == 2:
                i, j = [i for i, n in enumerate(degrees) for _ in range(n)]
                matrix = matrix.at[i, j].add(c * self.scale).at[j, i].add(c * self.scale)
        return matrix

    def sample(self, key: Key[Array, ""], size: int) -> Batch:
        x = jr.normal(key, (size, self.d))
        factors = [[hermite(n, x[:, i]) for i, n in enumerate(degrees)] for degrees, _ in self.terms]
        y = sum(c * math.prod(row, start=jnp.ones(size)) for (_, c), row in zip(self.terms, factors, strict=True))
        return Batch(x, self.scale * y)
