"""Evaluation prompts of the optimal models of several ranks, sampled in one program."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from krogh.nn.linear_attention import InContextRegressor
from krogh.tasks.regression_prompts import RegressionPrompts
from krogh.theory.linear_attention import optimal_values
from krogh.train.seeds import over_seeds

SPECTRUM = (2.0, 1.5, 1.0, 0.6, 0.4, 0.3, 0.2, 0.1)


@dataclass(frozen=True)
class Prompts:
    """`prompts` evaluation prompts in at least `batches` batches, each with at most `numbers` random numbers."""

    prompts: int
    numbers: int = 2_000_000
    batches: int = 20

    def split(self, per_prompt: int) -> tuple[int, int]:
        """How many batches of how many prompts."""
        size = max(1, min(self.numbers // per_prompt, self.prompts // self.batches))
        return -(-self.prompts // size), size


def sampled_losses(
    spectrum: tuple[float, ...],
    N: int,
    ranks: tuple[int, ...],
    w: np.ndarray,
    M: int,
    p: Prompts,
    sigmas: tuple[float, ...] = (0.0,),
    flips: tuple[float, ...] = (0.0,),
) -> xr.Dataset:
    """Squared error and sign agreement of the optimal models on fresh prompts: means over (batch, sigma, flip, rank).

    All ranks, noise levels and flip rates see the same examples; the basis of the covariance is drawn at random.
    """
    task = RegressionPrompts(spectrum, M, jnp.asarray(w, jnp.float32), 0.0, 0.0, rotated=True).instance(
        jax.random.key(0)
    )
    values = np.stack([optimal_values(spectrum, N, r) for r in ranks])
    Q = np.asarray(task.basis)
    U = jnp.asarray(np.einsum("ij,rj,kj->rik", Q, values, Q), jnp.float32)
    batches, size = p.split((M + 1) * len(spectrum))

    def measure(key):
        def one(sigma, flip):
            batch = replace(task, sigma=sigma, flip=flip).sample(key, size)
            guess = jax.vmap(lambda U: jax.vmap(InContextRegressor(U.T, jnp.ones(())))(batch.x))(U)
            return jnp.mean((guess - batch.y) ** 2, axis=1), jnp.mean((guess > 0) == (batch.y > 0), axis=1)

        by_flip = jax.vmap(one, in_axes=(None, 0))
        return jax.vmap(by_flip, in_axes=(0, None))(jnp.asarray(sigmas), jnp.asarray(flips))

    error, accuracy = over_seeds(measure, batches)
    dims = ("batch", "sigma", "flip", "rank")
    return xr.Dataset(
        {"error": (dims, error), "accuracy": (dims, accuracy)},
        coords={"sigma": list(sigmas), "flip": list(flips), "rank": list(ranks)},
    )
