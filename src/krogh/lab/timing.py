"""How long something takes, for benchmarks."""

import sys
import time
from collections.abc import Callable
from typing import Any

from krogh.lab.ledger import measurement, record_rows


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


class Readings:
    """A benchmark's numbers, told and recorded one by one: compiling takes minutes on a GPU, and nothing is lost when
    the rest is stopped."""

    def __init__(self, record: bool):
        self.record = record
        self.rates: dict[str, float] = {}

    def rate(self, name: str, per_second: float) -> float:
        print(f"{name}: {per_second:.1f} per second", file=sys.stderr, flush=True)
        self.rates[name] = per_second
        return per_second

    def note(
        self, name: str, what: str, value: float, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """With `record`, a row of the ledger, judged by at most one bound."""
        bound, holds = "none", None
        if at_least is not None:
            bound, holds = f">= {at_least:.10g}", value >= at_least
        elif at_most is not None:
            bound, holds = f"<= {at_most:.10g}", value <= at_most
        if self.record:
            record_rows([measurement(name, what, value, bound, holds)])
