"""Verdicts: what a published statement becomes when it meets a dataset.

A statistic over replicas carries a 95% interval (bootstrap; Student's t for the mean of fewer than 20; Wilson for
proportions). The verdict `holds` if the whole interval is on the right side of the bound, `fails` if the whole of it is
on the wrong side, and is `undecided` otherwise. A value without replicas is compared as it is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from krogh.errors import InputError, check_choice
from krogh.lab import statistics

Outcome = Literal["holds", "fails", "undecided"]
Interval = tuple[float, float]
Stat = str | Callable[..., Any]
Over = str | tuple[str, ...] | None

# Below so many replicas a bootstrap of the mean is too narrow (at 8 it misses in 10 % of samples, not in 5), and below
# FEW no statistic's reaches beyond the smallest and the largest of them.
T_BELOW, FEW = 20, 5


@dataclass(frozen=True)
class Verdict:
    """One judgement, with the numbers it rests on."""

    outcome: Outcome
    measured: float | None
    bound: str
    interval: Interval | None = None
    n: int = 1
    parts: dict[str, "Verdict"] = field(default_factory=dict)
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The verdict in plain types that JSON can hold (inf and nan as words)."""
        return {
            "verdict": self.outcome,
            "measured": plain(self.measured),
            "bound": self.bound,
            "interval": plain(self.interval),
            "n": self.n,
            "detail": self.detail,
            "parts": {name: part.as_dict() for name, part in self.parts.items()},
        }


def plain(value: Any) -> Any:
    """A number rounded to 6 digits, or its name when it is not finite; sequences item by item."""
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def at_least(values: Any, bound: float, stat: Stat = "mean", over: Over = None) -> Verdict:
    """The statistic is at least the bound."""
    return _judge(values, bound, math.inf, f">= {bound:g}", stat, over)


def at_most(values: Any, bound: float, stat: Stat = "mean", over: Over = None) -> Verdict:
    """The statistic is at most the bound."""
    return _judge(values, -math.inf, bound, f"<= {bound:g}", stat, over)


def between(values: Any, low: float, high: float, stat: Stat = "mean", over: Over = None) -> Verdict:
    """The statistic lies in [low, high]."""
    return _judge(values, low, high, f"in [{low:g}, {high:g}]", stat, over)


def equals(value: Any, expected: Any, tol: float = 0.0) -> Verdict:
    """Every value is within tol of the expected one; of several values the largest error is told."""
    error = np.abs(np.asarray(value, float) - np.asarray(expected, float))
    n, largest = error.size, float(error.max(initial=0.0))
    if n == 1:
        measured, bound = float(np.asarray(value, float).item()), f"= {float(np.asarray(expected).item()):g}"
        bound += f" ± {tol:g}" if tol else ""
    else:
        measured, bound = largest, f"error <= {tol:g}"
    if n == 0 or math.isnan(largest):
        missing = int(np.isnan(error).sum())
        why = f"{missing} of {n} values are NaN" if n else "there is nothing to compare"
        return Verdict("undecided", measured, bound, n=n, detail=why)
    return Verdict("holds" if largest <= tol else "fails", measured, bound, n=n)


def share_at_least(booleans: Any, share: float, over: Over = None) -> Verdict:
    """At least this share of the replicas, by Wilson's interval."""
    return _judge_share(booleans, share, 1.0, f"share >= {share:g}", over)


def share_at_most(booleans: Any, share: float, over: Over = None) -> Verdict:
    """At most this share of the replicas, by Wilson's interval."""
    return _judge_share(booleans, 0.0, share, f"share <= {share:g}", over)


def every(booleans: Any, over: Over = None) -> Verdict:
    """All of them; with `over` the Wilson interval of the share is told too, without deciding."""
    flags = _flags(booleans, over)
    if not flags.size:
        return Verdict("undecided", None, "all", n=0, detail="there is nothing to count")
    within = statistics.wilson(int(flags.sum()), flags.size) if over is not None else None
    return Verdict("holds" if flags.all() else "fails", float(flags.mean()), "all", within, flags.size)


def all_of(*parts: Verdict, **named: Verdict) -> Verdict:
    """All parts hold; the worst part decides and is named in the detail."""
    every_part = {str(i): part for i, part in enumerate(parts, 1)} | named
    outcomes: list[Outcome] = [part.outcome for part in every_part.values()]
    worst: Outcome = "undecided"
    if outcomes:
        worst = max(outcomes, key=("holds", "undecided", "fails").index)
    told = [f"{name}: {_told(part)}" for name, part in every_part.items() if part.outcome == worst != "holds"]
    n = min((part.n for part in every_part.values()), default=0)
    held = float(outcomes.count("holds"))
    return Verdict(worst, held, f"all {len(outcomes)} parts", None, n, every_part, "; ".join(told))


