"""Rivals on the same data: dense and sparse linear classifiers, and exhaustive search (003 §4.6)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.lab import all_of, at_least, at_most, share_at_least, share_at_most
from krogh.lab.figures import new_figure, theory
from krogh.systems.variable_creation import system
from krogh.tasks.sparse_boolean import SparseBoolean, balanced_bias, consistent_conjunctions
from krogh.theory.conjunctions import identifying_samples, near_misses, ridge, sparse_logistic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Linear:
    """Each rival keeps the penalty that serves it best on the validation sample: an upper bound on what it can do."""

    n: int = 300
    samples: tuple[int, ...] = (50, 70, 100, 200)
    validation: int = 4000
    steps: int = 1500
    seeds: int = 20


@system.experiment(
    "linear-control",
    "A conjunction is a halfspace: l2 and l1 linear learners",
    presets={"smoke": Linear(n=50, samples=(70, 200), validation=200, steps=100, seeds=2), "quick": Linear()},
)
def linear(s: Linear) -> xr.Dataset:
    keys = jax.random.split(jax.random.key(0), s.seeds)
    found = np.stack([_linear_accuracy(keys, s.n, m, s.validation, s.steps) for m in s.samples], axis=1)
    return xr.Dataset(
        {"accuracy": (("learner", "m", "seed"), found)},
        coords={"learner": ["l2 ridge", "l1 logistic"], "m": list(s.samples)},
        attrs={"T": s.n},
    )


@partial(jax.jit, static_argnames=("n", "m", "validation", "steps"))
def _linear_accuracy(keys: PRNGKeyArray, n: int, m: int, validation: int, steps: int) -> Float[Array, "learners seeds"]:
    task = SparseBoolean(n, bias=balanced_bias(3), redraws=64)

    def one(key: PRNGKeyArray) -> Array:
        train_key, test_key = jax.random.split(key)
        sample, test = task.sample(train_key, m), task.held_out(test_key, validation)
        y = 2.0 * sample.y - 1
        fits = (
            ridge(sample.x, y, jnp.logspace(-2, 4, 13)),
            sparse_logistic(sample.x, y, jnp.logspace(-3, -0.7, 8), steps),
        )
        right = [((w @ test.x.T + c[:, None] > 0) == (test.y == 1)).mean(axis=1).max() for w, c in fits]
        return jnp.stack(right)

    return jax.lax.map(one, keys).T


@linear.claim(
    "13.17",
    "T = 300: from m = 70 samples the best l2-ridge on bits has accuracy <= .75, the best l1-logistic >= .95; from m "
    "= 200 <= .85 and >= .98",
    source="§4.6",
)
def sparse_wins(ds: xr.Dataset):
    parts = {}
    for m, dense, sparse in ((70, 0.75, 0.95), (200, 0.85, 0.98)):
        parts[f"l2_{m}"] = at_most(ds.accuracy.sel(learner="l2 ridge", m=m), dense, over="seed")
        parts[f"l1_{m}"] = at_least(ds.accuracy.sel(learner="l1 logistic", m=m), sparse, over="seed")
    return all_of(**parts)


@linear.figure
def plot_linear(ds: xr.Dataset) -> "Figure":
    from krogh.lab.figures import curve_with_spread

    figure, ax = new_figure()
    for learner in ds.learner.values:
        curve_with_spread(ax, ds.accuracy.sel(learner=learner), x="m", label=learner, marker="o")
    ax.set(xlabel="samples m", ylabel="accuracy, best penalty", title=f"T = {ds.attrs['T']}, 3-sparse AND")
    ax.legend()
    return figure


@dataclass(frozen=True)
class Exhaustive:
    """Cases are (T, m); m = 0 stands for ceil(m_id(T))."""

    cases: tuple[tuple[int, int], ...] = ((25, 15), (25, 0), (100, 22), (100, 0), (300, 30), (300, 0))
    seeds: int = 2000


@system.experiment(
    "erm-control",
    "When does only one conjunction agree with the sample?",
    presets={"smoke": Exhaustive(seeds=50), "quick": Exhaustive()},
)
def exhaustive(s: Exhaustive) -> xr.Dataset:
    keys = jax.random.split(jax.random.key(0), s.seeds)
    cases = [(T, m or math.ceil(identifying_samples(T))) for T, m in s.cases]
    found = np.stack([np.asarray(_unique(keys, T, m)) for T, m in cases])
    return xr.Dataset(
        {"unique": (("case", "seed"), found)},
        coords={
            "case": [f"T={T}, m={m}" for T, m in cases],
            "T": ("case", [T for T, _ in cases]),
            "m": ("case", [m for _, m in cases]),
            "at_m_id": ("case", [m == 0 for _, m in s.cases]),
        },
    )


@partial(jax.jit, static_argnames=("n", "m"))
def _unique(keys: PRNGKeyArray, n: int, m: int) -> Array:
    task = SparseBoolean(n, bias=balanced_bias(3))

    def one(key: PRNGKeyArray) -> Array:
        sample = task.sample(key, m)
        return consistent_conjunctions(sample.x, sample.y, 3) == 1

    return jax.lax.map(one, keys, batch_size=50)


@exhaustive.claim(
    "13.18",
    "One conjunction is left with probability >= .85 at m = ceil(m_id(T)) for T = 25, 100, 300, and <= .6 at m = 22 "
    "for T = 100, where log2 C(T,3) = 17.3",
    source="§4.6",
)
def identified(ds: xr.Dataset):
    few = ds.unique.isel(case=int(np.flatnonzero((ds["T"] == 100) & (ds.m == 22))[0]))
    enough = {
        str(ds.case[i].item()): share_at_least(ds.unique.isel(case=int(i)), 0.85, over="seed")
        for i in np.flatnonzero(ds.at_m_id)
    }
    return all_of(**enough, T100_m22=share_at_most(few, 0.6, over="seed"))


@exhaustive.figure
def plot_exhaustive(ds: xr.Dataset) -> "Figure":
    figure, ax = new_figure()
    for T in np.unique(ds["T"]):
        cell = ds.isel(case=np.flatnonzero(ds["T"] == T)).sortby("m")
        (line,) = ax.plot(cell.m, cell.unique.mean("seed"), "o", label=f"T = {T}")
        m = np.arange(10, 46)
        drawn = theory(
            ax, m, [math.exp(-near_misses(int(T), 3, v)) for v in m], "exp(−near misses)" if T == 25 else None
        )
        drawn.set_color(line.get_color())
    ax.set(xlabel="samples m", ylabel="share with one consistent conjunction", ylim=(-0.02, 1.02))
    ax.legend()
    return figure
