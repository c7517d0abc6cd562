"""Why width helps: kept tickets learn again, fixed features never (003 §C.3.2: Fig C.2; §6.3.2, kernel regime)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from krogh.lab import all_of, at_least, at_most, every, share_at_least
from krogh.lab.figures import COLOURS, new_figure, reported
from krogh.lab.statistics import percentile
from krogh.lab.times import first_time
from krogh.nn.fixed_features import ridge_head
from krogh.nn.mlp import MLP
from krogh.nn.sparse import SparseRows, Ticket, keep_neurons
from krogh.probes.basic import accuracy, correct
from krogh.systems.pareto_frontiers import system
from krogh.tasks.parity import SparseParity
from krogh.theory.fourier_gap import population_gradient, step, strict_gap
from krogh.train import SGD, Reach, Run, spec, sweep, train
from krogh.train.seeds import over_seeds

# ------------------------------------------------------------------------------------------- Figure C.2


@dataclass(frozen=True)
class Lottery:
    """`nets` wide networks are trained for `full_steps`; the `kept` neurons of largest weight norm at the end are
    rewound and trained again for at most `steps`, with `seeds` seeds each. Weight decay is not stated in the source.
    Seeds below `offset` served to choose the numbers of steps."""

    n: int = 30
    k: int = 4
    width: int = 100
    kept: int = 5
    s: int = 2
    lr: float = 0.1
    weight_decay: float = 0.0
    batch: int = 32
    full_steps: int = 20_000
    steps: int = 20_000
    every: int = 250
    nets: int = 96
    seeds: int = 4
    offset: int = 100


KINDS = ("rewound", "re-initialised", "random neurons")


def _run(s: Lottery, network: Any, steps: int, seeds: Iterable[int], until: Reach | None, **axes: Any) -> Run:
    run = spec(
        SparseParity(s.n, s.k),
        network,
        SGD(lr=s.lr, batch=s.batch, weight_decay=s.weight_decay),
        steps,
        seeds=seeds,
        probes=[accuracy],
        every=s.every,
        until=until,
        validation=2000,
        snapshots=[0],
    )
    return sweep(run, **axes)


@system.experiment(
    "fig-C.2",
    "Lottery tickets: the neurons that end up large learn again from their initial weights",
    presets={
        "smoke": Lottery(n=10, k=3, width=20, full_steps=500, steps=1000, every=100, nets=2, seeds=3),
        "quick": Lottery(),
        "paper": Lottery(n=50, k=5, full_steps=1_000_000, steps=1_000_000, every=1000, nets=64, seeds=8),
    },
)
def lottery(s: Lottery) -> xr.Dataset:
    nets = range(s.offset, s.offset + s.nets)
    full = _run(s, SparseRows(MLP(s.width), s=float(s.s)), s.full_steps, nets, None)
    start, end = full.snapshots[0], full.networks
    norm = np.linalg.norm(end.weights, axis=1)
    largest = np.argsort(-norm, axis=1)[:, : s.kept]
    random = np.argsort(np.random.default_rng(0).random(norm.shape), axis=1)[:, : s.kept]
    # Retraining draws other examples than the run that chose the neurons.
    fresh = range(s.offset + 1000, s.offset + 1000 + s.seeds)
    single = range(s.offset + 1000, s.offset + 1000 + s.nets * s.seeds)
    reach = Reach("accuracy", 0.9)
    small = [
        _run(s, Ticket(keep_neurons(start, largest)), s.steps, fresh, reach, ticket=range(s.nets)),
        _run(s, SparseRows(MLP(s.kept), s=float(s.s)), s.steps, single, reach),
        _run(s, Ticket(keep_neurons(start, random)), s.steps, fresh, reach, ticket=range(s.nets)),
    ]
    shape = s.nets, s.seeds
    return xr.Dataset(
        {
            "full_error": (("ticket", "full_step"), 1 - full.data.accuracy.values),
            "full_reached": ("ticket", first_time(full.data.accuracy >= 0.9).values),
            "error": (
                ("kind", "ticket", "seed", "step"),
                [1 - run.data.accuracy.values.reshape(*shape, -1) for run in small],
            ),
            "reached": (("kind", "ticket", "seed"), [run.data.reached.values.reshape(shape) for run in small]),
        },
        coords={"kind": list(KINDS), "step": small[0].data.step.values, "full_step": full.data.step.values},
        attrs={"n": s.n, "k": s.k, "steps": s.steps, "kept": s.kept, "width": s.width},
    )


@lottery.claim(
    "15.16",
    "Scaled to (30,4) (paper: (50,5)), width 100, s = 2, online: all full networks succeed, and within the budget in "
    "which the rewound top-5 subnetworks reach a test error <= 10 % in 80 % of retrainings, re-initialised width-5 "
    "networks do so in <= 30 %",
    source="Fig C.2, §C.3.2",
    finding="At (50,5), 64 networks: rewound neurons learn earlier and more often (by step 1e5 in 34 % of retrainings, "
    "re-initialised ones in 7 %, random neurons with their own weights in 5 %; by step 1e6 in 39, 19 and 15 %), but "
    "never in 80 %: half of the rewound networks stay above an error of .12, four of the 32 cases of five bits. All "
    "full networks learn, by step 52,000 at the latest.",
)
def winning_tickets(ds: xr.Dataset):
    def within_budget(rewound: np.ndarray, others: np.ndarray) -> float:
        return float(np.mean(others <= percentile(rewound, 80)))

    pair = tuple(ds.reached.sel(kind=kind) for kind in KINDS[:2])
    return all_of(
        full=every(np.isfinite(ds.full_reached), over="ticket"),
        reinitialised=at_most(pair, 0.3, stat=within_budget, over="ticket"),
    )


@lottery.figure
def plot_lottery(ds: xr.Dataset):
    fig, axes = new_figure(4, size=(9.6, 2.4), sharey=True)
    panels = [(f"width {ds.attrs['width']}", ds.full_step, ds.full_error, ds.full_reached)]
    for kind in ds.kind.values:
        cell = ds[["error", "reached"]].sel(kind=kind).stack(run=("ticket", "seed")).transpose("run", "step")
        panels.append((f"{ds.attrs['kept']} {kind}", ds.step, cell.error, cell.reached))
    for ax, (title, steps, error, time), colour in zip(axes, panels, COLOURS, strict=False):
        share = float(np.isfinite(time).mean())
        for row in error.values[:: max(1, len(error) // 24)]:
            ax.plot(steps, row, color=colour, linewidth=0.6, alpha=0.6)
        reported(ax, 0.1, None)
        ax.set(xlabel="step", title=f"{title}: {share:.0%} learn", ylim=(-0.02, 0.6))
    axes[0].set_ylabel(f"test error, n = {ds.attrs['n']}, k = {ds.attrs['k']}")
    return fig


# ------------------------------------------------------------------------------------------- who grows


@dataclass(frozen=True)
class InitialGaps:
    """Dense rows: a 2-sparse neuron depends on two inputs, so that its coefficients of degree k ± 1 > 2 all vanish."""

    n: int = 15
    k: int = 3
    width: int = 100
    lr: float = 0.1
    batch: int = 32
    steps: int = 20_000
    every: int = 200
    seeds: int = 32


@system.experiment(
    "initial-gaps",
    "Which neurons grow: the Fourier gap of every neuron at the start against its norm at the end",
    presets={
        "smoke": InitialGaps(n=8, width=10, steps=400, seeds=2),
        "quick": InitialGaps(),
        "paper": InitialGaps(n=19, steps=100_000, seeds=64),
    },
)
def initial_gaps(s: InitialGaps) -> xr.Dataset:
    run = train(
        SparseParity(s.n, s.k),
        MLP(s.width),
        SGD(lr=s.lr, batch=s.batch),
        s.steps,
        seeds=s.seeds,
        probes=[accuracy],
        every=s.every,
        until=Reach("accuracy", 0.99),
        validation=2000,
        snapshots=[0],
    )
    start = run.snapshots[0]
    gradients = [
        population_gradient(step, weights.T, s.k, bias)
        for weights, bias in zip(np.asarray(start.weights, float), np.asarray(start.bias, float), strict=True)
    ]
    norm = np.linalg.norm(run.networks.weights, axis=1)
    return xr.Dataset(
        {
            "gap": (("seed", "neuron"), strict_gap(np.stack(gradients), s.k)),
            "norm": (("seed", "neuron"), norm),
            "reached": ("seed", run.data.reached.values),
        },
        attrs={"n": s.n, "k": s.k},
    )


def _rank_correlations(ds: xr.Dataset) -> xr.DataArray:
    """Spearman's correlation of initial gap and final norm over the neurons of each network that has learned."""
    from scipy.stats import spearmanr

    learned = ds.isel(seed=np.flatnonzero(np.isfinite(ds.reached)))
    found = [spearmanr(*pair).statistic for pair in zip(learned.gap.values, learned.norm.values, strict=True)]
    return xr.DataArray(found, dims="seed")


