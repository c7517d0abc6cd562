"""Factors on the learning rate as functions of the step within a stage."""

from dataclasses import dataclass

from jaxtyping import Array


@dataclass(frozen=True)
class LinearDecay:
    """1 − t/steps: from the full rate to zero."""

    steps: int

    def __call__(self, step: Array) -> Array:
        return 1 - step / self.steps
