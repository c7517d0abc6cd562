"""Experiments outside the engine, cell by cell: what is finished survives an interrupt."""

from collections.abc import Callable, Mapping
from functools import partial
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
        self.total, self.done = total, 0

    def __call__(self, name: Any, compute: Callable[[], Any]) -> Any:
        if name not in self.values:
            self.values[name] = compute()
            # after the last cell a result need not follow: they may be those of a part
            if self.checkpoint.due() or self.done + 1 == self.total:
                # others may work on other cells meanwhile
                self.values = (self.checkpoint.load() or {}) | self.values
                self.checkpoint.save(self.values)
        self.done += 1
        label = ", ".join(map(str, name)) if isinstance(name, tuple) else str(name)
        current_workspace().tell(label, self.done, self.total)
        return self.values[name]

    def in_processes(self, computations: Mapping[Any, Callable[[], Any]]) -> list[Any]:
        """The cells of these names, as many computed at a time as there are cores."""
        from joblib import Parallel, delayed

        missing = [compute for name, compute in computations.items() if name not in self.values]
        found = iter(Parallel(n_jobs=-1, return_as="generator")(delayed(compute)() for compute in missing))
        return [self(name, partial(next, found)) for name in computations]
