"""Factors on the learning rate as functions of the step within a stage."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array


@dataclass(frozen=True)
class LinearDecay:
    """1 − t/steps: from the full rate to zero."""

    steps: int

    def __call__(self, step: Array) -> Array:
        return 1 - step / self.steps


@dataclass(frozen=True)
class WarmUp:
    """Factor on the learning rate: linear over the first `warm` steps, then 1, or falling linearly to 0 at `steps`."""

    steps: int
    warm: int = 10
    decay: bool = True

    def __call__(self, step: Array) -> Array:
        return jnp.minimum(1.0, (step + 1) / self.warm) * (1 - step / self.steps if self.decay else 1.0)


@dataclass(frozen=True)
class Doubling:
    """Factor on the learning rate that doubles at each of these steps (003 §D.2)."""

    at: tuple[int, ...]

    def __call__(self, step: Array) -> Array:
        return 2.0 ** jnp.sum(step >= jnp.array(self.at))
