"""How this system's figures draw margins, spectra and tables."""

import numpy as np
import xarray as xr

from krogh.lab import statistics
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure


def interval(values: xr.DataArray) -> tuple[float, float, float]:
    """Mean over seeds and its 95 % bootstrap interval."""
    array = np.asarray(values, float)
    if len(array) < 2:
        return float(array.mean()), float("nan"), float("nan")
    low, high = statistics.interval(statistics.bootstrap([array], np.mean))
    return float(array.mean()), low, high


def margin_curve(ax, ds: xr.Dataset) -> None:
    """Normalised margin against steps, with γ* and a table of theory, construction, certificate and training."""
    gamma = ds.attrs["theory"]
    curve_with_spread(ax, ds.margin, label=f"trained, {ds.sizes['seed']} seeds: median, 10–90 %")
    ax.axhline(gamma, color="black", linestyle="--", linewidth=1, label=r"$\gamma^*$ (theory)")
    ax.set(xlabel="step t", ylabel="normalised margin", ylim=(min(0, -0.05 * gamma), 1.1 * gamma))
    ax.legend(loc="lower right")
    mean, low, high = interval(ds.margin.isel(step=-1))
    rows = [(name, ds.attrs[name]) for name in ("theory", "construction", "upper bound") if name in ds.attrs]
    text = [f"{name}: {value:.5g}" for name, value in rows]
    text += [f"trained: {mean:.5g} [{low:.5g}, {high:.5g}]", f"trained/theory: {mean / gamma:.4f}"]
    ax.text(0.98, 0.3, "\n".join(text), transform=ax.transAxes, ha="right", va="bottom", fontsize=6)


def power_histogram(ax, power: xr.DataArray, live: xr.DataArray, title: str, reported: str) -> None:
    """Histogram of the largest normalised power over all live neurons of all seeds, with its spread over seeds."""
    edges = np.linspace(0, 1, 41)
    counts = []
    for i in range(power.sizes["seed"]):
        values = power.isel(seed=i).values[live.isel(seed=i).values]
        counts.append(np.histogram(values, edges)[0] / max(1, len(values)))
    middle = np.mean(counts, axis=0)
    centres = (edges[1:] + edges[:-1]) / 2
    ax.bar(centres, middle, width=0.025, color=COLOURS[0])
    spread = np.quantile(counts, (0.1, 0.9), axis=0)
    ax.vlines(centres, *spread, color="black", linewidth=0.6)
    ax.set(title=f"{title}\nreported: {reported}", xlabel="largest normalised power", ylabel="share of live neurons")


def bars(ax, values: xr.DataArray, expected, names: list[str], ylabel: str, told: str = "theory") -> None:
    """One bar per feature: mean over seeds with the 10–90 % range; what is expected (or None) as black marks."""
    x = np.arange(values.sizes["feature"])
    middle = values.mean("seed")
    low, high = values.quantile(0.1, "seed"), values.quantile(0.9, "seed")
    ax.bar(x, middle, color=COLOURS[5], label=f"mean of {values.sizes['seed']} seeds, 10–90 %")
    ax.vlines(x, low, high, color=COLOURS[0], linewidth=1)
    if expected is not None:
        ax.plot(x, expected, "_", color="black", markersize=9, label=told)
    ax.set(ylabel=ylabel)
    ax.set_xticks(x, names, fontsize=6)
    ax.legend(fontsize=6)


def table_figure(columns: list[str], rows: list[list[str]], title: str):
    """A figure that is a table of texts."""
    figure, ax = new_figure(size=(1.15 * len(columns) + 0.6, 0.24 * (len(rows) + 2) + 0.3))
    ax.set_axis_off()
    drawn = ax.table(cellText=rows, colLabels=columns, loc="center", cellLoc="center", edges="horizontal")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(6.5)
    drawn.auto_set_column_width(list(range(len(columns))))
    ax.set_title(title)
    return figure


def table_of(ds: xr.Dataset, dim: str, columns: dict[str, tuple[str, str]], title: str):
    """A table with a row per value of `dim`; `columns` gives each variable's heading and format."""
    rows = [
        [str(key), *(format(ds[name].sel({dim: key}).item(), form) for name, (_, form) in columns.items())]
        for key in ds[dim].values
    ]
    return table_figure([dim, *(heading for heading, _ in columns.values())], rows, title)
