"""The gradient feature set of every family: how often, how sharply, how strongly a direction is hit (000 §3.3.2)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_most, between, every
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, theory
from krogh.nn.symmetric import SymmetricReLU, neurons, relu_network
from krogh.systems.gradient_feature_learning import system
from krogh.systems.gradient_feature_learning.learning import (
    hidden,
    hinge,
    parity_threshold,
    xor_threshold,
)
from krogh.tasks.block_parity import BlockParity
from krogh.tasks.mixtures import LinearMargin, orthogonal_mixture, xor_mixture
from krogh.tasks.multi_index import MultiIndex
from krogh.theory.feature_guarantees import FeatureFamily, good_network_bound
from krogh.theory.fourier_gap import sign_neuron_gradient
from krogh.theory.gradient_features import (
    block_parity_gradient,
    cosines,
    explicit_head,
    find_features,
    hits,
    linear_gradient,
    mixture_gradient,
    mixture_network,
    nice_neurons,
    projected_normal,
    quadratic_gradient,
)
from krogh.train.seeds import over_seeds

# --- GF-1 ---


@dataclass(frozen=True)
class HeatMap:
    """Norms are shares of the largest norm that the family's theory names for a sure neuron."""

    draws: int = 200_000
    gammas: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
    norms: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    searched: int = 4000


def gradients(size: int) -> dict[str, tuple]:
    """Of every family: the features D_j, the norm of a sure neuron's gradient, and key -> G of `size` draws."""
    linear, mixture = LinearMargin(50), orthogonal_mixture((1, -1) * 3, 7, math.sqrt(100), 1.0)
    xor, d = xor_mixture(400, 1.0, ambient=3), 60
    found = {
        "linear, b < 0": (
            linear.directions,
            linear.signal,
            lambda key: linear_gradient(linear, jr.normal(key, (50, size)), jnp.full(size, -50.0)),
        ),
        "6 Gaussians, d = 100": (
            mixture.directions,
            math.sqrt(100) / 6,
            lambda key: mixture_gradient(mixture, projected_normal(key, 100, 6, size), jnp.full(size, 20.0)),
        ),
        "XOR, d = 400": (
            xor.directions[::2],
            math.sqrt(400) / 4,
            lambda key: mixture_gradient(
                xor, projected_normal(key, 400, 2, size), jnp.full(size, xor_threshold(400, 1.0))
            ),
        ),
    }
    for r, k, p_a, p_o in ((1, 5, 0.25, 0.5), (3, 3, 0.1, 0.1)):
        task = BlockParity(d, r, k, p_a, p_o)

        def parity(key, task=task):
            threshold = jnp.full(size, parity_threshold(d, task.r, task.k))
            return block_parity_gradient(task, jr.normal(key, (d, size)), threshold)

        found[f"parity, r = {r}, k = {k}"] = task.directions, math.sqrt(k) * p_a, parity
    bits, relevant = 31, 4

    def uniform(key):
        w = np.asarray(jr.rademacher(key, (size, bits), float))
        return jnp.asarray(sign_neuron_gradient(w, -np.ones(size), relevant)[0].T)

    strongest = float(jnp.linalg.norm(uniform(jr.key(0))[:, 0]))
    found["uniform parity, k = 4"] = jnp.eye(1, bits).at[0, :relevant].set(0.5), strongest, uniform
    index = MultiIndex(d)
    hessian = jnp.zeros((d, d)).at[:2, :2].set(index.hessian)
    # the feature of a quadratic is a plane; its best-hit directions are the eigenvectors of H
    axes = jnp.linalg.eigh(index.hessian)[1].T @ index.directions
    found["quadratic, d = 60"] = (
        axes,
        float(jnp.abs(jnp.linalg.eigvalsh(index.hessian)).max()) / math.sqrt(2 * math.pi * d) * 2,
        lambda key: quadratic_gradient(hessian, jr.normal(key, (d, size))),
    )
    return found


