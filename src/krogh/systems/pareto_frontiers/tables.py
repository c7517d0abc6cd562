"""From parities to tables: wide, sparsely initialised networks against random forests (003 §6.4.2, §C.3.3).

Optimizer and loss are not stated in the source; plain SGD at its learning rate of 1e-3 would make 100 small steps on
the small samples. Here Adam and the logistic loss; orderings are judged, numbers only shown beside the published ones.
"""

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from krogh.lab import all_of, at_least, at_most, equals, every
from krogh.lab.figures import COLOURS, new_figure, reported
from krogh.nn.mlp import DeepMLP
from krogh.nn.sparse import SparseRows
from krogh.probes.basic import accuracy_in_parts
from krogh.systems.pareto_frontiers import published, system
from krogh.tasks.base import Batch, Task
from krogh.tasks.tabular import KINDS, RuleTable, tabular
from krogh.train import Adam, spec, sweep
from krogh.train.cells import Cells
from krogh.train.program import DATA, TASK, VALIDATION, stream

LABEL = {0: "dense", 2: "2-sparse", 4: "4-sparse"}


@dataclass(frozen=True)
class Training:
    """Widths are those of every hidden layer; s = 0 is the dense initialisation; trees are those of a random forest."""

    widths: tuple[int, ...] = (100, 400)
    depths: tuple[int, ...] = (2,)
    sparsities: tuple[int, ...] = (0, 2)
    lr: float = 1e-3
    weight_decay: float = 0.0
    batch: int = 256
    epochs: int = 100
    trees: tuple[int, ...] = (100,)
    max_depths: tuple[int | None, ...] = (None,)
    max_features: tuple[int | str | None, ...] = ("sqrt",)
    seeds: int = 16


