"""Success as an explicit object, and the schedules on which it is looked for."""

from dataclasses import dataclass

import numpy as np

from krogh.errors import InputError, check_integer, check_number


@dataclass(frozen=True)
class Reach:
    """A recorded value meets `level` at `consecutive` records in a row, not counting the start; its time is the first.

    `confirm` looks again at the candidate on that many fresh examples (accuracy only), so that a small
    validation sample cannot declare success by luck. `below=True` asks for values at most `level`.
    """

    record: str = "accuracy"
    level: float = 1.0
    consecutive: int = 1
    confirm: int | None = None
    below: bool = False

    def __post_init__(self):
        check_number("level", self.level)
        check_integer("consecutive", self.consecutive, least=1)
        if self.confirm is not None:
            check_integer("confirm", self.confirm, least=1)
            if self.record != "accuracy":
                raise InputError("confirm re-checks record='accuracy' only")


def log_spaced(steps: int, points: int = 50) -> tuple[int, ...]:
    """About `points` distinct record steps from 1 to `steps`, evenly spaced in the logarithm."""
    check_integer("steps", steps, least=1)
    return tuple(int(t) for t in np.unique(np.round(np.geomspace(1, steps, points)).astype(int)))
