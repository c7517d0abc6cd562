"""Hidden progress: what moves while the loss does not (003 §5.3, §5.5, §B.3.1, §B.3.3)."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, share_at_least
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure
from krogh.lab.statistics import icc
from krogh.lab.times import at_time, first_time
from krogh.nn.activations import OfDegree, sinusoid
from krogh.nn.mlp import MLP
from krogh.nn.polynet import PolyNet
from krogh.probes.basic import accuracy, hinge_error
from krogh.probes.features import coordinate_movement, relevant_on_top, weight_movement, weights
from krogh.probes.fourier import fourier_gap_exact
from krogh.systems.hidden_progress import system
from krogh.tasks.parity import LabelNoise, SparseParity
from krogh.theory import majority
from krogh.train import SGD, Reach, spec, sweep, train

# ------------------------------------------------------------------------------------------- Figure 5.2, centre


@dataclass(frozen=True)
class Streams:
    n: int = 50
    k: int = 3
    batch: int = 128
    lr: float = 0.01
    steps: int = 20_000
    inits: int = 32
    streams: int = 8


@system.experiment(
    "fig-5.2-center",
    "The initialisation, not the batches, sets the time",
    presets={
        "smoke": Streams(n=20, lr=0.05, steps=1000, inits=4, streams=2),
        "quick": Streams(),
        "paper": Streams(inits=100, streams=10),
    },
)
def streams(s: Streams) -> xr.Dataset:
    polynet = spec(
        SparseParity(s.n, s.k),
        PolyNet(),
        SGD(lr=s.lr, batch=s.batch),
        s.steps,
        probes=[accuracy, hinge_error],
        every=20,
        until=Reach("accuracy", 1.0, confirm=8192),
        networks=False,
    )
    data = sweep(polynet, init_seed=range(s.inits), data_seed=range(s.streams)).data
    last = float(data.steps_used.max())
    return data[["accuracy", "hinge_error", "reached", "status"]].sel(step=slice(0, last))


@streams.claim(
    "14.21",
    "PolyNet, (50,3), B = 128, lr = .01, inits crossed with batch streams: the intraclass correlation of ln t_c within "
    "an initialisation is >= .7",
    source="Fig 5.2 center",
)
def init_decides(ds: xr.Dataset):
    return at_least(np.log(ds.reached), 0.7, stat=icc, over="init_seed")


@streams.figure
def streams_plot(ds: xr.Dataset):
    fig, (left, right) = new_figure(2, size=(6.5, 2.6), width_ratios=(1.6, 1))
    order = ds.reached.median("data_seed").argsort().values
    shown = order[np.linspace(0, len(order) - 1, min(6, len(order))).astype(int)]
    for colour, init in zip(COLOURS, shown, strict=False):
        for stream in ds.data_seed.values:
            one = ds.isel(init_seed=init).sel(data_seed=stream)
            left.plot(ds.step, one.hinge_error.where(ds.step <= one.reached), color=colour, linewidth=0.7, alpha=0.8)
    left.axhline(1.0, color="0.5", linestyle=":", linewidth=1)
    left.set(xlabel="step t", ylabel="hinge loss (validation)", title="one colour per initialisation", ylim=(0, None))
    for rank, init in enumerate(order):
        times = ds.reached.isel(init_seed=init)
        right.scatter(np.full(len(times), rank), times, s=5, color=COLOURS[0], alpha=0.6, linewidth=0)
        right.hlines(times.median(), rank - 0.4, rank + 0.4, color="black", linewidth=0.8)
    value = icc(np.log(ds.reached.transpose("init_seed", ...)))
    right.set(yscale="log", xlabel="initialisation, by its median time", ylabel="convergence time $t_c$")
    right.set_title(f"ICC of ln $t_c$ = {value:.2f}")
    return fig


# ------------------------------------------------------------------------------------------- Figures 5.3 and B.9


def _true_and_random(task, network, learner, steps, seeds, every, validation) -> xr.Dataset:
    """Training on the parity and on random labels of the same inputs, with the weights' movement (labels first)."""
    both = spec(
        LabelNoise(task, 0.0),
        network,
        learner,
        steps,
        seeds=seeds,
        probes=[accuracy, hinge_error, weight_movement, coordinate_movement, relevant_on_top, weights],
        every=every,
        validation=validation,
        networks=False,
    )
    data = sweep(both, flip=[0.0, 0.5]).data.rename(flip="labels")
    data = data.assign_coords(labels=["true", "random"], neuron=np.arange(data.sizes["neuron"]))
    data["relevant_movement"] = data.coordinate_movement.isel(coordinate=slice(task.k)).mean("coordinate")
    data["trajectory"] = data.weights.isel(seed=0).sel(labels="true")
    learned = data.accuracy.sel(labels="true")
    data["first_55"], data["first_60"] = (first_time(learned >= level) for level in (0.55, 0.6))
    # the accuracy's own sampling error is below 1 %: 54 % is the first sign of learning
    data["half_54"] = first_time(learned >= 0.54) / 2
    names = ["accuracy", "hinge_error", "weight_movement", "relevant_movement", "relevant_on_top", "trajectory"]
    return data[[*names, "first_55", "first_60", "half_54"]]


