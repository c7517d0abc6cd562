"""Deep quadratic networks learn parities that no layer-by-layer procedure can (003 §B.3.7)."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.lab import all_of, at_most, every, share_at_least
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure
from krogh.nn.base import Architecture, uniform
from krogh.nn.mlp import DeepMLP
from krogh.probes.basic import accuracy
from krogh.systems.hidden_progress import system
from krogh.tasks.base import Task
from krogh.tasks.parity import SparseParity
from krogh.theory.fourier_gap import population_gradient
from krogh.train import SGD, Reach, Stage, train


class Affine(eqx.Module):
    """z ↦ zW + b; a scalar where `outputs` is 0."""

    weight: Array
    bias: Array

    @staticmethod
    def drawn(key: PRNGKeyArray, inputs: int, outputs: int) -> "Affine":
        shape = (outputs,) if outputs else ()
        one, two = jax.random.split(key)
        return Affine(uniform(one, (inputs, *shape), inputs, outputs), uniform(two, shape, inputs, outputs))

    def __call__(self, z: Float[Array, " inputs"]) -> Array:
        return z @ self.weight + self.bias


class Greedy(eqx.Module):
    """A quadratic network seen by layer-wise training: layers below, the layer in training, and its linear head."""

    below: tuple[Affine, ...]
    layer: Affine
    head: Affine

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        for layer in (*self.below, self.layer):
            x = layer(x) ** 2
        return self.head(x)


class FirstLayer(Architecture):
    """A quadratic layer with a linear head of its own: where layer-wise training begins."""

    width: int = eqx.field(static=True)

    def build(self, task: Task, key: PRNGKeyArray) -> Greedy:
        one, two = jax.random.split(key)
        return Greedy((), Affine.drawn(one, task.in_shape[0], self.width), Affine.drawn(two, self.width, 0))


@dataclass(frozen=True)
class AnotherLayer:
    """Freezes what is there and puts a new quadratic layer with a new head on top."""

    width: int

    def __call__(self, network: Greedy, task: Task, key: PRNGKeyArray) -> Greedy:
        one, two = jax.random.split(key)
        inputs = network.layer.bias.shape[0]
        below = (*network.below, network.layer)
        return Greedy(below, Affine.drawn(one, inputs, self.width), Affine.drawn(two, self.width, 0))


@dataclass(frozen=True)
class Depth:
    """End-to-end cases are (hidden widths, n, k, steps); greedy ones, of the (2, 1) network, are (n, k).

    `seeds` are run where a share is claimed (three layers that can represent the parity), `control_seeds` elsewhere.
    """

    cases: tuple[tuple[tuple[int, ...], int, int, int], ...] = (
        *(((2, 1), n, k, 20_000) for n in (10, 30) for k in (2, 3, 4, 5)),
        ((10,), 10, 3, 20_000),
        ((10,), 30, 3, 20_000),
        ((10, 10, 1), 10, 5, 30_000),
    )
    greedy: tuple[tuple[int, int], ...] = ((10, 3), (10, 4), (30, 3), (30, 4))
    greedy_steps: int = 10_000
    batch: int = 32
    lr: float = 0.01
    every: int = 100
    seeds: int = 128
    control_seeds: int = 32
    greedy_seeds: int = 64


PAPER = (
    *(((2, 1), n, k, 20_000) for n in (10, 20, 30) for k in (1, 2, 3, 4, 5)),
    *(((10,), n, k, 20_000) for n in (10, 20, 30) for k in (3, 4)),
    *(((10, 10, 1), n, k, 50_000) for n in (10, 20, 30) for k in (1, 2, 3, 4, 5, 6)),
    *(((10, 10, 1), n, k, 500_000) for n, k in ((10, 7), (20, 7), (30, 7), (10, 8))),
)


def _name(widths: tuple[int, ...], n: int, k: int) -> str:
    return f"L={len(widths) + 1} {widths} n={n} k={k}".replace(",)", ")")


@system.experiment(
    "app-B.3.7",
    "End-to-end training learns parities of higher degree than any layer's",
    presets={
        "smoke": Depth(
            cases=(((2, 1), 10, 3, 500), ((2, 1), 10, 5, 500), ((10,), 10, 3, 500)),
            greedy=((10, 3),),
            greedy_steps=300,
            seeds=4,
            control_seeds=2,
            greedy_seeds=2,
        ),
        "quick": Depth(),
        "paper": Depth(
            cases=PAPER, greedy=tuple((n, k) for n in (10, 20, 30) for k in (3, 4)), seeds=1000, greedy_seeds=1000
        ),
    },
)
def depth(s: Depth) -> xr.Dataset:
    learner = SGD(lr=s.lr, batch=s.batch)
    share = np.linspace(0, 1, 51)
    best, records, reached = [], [], []
    for widths, n, k, steps in s.cases:
        data = train(
            SparseParity(n, k),
            DeepMLP(widths, activation="square"),
            learner,
            steps,
            seeds=s.seeds if len(widths) == 2 and k <= 4 else s.control_seeds,
            probes=[accuracy],
            every=s.every,
            until=Reach("accuracy", 1.0, confirm=8192),
            networks=False,
        ).data
        one = data.accuracy.reindex(seed=range(s.seeds))
        # budgets differ between the cases: curves are kept at equal shares of them
        records.append(one.sel(step=share * steps, method="nearest").values)
        best.append(one.max("step").values)
        reached.append(data.reached.reindex(seed=range(s.seeds)).values)
    greedy = [_greedy(s, learner, n, k) for n, k in s.greedy]
    return xr.Dataset(
        {
            "accuracy": (("case", "seed", "budget"), np.array(records)),
            "best": (("case", "seed"), np.array(best)),
            "reached": (("case", "seed"), np.array(reached)),
            "greedy": (("greedy_case", "greedy_seed", "greedy_step"), np.array(greedy)),
            "gradient": (("degree", "neuron", "coordinate"), _first_layer_gradient((1, 2, 3, 4, 5))),
        },
        coords={
            "case": [_name(widths, n, k) for widths, n, k, _ in s.cases],
            "steps": ("case", [case[3] for case in s.cases]),
            "budget": share,
            "greedy_case": [_name((2, 1), n, k) for n, k in s.greedy],
            "greedy_step": np.arange(0, 2 * s.greedy_steps + 1, s.every),
            "degree": [1, 2, 3, 4, 5],
        },
    )


def _greedy(s: Depth, learner: SGD, n: int, k: int) -> np.ndarray:
    """Accuracy (seed, record) of the (2, 1) network when its layers are trained one after the other."""
    stages = [
        Stage(learner, s.greedy_steps),
        Stage(learner, s.greedy_steps, trains=("layer", "head"), before=AnotherLayer(1)),
    ]
    run = train(
        SparseParity(n, k),
        FirstLayer(2),
        stages,
        seeds=s.greedy_seeds,
        probes=[accuracy],
        every=s.every,
        # the largest of many readings is judged: without sampling error where all inputs can be enumerated
        validation="all" if n <= 10 else 1024,
        networks=False,
    )
    return run.data.accuracy.transpose("seed", "step").values


def _first_layer_gradient(degrees: tuple[int, ...], n: int = 10, neurons: int = 16) -> np.ndarray:
    """E[y x_i σ'(w·x + b)] over all inputs for σ(z) = z² and random neurons: zero unless k ≤ 2."""
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(neurons, n)), rng.normal(size=neurons)
    return np.array([population_gradient(lambda z: 2 * z, w, k, b) for k in degrees])


