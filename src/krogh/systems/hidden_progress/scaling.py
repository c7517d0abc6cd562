"""How convergence times grow with n and k, and how they are distributed (003 Figures 5.1, 5.2, B.6)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from jaxtyping import Float

from krogh.lab import all_of, at_least, at_most, between, every
from krogh.lab.figures import COLOURS, new_figure, reported, theory
from krogh.lab.statistics import bootstrap, interval, ks_geometric, local_exponents, percentile, power_law
from krogh.systems.hidden_progress import system
from krogh.systems.hidden_progress.configurations import configurations, parity_run
from krogh.train import sweep

# ------------------------------------------------------------------------------------------- Figure 5.1, right


@dataclass(frozen=True)
class Medians:
    configuration: str = "ii"
    lr: float = 1.0
    batch: int = 32
    ns: tuple[int, ...] = (10, 20, 30, 40)
    ks: tuple[int, ...] = (2, 3, 4)
    steps: int = 4000
    every: int = 5
    seeds: int = 128


@system.experiment(
    "fig-5.1-right",
    "Median convergence times grow like a power of n that adapts to k",
    presets={
        "smoke": Medians(ns=(10, 15, 20), ks=(2, 3), steps=500, seeds=8),
        "quick": Medians(),
        "paper": Medians(ns=tuple(range(10, 41)), ks=tuple(range(2, 9)), steps=100_000, seeds=1000),
    },
)
def medians(s: Medians) -> xr.Dataset:
    times = [_growing(s.configuration, k, s.lr, s.batch, s.ns, s.steps, s.every, s.seeds) for k in s.ks]
    return xr.Dataset(
        {"reached": (("k", "n", "seed"), np.array(times))},
        coords={"k": list(s.ks), "n": list(s.ns)},
        attrs={"configuration": configurations()[s.configuration].name, "steps": s.steps},
    )


def _growing(
    id: str, k: int, lr: float, batch: int, ns: Sequence[int], steps: int, check: int, seeds: int
) -> Float[np.ndarray, "n seed"]:
    """Convergence times at growing n, until more than half of the runs are censored."""
    times = np.full((len(ns), seeds), np.inf)
    for row, n in enumerate(ns):
        configuration = configurations(k)[id]
        run = sweep(parity_run(configuration, n, k, steps, every=check, seeds=seeds, lr=lr, batch=batch))
        times[row] = run.data.reached
        if not np.isfinite(percentile(times[row], 50)):
            break
    return times


def _ratio(later: np.ndarray, earlier: np.ndarray) -> float:
    return float(np.median(later) / np.median(earlier))


def _exponent_over_k(k: int, ns: np.ndarray):
    def stat(*times: np.ndarray) -> float:
        middle = np.array([np.median(t) for t in times])
        seen = np.isfinite(middle)
        return power_law(ns[seen], middle[seen])[0] / k

    return stat


@medians.claim(
    "14.18",
    "(ii), lr 1, B = 32: the median t_c does not decrease in n, strictly increases in k and from the smallest to the "
    "largest n; fitted exponent / k in [0.15, 1]; t_c(40, 4) < C(40, 4)/10",
    source="Fig 5.1 right, Fig B.6",
    presets=("quick", "paper"),
)
def adapts_to_k(ds: xr.Dataset):
    finite = np.isfinite(ds.reached.median("seed"))
    parts = {}
    for k in ds.k.values:
        ns = ds.n.values[finite.sel(k=k)]
        times = [ds.reached.sel(k=k, n=n).values for n in ns]
        for a, b in zip(range(len(ns)), range(1, len(ns)), strict=False):
            parts[f"k={k}, n={ns[a]} to {ns[b]}"] = at_least((times[b], times[a]), 1.0, stat=_ratio)
        parts[f"k={k}, n={ns[0]} to {ns[-1]}"] = at_least((times[-1], times[0]), 1.0 + 1e-9, stat=_ratio)
        parts[f"k={k}, exponent/k"] = between(tuple(times), 0.15, 1.0, stat=_exponent_over_k(int(k), ns))
    for n in ds.n.values:
        ks = ds.k.values[finite.sel(n=n)]
        for low, high in zip(ks, ks[1:], strict=False):
            pair = ds.reached.sel(n=n, k=high).values, ds.reached.sel(n=n, k=low).values
            parts[f"n={n}, k={low} to {high}"] = at_least(pair, 1.0 + 1e-9, stat=_ratio)
    parts["t_c(40, 4)"] = at_most(ds.reached.sel(n=40, k=4), math.comb(40, 4) / 10, stat="median", over="seed")
    return all_of(**parts)


@medians.figure
def plot_medians(ds: xr.Dataset):
    figure, ax = new_figure(size=(4.2, 3.2))
    _median_panel(ax, ds.reached)
    for k in ds.k.values:
        search = [math.log(2) * math.comb(int(n), int(k)) for n in ds.n.values]
        theory(ax, ds.n, search, label="random search" if k == ds.k.values[0] else None)
        ax.annotate(f" k = {k}", (ds.n.values[-1], search[-1]), fontsize=6, va="center")
    ax.set_title(f"{ds.attrs['configuration']}, lr 1, B = 32; reported: $t_c \\sim n^{{O(k)}}$")
    ax.legend()
    return figure


def _median_panel(ax, reached: xr.DataArray) -> None:
    """Median t_c against n for each k, with bootstrap intervals and the fitted power law, on log-log axes."""
    for k, colour in zip(reached.k.values, COLOURS, strict=False):
        rows = [reached.sel(k=k, n=n).values for n in reached.n.values]
        rows = {n: row for n, row in zip(reached.n.values, rows, strict=True) if np.isfinite(np.median(row))}
        if not rows:
            continue
        ns, middle = np.array(list(rows)), np.array([np.median(row) for row in rows.values()])
        low, high = np.array([interval(bootstrap([row], np.median, resamples=100)) for row in rows.values()]).T
        label = f"k = {k}"
        if len(ns) > 1:
            slope, factor = power_law(ns, middle)
            label += f": $n^{{{slope:.2f}}}$"
            ax.plot(ns, factor * ns**slope, color=colour, linewidth=0.8)
        # an interval that reaches the censored runs is open above
        above = np.where(np.isfinite(high), high, middle) - middle
        ax.errorbar(ns, middle, [middle - low, above], fmt="o", color=colour, label=label, capsize=2)
    ax.set(xscale="log", yscale="log", xlabel="n", ylabel="median $t_c$ (steps)")
    _plain_ticks(ax, reached.n.values)


def _plain_ticks(ax, ns: np.ndarray) -> None:
    """At most five of the n as ticks of a logarithmic axis, as they are."""
    shown = ns[np.unique(np.linspace(0, len(ns) - 1, 5).round().astype(int))]
    ax.set_xticks(shown, [f"{n:g}" for n in shown])
    ax.set_xticks([], minor=True)


# ------------------------------------------------------------------------------------------- Figure 5.2, left


@dataclass(frozen=True)
class Histogram:
    configuration: str = "xv"
    n: int = 20
    k: int = 3
    batch: int = 32
    lr: float = 0.05
    steps: int = 2000
    every: int = 5
    seeds: int = 2000
    seeds_at_once: int = 50_000


@system.experiment(
    "fig-5.2-left",
    "No run is lucky: the distribution of convergence times",
    presets={
        "smoke": Histogram(seeds=50, steps=600),
        "quick": Histogram(),
        "paper": Histogram(seeds=1_000_000),
    },
)
def histogram(s: Histogram) -> xr.Dataset:
    configuration = configurations(s.k)[s.configuration]
    times = []
    for first in range(0, s.seeds, s.seeds_at_once):
        seeds = range(first, min(first + s.seeds_at_once, s.seeds))
        settings = {"every": s.every, "seeds": seeds, "lr": s.lr, "batch": s.batch}
        times.append(sweep(parity_run(configuration, s.n, s.k, s.steps, **settings)).data.reached.values)
    return xr.Dataset(
        {"reached": ("seed", np.concatenate(times))},
        attrs={"every": s.every, "configuration": configuration.name, "n": s.n, "k": s.k},
    )


@histogram.claim(
    "14.20",
    "PolyNet (20,3), B = 32, lr 0.05, at least 400 runs: none below 0.4 of the median, where a geometric law would put "
    "24 %; a Kolmogorov-Smirnov test against the geometric law of equal median rejects at 1e-6",
    source="Fig 5.2 left",
    presets=("quick", "paper"),
)
def no_lucky_runs(ds: xr.Dataset):
    _, p_value = ks_geometric(ds.reached, ds.attrs["every"])
    return all_of(
        none_below=every(ds.reached >= 0.4 * ds.reached.median(), over="seed"),
        geometric_rejected=at_most(p_value, 1e-6),
    )


@histogram.figure
def plot_histogram(ds: xr.Dataset):
    figure, ax = new_figure(size=(4.2, 2.8))
    times = ds.reached.values[np.isfinite(ds.reached.values)]
    median, n, k = float(ds.reached.median()), int(ds.attrs["n"]), int(ds.attrs["k"])
    width = ds.attrs["every"] * max(1, round((times.max() - times.min()) / (60 * ds.attrs["every"])))
    ax.hist(times, np.arange(0, times.max() + 2 * width, width), density=True, label=f"{ds.sizes['seed']:,} runs")
    t = np.linspace(0, times.max(), 200)
    theory(ax, t, math.log(2) / median * 2 ** (-t / median), "geometric law of equal median")
    search = 1 / math.comb(n, k)
    ax.plot(t, search * np.exp(-search * t), color="0.5", label=f"random search, Geom(1/C({n},{k}))")
    reported(ax, 0.4 * median, "0.4 of the median", axis="x")
    ax.set(xlabel="convergence time $t_c$ (steps)", ylabel="density")
    ax.set_title(f"{ds.attrs['configuration']} ({n}, {k}); reported: heavy upper tail, none near t = 0")
    ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- Figure 5.2, right


@dataclass(frozen=True)
class Elbow:
    configuration: str = "ii"
    lr: float = 1.0
    batch: int = 32
    ns: tuple[int, ...] = (10, 20, 40, 80, 120)
    k: int = 3
    steps: int = 5000
    every: int = 5
    seeds: int = 64


@system.experiment(
    "fig-5.2-right",
    "The exponent worsens at large n",
    presets={
        "smoke": Elbow(ns=(10, 20, 40), steps=600, seeds=8),
        "quick": Elbow(),
        "paper": Elbow(ns=(10, 14, 20, 28, 40, 57, 80, 113, 160), steps=100_000, seeds=1000),
    },
)
def elbow(s: Elbow) -> xr.Dataset:
    times = _growing(s.configuration, s.k, s.lr, s.batch, s.ns, s.steps, s.every, s.seeds)
    return xr.Dataset(
        {"reached": (("n", "seed"), times)},
        coords={"n": list(s.ns), "k": s.k},
        attrs={"configuration": configurations()[s.configuration].name},
    )


@elbow.claim(
    "14.19",
    "(ii), k = 3, lr 1, B = 32: the local exponent between the two largest n exceeds that between the two smallest by "
    "at least 0.4",
    source="Fig 5.2 right",
    presets=("quick", "paper"),
)
def exponent_worsens(ds: xr.Dataset):
    ends = ds.n.values[[0, 1, -2, -1]]

    def steepening(*times: np.ndarray) -> float:
        exponents = local_exponents(ends, [np.median(t) for t in times])
        return float(exponents[2] - exponents[0])

    return at_least(tuple(ds.reached.sel(n=n).values for n in ends), 0.4, stat=steepening)


def _local_interval(reached: xr.DataArray) -> tuple[float, float]:
    def exponent(*times: np.ndarray) -> float:
        return float(local_exponents(reached.n, [np.median(t) for t in times])[0])

    return interval(bootstrap(list(reached.transpose("n", "seed").values), exponent, resamples=100))


@elbow.figure
def plot_elbow(ds: xr.Dataset):
    figure, (left, right) = new_figure(2, size=(6.4, 2.8))
    _median_panel(left, ds.reached.expand_dims("k"))
    middle = ds.reached.median("seed").values
    first = local_exponents(ds.n[:2], middle[:2])[0]
    theory(left, ds.n, middle[0] * (ds.n / ds.n[0]) ** first, f"slope at small n, {first:.2f}")
    left.set_title(f"{ds.attrs['configuration']}, k = {int(ds.k)}")
    left.legend()
    between_n = np.sqrt(ds.n.values[1:] * ds.n.values[:-1])
    value = local_exponents(ds.n, middle)
    low, high = np.array([_local_interval(ds.reached.isel(n=[i, i + 1])) for i in range(len(value))]).T
    right.errorbar(between_n, value, [value - low, high - value], fmt="o-", capsize=2)
    reported(right, first, "constant exponent")
    right.set(xscale="log", xlabel="n", ylabel="$d \\ln t_c / d \\ln n$", title="reported: the exponent worsens")
    _plain_ticks(right, ds.n.values)
    right.legend()
    return figure


# ------------------------------------------------------------------------------------------- Figure B.6


@dataclass(frozen=True)
class Panels:
    """Panels are (configuration, lr, largest n, largest k)."""

    panels: tuple[tuple[str, float, int, int], ...] = (
        ("i", 1.0, 30, 3),
        ("ii", 1.0, 30, 3),
        ("v", 0.01, 30, 3),
        ("xiv", 0.01, 30, 3),
        ("xv", 0.05, 30, 3),
    )
    ns: tuple[int, ...] = (10, 20, 30)
    batch: int = 32
    steps: int = 4000
    every: int = 5
    seeds: int = 32


@system.experiment(
    "fig-B.6",
    "Median convergence times, twelve panels of ten configurations (quick: five)",
    presets={
        "smoke": Panels(panels=(("i", 1.0, 14, 2), ("xv", 0.05, 14, 2)), steps=500, seeds=4),
        "quick": Panels(),
        "paper": Panels(
            panels=(
                *((id, 1.0, 40, 8) for id in ("i", "ii", "iii")),
                *((id, 0.01, 40, 8) for id in ("iv", "v", "vi", "viii", "xiv")),
                ("*iii", 3e-4, 40, 8),
                ("xv", 0.05, 40, 8),
                ("ii", 1.0, 160, 3),
                ("v", 0.01, 160, 3),
            ),
            ns=(*range(10, 41), 57, 80, 113, 160),
            steps=100_000,
            seeds=1000,
        ),
    },
)
def panels(s: Panels) -> xr.Dataset:
    ks = range(2, max(panel[3] for panel in s.panels) + 1)
    times = np.full((len(s.panels), len(ks), len(s.ns), s.seeds), np.inf)
    for row, (id, lr, largest_n, largest_k) in enumerate(s.panels):
        ns = [n for n in s.ns if n <= largest_n]
        for k in range(2, largest_k + 1):
            times[row, k - 2, : len(ns)] = _growing(id, k, lr, s.batch, ns, s.steps, s.every, s.seeds)
    names = configurations()
    return xr.Dataset(
        {"reached": (("panel", "k", "n", "seed"), times)},
        coords={
            "panel": [f"({id}) {names[id].name.replace('z^3', 'z^k')}, lr {lr:g}" for id, lr, *_ in s.panels],
            "k": list(ks),
            "n": list(s.ns),
        },
    )


@panels.figure
def plot_panels(ds: xr.Dataset):
    columns = min(4, ds.sizes["panel"])
    rows = math.ceil(ds.sizes["panel"] / columns)
    figure, axes = new_figure(columns, rows, squeeze=False, sharey=True)
    for ax in axes.ravel()[ds.sizes["panel"] :]:
        ax.set_axis_off()
    for ax, row in zip(axes.ravel(), range(ds.sizes["panel"]), strict=False):
        _median_panel(ax, ds.reached.isel(panel=row))
        ax.set_title(str(ds.panel.values[row]))
        ax.legend()
    figure.suptitle("reported: power laws $n^{\\alpha k}$ at small n, steeper at large n", fontsize=8)
    return figure