@initial_gaps.claim(
    "15.S8",
    "(15,3) (paper: (19,3)), width 100, online: the neurons that are large at the end are those whose population "
    "gradient had the larger Fourier gap at the start (Spearman's correlation over the neurons of a network, mean > 0)",
    source="§6.3.2, the lottery reading of width",
    finding="A weak relation: 0.17 on average. Most neurons never grow, and a few with a negative gap do.",
)
def lucky_neurons_grow(ds: xr.Dataset):
    return at_least(_rank_correlations(ds), 0.0, over="seed")


@initial_gaps.figure
def plot_initial_gaps(ds: xr.Dataset):
    fig, (left, right) = new_figure(2, size=(6.4, 2.5))
    gap, norm = ds.gap.values.ravel(), ds.norm.values.ravel()
    left.hist(gap, bins=40, color=COLOURS[0])
    reported(left, 0.0, "one step finds S to the right", axis="x")
    left.set(xlabel="Fourier gap of a neuron at the start", ylabel="neurons, all networks")
    left.set_title(f"n = {ds.attrs['n']}, k = {ds.attrs['k']}: {np.mean(gap > 0):.1%} above zero")
    left.legend()
    right.plot(gap, norm, ".", markersize=2, alpha=0.3, color=COLOURS[0])
    edges = np.quantile(gap, np.linspace(0, 1, 11))
    tenth = np.clip(np.searchsorted(edges, gap, "right") - 1, 0, 9)
    means = [[values[tenth == i].mean() for i in range(10)] for values in (gap, norm)]
    right.plot(*means, "o-", color=COLOURS[1], label="means of tenths")
    correlation = _rank_correlations(ds)
    right.set(xlabel="Fourier gap of a neuron at the start", ylabel="its norm at the end")
    right.set_title(f"rank correlation {float(correlation.mean()):.2f}, {len(correlation)} networks")
    right.legend()
    return fig


