"""The robust space of positive results: what learns at which batch size, and how fast (003 §5.3.1, §B.3)."""

import itertools
import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import xarray as xr

from krogh.lab import all_of, share_at_least
from krogh.lab.figures import new_figure
from krogh.lab.statistics import percentile
from krogh.systems.hidden_progress import system
from krogh.systems.hidden_progress.configurations import FRAGILE, ROBUST, configurations, parity_run
from krogh.train import sweep

LRS = (1.0, 0.1, 0.01, 0.001)
BATCHES = tuple(2**i for i in range(11))


@dataclass(frozen=True)
class Grid:
    """The product of all axes, `seeds` trials per cell and learning rate.

    A cell is tried with growing `budgets` of steps until its best learning rate has `enough` converged trials;
    the document has the one budget 10⁵. Shards choose parts of an axis: the cells do not depend on each other.
    """

    configurations: tuple[str, ...] = tuple(id for id in ROBUST if id not in ("iii", "vi"))
    ns: tuple[int, ...] = (20,)
    ks: tuple[int, ...] = (3,)
    batches: tuple[int, ...] = (1, 32, 1024)
    inits: tuple[str, ...] = ("uniform",)
    losses: tuple[str, ...] = ("hinge",)
    lrs: tuple[float, ...] = LRS
    seeds: int = 16
    budgets: tuple[int, ...] = (100_000,)
    enough: float = 0.8
    every: int = 10
    validation: int = 128


def _grid(s: Grid) -> xr.Dataset:
    axes = {
        "configuration": s.configurations,
        "n": s.ns,
        "k": s.ks,
        "batch": s.batches,
        "init": s.inits,
        "loss": s.losses,
    }
    shape = tuple(map(len, axes.values()))
    times = np.full((*shape, len(s.lrs), s.seeds), np.inf)
    budget = np.zeros(shape, int)
    for where in np.ndindex(shape):
        cell = {name: values[i] for (name, values), i in zip(axes.items(), where, strict=True)}
        times[where], budget[where] = _cell(s, **cell)
    return xr.Dataset(
        {"reached": ((*axes, "lr", "seed"), times), "budget": (tuple(axes), budget)},
        coords={name: list(values) for name, values in axes.items()} | {"lr": list(s.lrs)},
    )


def _cell(s: Grid, configuration: str, n: int, k: int, batch: int, init: str, loss: str) -> tuple[np.ndarray, int]:
    """Convergence times (lr, seed) of one cell, and the budget they were given."""
    times, steps = np.full((len(s.lrs), s.seeds), np.inf), 0
    for steps in s.budgets:
        learner = {"batch": batch, "loss": loss}
        chosen = configurations(k, init)[configuration]
        run = parity_run(chosen, n, k, steps, every=s.every, seeds=s.seeds, validation=s.validation, **learner)
        times = sweep(run, lr=s.lrs).data.reached.transpose("lr", "seed").values
        if np.isfinite(times).mean(axis=1).max() >= s.enough:
            break
    return times, steps


def best_lr(reached: xr.DataArray) -> xr.DataArray:
    """The convergence times at each cell's best learning rate: most converged trials, then the shortest time."""
    share = np.isfinite(reached).mean("seed")
    tenth = xr.apply_ufunc(lambda t: percentile(t, 10, axis=-1), reached, input_core_dims=[["seed"]])
    score = share - tenth.where(np.isfinite(tenth), 1e9) / 1e9
    return reached.isel(lr=score.argmax("lr"))


# ------------------------------------------------------------------------------------------- Finding 5.1


@system.experiment(
    "finding-5.1",
    "Every configuration learns at every batch size for some learning rate",
    presets={
        "smoke": Grid(configurations=("vii", "xv"), ns=(10,), ks=(2,), batches=(1, 32), seeds=4, budgets=(500,)),
        "quick": Grid(budgets=(1_500, 15_000, 100_000), enough=0.5, every=25),
        "paper": Grid(
            configurations=ROBUST,
            ns=(10, 20, 30),
            ks=(2, 3, 4),
            batches=BATCHES,
            inits=("uniform", "gaussian", "bernoulli"),
            losses=("hinge", "square", "logistic"),
            seeds=25,
        ),
    },
)
def robust_space(s: Grid) -> xr.Dataset:
    return _grid(s)


