"""Intervals and fits used by the claims; a replica that never succeeded has the time inf."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Z95 = 1.959963984540054


def bootstrap(
    arrays: Sequence[NDArray[Any]],
    stat: Callable[..., Any],
    resamples: int = 2000,
    seed: int = 0,
    batched: bool = False,
) -> NDArray[np.float64]:
    """The statistic of `resamples` draws with replacement of the replicas (first axis, shared by all arrays).

    A batched statistic maps (draws, replicas, ...) to (draws,); any other sees one draw at a time. Above 10⁵
    replicas fewer draws are made: the interval is then narrow and its Monte Carlo error does not matter.
    """
    n = len(arrays[0])
    resamples = min(resamples, max(200, 200_000_000 // n))
    rng = np.random.default_rng(seed)
    if not batched:
        draws = (rng.integers(0, n, n) for _ in range(resamples))
        return np.array([float(stat(*(a[draw] for a in arrays))) for draw in draws])
    size = max(1, 4_000_000 // sum(a.size for a in arrays))
    blocks = (rng.integers(0, n, (min(size, resamples - start), n)) for start in range(0, resamples, size))
    return np.concatenate([stat(*(a[block] for a in arrays)) for block in blocks])


def interval(draws: NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """The percentile interval; order statistics rather than interpolation, so that inf stays inf."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)


def t_interval(values: NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of independent normal values."""
    from scipy.special import stdtrit

    n = len(values)
    half = float(stdtrit(n - 1, (1 + level) / 2) * values.std(ddof=1) / math.sqrt(n))
    return float(values.mean()) - half, float(values.mean()) + half


def wilson(successes: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion."""
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half


def power_law(x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """Exponent a and prefactor c of y ≈ c x^a, by least squares in log-log."""
    slope, offset = np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)
    return float(slope), float(np.exp(offset))


def local_exponents(x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    """Δ ln y / Δ ln x between neighbouring points along the last axis of y."""
    return np.diff(np.log(np.asarray(y, float))) / np.diff(np.log(np.asarray(x, float)))


def percentile(times: ArrayLike, q: float, axis: int | None = None) -> Any:
    """The q-th percentile (0–100), censored times being inf: the first time by which q% have succeeded."""
    return np.quantile(np.asarray(times, float), q / 100, axis=axis, method="inverted_cdf")


def icc(values: ArrayLike) -> float:
    """One-way intraclass correlation (MSB - MSW) / (MSB + (m-1) MSW) of values (groups, m members)."""
    table = np.asarray(values, float)
    groups, members = table.shape
    between = members * table.mean(1).var(ddof=1)
    within = table.var(1, ddof=1).sum() / groups
    return float((between - within) / (between + (members - 1) * within))


def ks_geometric(times: ArrayLike, spacing: float = 1.0) -> tuple[float, float]:
    """Kolmogorov–Smirnov distance and p-value of times against the geometric law of equal median m.

    F(t) = 1 - (1 - F_n(m))^(t/m), which is 1 - 2^(-t/m) without ties, compared at the multiples of `spacing` at
    which success was checked; censored times count in n and are compared nowhere.
    """
    from scipy.stats import kstwo

    sample = np.sort(np.asarray(times, float).ravel())
    n, median = len(sample), float(percentile(sample, 50))
    if not math.isfinite(median):
        return math.nan, math.nan
    seen = np.unique(sample[np.isfinite(sample)])
    upto, before = np.searchsorted(sample, seen, "right") / n, np.searchsorted(sample, seen, "left") / n
    beyond = 1 - np.searchsorted(sample, median, "right") / n
    law, law_before = 1 - beyond ** (seen / median), 1 - beyond ** (np.maximum(seen - spacing, 0) / median)
    distance = float(max(np.abs(upto - law).max(), np.abs(before - law_before).max()))
    return distance, float(kstwo.sf(distance, n))
