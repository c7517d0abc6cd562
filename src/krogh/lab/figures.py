"""How figures look, and how a curve is drawn: measured with its spread, predicted, reported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "figure.facecolor": "white",
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}


def house_style() -> AbstractContextManager[None]:
    import matplotlib as mpl

    return mpl.rc_context(cast(Any, STYLE))


def new_figure(
    ncols: int = 1, nrows: int = 1, size: tuple[float, float] | None = None, **subplots: Any
) -> tuple[Figure, Any]:
    """A figure with its axes (one, a row, or a grid as in plt.subplots); size in inches."""
    from matplotlib.figure import Figure

    with house_style():
        figure = Figure(figsize=size or (3.0 * ncols, 2.3 * nrows), layout="constrained")
        return figure, figure.subplots(nrows, ncols, **subplots)


def draw(plot: Callable[[xr.Dataset], Figure], dataset: xr.Dataset) -> Figure:
    """An experiment's figure in the house style."""
    with house_style():
        return plot(dataset)


def save(figure: Figure, stem: Path, formats: tuple[str, ...] = ("png", "pdf")) -> list[Path]:
    """The figure as <stem>.png, for the screen, and <stem>.pdf, for a paper."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in formats]
    stem.parent.mkdir(parents=True, exist_ok=True)
    with house_style():
        for path in paths:
            figure.savefig(path)
    return paths


def curve_with_spread(
    ax: Axes,
    values: xr.DataArray,
    x: str = "step",
    over: str | tuple[str, ...] = "seed",
    label: str | None = None,
    band: tuple[float, float] = (0.1, 0.9),
    **line: Any,
) -> Any:
    """The median over replicas against x, with the band between two quantiles; censored values may be inf."""
    names = [name for name in ((over,) if isinstance(over, str) else over) if name in values.dims]
    table = np.asarray(values.transpose(x, *names)).astype(float).reshape(values.sizes[x], -1)
    low, high = (np.nanquantile(table, q, axis=1, method="inverted_cdf") for q in band)
    middle = np.nanmedian(table, axis=1)
    (drawn,) = ax.plot(values[x], middle, label=label, **line)
    if table.shape[1] > 1:
        ax.fill_between(values[x], low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)
    return drawn


def ticks_at(ax: Axes, values: Any) -> None:
    """Plain numbers at these places of a logarithmic x axis, and no others; of many, about six."""
    shown = np.asarray(values)[:: -(-len(values) // 6)]
    ax.set_xticks(shown, [f"{value:g}" for value in shown])
    ax.set_xticks([], minor=True)


def theory(ax: Axes, x: Any, y: Any, label: str | None = "theory") -> Any:
    """What is predicted: black and dashed, over everything else."""
    return ax.plot(np.asarray(x), np.asarray(y), color="black", linestyle="--", linewidth=1, label=label, zorder=5)[0]


def reported(ax: Axes, value: float, label: str | None = "reported", axis: str = "y") -> Any:
    """What the document reports: a dotted grey line at one value of y (or x)."""
    line = ax.axhline if axis == "y" else ax.axvline
    return line(value, color="0.5", linestyle=":", linewidth=1, label=label, zorder=1)