def _told(verdict: Verdict) -> str:
    measured = "nothing" if verdict.measured is None else f"{verdict.measured:.4g}"
    return f"{measured} ({verdict.bound})" + (f", {verdict.detail}" if verdict.detail else "")


STATS: dict[str, Callable[..., Any]] = {"mean": np.mean, "median": np.median, "min": np.min, "max": np.max}


def _judge(values: Any, low: float, high: float, text: str, stat: Stat, over: Over) -> Verdict:
    """Compare a statistic with [low, high]; `values` may be a tuple of arrays, resampled together."""
    several = isinstance(values, tuple)
    if several and not callable(stat):
        raise InputError("several arrays need a statistic given as a function.")
    if not several and over is None and np.ndim(values) == 0:
        measured = float(values)
        if math.isnan(measured):
            return Verdict("undecided", measured, text, detail="the value is NaN")
        return Verdict("holds" if low <= measured <= high else "fails", measured, text)

    arrays = [_replicas_first(item, over) for item in (values if several else (values,))]
    n = len(arrays[0])
    if any(len(array) != n for array in arrays):
        raise InputError(f"arrays of {', '.join(str(len(a)) for a in arrays)} replicas cannot be resampled together.")
    if n == 0:
        return Verdict("undecided", None, text, n=0, detail="there are no replicas")
    function = stat if callable(stat) else STATS[check_choice("statistic", stat, STATS)]
    measured = float(function(*arrays))
    verdict = Verdict("undecided", measured, text, None, n)
    if math.isnan(measured):
        missing = sum(int(np.isnan(a).any(axis=tuple(range(1, a.ndim))).sum()) for a in arrays if a.dtype.kind == "f")
        return replace(
            verdict, detail="the statistic is NaN" + (f" ({missing} of {n} replicas are)" if missing else "")
        )
    if n == 1:
        return replace(verdict, detail="one replica gives no interval")
    if n < T_BELOW and stat == "mean" and np.isfinite(arrays[0]).all():
        return _decide(replace(verdict, interval=statistics.t_interval(arrays[0].reshape(n, -1).mean(1))), low, high)
    if n < FEW:
        return replace(verdict, detail=f"{n} replicas give no interval of this statistic; at least {FEW} are needed")
    if callable(stat):
        draws = statistics.bootstrap(arrays, stat)
    else:
        draws = statistics.bootstrap([arrays[0].reshape(n, -1)], lambda a: function(a, axis=(1, 2)), batched=True)
    undefined = float(np.isnan(draws).mean())
    if undefined > 0.05:
        return replace(verdict, detail=f"the statistic is undefined in {undefined:.0%} of the resamples")
    return _decide(replace(verdict, interval=statistics.interval(draws[~np.isnan(draws)])), low, high)


def _judge_share(booleans: Any, low: float, high: float, text: str, over: Over) -> Verdict:
    flags = _flags(booleans, over)
    if not flags.size:
        return Verdict("undecided", None, text, n=0, detail="there are no replicas")
    within = statistics.wilson(int(flags.sum()), flags.size)
    return _decide(Verdict("undecided", float(flags.mean()), text, within, flags.size), low, high)


def _decide(verdict: Verdict, low: float, high: float) -> Verdict:
    assert verdict.interval is not None
    lower, upper = verdict.interval
    if low <= lower and upper <= high:
        return replace(verdict, outcome="holds")
    if upper < low or lower > high:
        return replace(verdict, outcome="fails")
    return replace(verdict, detail=f"the interval of {verdict.n} replicas contains the bound")


def _replicas_first(values: Any, over: Over) -> np.ndarray:
    """The values as an array with the replica axis (or the axes named in `over`, flattened) first."""
    if hasattr(values, "dims"):
        if over is None and values.ndim > 1:
            raise InputError(f"values over {', '.join(values.dims)} need over= to say which of them are replicas.")
        names = values.dims if over is None else (over,) if isinstance(over, str) else over
        for name in names:
            check_choice("dimension", name, values.dims)
        values = values.transpose(*names, ...)
        count = math.prod(values.sizes[name] for name in names)
        return np.asarray(values).reshape(count, *values.shape[len(names) :])
    return np.atleast_1d(np.asarray(values))


def _flags(booleans: Any, over: Over) -> np.ndarray:
    flags = _replicas_first(booleans, over) if over is not None else np.asarray(booleans)
    if over is not None and flags.ndim > 1:
        raise InputError("a share over some dimensions needs the others reduced first (or one part each in all_of).")
    if flags.dtype.kind != "b" and not np.isin(flags, (0, 1)).all():
        raise InputError("a share is counted over values that are true or false.")
    return flags.astype(bool).ravel()
