"""A binary task's labels as classes, for networks with one logit per class."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task


class TwoClasses(Task):
    """`task` with y = +1 as class 0 and y = −1 as class 1 (the order of 003 Thm 7.8)."""

    task: Task

    def __check_init__(self):
        if self.task.outputs != 1:
            raise InputError("TwoClasses numbers ±1 labels; this task has classes already")

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.task.in_shape

    @property
    def outputs(self) -> int:
        return 2

    @property
    def k(self) -> int:
        return self.task.k  # type: ignore[attr-defined]

    @property
    def support(self) -> np.ndarray:
        return self.task.support  # type: ignore[attr-defined]

    def draw(self, key: PRNGKeyArray, size: int):
        return self.task.draw(key, size)

    def decode(self, raw, size: int) -> Batch:
        return _numbered(self.task.decode(raw, size))

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        return _numbered(self.task.sample(key, size))

    def enumerate(self) -> Batch:
        return _numbered(self.task.enumerate())


def _numbered(batch: Batch) -> Batch:
    return batch._replace(y=jnp.where(batch.y > 0, 0, 1))