@system.experiment(
    "gf-1",
    "How often the gradient hits a feature, by cone and by norm, for every family",
    presets={"smoke": HeatMap(draws=2000, searched=200), "quick": HeatMap()},
)
def heat_map(s: HeatMap) -> xr.Dataset:
    families = gradients(s.draws)
    most = max(len(directions) for directions, _, _ in families.values())
    p = np.full((len(families), most, len(s.gammas), len(s.norms)), np.nan)
    found, covered = np.zeros(len(families)), np.full(len(families), np.nan)
    for row, (directions, strongest, gradient) in enumerate(families.values()):
        g = gradient(jr.key(row))
        angle, length = jnp.abs(cosines(directions, g)), jnp.linalg.norm(g, axis=0)
        for i, gamma in enumerate(s.gammas):
            inside = (angle[:, None] > 1 - gamma) & (length >= strongest * jnp.asarray(s.norms)[:, None])
            p[row, : len(directions), i] = inside.mean(-1)
        searched = find_features(g[:, : s.searched], 0.05, 0.1 * strongest)
        if len(searched.directions):
            found[row] = len(searched.directions)
            nearest = np.abs(np.asarray(directions) @ searched.directions.T).max(1)
            covered[row] = nearest.min()
    return xr.Dataset(
        {"p": (("family", "feature", "gamma", "norm"), p), "found": ("family", found), "covered": ("family", covered)},
        coords={"family": list(families), "gamma": list(s.gammas), "norm": list(s.norms)},
    )


@heat_map.claim(
    "GF-1",
    "Without knowing the answer the search finds every feature of the linear, Gaussian, XOR and block-parity families "
    "within the cone 0.05",
    source="Def. 3.7",
    presets=("quick", "paper"),
)
def search_finds_features(ds: xr.Dataset):
    named = [name for name in ds.family.values if not name.startswith(("uniform", "quadratic"))]
    return every(ds.covered.sel(family=named) > 0.95)


@heat_map.figure
def plot_heat_map(ds: xr.Dataset):
    """p of every feature: a row per family, on one scale of its own."""
    rows, columns = ds.sizes["family"], ds.sizes["feature"]
    fig, axes = new_figure(columns, rows, size=(1.9 * columns, 1.8 * rows), squeeze=False)
    norms, gammas = ds.sizes["norm"], ds.sizes["gamma"]
    for row, family in zip(axes, ds.family.values, strict=True):
        features = ds.p.sel(family=family).dropna("feature", how="all").transpose("feature", "gamma", "norm")
        for j, (ax, p) in enumerate(zip(row, features.values, strict=False)):
            drawn = ax.pcolormesh(np.arange(norms + 1), np.arange(gammas + 1), p, vmin=0, vmax=features.max())
            ax.set_xticks(np.arange(norms) + 0.5, [f"{v:g}" for v in ds.norm.values], fontsize=5)
            ax.set_yticks(np.arange(gammas) + 0.5, [f"{v:g}" for v in ds.gamma.values], fontsize=5)
            ax.set_title(f"{family}, $D_{j + 1}$", fontsize=7)
        fig.colorbar(drawn, ax=row[len(features) - 1], label="p")
        row[0].set_ylabel("cone gamma")
        for ax in row[len(features) :]:
            ax.set_axis_off()
    axes[-1, 0].set_xlabel("B_G / norm of a sure neuron")
    return fig


# --- GF-3 ---


@dataclass(frozen=True)
class Dimension:
    dims: tuple[int, ...] = (100, 400, 1600, 6400, 25_600)
    sigmas: tuple[float, ...] = (1.0, 2.0)
    gamma: float = 0.05
    norm: float = 0.1
    draws: int = 25_000
    seeds: int = 16


@system.experiment(
    "gf-3",
    "XOR: the share of neurons that find a cluster axis hardly depends on the dimension",
    presets={"smoke": Dimension(draws=2000, seeds=4), "quick": Dimension(), "paper": Dimension(draws=200_000)},
)
def dimension(s: Dimension) -> xr.Dataset:
    p = np.zeros((len(s.sigmas), len(s.dims), s.seeds))
    for row, sigma in enumerate(s.sigmas):
        for column, d in enumerate(s.dims):
            mixture = xor_mixture(d, sigma, ambient=3)

            def measure(key, mixture=mixture, d=d, sigma=sigma):
                w = projected_normal(key, d, 2, s.draws)
                g = mixture_gradient(mixture, w, jnp.full(s.draws, xor_threshold(d, sigma)))
                return hits(mixture.directions[:1], g, s.gamma, s.norm * math.sqrt(d))[0].mean()

            p[row, column] = over_seeds(measure, s.seeds)
    return xr.Dataset({"p": (("sigma", "d", "seed"), p)}, coords={"sigma": list(s.sigmas), "d": list(s.dims)})