@depth.claim(
    "14.30",
    "z^2 networks with output bias, lr = .01, B = 32, n = 10 and 30: L = 3 of widths (2, 1) reaches 100 % on k = 2, 3, "
    "4 in >= 60 % of seeds within 2e4 steps and never exceeds 60 % on k = 5; nor does L = 2 of width 10 on k = 3; "
    "greedy layer-wise training of the L = 3 network stays <= 60 % for k = 3, 4; the exact layer-1 gradient is 0 for "
    "k > 2",
    source="§B.3.7",
    finding="End to end everything is as stated, and greedy training stays at chance at n = 30. At n = 10 it does not "
    "in every seed: 2 of 64 (k = 3) and 3 of 64 (k = 4) exceed 60 % on all inputs.",
)
def end_to_end_only(ds: xr.Dataset):
    parts: dict[str, Any] = {}
    for n in (10, 30):
        for k in (2, 3, 4):
            case = _name((2, 1), n, k)
            parts[case] = share_at_least(np.isfinite(ds.reached.sel(case=case)), 0.6, over="seed")
        for case in (_name((2, 1), n, 5), _name((10,), n, 3)):
            parts[case] = every(ds.best.sel(case=case).dropna("seed") <= 0.6, over="seed")
    for case in ds.greedy_case.values:
        best = ds.greedy.sel(greedy_case=case).max("greedy_step")
        parts[f"greedy {case}"] = every(best <= 0.6, over="greedy_seed")
    parts["layer_1_gradient"] = at_most(float(abs(ds.gradient.sel(degree=slice(3, None))).max()), 1e-12)
    return all_of(**parts)


@depth.figure
def depth_plot(ds: xr.Dataset):
    fig, (left, middle, right) = new_figure(3, size=(9.2, 3.2), width_ratios=(1, 1, 1.3))
    shown = [case for case in ds.case.values if case.startswith("L=3") and " n=30 " in case] or list(ds.case.values)
    for case, colour in zip(shown, COLOURS, strict=False):
        one = ds.accuracy.sel(case=case)
        curve_with_spread(left, one.assign_coords(budget=one.budget * one.steps), x="budget", label=case, color=colour)
    for case, colour in zip(ds.greedy_case.values, COLOURS, strict=False):
        one = ds.greedy.sel(greedy_case=case)
        curve_with_spread(middle, one, x="greedy_step", over="greedy_seed", label=case, color=colour)
        middle.plot(ds.greedy_step, one.max("greedy_seed"), color=colour, linewidth=0.6, linestyle=":")
    middle.axvline(float(ds.greedy_step[-1]) / 2, color="black", linestyle=":", linewidth=1, label="layer 2 begins")
    for ax, title in ((left, "end to end"), (middle, "layer by layer (dotted: best seed)")):
        ax.axhline(0.6, color="0.5", linestyle=":", linewidth=1)
        ax.set(xlabel="step t", ylabel="accuracy", ylim=(0.45, 1.02), title=title)
        ax.legend(fontsize=6, loc="center right" if ax is left else "upper left")
    share = np.isfinite(ds.reached.where(ds.best.notnull())).sum("seed") / ds.best.notnull().sum("seed")
    right.barh(np.arange(ds.sizes["case"]), share, color=COLOURS[0])
    right.axvline(0.6, color="0.5", linestyle=":", linewidth=1)
    right.set_yticks(np.arange(ds.sizes["case"]), ds.case.values, fontsize=6)
    right.invert_yaxis()
    right.set(xlabel="share of seeds at 100 %", xlim=(0, 1), title="k > $2^{L-1}$ cannot be represented")
    return fig
