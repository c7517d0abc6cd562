"""Where a run keeps its unfinished work, and whom it tells about its progress."""

import contextlib
import hashlib
import itertools
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from krogh.files import whole

Progress = Callable[[str, float, float | None, float], None]

SECONDS_BETWEEN_CHECKPOINTS = 10.0
# Saving takes at most about one part in so many of the time: gigabytes of networks are saved less often.
SAVING_SHARE = 20


@dataclass(frozen=True)
class Workspace:
    """`checkpoints`: folder for unfinished runs. `progress(label, done, total, rate)`: called per chunk,
    counted in replica-steps and replica-steps per second; a rate of 0 is none. `trainings` counts those begun."""

    checkpoints: Path | None = None
    progress: Progress | None = None
    trainings: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    def tell(self, label: str, done: float, total: float | None, rate: float = 0.0) -> None:
        """Report progress, if anybody listens."""
        if self.progress is not None:
            self.progress(label, done, total, rate)


_current: ContextVar[Workspace] = ContextVar("workspace", default=Workspace())  # noqa: B039


@contextlib.contextmanager
def workspace(checkpoints: Path | str | None = None, progress: Progress | None = None) -> Iterator[Workspace]:
    """Every training inside keeps its checkpoints in this folder and reports its progress here."""
    token = _current.set(Workspace(None if checkpoints is None else Path(checkpoints), progress))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def current_workspace() -> Workspace:
    return _current.get()


class Hashing:
    """A file's writer that knows the SHA-256 of what went through it: gigabytes are never held a second time."""

    def __init__(self, file: BinaryIO):
        self.file, self.sha256 = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return self.file.write(data)


class Checkpoint:
    """One run's saved state: pickled arrays behind their SHA-256."""

    def __init__(self, name: str):
        folder = current_workspace().checkpoints
        self.path = folder / f"{name}.checkpoint" if folder else None
        self._last = self._asked = time.monotonic()
        self._pause = SECONDS_BETWEEN_CHECKPOINTS

    def load(self) -> Any | None:
        """What was saved last, or None; a damaged file is named and set aside."""
        if self.path is None or not self.path.exists():
            return None
        content = memoryview(self.path.read_bytes())
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            aside = self.path.with_suffix(".damaged")
            os.replace(self.path, aside)
            warnings.warn(f"checkpoint {self.path.name} is damaged: set aside as {aside.name}", stacklevel=2)
            return None
        return pickle.loads(content[32:])

    def due(self) -> bool:
        """Whether it is time to save; what follows until the end of `save` counts as saving."""
        self._asked = time.monotonic()
        return self.path is not None and self._asked - self._last > self._pause

    def save(self, state: Any) -> None:
        if self.path is None:
            return
        with whole(self.path) as temporary, open(temporary, "wb") as file:
            file.write(bytes(32))
            hashing = Hashing(file)
            pickle.dump(state, hashing, protocol=pickle.HIGHEST_PROTOCOL)
            file.seek(0)
            file.write(hashing.sha256.digest())
        self._last = time.monotonic()
        self._pause = max(SECONDS_BETWEEN_CHECKPOINTS, SAVING_SHARE * (self._last - self._asked))