@robust_space.claim(
    "14.15",
    "Each of (i), (ii), (iv), (v), (vii)-(xv) on (20,3) with hinge loss, uniform initialisation and B in {1, 32, 1024} "
    "reaches 100 % in >= 20 % of trials at its best learning rate of {1, 0.1, 0.01, 0.001}; at paper every cell of the "
    "document's grid does",
    source="Finding 5.1",
    presets=("quick", "paper"),
)
def every_cell_learns(ds: xr.Dataset):
    return _every_cell(ds)


def _every_cell(ds: xr.Dataset):
    best = best_lr(ds.reached)
    cells = [name for name in best.dims if name != "seed"]
    varied = [name for name in cells if best.sizes[name] > 1 or name in ("configuration", "batch")]
    parts = {}
    for point in itertools.product(*(best[name].values for name in cells)):
        where = dict(zip(cells, point, strict=True))
        parts[_cell_name(where, varied)] = share_at_least(np.isfinite(best.sel(where)), 0.2, over="seed")
    return all_of(**parts)


def _cell_name(where: dict, varied: Iterable[str]) -> str:
    return ", ".join(f"({where[name]})" if name == "configuration" else f"{name} {where[name]}" for name in varied)


def _heat(ax, values: xr.DataArray, text: str, **image) -> None:
    """Configurations down, batch sizes across, each cell with its number."""
    table = values.transpose("configuration", "batch").values
    shown = ax.imshow(np.where(np.isfinite(table), table, np.nan), aspect="auto", **image)
    ax.set_xticks(range(table.shape[1]), values.batch.values)
    ax.set_yticks(range(table.shape[0]), [f"({id})" for id in values.configuration.values])
    for row, column in np.ndindex(table.shape):
        value = table[row, column]
        label = format(value, text) if math.isfinite(value) else "–"
        # dark cells take white numbers
        dark = math.isfinite(value) and np.mean(shown.cmap(shown.norm(value))[:3]) < 0.5
        ax.text(column, row, label, ha="center", va="center", fontsize=5, color="white" if dark else "black")
    ax.spines[:].set_visible(False)


def _heat_maps(ds: xr.Dataset, statement: str):
    """Per (n, k): above the 10th-percentile t_c of the best learning rate, below the percentage converged."""
    from matplotlib.colors import LogNorm

    best = best_lr(ds.reached).isel(init=0, loss=0)
    cells = list(itertools.product(best.n.values, best.k.values))
    height = 0.7 + 0.16 * ds.sizes["configuration"]
    size = (max(3.2, (0.7 + 0.3 * ds.sizes["batch"]) * len(cells)), 2 * height)
    figure, axes = new_figure(len(cells), 2, size=size, squeeze=False)
    norm = LogNorm(10, 1e5)
    for column, (n, k) in enumerate(cells):
        times = best.sel(n=n, k=k)
        tenth = times.reduce(lambda t, axis: percentile(t, 10, axis=axis), "seed")
        _heat(axes[0, column], tenth, ".0f", cmap="viridis_r", norm=norm)
        _heat(axes[1, column], 100 * np.isfinite(times).mean("seed"), ".0f", cmap="viridis", vmin=0, vmax=100)
        axes[0, column].set_title(f"({n}, {k}): 10th percentile of $t_c$")
        axes[1, column].set_title(f"({n}, {k}): converged runs (%)")
        axes[1, column].set_xlabel("batch size B")
    figure.suptitle(textwrap.fill(f"reported: {statement}", int(14 * size[0])), fontsize=8)
    return figure


@robust_space.figure
def plot_robust_space(ds: xr.Dataset):
    return _heat_maps(ds, "every cell at least 20 % within $10^5$ steps")