# ------------------------------------------------------------------------------------------- kernel baseline


@dataclass(frozen=True)
class FixedFeatures:
    n: int = 30
    k: int = 3
    samples: tuple[int, ...] = (500, 1000, 5000)
    widths: tuple[int, ...] = (1000,)
    ridges: tuple[float, ...] = (1e-4, 1e-2, 1.0, 100.0)
    test: int = 5000
    steps: int = 20_000
    seeds: int = 8


@system.experiment(
    "kernel-regime",
    "Ridge regression on the same network's initial features stays at chance",
    presets={
        "smoke": FixedFeatures(n=12, samples=(200,), widths=(50,), test=500, steps=200, seeds=2),
        "quick": FixedFeatures(),
        "paper": FixedFeatures(widths=(1000, 4000), test=10_000, seeds=16),
    },
)
def kernel(s: FixedFeatures) -> xr.Dataset:
    task = SparseParity(s.n, s.k)
    shape = len(s.samples), len(s.widths), s.seeds
    error, trained = np.zeros((*shape, len(s.ridges))), np.zeros(shape)
    for i, m in enumerate(s.samples):
        for j, width in enumerate(s.widths):
            trained[i, j] = train(
                task,
                MLP(width),
                SGD(lr=0.1, batch=32, samples=m, weight_decay=0.01),
                s.steps,
                seeds=s.seeds,
                probes=[accuracy],
                every=500,
                until=Reach("accuracy", 0.9),
                validation=2000,
                networks=False,
            ).data.reached
            measure = partial(_ridge_errors, task=task, width=width, m=m, test=s.test, ridges=s.ridges)
            error[i, j] = over_seeds(measure, s.seeds, double=True)
    return xr.Dataset(
        {"ridge_error": (("m", "width", "seed", "ridge"), error), "reached": (("m", "width", "seed"), trained)},
        coords={"m": list(s.samples), "width": list(s.widths), "ridge": list(s.ridges)},
        attrs={"n": s.n, "k": s.k},
    )