def _moves_more(ds: xr.Dataset):
    """Share of seeds in which ρ(true labels) ≥ 1.5 ρ(random labels) when accuracy first exceeds 55 %."""
    at = at_time(ds.weight_movement, ds.first_55)
    ratio = (at.sel(labels="true") / at.sel(labels="random")).dropna("seed")
    return share_at_least(ratio >= 1.5, 0.9, over="seed")


@dataclass(frozen=True)
class Neuron:
    n: int = 50
    k: int = 3
    batch: int = 32
    lr: float = 0.01
    steps: int = 3000
    every: int = 20
    validation: int = 4096
    seeds: int = 1000


@system.experiment(
    "fig-5.3",
    "The weights of a sinusoidal neuron know S before the loss moves",
    presets={
        "smoke": Neuron(n=20, steps=600, validation=1024, seeds=4),
        "quick": Neuron(),
        "paper": Neuron(steps=10_000, validation=8192, seeds=30_000),
    },
)
def neuron(s: Neuron) -> xr.Dataset:
    network = MLP(width=1, activation=sinusoid(s.k), head=False)
    learner = SGD(lr=s.lr, batch=s.batch)
    data = _true_and_random(SparseParity(s.n, s.k), network, learner, s.steps, s.seeds, s.every, s.validation)
    return data.assign_attrs(k=s.k)


@neuron.claim(
    "14.24",
    "Sinusoidal neuron (xiv), (50,3), B = 32, lr = .01: when accuracy first exceeds 55 %, rho under true labels is "
    ">= 1.5 times rho under random labels at the same step, in >= 90 % of the seeds that get there",
    source="Fig 5.3 right",
)
def neuron_moves_more(ds: xr.Dataset):
    return _moves_more(ds)


@neuron.claim(
    "14.25",
    "Sinusoidal neuron (xiv), (50,3): at the first accuracy >= 60 % the k largest |w_i| are exactly S in >= 90 % of "
    "the seeds that get there; at half the time to 54 % the mean relevant |w_t - w_0| exceeds its random-label value "
    "by > 3 standard errors over 24 of the seeds that get there",
    source="Fig 5.3 left, center",
    finding="Judged by the expected number of standard errors, sqrt(24) mean/sd: one set of 24 is a noisy test, passed "
    "by 28 of 40 disjoint sets and missed by the first (2.8). It is 3.82 over the 961 of 1000 seeds that get there "
    "within 3000 steps and 3.06 (2.99 to 3.14) over 29 932 of 30 000 within 1e4 (paper). The likely reason is that "
    "the late seeds, which the longer run adds, have moved less by half their time.",
)
def weights_lead(ds: xr.Dataset):
    found = at_time(ds.relevant_on_top.sel(labels="true"), ds.first_60).dropna("seed")
    early = at_time(ds.relevant_movement, ds.half_54)
    excess = (early.sel(labels="true") - early.sel(labels="random")).dropna("seed")

    def standard_errors(values: np.ndarray) -> float:
        return float(np.sqrt(24) * values.mean() / values.std(ddof=1))

    return all_of(
        S_on_top_at_60=share_at_least(found == 1, 0.9, over="seed"),
        standard_errors_of_24_seeds=at_least(excess, 3.0, stat=standard_errors, over="seed"),
    )


