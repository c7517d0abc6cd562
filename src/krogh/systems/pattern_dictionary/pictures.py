"""Maps of the weights at initialisation and after one and two steps: Figs 2.2 = A.2, A.4, A.6, A.8, A.10, A.11."""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, between
from krogh.nn.truncated import PairedTruncated
from krogh.probes.clusters import plane
from krogh.probes.dictionary import feature_cosines
from krogh.systems.pattern_dictionary import system
from krogh.systems.pattern_dictionary.recipe import Setting, off_span_norm, replica, two_steps
from krogh.tasks.dictionary import LookupDictionary
from krogh.theory.dictionary import KEPT, first_step, second_step
from krogh.train.seeds import over_seeds

STAGES = ("initialisation", "one step", "two steps")
SMOKE = Setting(D=40, m=20, n=2000, test=100, seeds=2, ambient=60)


def weight_maps(s: Setting) -> xr.Dataset:
    """Seed 0's map of all weights and of ±sum_A M_j at three moments under metric MDS of 1 - cos, and the star each
    neuron is nearest to after step 2. The off-span part of kept weights is drawn, so that maps are those of R^d.
    """
    off = s.off_span

    def measure(key):
        r = replica(s, key)
        one, two = two_steps(s, r)
        key = jr.fold_in(key, 9)
        outside = jr.normal(key, (off, s.m)) / s.k
        outside = jnp.concatenate([outside, outside], axis=1)
        kept = s.first_lr(s.task()) * KEPT[s.reading]
        layers = [
            jnp.concatenate([weights, part * outside])
            for weights, part in ((r.start.weights, 1.0), (one.weights, kept), (two.weights, 0.0))
        ]
        return jnp.stack(layers), jnp.concatenate([r.task.feature, jnp.zeros(off)])

    layers, feature = (a[0] for a in over_seeds(measure, 1, double=True))
    return _maps(layers, feature)


def _maps(layers: np.ndarray, feature: np.ndarray) -> xr.Dataset:
    stars = np.stack([feature, -feature])
    points = np.stack([plane(np.concatenate([weights.T, stars])) for weights in layers])
    norms = np.linalg.norm(layers, axis=1) * np.linalg.norm(feature)
    cosine = np.einsum("smn,m->sn", layers, feature) / np.maximum(norms, 1e-300)
    return xr.Dataset(
        {
            "position": (("stage", "neuron", "axis"), points[:, :-2]),
            "star": (("stage", "sign", "axis"), points[:, -2:]),
            "cosine": (("stage", "neuron"), cosine),
        },
        coords={"stage": list(STAGES)},
    )


def show_maps(ds: xr.Dataset, variation: str | None = None):
    """Red: nearest +sum_A M_j after step 2; orange: nearest the opposite; colours are kept for the earlier panels."""
    from krogh.lab.figures import new_figure

    parts = [ds] if variation is None else [ds.sel({variation: value}) for value in ds[variation].values]
    fig, axes = new_figure(ncols=3, nrows=len(parts), squeeze=False)
    for row, part in zip(axes, parts, strict=True):
        towards = part.cosine.isel(stage=-1).values > 0
        for ax, stage in zip(row, STAGES, strict=True):
            weights, stars = part.position.sel(stage=stage).values, part.star.sel(stage=stage).values
            ax.scatter(*stars[0], marker="*", s=140, color="tab:red", edgecolor="black")
            ax.scatter(*stars[1], marker="*", s=140, color="tab:orange", edgecolor="black")
            # the two neurons of a pair start at the same place
            ax.scatter(*weights[towards].T, s=9, color="tab:red")
            ax.scatter(*weights[~towards].T, s=3, color="tab:orange")
            best = float(part.cosine.sel(stage=stage).max())
            value = "" if variation is None else f"{variation} {part[variation].item()}, "
            ax.set(title=f"{value}{stage}, max cos {best:.3f}", xticks=[], yticks=[])
            ax.set_aspect("equal", adjustable="datalim")
    return fig


# --- Parity ---


@dataclass(frozen=True)
class Readings(Setting):
    dimensions: tuple[int, ...] = (100, 500, 2000)


@system.experiment(
    "fig-2.2",
    "Weights at initialisation, after one and after two steps, wiped or kept in step 1 (= Fig A.2)",
    presets={
        "smoke": Readings(D=40, m=20, n=2000, test=100, dimensions=(40, 100), seeds=2),
        "quick": Readings(seeds=8),
        "paper": Readings(seeds=2048),
    },
)
def parity_maps(s: Readings) -> xr.Dataset:
    readings = list(KEPT)
    base = s.plain()
    maps = xr.concat([weight_maps(replace(base, reading=r)) for r in readings], xr.Variable("reading", readings))

    def measure(key):
        r, lr = replica(base, key), 1e-3
        wiped = first_step(r.start, r.train.x, r.train.y, lr, s.sigma_xi)
        out = {}
        for reading in readings:
            one = eqx.tree_at(lambda n: n.weights, wiped, wiped.weights + lr * KEPT[reading] * r.start.weights)
            for d in s.dimensions:
                outside = off_span_norm(jr.fold_in(key, d), d - s.D, lr * KEPT[reading] / s.k, one.bias.shape)
                out[reading, d] = jnp.max(feature_cosines(one, r.task, outside))
        return list(out.values())

    values = np.stack(over_seeds(measure, s.seeds, double=True)).reshape(len(readings), len(s.dimensions), s.seeds)
    return maps.assign(one_step=(("reading", "d", "seed"), values)).assign_coords(d=list(s.dimensions))


@parity_maps.figure
def plot_parity_maps(ds: xr.Dataset):
    return show_maps(ds, "reading")