@dimension.claim(
    "02.6",
    "gamma = 0.05, B_G = sqrt(d)/10, tau = 1: p(±D_1) is in [0.09, 0.14] for d = 100 … 25 600 at sigma_B = 1, and at "
    "sigma_B = 2 it falls from d = 100 to 25 600 no faster than (log d)^(-18*4/25)",
    source="Lemma B.37",
)
def dimension_free(ds: xr.Dataset):
    def exponent(first, last):
        return math.log(first.mean() / last.mean()) / math.log(math.log(ds.d[-1]) / math.log(ds.d[0]))

    two = ds.p.sel(sigma=2.0)
    flat = {f"d{d}": between(ds.p.sel(sigma=1.0, d=d), 0.09, 0.14, over="seed") for d in ds.d.values}
    ends = two.isel(d=0), two.isel(d=-1)
    return all_of(**flat, decay=at_most(ends, 18 * 4 / 25, stat=exponent, over="seed"))


@dimension.figure
def plot_dimension(ds: xr.Dataset):
    fig, ax = new_figure(size=(3.8, 2.7))
    for sigma, colour in zip(ds.sigma.values, COLOURS, strict=False):
        p = ds.p.sel(sigma=sigma)
        curve_with_spread(ax, p, x="d", label=f"sigma_B = {sigma:g}", marker="o", color=colour)
        law = np.log(ds.d) ** (-18 * sigma**2 / 25)
        theory(ax, ds.d, law * float(p.isel(d=0).mean() / law[0]), "(log d)^(-18 sigma²/25)" if sigma == 1 else None)
    ax.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="p of (±D_1, +1)")
    ax.legend()
    return fig


# --- Lemma 3.13 ---


@dataclass(frozen=True)
class Emergence:
    d: int = 400
    sigma: float = 1.0
    gamma: float = 0.05
    norm: float = 0.1
    m: int = 2000
    draws: int = 400_000
    seeds: int = 16


@system.experiment(
    "lemma-3.13",
    "XOR: at least mp/4 neurons become nice for every feature",
    presets={"smoke": Emergence(draws=20_000, seeds=4), "quick": Emergence()},
)
def emergence(s: Emergence) -> xr.Dataset:
    mixture, least = xor_mixture(s.d, s.sigma, ambient=3), s.norm * math.sqrt(s.d)

    def gradient(key, size):
        return mixture_gradient(
            mixture, projected_normal(key, s.d, 2, size), jnp.full(size, xor_threshold(s.d, s.sigma))
        )

    p = float(hits(mixture.directions[:1], gradient(jr.key(1_000_000), s.draws), s.gamma, least).mean())

    def measure(key):
        w, a = jr.split(key)
        return nice_neurons(mixture.directions, jr.normal(a, (s.m,)), gradient(w, s.m), s.gamma, least).sum(1)

    count = over_seeds(measure, s.seeds)
    names = ["+D_1", "-D_1", "+D_3", "-D_3"]
    return xr.Dataset({"count": (("seed", "feature"), count)}, coords={"feature": names}, attrs={"p": p, "m": s.m})


@emergence.claim(
    "02.19",
    "XOR, d = 400, sigma_B = 1, gamma = 0.05, B_G = sqrt(d)/10, m = 2000: in every seed at least mp/4 neurons are "
    "nice for each of ±D_1, ±D_3, p estimated apart",
    source="Lemma 3.13",
)
def enough_nice_neurons(ds: xr.Dataset):
    return every((ds["count"] >= ds.attrs["m"] * ds.attrs["p"] / 4).all("feature"), over="seed")


@emergence.figure
def plot_emergence(ds: xr.Dataset):
    fig, ax = new_figure(size=(3.6, 2.4))
    for place, feature in enumerate(ds.feature.values):
        counts = ds["count"].sel(feature=feature)
        ax.plot(np.full(counts.size, place), counts, "o", color=COLOURS[place], alpha=0.5)
    mp = ds.attrs["m"] * ds.attrs["p"]
    theory(ax, [-0.4, 3.4], [mp / 4, mp / 4], f"mp/4 = {mp / 4:.1f}")
    ax.axhline(mp / 2, color="0.5", linewidth=0.8, label="mp/2, expected")
    ax.set_xticks(range(4), list(ds.feature.values))
    ax.set(ylabel="nice neurons of m", ylim=(0, None))
    ax.legend()
    return fig