@neuron.figure
def neuron_plot(ds: xr.Dataset):
    fig, axes = new_figure(2, 2, size=(6.5, 4.2), sharex="col")
    one = ds.isel(seed=0).sel(labels="true")
    axes[0, 0].plot(ds.step, one.hinge_error, color=COLOURS[0], label="hinge loss")
    axes[0, 0].plot(ds.step, one.accuracy, color=COLOURS[2], label="accuracy")
    axes[0, 0].axhline(0.5, color="0.5", linestyle=":", linewidth=1, label="chance")
    axes[0, 0].set(title="one neuron, seed 0", ylabel="validation")
    axes[0, 0].legend(loc="center right", bbox_to_anchor=(1.0, 0.62))
    _trajectories(axes[1, 0], ds.trajectory, ds.attrs["k"])
    axes[1, 0].set(xlabel="step t", ylabel="weight $w_{t,i}$")
    axes[1, 0].legend(loc="center right", bbox_to_anchor=(1.0, 0.7))
    curve_with_spread(axes[0, 1], ds.accuracy.sel(labels="true"), label="accuracy", color=COLOURS[2])
    axes[0, 1].axhline(0.5, color="0.5", linestyle=":", linewidth=1)
    axes[0, 1].set(title=f"{ds.sizes['seed']} seeds: median, 10–90 %", ylabel="accuracy")
    _movement(axes[1, 1], ds)
    axes[1, 1].set(xlabel="step t", ylabel=r"$\rho = \|w_t - w_0\|_\infty$")
    axes[1, 1].legend()
    return fig


def _trajectories(ax, paths: xr.DataArray, k: int, smoothing: int = 1) -> None:
    """Weights against time: irrelevant coordinates grey, relevant ones coloured (all neurons)."""
    smooth = paths.rolling(step=smoothing, center=True, min_periods=1).mean()
    for i in [*range(k, paths.sizes["coordinate"]), *range(k)]:
        style = {"color": COLOURS[i], "linewidth": 1.1} if i < k else {"color": "0.75", "linewidth": 0.4}
        lines = ax.plot(paths.step, smooth.isel(coordinate=i).transpose("step", "neuron"), **style)
        if i < k:
            lines[0].set_label(f"$i$ = {i + 1} (in $S$)")
        elif i == k:
            lines[0].set_label("$i$ not in $S$")


def _movement(ax, ds: xr.Dataset) -> None:
    """ρ(t) under true and random labels, and when the accuracy first shows something."""
    for labels, colour in (("true", COLOURS[0]), ("random", COLOURS[6])):
        curve_with_spread(ax, ds.weight_movement.sel(labels=labels), label=f"{labels} labels", color=colour)
    seen = ds.first_55.where(np.isfinite(ds.first_55)).median()
    ax.axvline(seen, color="black", linestyle="--", linewidth=0.8, label="median time to 55 %")


@dataclass(frozen=True)
class Batches:
    """Learning rates and numbers of steps go with the batch sizes."""

    n: int = 50
    k: int = 3
    batches: tuple[int, ...] = (1, 4, 32)
    neuron_lr: tuple[float, ...] = (0.001, 0.003, 0.01)
    neuron_steps: tuple[int, ...] = (40_000, 10_000, 3000)
    mlp_batches: tuple[int, ...] = (4, 32)
    mlp_lr: tuple[float, ...] = (0.03, 0.1)
    mlp_steps: tuple[int, ...] = (30_000, 10_000)
    records: int = 200
    validation: int = 4096
    seeds: int = 64


