"""What training needs: steps, context length, tasks (004 (6.9), (6.10), Figures E.1 and E.2)."""

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, between
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, reported, theory, ticks_at
from krogh.lab.statistics import power_law
from krogh.lab.times import first_time
from krogh.probes.basic import accuracy, outputs_on
from krogh.probes.prompts import errors
from krogh.probes.trained import over_networks
from krogh.systems.icl_nonlinear_transformer import system
from krogh.systems.icl_nonlinear_transformer.models import Training, prompts_of, smallest_length, training
from krogh.theory.prompt_classification import iterations, training_length
from krogh.train import sweep


def _times(s: Training, task=None, **axes) -> xr.DataArray:
    """First step whose batch has a loss below 0.05, inf where the budget ran out."""
    loss = sweep(training(s, task, every=1, networks=False), **axes).data.loss
    return first_time(loss <= 0.05)


def _slope(x) -> object:
    """Statistic: exponent of the median time over seeds against x."""

    def exponent(times: np.ndarray) -> float:
        medians = np.quantile(times, 0.5, axis=0, method="inverted_cdf")
        return power_law(x, medians)[0] if np.isfinite(medians).all() else np.nan

    return exponent


# ------------------------------------------------------------------------------------------- Figure E.1, iterations


@dataclass(frozen=True)
class Iterations(Training):
    length: int = 40
    alphas: tuple[float, ...] = (0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
    steps: int = 600


@system.experiment(
    "fig-E.1-iterations",
    "Fewer relevant examples, more steps",
    presets={
        "smoke": Iterations(alphas=(0.6, 1.0), steps=100, seeds=2),
        "quick": Iterations(),
        "paper": Iterations(steps=1000, seeds=64),
    },
)
def steps_by_alpha(s: Iterations) -> xr.Dataset:
    times = _times(s, alpha=s.alphas)
    return xr.Dataset({"time": times}).assign(predicted=("alpha", iterations(s.M1, np.array(s.alphas), s.lr, s.beta)))


@steps_by_alpha.claim(
    "22.15",
    "l_tr = 40: the steps until a batch has loss < 0.05 grow as alpha to a power in [-0.9, -0.5] (theory: -2/3)",
    source="(6.10), Fig E.1",
    presets=("quick", "paper"),
)
def alpha_exponent(ds: xr.Dataset):
    times = ds.time.transpose("seed", "alpha")
    return between((times,), -0.9, -0.5, stat=_slope(ds.alpha.values), over="seed")


@steps_by_alpha.figure
def plot_steps_by_alpha(ds: xr.Dataset):
    figure, (left, right) = new_figure(2, size=(6.2, 2.5))
    curve_with_spread(left, ds.time, x="alpha", marker="o", label="steps to loss < 0.05")
    middle = ds.time.median("seed")
    scale = float(np.exp(np.mean(np.log(middle / ds.predicted))))
    theory(left, ds.alpha, scale * ds.predicted, "α^(−2/3)")
    left.set(xscale="log", yscale="log", xlabel="share α of decisive examples", ylabel="training steps")
    ticks_at(left, ds.alpha.values)
    left.legend()
    scaled = ds.assign_coords(alpha=ds.alpha ** (-2 / 3)).time
    curve_with_spread(right, scaled, x="alpha", marker="o")
    right.set(xlabel="$\\alpha^{-2/3}$ (reported: linear)", ylabel="training steps", ylim=(0, None))
    return figure


# ------------------------------------------------------------------------------------------- equation (6.10)


@dataclass(frozen=True)
class Exponents(Training):
    """Each quantity is varied alone; dx = M1 + M2 = 30 stays."""

    etas: tuple[float, ...] = (0.25, 0.5, 1.0)
    betas: tuple[float, ...] = (2.0, 3.0, 4.0)
    deltas: tuple[float, ...] = (0.05, 0.1, 0.2)
    patterns: tuple[int, ...] = (4, 6, 8, 12)
    steps: int = 800
    seeds: int = 12


@system.experiment(
    "eq-6.10",
    "The number of steps: rate, patterns, their norm, the initial scale",
    presets={
        "smoke": Exponents(etas=(0.5, 1.0), betas=(3.0,), deltas=(0.1,), patterns=(6,), steps=50, seeds=2),
        "quick": Exponents(),
        "paper": Exponents(steps=4000, seeds=16),
    },
)
def step_law(s: Exponents) -> xr.Dataset:
    by_M1 = [_times(replace(s, M1=M1, M2=s.M1 + s.M2 - M1)).expand_dims(M1=[M1]) for M1 in s.patterns]
    found = {
        "by_eta": _times(s, lr=s.etas).rename(lr="eta"),
        "by_beta": _times(s, beta=s.betas),
        "by_delta": _times(s, delta=s.deltas),
        "by_M1": xr.concat(by_M1, "M1"),
    }
    return xr.Dataset(found)


@step_law.claim(
    "22.16",
    "T eta is constant within 15 % over eta = 0.25, 0.5, 1",
    source="(6.10)",
    presets=("quick", "paper"),
)
def rate_law(ds: xr.Dataset):
    def varies(times: np.ndarray) -> float:
        products = np.quantile(times, 0.5, axis=0, method="inverted_cdf") * ds.eta.values
        return products.max() / products.min()

    return at_most((ds.by_eta.transpose("seed", "eta"),), 1.15, stat=varies, over="seed")


@step_law.claim(
    "22.16-exponents",
    "T grows as M1 sqrt(log M1) to a power in [0.75, 1.25], as beta and as delta to powers in [-0.9, -0.5] (theory: 1, "
    "-2/3, -2/3; the tolerance is that of claim 22.15)",
    source="(6.10), (E.62)",
    presets=("quick", "paper"),
    finding="Measured: power 0.34 of M1 sqrt(log M1), -1.76 of beta, -0.96 of delta. The steps grow more slowly with "
    "the patterns and fall faster with the scales than the proof's upper bound says.",
)
def other_exponents(ds: xr.Dataset):
    size = ds.M1 * np.sqrt(np.log(ds.M1))
    return all_of(
        M1=between((ds.by_M1.transpose("seed", "M1"),), 0.75, 1.25, stat=_slope(size), over="seed"),
        beta=between((ds.by_beta.transpose("seed", "beta"),), -0.9, -0.5, stat=_slope(ds.beta), over="seed"),
        delta=between((ds.by_delta.transpose("seed", "delta"),), -0.9, -0.5, stat=_slope(ds.delta), over="seed"),
    )


@step_law.figure
def plot_step_law(ds: xr.Dataset):
    figure, axes = new_figure(4, size=(9.6, 2.4))
    laws = {"eta": -1.0, "M1": 1.0, "beta": -2 / 3, "delta": -2 / 3}
    for ax, (name, power) in zip(axes, laws.items(), strict=True):
        curve_with_spread(ax, ds[f"by_{name}"], x=name, marker="o")
        x = ds[name].values.astype(float)
        law = x**power * (np.sqrt(np.log(x)) if name == "M1" else 1)
        middle = ds[f"by_{name}"].median("seed").values
        theory(ax, x, law * np.exp(np.mean(np.log(middle / law))), "(6.10), (E.62)")
        ax.set(xscale="log", yscale="log", xlabel={"eta": "η", "beta": "β", "delta": "δ"}.get(name, name))
        ticks_at(ax, x)
        ax.set_title(f"exponent {power_law(x, middle)[0]:.2f}" if len(x) > 1 and np.isfinite(middle).all() else "")
    axes[0].set_ylabel("steps to loss < 0.05")
    axes[0].legend()
    return figure


# ------------------------------------------------------------------------------------------- Figure E.1, length


@dataclass(frozen=True)
class TrainingLength(Training):
    """Tests have alpha' = 0.8 and l_ts = 20, whatever the training."""

    alphas: tuple[float, ...] = (0.2, 0.4, 0.8)
    lengths: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16)
    steps: int = 600
    prompts: int = 2048
    seeds: int = 24


