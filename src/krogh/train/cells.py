"""Experiments outside the engine, cell by cell: what is finished survives an interrupt."""

import time
from collections.abc import Callable
from typing import Any

from krogh.train.checkpoint import Checkpoint, current_workspace


class Cells:
    """`cells(name, compute)` is what `compute()` returned, in this run or in one that was broken off.

    Names tell the cells of one experiment apart; what they hold is kept in its checkpoint. `total` cells are told as
    progress.
    """

    def __init__(self, total: int):
        self.checkpoint = Checkpoint("cells")
        self.values: dict[Any, Any] = self.checkpoint.load() or {}
        self.total, self.done, self.worked, self.began = total, 0, 0, time.monotonic()

    def __call__(self, name: Any, compute: Callable[[], Any]) -> Any:
        if name not in self.values:
            self.values[name] = compute()
            self.worked += 1
            # the last cell is nobody's loss: the result is written next
            if self.checkpoint.due():
                self.checkpoint.save(self.values)
        self.done += 1
        if (progress := current_workspace().progress) is not None:
            label = name if isinstance(name, str) else ", ".join(map(str, name))
            progress(label, self.done, self.total, self.worked / max(time.monotonic() - self.began, 1e-9))
        return self.values[name]
