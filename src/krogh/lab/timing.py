"""How long something takes, for benchmarks."""

import time
from collections.abc import Callable
from typing import Any


def best_of(run: Callable[[], Any], times: int = 3) -> float:
    """Seconds of the fastest of several runs, after one that compiles."""
    run()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def seconds_per_step(run: Callable[[int], Any], steps: int) -> float:
    """Seconds of a step: the difference between a long and a short run, so that starting up does not count."""
    short = steps // 4
    return (best_of(lambda: run(steps)) - best_of(lambda: run(short))) / (steps - short)
