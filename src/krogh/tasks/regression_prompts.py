"""Linear regression in context (000 §5.4)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task
from krogh.tasks.prompts import orthonormal, prompt


class RegressionPrompts(Task):
    """Rows (x_i, y_i), i ≤ n, and (x_q, 0), with x ~ N(0, Q diag(spectrum) Qᵀ) and y_i = ±⟨w, x_i⟩ + σ ε_i.

        RegressionPrompts(spectrum=(2, 1), n=3):  x of shape (4, 3), y = ⟨w, x_q⟩

    weights   w = Q weights in every prompt; None draws w ~ N(0, I) for each
    sigma     standard deviation of the examples' label noise, ε ~ N(0, 1); None for none
    flip      probability with which an example's label has the wrong sign; None for none
    rotated   every replica draws its own orthonormal Q; otherwise Q = I
    """

    spectrum: Float[Array, " d"] = eqx.field(converter=jnp.asarray)
    n: int = eqx.field(static=True)
    weights: Float[Array, " d"] | None = None
    sigma: float | None = None
    flip: float | None = None
    rotated: bool = eqx.field(static=True, default=False)
    basis: Float[Array, "d d"] | None = None

    def __post_init__(self):
        # NaN until `instance` draws it: a run's tasks keep one tree structure.
        if self.rotated and self.basis is None:
            self.basis = jnp.full((len(self.spectrum),) * 2, jnp.nan)

    def __check_init__(self):
        if self.n < 1:
            raise InputError(f"n must be at least 1, got {self.n}")

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.n + 1, len(self.spectrum) + 1)

    def instance(self, key: PRNGKeyArray) -> "RegressionPrompts":
        if not self.rotated:
            return self
        d = len(self.spectrum)
        return eqx.tree_at(lambda task: task.basis, self, orthonormal(key, d, d))

    def rotate(self, components: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """Q c: vectors from their components along the eigenvectors of the covariance."""
        return components if self.basis is None else components @ self.basis.T

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        d = len(self.spectrum)
        x_key, w_key, noise_key, flip_key = jax.random.split(key, 4)
        z = jax.random.normal(x_key, (size, self.n + 1, d), self.spectrum.dtype)
        x = self.rotate(z * jnp.sqrt(self.spectrum))
        if self.weights is None:
            answers = jnp.einsum("snd,sd->sn", x, jax.random.normal(w_key, (size, d), x.dtype))
        else:
            answers = x @ self.rotate(self.weights)
        y, truth = answers[:, :-1], answers[:, -1]
        if self.flip is not None:
            y = jnp.where(jax.random.uniform(flip_key, y.shape) < self.flip, -y, y)
        if self.sigma is not None:
            y = y + self.sigma * jax.random.normal(noise_key, y.shape, x.dtype)
        return Batch(prompt(x[:, :-1], y[..., None], x[:, -1]), truth)