# --- Lemma 3.14 ---


@dataclass(frozen=True)
class Existence:
    """gamma and tolerance say which neurons may serve; the head needs no training."""

    d: int = 100
    sigma: float = 1.0
    widths: tuple[int, ...] = (500, 2000, 8000)
    gamma: float = 0.05
    norm: float = 0.1
    tolerance: float = 0.2
    test: int = 4000
    seeds: int = 16


@system.experiment(
    "lemma-3.14",
    "XOR: the explicit head on the neurons after one step, against its bound",
    presets={"smoke": Existence(widths=(500, 2000), test=1000, seeds=4), "quick": Existence()},
)
def existence(s: Existence) -> xr.Dataset:
    task, half = xor_mixture(s.d, s.sigma), math.sqrt(s.d) / 4
    target = mixture_network(task.directions, task.labels, half)
    names = ("hinge", "opt", "neurons", "largest")
    values = np.zeros((len(names), len(s.widths), s.seeds))
    chance, bounds = np.zeros(len(s.widths)), np.zeros(len(s.widths))
    for row, m in enumerate(s.widths):
        # a ~ N(0, sigma_a^2) with sigma_a sqrt(d)/5 |b*|/b~ = 1 puts typical neurons at the wanted size
        threshold = xor_threshold(s.d, s.sigma)
        init = SymmetricReLU(m, threshold=threshold, sigma_a=threshold / (2 * half) / (math.sqrt(s.d) / 5))

        def measure(key, init=init, m=m):
            start, fresh = jr.split(key)
            batch = task.sample(fresh, s.test)
            w, b, a = neurons(init.build(task, start))
            g = mixture_gradient(task, w, b)
            after = relu_network(a * g, b)
            head = explicit_head(target, after, s.gamma, s.tolerance)
            outputs = hidden(after)(batch.x) @ head.output
            p = hits(task.directions[:1], g[:, :m], s.gamma, s.norm * math.sqrt(s.d)).mean()
            loss = jnp.mean(jax.nn.relu(1 - batch.y * outputs))
            return loss, hinge(target, batch), jnp.sum(head.output != 0), jnp.abs(head.output).max(), p

        *found, p = over_seeds(measure, s.seeds)
        values[:, row], chance[row] = found, p.mean()
        radius = (1 + s.sigma) * math.sqrt(s.d)
        family = FeatureFamily(
            "XOR",
            chance[row],
            s.gamma,
            s.norm * math.sqrt(s.d),
            4,
            1 / half,
            2 / half,
            2 * half,
            radius,
            radius**2,
            radius,
        )
        bounds[row] = min(good_network_bound(family, m, B) for B in np.geomspace(0.01, 100, 200))
    return xr.Dataset(
        {name: (("m", "seed"), value) for name, value in zip(names, values, strict=True)}
        | {"bound": ("m", bounds), "p": ("m", chance)},
        coords={"m": list(s.widths)},
    )


@existence.claim(
    "Lemma 3.14",
    "The explicit head's hinge loss is below the lemma's bound at every width",
    source="Lemma 3.14, B.6",
    finding="The bound is above 1 at every width that can be run and says nothing there; the construction works.",
)
def explicit_head_works(ds: xr.Dataset):
    return every((ds.hinge <= ds.bound).all("m"), over="seed")


@existence.figure
def plot_existence(ds: xr.Dataset):
    fig, (left, right) = new_figure(2)
    curve_with_spread(left, ds.hinge, x="m", marker="o", label="explicit head")
    left.plot(ds.m, ds.opt.mean("seed"), color="0.5", label="g*, OPT")
    theory(left, ds.m, ds.bound, "Lemma B.6")
    left.set(xscale="log", yscale="log", xlabel="m (4m neurons)", ylabel="hinge loss")
    left.legend()
    curve_with_spread(right, ds.neurons, x="m", marker="o", label="neurons used")
    theory(right, ds.m, 4 * np.sqrt(ds.m * ds.p), "r sqrt(mp)")
    right.set(xscale="log", yscale="log", xlabel="m (4m neurons)", ylabel="||a~||_0")
    right.legend()
    return fig