@system.experiment(
    "fig-B.9",
    "Hidden progress at different batch sizes, of one neuron and of a width-10 MLP",
    presets={
        "smoke": Batches(
            n=20,
            batches=(4, 32),
            neuron_lr=(0.003, 0.01),
            neuron_steps=(1000, 600),
            mlp_batches=(32,),
            mlp_lr=(0.1,),
            mlp_steps=(1000,),
            records=50,
            validation=1024,
            seeds=4,
        ),
        "quick": Batches(),
        "paper": Batches(seeds=1000),
    },
)
def batches(s: Batches) -> xr.Dataset:
    task = SparseParity(s.n, s.k)
    nets = {"neuron": MLP(width=1, activation=sinusoid(s.k), head=False), "mlp": MLP(width=10)}
    cases = [("neuron", *case) for case in zip(s.batches, s.neuron_lr, s.neuron_steps, strict=True)]
    cases += [("mlp", *case) for case in zip(s.mlp_batches, s.mlp_lr, s.mlp_steps, strict=True)]
    parts = []
    for name, batch, lr, steps in cases:
        every = steps // s.records
        data = _true_and_random(task, nets[name], SGD(lr=lr, batch=batch), steps, s.seeds, every, s.validation)
        # steps differ between the cases: records are numbered and carry their steps
        data = data.rename(step="record").assign_coords(record=np.arange(data.sizes["step"]))
        parts.append(data.assign(step=("record", every * np.arange(data.sizes["record"]))))
    joined = xr.concat(parts, dim="case", join="outer", fill_value=np.nan)
    names = [f"{name}, B={batch}, lr={lr:g}" for name, batch, lr, _ in cases]
    return joined.assign_coords(case=names, batch=("case", [c[1] for c in cases])).assign_attrs(k=s.k)


def _case(ds: xr.Dataset, case: str) -> xr.Dataset:
    one = ds.sel(case=case)
    return one.assign_coords(record=one.step.values).drop_vars("step").rename(record="step")


@batches.claim(
    "14.24",
    "Width-10 ReLU MLP (i), (50,3), B = 32, lr = .1: when accuracy first exceeds 55 %, rho (over all of W) under true "
    "labels is >= 1.5 times rho under random labels at the same step, in >= 90 % of the seeds that get there",
    source="Fig 5.3 right, Fig B.9",
    finding="The MLP's weights do move more, 1.7 times in the median, but only 71 % of 62 seeds reach 1.5 when 55 % is "
    "first exceeded (checked every 50 steps); at the first 60 % it is 89 %. The neuron of Fig 5.3 passes.",
)
def mlp_moves_more(ds: xr.Dataset):
    return _moves_more(_case(ds, "mlp, B=32, lr=0.1"))


@batches.figure
def batches_plot(ds: xr.Dataset):
    cases = ds.case.values
    fig, axes = new_figure(len(cases), 3, size=(2.4 * len(cases), 5.6), sharex="col")
    smoothing = {1: 16, 4: 4}
    for column, case in zip(axes.T, cases, strict=True):
        one = _case(ds, case)
        window = smoothing.get(int(one.batch), 1)
        column[0].plot(one.step, one.accuracy.isel(seed=0).sel(labels="true"), color=COLOURS[2], linewidth=0.8)
        curve_with_spread(column[0], one.accuracy.sel(labels="true"), color=COLOURS[0])
        column[0].axhline(0.5, color="0.5", linestyle=":", linewidth=1)
        column[0].set(title=str(case), ylim=(0.4, 1.02))
        _trajectories(column[1], one.trajectory.dropna("neuron"), ds.attrs["k"], window)
        _movement(column[2], one)
        column[2].set_xlabel("step t")
    for ax, label in zip(axes[:, 0], ("accuracy", "weights, seed 0", r"$\|w_t - w_0\|_\infty$"), strict=True):
        ax.set_ylabel(label)
    axes[1, 0].legend(loc="lower left", fontsize=6)
    axes[2, 0].legend()
    return fig