def network_errors(s: Training, task: Task, m: int, test: int, **axes: Any) -> xr.DataArray:
    """Test errors over (axes, s, depth, width, seed) after `epochs` passes over m training rows."""
    batch = min(s.batch, m)
    parts = []
    for depth, width in itertools.product(s.depths, s.widths):
        steps = s.epochs * (m // batch)
        run = spec(
            task,
            SparseRows(DeepMLP((width,) * depth), s=float(s.sparsities[0])),
            Adam(lr=s.lr, batch=batch, samples=m, loss="logistic", weight_decay=s.weight_decay),
            steps,
            seeds=s.seeds,
            probes=[accuracy_in_parts],
            every=steps,
            validation=test,
            networks=False,
        )
        accuracy = sweep(run, **axes, s=s.sparsities).data.accuracy.isel(step=-1, drop=True)
        parts.append((1 - accuracy).expand_dims(depth=[depth], width=[width]))
    return xr.combine_by_coords([part.rename("error").to_dataset() for part in parts]).error


@eqx.filter_jit
def replica_data(task: Task, seed: int | Array, m: int, test: int) -> tuple[Batch, Batch]:
    """The training and test rows that the replica of this seed sees."""
    own = task.instance(stream(seed, TASK))
    return own.sample(stream(seed, DATA), m), own.held_out(stream(seed, VALIDATION), test)


def forest_errors(s: Training, task: Task, m: int, test: int) -> xr.DataArray:
    """Test errors of random forests over (forest, seed), on the networks' own rows."""
    from sklearn.ensemble import RandomForestClassifier

    grid = list(itertools.product(s.trees, s.max_depths, s.max_features))
    errors = np.zeros((len(grid), s.seeds))
    for seed in range(s.seeds):
        train, held = (jax.device_get(part) for part in replica_data(task, jnp.uint32(seed), m, test))
        for row, (trees, depth, features) in enumerate(grid):
            if isinstance(features, int) and features > train.x.shape[1]:
                errors[row, seed] = np.nan
                continue
            forest = RandomForestClassifier(trees, max_depth=depth, max_features=features, random_state=seed, n_jobs=-1)
            errors[row, seed] = np.mean(forest.fit(train.x, train.y).predict(held.x) != held.y)
    names = [f"{trees} trees, depth {depth}, {features} features" for trees, depth, features in grid]
    return xr.DataArray(errors, dims=("forest", "seed"), coords={"forest": names})


# ------------------------------------------------------------------------------------------- surrogates


@dataclass(frozen=True)
class Surrogates(Training):
    n: int = 20
    samples: tuple[int, ...] = (100, 300)
    test: int = 2000


@system.experiment(
    "surrogate-tables",
    "Width and sparse rows on synthetic tables: a tree, an xor, a band among irrelevant heavy-tailed features",
    presets={
        "smoke": Surrogates(widths=(8, 16), samples=(20, 40), epochs=5, trees=(10,), test=200, seeds=2),
        "quick": Surrogates(seeds=160),
        "paper": Surrogates(
            widths=(100, 300, 1000, 3000), samples=(100, 300, 1000, 3000), sparsities=(0, 2, 4), test=10_000, seeds=100
        ),
    },
    stand_in="synthetic tables for the OpenML benchmark",
)
def surrogates(s: Surrogates) -> xr.Dataset:
    networks, forests = [], []
    for m in s.samples:
        errors = network_errors(s, RuleTable(s.n), m, s.test, kind=range(len(KINDS)))
        networks.append(errors.assign_coords(kind=list(KINDS)).expand_dims(m=[m]))
        kinds = [forest_errors(s, RuleTable(s.n, kind=jnp.float32(i)), m, s.test) for i in range(len(KINDS))]
        forests.append(xr.concat(kinds, "kind").assign_coords(kind=list(KINDS)).expand_dims(m=[m]))
    return xr.Dataset({"error": xr.concat(networks, "m"), "forest_error": xr.concat(forests, "m")}).assign_attrs(n=s.n)


@surrogates.claim(
    "15.17",
    "On >= 2 of 3 surrogate tables (depth 2) the median test error at the largest width, 3000 (quick: 400), is at "
    "most that at r = 100 for 2-sparse rows and both of the smallest training sizes, and at the smallest, at the "
    "largest width, 2-sparse rows are at most 0.5 points above dense ones; medians over replicas, with an interval",
    source="Fig 6.3, Fig C.3, findings 2T and 3T",
    finding="All six medians are lower at the larger width, but by so little that 48 replicas left the second best "
    "table's worse size between -.7 and +.1 points; 160 decide.",
)
def width_and_sparsity_help(ds: xr.Dataset):
    error = ds.error.isel(depth=-1).sortby("m").transpose("seed", "kind", "m", ...)
    small, smallest = error.isel(m=slice(2)).sel(s=2), error.isel(m=[0], width=-1)
    wide, narrow = small.isel(width=-1).values, small.sel(width=100).values
    sparse, dense = (smallest.sel(s=s).values for s in (2, 0))

    def excess(ours: np.ndarray, theirs: np.ndarray) -> float:
        """By how much the median error (seed, table, m) exceeds the other at the worse m of the second best table."""
        worst = (np.median(ours, axis=0) - np.median(theirs, axis=0)).max(axis=-1)
        return float(np.sort(worst)[1])

    return all_of(width=at_most((wide, narrow), 0.0, stat=excess), sparse=at_most((sparse, dense), 0.005, stat=excess))


def error_curves(ds: xr.Dataset, panels: str, x: str):
    """Median test error against the training size per width, dense above sparse, with the best network of all (width,
    depth and rows chosen for every size by this error) and the best forest."""
    initial = ds.s.values[:2]
    columns = ds.sizes[panels]
    fig, axes = new_figure(
        columns, len(initial), size=(2.8 * columns, 2.2 * len(initial)), squeeze=False, sharex="col", sharey="col"
    )
    for (row, s), (column, panel) in itertools.product(enumerate(initial), enumerate(ds[panels].values)):
        ax, cell = axes[row, column], ds.sel({panels: panel, "s": s}).isel(depth=-1)
        for width, colour in zip(ds.width.values, COLOURS, strict=False):
            errors = 100 * cell.error.sel(width=width).transpose(x, "seed")
            ax.plot(cell[x], errors.median("seed"), "o-", color=colour, markersize=3, label=f"r = {width}")
            low, high = (errors.quantile(q, "seed") for q in (0.25, 0.75))
            ax.fill_between(cell[x], low, high, color=colour, alpha=0.15, linewidth=0)
        best = 100 * ds.error.sel({panels: panel}).median("seed").min(("s", "depth", "width"))
        ax.plot(ds[x], best, color="goldenrod", linewidth=1.5, label="best network")
        forest = 100 * ds.forest_error.sel({panels: panel}).median("seed").min("forest")
        ax.plot(ds[x], forest, "k--", linewidth=1, label="best random forest")
        if str(panel) in published.TABLE_C2:
            values = dict(zip(published.COLUMNS, published.TABLE_C2[str(panel)], strict=True))
            reported(ax, values["lit. MLP"], "literature MLP, all data")
            reported(ax, values["lit. RF"], "literature RF, all data")
        ax.set(xscale="log", title=f"{panel}, {LABEL[int(s)]}")
        if row == len(initial) - 1:
            ax.set_xlabel("training rows" if x == "m" else "share of the training rows")
        if column == 0:
            ax.set_ylabel("test error, %")
    axes[0, 0].legend(fontsize=6)
    return fig


@surrogates.figure
def plot_surrogates(ds: xr.Dataset):
    return error_curves(ds, "kind", "m")


# ------------------------------------------------------------------------------------------- Fig 6.3, C.3, Table C.2

SETS = (
    "electricity",
    "covertype",
    "MagicTelescope",
    "bank-marketing",
    "default-of-credit-card-clients",
    "california",
    "heloc",
)
FRACTIONS = (1, 0.6, 0.3, 0.2, 0.1, 0.06, 0.03, 0.02, 0.01, 0.006, 0.003, 0.002, 0.001)
FORESTS = {"trees": (10, 100, 1000), "max_depths": (None, 2, 3, 4, 10), "max_features": (1, 2, 3, 4, "sqrt", None)}
STAND_IN = (
    "packaged editions of seven of the sixteen sets: electricity has two columns fewer, bank-marketing is the "
    "'additional' edition, heloc keeps 23 columns"
)


@dataclass(frozen=True)
class Tables(Training):
    """`fractions` of the rows that are not for testing; test rows are at most `test`. The last width is left out where
    there are more training rows than `widest_rows`, as it is for the two largest sets of the document."""

    sets: tuple[str, ...] = ("MagicTelescope",)
    fractions: tuple[float, ...] = (0.01, 0.1)
    widths: tuple[int, ...] = (30, 300)
    widest_rows: int = 100_000
    test: int = 5000
    seeds: int = 8


def tables(s: Tables) -> xr.Dataset:
    parts, cells = [], Cells(len(s.sets) * len(s.fractions))
    for name in s.sets:
        networks, forests = [], []
        for fraction in s.fractions:
            task = tabular(name, fraction)
            m = len(task.rows)
            widths = s.widths if m <= s.widest_rows else s.widths[:-1]
            errors = network_errors(replace(s, widths=widths), task, m, s.test)
            networks.append(errors.expand_dims(fraction=[fraction]))
            forest = cells((name, fraction), partial(forest_errors, s, task, m, s.test))
            forests.append(forest.expand_dims(fraction=[fraction]))
        both = {"error": xr.concat(networks, "fraction", join="outer"), "forest_error": xr.concat(forests, "fraction")}
        parts.append(xr.Dataset(both).assign(rows=len(task.y), features=task.x.shape[1]).expand_dims(set=[name]))
    return xr.concat(parts, "set")


SMOKE = Tables(widths=(4, 8), epochs=2, trees=(5,), fractions=(0.005, 0.01), test=200, seeds=2)


figure_6_3 = system.experiment(
    "fig-6.3",
    "Width and sparse rows on a real table, down-sampled",
    presets={
        "smoke": SMOKE,
        "quick": Tables(),
        "paper": Tables(
            sets=("MagicTelescope", "heloc", "california"),
            fractions=FRACTIONS,
            widths=(100, 300, 1000, 3000),
            depths=(3,),
            seeds=100,
            **FORESTS,
        ),
    },
    stand_in=STAND_IN,
)(tables)


@figure_6_3.claim(
    "15.17b",
    "The median test error at the largest width is at most that at the smallest, for 2-sparse rows on the smallest two "
    "training sets of every table, and 2-sparse rows are at most 0.5 points above dense ones at the smallest",
    source="Fig 6.3, findings 2T and 3T",
    finding="On MagicTelescope at 1 % of the rows (quick, widths to 300, 8 splits) sparse rows test 0.9 points "
    "worse than dense ones; at 10 % they are level at the larger width.",
)
def width_and_sparsity_help_for_real(ds: xr.Dataset):
    error = ds.error.isel(depth=-1).median("seed").sortby("fraction")
    small = error.isel(fraction=slice(2)).sel(s=2)
    gain = error.isel(fraction=0, width=-1)
    return all_of(
        width=every(small.isel(width=-1) <= small.isel(width=0)),
        sparse=every(gain.sel(s=2) <= gain.sel(s=0) + 0.005),
    )


@figure_6_3.figure
def plot_figure_6_3(ds: xr.Dataset):
    return error_curves(ds, "set", "fraction")


table_c2 = system.experiment(
    "table-C.2",
    "Best network against best random forest on tables (with the curves of Fig C.3)",
    presets={
        "smoke": SMOKE,
        # california alone needs another package to be read
        "quick": Tables(
            sets=tuple(name for name in SETS if name != "california"),
            fractions=(0.003, 0.01),
            widths=(100, 300),
            max_depths=(None, 4),
            seeds=16,
        ),
        "paper": Tables(
            sets=SETS,
            fractions=(1, 0.1, 0.01),
            widths=(100, 300, 1000, 3000),
            depths=(1, 2, 3),
            sparsities=(0, 2, 4),
            seeds=100,
            **FORESTS,
        ),
    },
    stand_in=STAND_IN,
)(tables)


columns_c2 = system.experiment(
    "table-C.2-columns",
    "The six columns of Table C.2 on seven tables: all rows, a tenth, a hundredth; 16 splits and fewer sizes",
    presets={
        "smoke": SMOKE,
        "paper": Tables(
            sets=SETS,
            fractions=(1, 0.1, 0.01),
            widths=(100, 300, 1000),
            sparsities=(0, 2, 4),
            max_features=("sqrt", None),
            seeds=16,
        ),
    },
    stand_in=STAND_IN,
)(tables)


FORESTS_LEAD = (
    "With 1 % of the rows the best random forest has the lower median test error, on average over the sets, as it has "
    "in Table C.2 on each of these"
)


@table_c2.claim(
    "15.18b",
    FORESTS_LEAD,
    source="Table C.2",
    finding="Eight of twelve medians are within two points of the published ones, although fewer sizes are tried; both "
    "of bank-marketing, another edition, are seven points lower. On electricity, here with two columns fewer, and on "
    "MagicTelescope the networks are ahead by half a point.",
)
def forests_lead_on_few_rows(ds: xr.Dataset):
    few = ds.sel(fraction=0.01)
    networks = few.error.stack(model=("s", "depth", "width")).transpose("seed", "set", "model").values
    forests = few.forest_error.transpose("seed", "set", "forest").values

    def lead(networks: np.ndarray, forests: np.ndarray) -> float:
        best = [np.nanmin(np.median(errors, axis=0), axis=-1) for errors in (networks, forests)]
        return float(np.mean(best[0] - best[1]))

    return at_least((networks, forests), 0.0, stat=lead)


columns_c2.claim("15.18b", FORESTS_LEAD, source="Table C.2", presets=("paper",))(forests_lead_on_few_rows.predicate)


def plot_columns(ds: xr.Dataset):
    """Best median test error of networks and forests, ours above the published."""
    networks = 100 * ds.error.median("seed").min(("s", "depth", "width"))
    forests = 100 * ds.forest_error.median("seed").min("forest")
    text, rows = [], []
    shares = [f for f in (1, 0.1, 0.01) if f in ds.fraction.values]
    names = {1: "full", 0.1: "10%", 0.01: "1%"}
    for name in ds.set.values:
        printed = dict(zip(published.COLUMNS, published.TABLE_C2[str(name)], strict=True))
        where = [dict(set=name, fraction=f) for f in shares]
        text.append([f"{float(values.sel(w)):.1f}" for values in (networks, forests) for w in where])
        text.append([f"{printed[f'{model} {names[f]}']:.1f}" for model in ("MLP", "RF") for f in shares])
        cell = ds.sel(set=name)
        rows += [
            f"{name} ({int(cell.rows)} × {int(cell.features)})",
            f"published ({published.TABLE_C1[str(name)][1]} rows)",
        ]
    columns = [f"{model} {names[f]}" for model in ("MLP", "RF") for f in shares]
    fig, ax = new_figure(size=(7, 0.5 + 0.25 * len(rows)))
    ax.axis("off")
    table = ax.table(text, rowLabels=rows, colLabels=columns, loc="center", cellLoc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(7)
    return fig


def plot_figure_c3(ds: xr.Dataset):
    return error_curves(ds, "set", "fraction")


for experiment in (table_c2, columns_c2):
    experiment.figure(plot_columns)
    experiment.figure(plot_figure_c3)


# ------------------------------------------------------------------------------------------- Tables C.1, C.2 as printed


@dataclass(frozen=True)
class Printed:
    pass


@system.experiment("table-C.2-printed", "The published table, read off", presets={"quick": Printed()})
def printed_table(s: Printed) -> xr.Dataset:
    return xr.Dataset(
        {
            "error": (("task", "column"), list(published.TABLE_C2.values())),
            "examples": ("task", [examples for _, examples in published.TABLE_C1.values()]),
        },
        coords={"task": list(published.TABLE_C2), "column": list(published.COLUMNS)},
    )


@printed_table.claim(
    "15.18",
    "In Table C.2 the best MLP beats the best random forest on 7 of 16 tasks with all data, 5 with 10 %, 2 with 1 %",
    source="Table C.2, trap T9",
    finding="By Table C.1 the two much larger sets, left out of the widest runs, are 3 and 9; the text says 2 and 9.",
)
def published_counts(ds: xr.Dataset):
    parts = {}
    for size, tasks in published.WINS.items():
        wins = ds.error.sel(column=f"MLP {size}") < ds.error.sel(column=f"RF {size}")
        parts[size] = (
            equals(np.flatnonzero(wins.values) + 1, tasks) if int(wins.sum()) == len(tasks) else every([False])
        )
    largest = np.sort(np.argsort(-ds.examples.values)[:2]) + 1
    return all_of(**parts, largest_are_3_and_9=equals(largest, (3, 9)))


@printed_table.figure
def plot_printed(ds: xr.Dataset):
    fig, axes = new_figure(3, size=(7.5, 2.6), sharex=True, sharey=True)
    for ax, size in zip(axes, published.WINS, strict=True):
        mlp, forest = (ds.error.sel(column=f"{model} {size}") for model in ("MLP", "RF"))
        ax.plot([0, 50], [0, 50], color="0.7", linewidth=0.8)
        ax.plot(forest, mlp, "o", color=COLOURS[0])
        for i in range(ds.sizes["task"]):
            ax.annotate(
                str(i + 1), (float(forest[i]), float(mlp[i])), fontsize=5, xytext=(2, 2), textcoords="offset points"
            )
        ax.set(xlabel="best random forest, error %", title=f"{size}: {int((mlp < forest).sum())} of 16 below the line")
    axes[0].set_ylabel("best MLP, error %")
    return fig