@parity_maps.claim(
    "01.9",
    "w1 = w0 - 8 grad has max cos 0.85 ± 0.05 (d = 500), 0.95 ± 0.03 (d = 100), 0.57 ± 0.06 (d = 2000), the published "
    "0.848, 0.967, 0.560; exactly wiped it is at least 0.995 at every d",
    source="Tables A.1, A.3",
    finding=(
        "The published One-Step cosines fall with d, which exact wiping forbids: a remainder of the initial weights, "
        "eta1/(1 - 2 eta1 lambda_w) = 8, reproduces two of them. At d = 500 the mean of 2048 seeds is 0.797 (0.796 to "
        "0.799): 0.05 below the published 0.848, a little more than the tolerance."
    ),
    presets=("paper",),
)
def kept_weights_explain_the_cosines(ds: xr.Dataset):
    keep, wipe = ds.one_step.sel(reading="keep"), ds.one_step.sel(reading="wipe")
    expected = {500: (0.85, 0.05), 100: (0.95, 0.03), 2000: (0.57, 0.06)}
    parts = {f"keep_{d}": between(keep.sel(d=d), c - t, c + t, over="seed") for d, (c, t) in expected.items()}
    return all_of(wipe=at_least(wipe.min("d"), 0.995, over="seed"), **parts)


# --- The other label rules and variations ---

INTERVAL = Setting(labels="interval", k=30, m=100, seeds=1, weighted=True)


@system.experiment(
    "fig-A.4",
    "Weights at initialisation, after one and after two steps: interval labels",
    presets={"smoke": replace(SMOKE, labels="interval", k=30), "quick": INTERVAL, "paper": INTERVAL},
)
def interval_maps(s: Setting) -> xr.Dataset:
    return weight_maps(s)


interval_maps.figure(show_maps)


@dataclass(frozen=True)
class Varied(Setting):
    values: tuple[float, ...] = ()


def vary(s: Varied, **fields: str) -> xr.Dataset:
    """Maps over `values`, each written into the given fields (name of the axis: field)."""
    axis, field = next(iter(fields.items()))
    cast: Any = int if field in ("ambient", "n") else float
    parts = []
    for value in s.values:
        extra = {"m": 50} if field == "n" and value == 10_000 else {}
        parts.append(weight_maps(s.plain(**{field: cast(value)}, **extra)))
    return xr.concat(parts, xr.Variable(axis, [cast(v) for v in s.values]), join="outer")


@system.experiment(
    "fig-A.6",
    "Weights in the early steps at input dimension 100 and 2000 (step 1 with the kept remainder)",
    presets={
        "smoke": Varied(D=40, m=20, n=2000, test=100, values=(40, 80), seeds=1, reading="keep"),
        "quick": Varied(values=(100, 2000), m=100, seeds=1, reading="keep"),
        "paper": Varied(values=(100, 2000), seeds=1, reading="keep"),
    },
)
def dimension_maps(s: Varied) -> xr.Dataset:
    return vary(s, d="ambient")


@dimension_maps.figure
def plot_dimension_maps(ds: xr.Dataset):
    return show_maps(ds, "d")


@system.experiment(
    "fig-A.8",
    "Weights in the early steps at negative-class share 0.8 and 0.9 (class-weighted steps)",
    presets={
        "smoke": Varied(D=40, m=20, n=2000, test=100, values=(0.8, 0.9), seeds=1, weighted=True),
        "quick": Varied(values=(0.8, 0.9), m=100, seeds=1, weighted=True),
        "paper": Varied(values=(0.8, 0.9), seeds=1, weighted=True),
    },
)
def share_maps(s: Varied) -> xr.Dataset:
    return vary(s, share="negative")


@share_maps.figure
def plot_share_maps(ds: xr.Dataset):
    return show_maps(ds, "share")


@system.experiment(
    "fig-A.10",
    "Weights in the early steps at sample size 25 000 and 10 000",
    presets={
        "smoke": Varied(D=40, m=20, test=100, values=(4000, 2000), seeds=1),
        "quick": Varied(values=(25_000, 10_000), m=50, seeds=1),
        "paper": Varied(values=(25_000, 10_000), m=300, seeds=1),
    },
)
def sample_maps(s: Varied) -> xr.Dataset:
    return vary(s, n="n")


@sample_maps.figure
def plot_sample_maps(ds: xr.Dataset):
    return show_maps(ds, "n")


# --- Hidden representation labels ---


@dataclass(frozen=True)
class Lookup:
    D: int = 250
    k: int = 50
    words: int = 100
    m: int = 100
    n: int = 20_000
    lr1: float = 1e-4


@system.experiment(
    "fig-A.11",
    "Weights in the early steps when the label is looked up from 100 hidden words (quick: m = 100, n = 20 000)",
    presets={
        "smoke": Lookup(D=40, k=10, words=8, m=20, n=2000),
        "quick": Lookup(),
        "paper": Lookup(m=300, n=50_000),
    },
)
def lookup_maps(s: Lookup) -> xr.Dataset:
    with jax.enable_x64(True):
        init, world, data = jr.split(jr.key(0), 3)
        task = LookupDictionary(D=s.D, k=s.k, words=s.words).instance(world)
        x, y, _ = task.sample(data, s.n)
        # sigma_w = 1/5 and sigma_b = 1/25 as in the parity runs: the source gives no scales for k = 50.
        start = PairedTruncated(m=s.m, sigma_w=0.2, sigma_b=0.04, sigma_a=4.0).build(task, init)
        one = first_step(start, x, y, s.lr1, 5**-1.5)
        two = second_step(one, x, y, 5**-1.5)
        layers = np.stack([np.asarray(network.weights) for network in (start, one, two)])
        return _maps(layers, np.asarray(task.feature))


lookup_maps.figure(show_maps)