def _ridge_errors(
    key: PRNGKeyArray, task: SparseParity, width: int, m: int, test: int, ridges: tuple[float, ...]
) -> jax.Array:
    """Test errors of ridge heads, one per strength, on the hidden layer of an untrained network."""
    init, data = jax.random.split(key)
    network = MLP(width).build(task, init)
    x, y, _ = task.sample(data, m + test)
    x, y = x.astype(float), y.astype(float)
    features = jax.vmap(network.hidden)

    def one(ridge):
        head = ridge_head(features, x[:m], y[:m], ridge)
        return 1 - jnp.mean(correct(head(features(x[m:])), y[m:]))

    return jax.lax.map(one, jnp.asarray(ridges))


@kernel.claim(
    "15.15",
    "(30,3), m = 500-5000 (paper: widths to 4000): the best of four ridge heads on the frozen first layer tests at "
    ">= 45 % error, where the trained network succeeds in >= 50 % of runs",
    source="§6.3.2, kernel regime; Fig 6.1",
)
def features_must_be_learnt(ds: xr.Dataset):
    best = ds.ridge_error.mean("seed").argmin("ridge")
    parts = {}
    for m in ds.m.values:
        for width in ds.width.values:
            cell = ds.sel(m=m, width=width)
            errors = cell.ridge_error.isel(ridge=int(best.sel(m=m, width=width)))
            parts[f"ridge, m={m}, r={width}"] = at_least(errors, 0.45, over="seed")
            parts[f"trained, m={m}, r={width}"] = share_at_least(np.isfinite(cell.reached), 0.5, over="seed")
    return all_of(**parts)


@kernel.figure
def plot_kernel(ds: xr.Dataset):
    fig, ax = new_figure(size=(3.8, 2.6))
    for width, colour in zip(ds.width.values, COLOURS, strict=False):
        for ridge in ds.ridge.values:
            errors = ds.ridge_error.sel(width=width, ridge=ridge)
            label = f"ridge, four strengths, r = {width}" if ridge == ds.ridge.values[0] else None
            ax.errorbar(
                ds.m, errors.mean("seed"), yerr=errors.std("seed"), fmt="o-", color=colour, markersize=3, label=label
            )
        share = np.isfinite(ds.reached.sel(width=width)).mean("seed")
        ax.plot(
            ds.m,
            1 - share,
            "s--",
            color=colour,
            markersize=4,
            label=f"trained networks that fail, r = {width}",
        )
    reported(ax, 0.5, "chance")
    ax.set(
        xscale="log", xlabel="samples m", ylabel="test error", title="Fixed features stay at chance", ylim=(-0.05, 0.8)
    )
    ax.legend()
    return fig