@system.experiment(
    "fig-E.1-length",
    "Fewer relevant examples, longer training prompts",
    presets={
        "smoke": TrainingLength(alphas=(0.8,), lengths=(4, 8), steps=40, prompts=128, seeds=2),
        "quick": TrainingLength(),
        "paper": TrainingLength(lengths=(*range(1, 17), 20, 24, 32, 40, 48, 64), prompts=4096, seeds=24),
    },
)
def training_lengths(s: TrainingLength) -> xr.Dataset:
    test = prompts_of(s, alpha=0.8, length=20).unseen

    def measure(network, key):
        batch = test.sample(key, s.prompts)
        return errors(outputs_on(network, batch.x), batch.y)

    parts = []
    for length in s.lengths:
        run = sweep(training(replace(s, length=length)), alpha=s.alphas)
        found = over_networks(run.networks, measure)
        shape = (len(s.alphas), s.seeds)
        parts.append(xr.Dataset({name: (("alpha", "seed"), value.reshape(shape)) for name, value in found.items()}))
    data = xr.concat(parts, "length").assign_coords(length=list(s.lengths), alpha=list(s.alphas))
    return data.assign(predicted=("alpha", training_length(s.M1, np.array(s.alphas), s.beta)))


@training_lengths.claim(
    "22.17",
    "The smallest l_tr with error <= 0.05 on unseen tasks after 600 steps decreases with alpha over 0.2, 0.4, 0.8",
    source="(6.9), Fig E.1",
    presets=("quick", "paper"),
)
def shorter_with_alpha(ds: xr.Dataset):
    def shorter(fewer: np.ndarray, more: np.ndarray) -> float:
        return smallest_length(fewer, ds.length.values) - smallest_length(more, ds.length.values)

    error = {alpha: ds.error.sel(alpha=alpha).transpose("seed", "length") for alpha in (0.2, 0.4, 0.8)}
    return all_of(
        **{
            f"{low:g}_{high:g}": at_least((error[low], error[high]), 1.0, stat=shorter, over="seed")
            for low, high in ((0.2, 0.4), (0.4, 0.8))
        }
    )


