"""How training times grow with the number of patterns, of steps, and with rarer helpful examples (004 Theorem 3)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, between
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, theory
from krogh.lab.times import first_time
from krogh.probes.chain_of_thought import attention_classes
from krogh.systems.chain_of_thought import system
from krogh.systems.chain_of_thought.dynamics import DIFFERENT_STEP, different_step, slopes
from krogh.systems.chain_of_thought.learning import SMOKE, Training, error, head_run
from krogh.theory import reasoning_chains as rc
from krogh.train import Reach, sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ------------------------------------------------------------------------------------------- patterns


@dataclass(frozen=True)
class Patterns(Training):
    """Every M has the same d; `every` steps the loss is looked at."""

    patterns: tuple[int, ...] = (10, 20, 40)
    d: int = 60
    level: float = 0.01
    every: int = 2
    validation: int = 256


@system.experiment(
    "thm-3-patterns",
    "Training time is linear in the number of patterns",
    presets={
        "smoke": Patterns(**SMOKE | {"d": 12, "steps": 100}, patterns=(5, 8), level=0.1),
        "quick": Patterns(),
        "paper": Patterns(patterns=(10, 20, 40, 80, 160), d=200, steps=3000, validation=1024),
    },
)
def patterns(s: Patterns) -> xr.Dataset:
    until = Reach("error", s.level, below=True)
    run = head_run(s, probes=[error], every=s.every, until=until, validation=s.validation, networks=False)
    data = sweep(run, M=s.patterns).data[["reached"]]
    return data.assign_attrs(eta=s.eta, K=s.K, level=s.level)


@patterns.claim(
    "23.6",
    "Steps to loss .01 for M = 10, 20, 40 (d = 60): log-log slope 1 +- .15",
    source="(7.15), T_3",
    presets=("quick", "paper"),
)
def linear_in_patterns(ds: xr.Dataset):
    return between(slopes(ds.reached, "M"), 0.85, 1.15)


@patterns.figure
def plot_patterns(ds: xr.Dataset) -> "Figure":
    figure, ax = new_figure(size=(3.6, 2.6))
    eps, eta, K = (ds.attrs[name] for name in ("level", "eta", "K"))
    curve_with_spread(ax, ds.reached, x="M", marker="o", label=f"steps to loss {eps:g}")
    theory(ax, ds.M, K * ds.M / (eta * eps), "$T_3 = KM/(ηε)$")
    ax.set(xscale="log", yscale="log", xlabel="patterns M", ylabel=f"steps (η = {eta:g})")
    ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- steps and alpha


@dataclass(frozen=True)
class Stage1(Training):
    """Steps until attention on other steps is below .1, for several K at `alpha` and several alpha at K."""

    eta: float = 3.0
    steps: int = 400
    every: int = 2
    many_steps: tuple[int, ...] = (2, 3, 5)
    alphas: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)
    level: float = 0.01
    validation: int = 256


@system.experiment(
    "lemma-F.3.6",
    "The first stage takes longer with more steps and with fewer examples like the query",
    presets={
        "smoke": Stage1(**SMOKE | {"steps": 200}, many_steps=(2, 3), alphas=(0.4, 0.8), level=0.1),
        "quick": Stage1(),
        "paper": Stage1(steps=1500, many_steps=(2, 3, 4, 5, 6, 8, 10), validation=1024),
    },
)
def first_stage(s: Stage1) -> xr.Dataset:
    def times(s: Stage1, **axes: tuple) -> xr.Dataset:
        settings = {"every": s.every, "validation": s.validation, "networks": False}
        data = sweep(head_run(s, probes=[attention_classes, error], **settings), **axes).data.isel(head=0)
        return xr.Dataset(
            {
                "stage_1": first_time(different_step(data.attention) <= DIFFERENT_STEP),
                "reached": first_time(data.error <= s.level),
            }
        )

    by_steps = times(s, K=s.many_steps)
    by_alpha = times(s, alpha=s.alphas)
    parts = {f"{name}_{axis}": part[name] for axis, part in (("K", by_steps), ("alpha", by_alpha)) for name in part}
    return xr.Dataset(parts).assign_attrs(eta=s.eta, alpha=s.alpha, K=s.K, M=s.M, level=s.level)


@first_stage.claim(
    "23.8",
    "The time to attention < .1 on other steps grows with K = 2, 3, 5, log-log slope <= 3, and falls with alpha = .1, "
    ".2, .4, .8, slope >= -2: the exponents of T_1 are upper bounds",
    source="Lemma F.3.6",
    presets=("quick", "paper"),
)
def first_stage_bounds(ds: xr.Dataset):
    K, alpha = ds.stage_1_K, ds.stage_1_alpha
    return all_of(
        **{f"K {a} to {b}": at_least(K.sel(K=b) - K.sel(K=a), 0.0, over="seed") for a, b in _pairs(ds.K.values)},
        slope_K=at_most(slopes(K, "K"), 3.0),
        **{
            f"alpha {a} to {b}": at_least(alpha.sel(alpha=a) - alpha.sel(alpha=b), 0.0, over="seed")
            for a, b in _pairs(ds.alpha.values)
        },
        slope_alpha=at_least(slopes(alpha, "alpha"), -2.0),
    )


def _pairs(values: np.ndarray) -> list[tuple]:
    return list(zip(values, values[1:], strict=False))


@first_stage.claim(
    "23.T3",
    "Steps to loss .01 grow with K as T_3 = K M/(eta eps) does: log-log slope 1 +- .15",
    source="(7.15), T_3",
    presets=("quick", "paper"),
    finding="The factor K is not there: W is shared by all steps, so that every prompt teaches the pattern block "
    "whatever its step. (7.15) is an upper bound.",
)
def printed_factor(ds: xr.Dataset):
    return between(slopes(ds.reached_K, "K"), 0.85, 1.15)


@first_stage.figure
def plot_first_stage(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(2, size=(6.8, 2.6))
    eta, fixed_alpha, fixed_K, M = (ds.attrs[name] for name in ("eta", "alpha", "K", "M"))
    laws = {
        "K": rc.training_times(eta, fixed_alpha, ds.K.values, M, DIFFERENT_STEP)[0],
        "alpha": rc.training_times(eta, ds.alpha.values, fixed_K, M, DIFFERENT_STEP)[0],
    }
    for ax, (axis, law) in zip(axes, laws.items(), strict=True):
        curve_with_spread(ax, ds[f"stage_1_{axis}"], x=axis, marker="o", label="attention on other steps < .1")
        loss = f"loss < {ds.attrs['level']:g}"
        curve_with_spread(ax, ds[f"reached_{axis}"], x=axis, marker="s", label=loss, color=COLOURS[1])
        theory(ax, ds[axis], law, "$T_1 = α^{-2}K^3 \\log(K/ε)/η$, ε = .1")
        ax.set(xscale="log", yscale="log", xlabel={"alpha": "α"}.get(axis, axis), ylabel=f"steps (η = {eta:g})")
        ax.set_xticks(ds[axis].values, [f"{v:g}" for v in ds[axis].values])
        ax.minorticks_off()
    axes[0].legend(fontsize=6)
    return figure