# ------------------------------------------------------------------------------------------- Figures B.3 and B.4


@system.experiment(
    "fig-B.3",
    "Convergence times and success rates of all configurations at n = 30 (Figures B.3 and B.4)",
    presets={
        "smoke": Grid(configurations=("vii", "xv"), ns=(12,), ks=(2, 3), batches=(1, 16), seeds=4, budgets=(500,)),
        "quick": Grid(
            configurations=("i", "iv", "vii", "x", "xv", "*i", "*ii"),
            ns=(30,),
            batches=(1, 32, 256),
            seeds=10,
            budgets=(1_000, 10_000),
            enough=0.5,
            every=25,
        ),
        "paper": Grid(configurations=(*ROBUST, *FRAGILE), ns=(30,), ks=(2, 3, 4), batches=BATCHES, seeds=25),
    },
)
def all_configurations(s: Grid) -> xr.Dataset:
    return _grid(s)


@all_configurations.figure
def plot_all_configurations(ds: xr.Dataset):
    return _heat_maps(ds, "with large B nearly all runs of (i)-(xv) converge; (*i)-(*iii) need B >= 16")


# ------------------------------------------------------------------------------------------- Figure B.5


@system.experiment(
    "fig-B.5",
    "Coarse scaling of convergence times: t_c <= c (n - 9)^alpha",
    presets={
        "smoke": Grid(configurations=("vii", "xv"), ns=(10, 14), ks=(2,), batches=(32,), seeds=4, budgets=(500,)),
        "quick": Grid(
            configurations=("i", "vii", "xv"),
            ns=(10, 20, 30),
            ks=(2, 3),
            batches=(32,),
            seeds=10,
            budgets=(1_000, 4_000),
            enough=0.5,
        ),
        "paper": Grid(configurations=(*ROBUST, *FRAGILE), ns=(10, 20, 30), ks=(2, 3, 4), batches=BATCHES, seeds=25),
    },
)
def coarse_scaling(s: Grid) -> xr.Dataset:
    ds = _grid(s)
    best = best_lr(ds.reached)
    tenth = best.reduce(lambda t, axis: percentile(t, 10, axis=axis), "seed")
    c = tenth.isel(n=0)
    beyond = tenth.isel(n=slice(1, None))
    # n_0 is one less than the smallest n, so that c is t_c there
    alpha = (np.log(beyond / c) / np.log(beyond.n - (ds.n[0] - 1))).max("n")
    return ds.assign(tenth=tenth, c=c.drop_vars("n"), alpha=alpha.where(np.isfinite(alpha)))


@coarse_scaling.figure
def plot_coarse_scaling(ds: xr.Dataset):
    columns = ds.sizes["k"]
    size = (max(3.2, (0.9 + 0.5 * ds.sizes["batch"]) * columns), 0.8 + 0.2 * ds.sizes["configuration"])
    figure, axes = new_figure(columns, size=size, squeeze=False)
    for ax, k in zip(axes[0], ds.k.values, strict=True):
        alpha, c = (
            ds[name].isel(init=0, loss=0).sel(k=k).transpose("configuration", "batch") for name in ("alpha", "c")
        )
        ax.imshow(alpha.values, aspect="auto", cmap="viridis_r", vmin=0, vmax=2, alpha=0.6)
        ax.set_xticks(range(ds.sizes["batch"]), ds.batch.values)
        ax.set_yticks(range(ds.sizes["configuration"]), [f"({id})" for id in ds.configuration.values])
        for row, column in np.ndindex(alpha.shape):
            value = alpha.values[row, column]
            told = f"{c.values[row, column]:.0f}, {value:.2f}" if np.isfinite(value) else "–"
            ax.text(column, row, told, ha="center", va="center", fontsize=6)
        ax.spines[:].set_visible(False)
        ax.set(xlabel="batch size B", title=f"k = {k}")
    figure.suptitle("c, $\\alpha$ in $t_c \\leq c\\,(n - n_0)^\\alpha$; reported: small constants", fontsize=8)
    return figure