@training_lengths.figure
def plot_training_lengths(ds: xr.Dataset):
    figure, (left, right) = new_figure(2, size=(6.2, 2.5))
    found = []
    for i, alpha in enumerate(ds.alpha.values):
        error = ds.error.sel(alpha=alpha)
        curve_with_spread(left, error, x="length", label=f"α = {alpha:g}", marker="o", color=COLOURS[i])
        found.append(smallest_length(error.transpose("seed", "length").values, ds.length.values))
    reported(left, 0.05, "level of claim 22.17")
    left.set(xlabel="examples in a training prompt", ylabel="error on unseen tasks", xscale="log")
    left.set_xticks(ds.length.values, [str(n) if n < 20 or n in (32, 64) else "" for n in ds.length.values])
    left.minorticks_off()
    left.legend()
    right.plot(1 / ds.alpha, found, "o", label="smallest with error ≤ 0.05")
    theory(right, 1 / ds.alpha, ds.predicted, "log M1 / α, constant one")
    right.set(xlabel="1/α (reported: linear)", ylabel="training length needed", ylim=(0, None))
    right.legend()
    return figure


# ------------------------------------------------------------------------------------------- Figure E.2


@dataclass(frozen=True)
class Tasks(Training):
    """`counts[i]` are the numbers of training tasks tried with `patterns[i]` patterns: a random part of the cycle up to
    M1 tasks, the cycle and random others beyond; every replica draws its own."""

    alpha: float = 0.6
    patterns: tuple[int, ...] = (4, 6, 8)
    counts: tuple[tuple[int, ...], ...] = ((2, 3, 4, 7), (1, 2, 3, 4, 5, 6, 9), (4, 7, 8, 11))


@system.experiment(
    "fig-E.2",
    "As many tasks as patterns are enough, and needed",
    presets={
        "smoke": Tasks(patterns=(4,), counts=((2, 4),), steps=60, prompts=256, seeds=2),
        "quick": Tasks(),
        "paper": Tasks(
            counts=((1, 2, 3, 4, 5, 7, 9), (1, 2, 3, 4, 5, 6, 7, 9, 12), (1, 2, 4, 6, 7, 8, 9, 11, 16)),
            prompts=8192,
        ),
    },
)
def number_of_tasks(s: Tasks) -> xr.Dataset:
    parts = []
    for M1, counts in zip(s.patterns, s.counts, strict=True):
        one = replace(s, M1=M1, M2=s.M1 + s.M2 - M1)
        task = prompts_of(one, tasks=float(M1))
        spec = training(one, task, probes=(accuracy,), validation=s.prompts, networks=False)
        data = sweep(spec, tasks=[float(count) for count in counts]).data
        error = 1 - data.accuracy.isel(step=-1, drop=True)
        parts.append(error.assign_coords(tasks=list(counts)).expand_dims(M1=[M1]))
    return xr.Dataset({"error": xr.concat(parts, "M1", join="outer")})


@number_of_tasks.claim(
    "22.18",
    "M1 = 6: mean error on unseen tasks >= 0.3 for 1, 2, 3 training tasks, >= 0.02 for 5, <= 0.01 for 6 and 9; M1 = 4, "
    "8: with M1 - 1 tasks >= 0.01 and at least 10 times that with M1",
    source="Fig E.2, Condition 6.3.2",
    presets=("quick", "paper"),
)
def coverage_decides(ds: xr.Dataset):
    def error(M1: int, tasks: int) -> xr.DataArray:
        return ds.error.sel(M1=M1, tasks=tasks)

    parts = {f"6_{n}": at_least(error(6, n), 0.3, over="seed") for n in (1, 2, 3)}
    parts["6_5"] = at_least(error(6, 5), 0.02, over="seed")
    parts |= {f"6_{n}": at_most(error(6, n), 0.01, over="seed") for n in (6, 9)}
    for M1 in (4, 8):
        few, enough = error(M1, M1 - 1), error(M1, M1)
        parts[f"{M1}_{M1 - 1}"] = at_least(few, 0.01, over="seed")
        parts[f"{M1}_ratio"] = at_least((few, enough), 0.0, stat=lambda a, b: a.mean() - 10 * b.mean(), over="seed")
    return all_of(**parts)


@number_of_tasks.figure
def plot_number_of_tasks(ds: xr.Dataset):
    figure, ax = new_figure(size=(3.6, 2.6))
    for i, M1 in enumerate(ds.M1.values):
        error = ds.error.sel(M1=M1).dropna("tasks", how="all")
        curve_with_spread(ax, error, x="tasks", label=f"M1 = {M1}", marker="o", color=COLOURS[i])
        ax.axvline(M1, color=COLOURS[i], linestyle=":", linewidth=1)
    ax.set(xlabel="training tasks (dotted: M1)", ylabel="error on unseen tasks (median, 10–90 %)")
    ax.set_title("reported: significant below M1, about 0 from M1 on")
    ax.legend()
    return figure
