"""Seconds and peak memory of a piece of work, on a GPU or in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass
class Usage:
    """`peak` bytes at the highest point, `base` bytes before; in a process they are those of the whole process.

    `cpu_seconds` is this process's own time, whatever else the machine does.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    base: int = 0
    peak: int = 0


@contextmanager
def measured(device: torch.device) -> Iterator[Usage]:
    """Filled in at the end: synchronised time, and the peak since the beginning."""
    usage = Usage()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        usage.base = torch.cuda.memory_allocated(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the kernel's peak starts anew
        usage.base = _process("VmRSS")
    start, own = time.perf_counter(), time.process_time()
    yield usage
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    usage.seconds, usage.cpu_seconds = time.perf_counter() - start, time.process_time() - own
    usage.peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _process("VmHWM")


def _process(field: str) -> int:
    """A field of this process's status in bytes; 0 where the system does not tell."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])
    return 0


@contextmanager
def one_thread() -> Iterator[None]:
    """For small models on a CPU: their matrices are too small to be shared, and threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