# ------------------------------------------------------------------------------------------- Figure B.8, right


@dataclass(frozen=True)
class GapPath:
    cases: tuple[tuple[int, int], ...] = ((50, 3), (51, 2), (51, 4))
    batch: int = 32
    lr: float = 0.01
    steps: int = 4000
    every: int = 20
    validation: int = 8192
    seeds: int = 64


@system.experiment(
    "fig-B.8-right",
    "SGD amplifies the Fourier gap",
    presets={
        "smoke": GapPath(cases=((20, 3), (21, 2)), steps=600, validation=1024, seeds=4),
        "quick": GapPath(),
        "paper": GapPath(steps=20_000, seeds=1000),
    },
)
def gap_path(s: GapPath) -> xr.Dataset:
    parts = [
        train(
            SparseParity(n, k),
            MLP(width=1, activation=OfDegree(sinusoid), head=False),
            SGD(lr=s.lr, batch=s.batch),
            s.steps,
            seeds=s.seeds,
            probes=[accuracy, fourier_gap_exact],
            every=s.every,
            until=Reach("accuracy", 1.0),
            validation=s.validation,
        ).data[["accuracy", "fourier_gap_exact", "reached"]]
        for n, k in s.cases
    ]
    data = xr.concat(parts, dim="case").rename(fourier_gap_exact="gap")
    data["first_60"] = first_time(data.accuracy >= 0.6)
    # majority has a gap at even k and odd n only
    gaps = [majority.gap(n, k) if n % 2 and k % 2 == 0 else np.nan for n, k in s.cases]
    return data.assign(majority=("case", gaps)).assign_coords(case=[f"n={n}, k={k}" for n, k in s.cases])


@gap_path.claim(
    "14.6",
    "Sinusoidal neuron (xiv), (50,3), B = 32, lr = .01, exact gap: positive at initialisation in >= 90 % of seeds, "
    "it has grown >= 5-fold when accuracy first reaches 60 % in >= 80 % of the converged seeds",
    source="Fig B.8 right",
)
def gap_amplifies(ds: xr.Dataset):
    ds = ds.isel(case=0)
    start = ds.gap.isel(step=0)
    converged = ds.gap.seed[np.isfinite(ds.reached)]
    growth = (at_time(ds.gap, ds.first_60) / start).sel(seed=converged)
    return all_of(
        positive_at_start=share_at_least(start > 0, 0.9, over="seed"),
        grows_five_fold=share_at_least(growth >= 5, 0.8, over="seed"),
    )


@gap_path.figure
def gap_plot(ds: xr.Dataset):
    fig, axes = new_figure(ds.sizes["case"], size=(2.6 * ds.sizes["case"], 2.6), squeeze=False)
    for ax, case in zip(axes[0], ds.case.values, strict=True):
        one = ds.sel(case=case)
        gap = one.gap.where(one.step <= one.reached)
        ax.plot(ds.step, gap.isel(seed=slice(10)).transpose("step", "seed"), color=COLOURS[0], linewidth=0.5)
        curve_with_spread(ax, one.gap, color=COLOURS[0], label=r"$\Gamma(w_t)$: median, 10–90 %, 10 paths")
        done = one.reached.where(np.isfinite(one.reached))
        seen = one.first_60.where(np.isfinite(one.first_60)).median()
        ax.axvline(seen, color="black", linestyle=":", linewidth=1, label="median time to 60 %")
        if np.isfinite(one.majority):
            ax.axhline(one.majority, color="red", linestyle="--", linewidth=1, label="majority's gap")
        ax.set(title=str(case), xlabel="step t", yscale="log", xlim=(0, done.max()))
        ax.set_ylim(bottom=float(one.gap.isel(step=0).quantile(0.02)) / 3)
    axes[0, 0].set_ylabel(r"exact Fourier gap $\Gamma$")
    axes[0, -1].legend(fontsize=6, loc="lower right")
    return fig
