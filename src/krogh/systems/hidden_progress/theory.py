"""The Fourier gap: majority's spectrum and population gradients at initialisation (003 §B.2.1, B.3.1)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from krogh.lab import all_of, at_least, at_most, between, equals, figures, share_at_least
from krogh.systems.hidden_progress import system
from krogh.theory import majority
from krogh.theory.boolean import cube, degrees, walsh_hadamard
from krogh.theory.fourier_gap import (
    population_gradient,
    relaxed_gap,
    sign_neuron_gradient,
    sine_gradient,
    step,
    strict_gap,
)
from krogh.theory.limits import noise_factor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Spectrum:
    sizes: tuple[int, ...] = (3, 5, 7, 9, 11, 13, 15)
    large_n: int = 2001
    largest_k: int = 25


@system.experiment(
    "lemma-B.1",
    "The Fourier spectrum of majority",
    presets={"smoke": Spectrum(sizes=(3, 5, 7), large_n=401), "quick": Spectrum()},
)
def spectrum(s: Spectrum) -> xr.Dataset:
    levels = np.arange(max(s.sizes) + 1)
    formula, lowest, highest = (np.full((len(s.sizes), len(levels)), np.nan) for _ in range(3))
    for row, n in enumerate(s.sizes):
        coefficients, size = walsh_hadamard(np.sign(cube(n).sum(axis=1))), degrees(n)
        for k in range(n + 1):
            formula[row, k] = majority.coefficient(n, k)
            lowest[row, k], highest[row, k] = coefficients[size == k].min(), coefficients[size == k].max()
    odd = np.arange(1, s.largest_k + 1, 2)
    return xr.Dataset(
        {
            "formula": (("n", "k"), formula),
            "lowest": (("n", "k"), lowest),
            "highest": (("n", "k"), highest),
            "level_weight": ("odd_k", [majority.level_weight(s.large_n, int(k)) for k in odd]),
        },
        coords={"n": list(s.sizes), "k": levels, "odd_k": odd},
        attrs={"large_n": s.large_n},
    )


@spectrum.claim(
    "14.1",
    "Lemma B.1's formula equals every enumerated coefficient for odd n <= 15 within 1e-12, and "
    "|xi_{k-1}| = (n-k)/(k-1) |xi_{k+1}|",
    source="Lemma B.1, Lemma B.2",
)
def formula_is_exact(ds: xr.Dataset):
    error = np.maximum(abs(ds.lowest - ds.formula), abs(ds.highest - ds.formula))
    even = ds.k[(ds.k >= 2) & (ds.k % 2 == 0) & (ds.k < ds.k.max())]
    below, above = abs(ds.highest.sel(k=even - 1)).values, abs(ds.highest.sel(k=even + 1)).values
    ratio = ((ds.n - even) / (even - 1)).values
    inside = np.isfinite(above)
    return all_of(
        formula=at_most(float(error.max()), 1e-12),
        ratio=equals((below - ratio * above)[inside], 0.0, 1e-12),
    )


@spectrum.claim(
    "14.2",
    "ln(C(n,k) xi_k^2) falls with ln k at a slope in [-1.6, -1.45] (odd k 5..25, n = 2001): "
    "k^(-3/2), not the printed k^(-2/3)",
    source="Lemma B.1",
)
def level_exponent(ds: xr.Dataset):
    tail = ds.level_weight.sel(odd_k=slice(5, 25))
    slope = np.polyfit(np.log(tail.odd_k), np.log(tail), 1)[0]
    return between(float(slope), -1.6, -1.45)


@spectrum.figure
def plot_spectrum(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = figures.new_figure(2)
    for n in ds.n.values[::2]:
        odd = ds.sel(n=n, k=ds.k[ds.k % 2 == 1]).dropna("k")
        left.semilogy(odd.k, abs(odd.highest), "o")
        left.text(int(odd.k[-1]) + 0.4, float(abs(odd.highest[-1])), f"n = {n}", va="center", fontsize=7)
        figures.theory(left, odd.k, abs(odd.formula), None)
    left.set(xlabel="k (odd)", ylabel="|ξ_k|", title="Enumerated, Lemma B.1 dashed", xlim=(0, int(ds.k[-1]) + 4))
    right.loglog(ds.odd_k, ds.level_weight, "o", label=f"C(n,k) ξ_k², n = {ds.attrs['large_n']}")
    figures.theory(right, ds.odd_k, majority.level_weight_limit(ds.odd_k), "(2/π)^1.5 k^(-3/2)")
    printed = majority.level_weight_limit(ds.odd_k, majority.PRINTED_LEVEL_EXPONENT)
    right.loglog(ds.odd_k, printed, ":", color="0.5", label="printed: k^(-2/3)")
    right.set(xlabel="k (odd)", ylabel="level weight", title="The level weight falls as k^(-3/2)")
    right.legend()
    return figure


@dataclass(frozen=True)
class MajorityGap:
    largest_k: int = 20
    largest_n: int = 599


@system.experiment(
    "lemma-B.2",
    "Majority's Fourier gap against its lower bound",
    presets={"smoke": MajorityGap(largest_k=6, largest_n=99), "quick": MajorityGap()},
)
def majority_gap(s: MajorityGap) -> xr.Dataset:
    even, odd = np.arange(2, s.largest_k + 1, 2), np.arange(9, s.largest_n + 1, 2)
    gap = [[majority.gap(n, k) if n > 4 * k else np.nan for n in odd.tolist()] for k in even.tolist()]
    ds = xr.Dataset({"gap": (("k", "n"), gap)}, coords={"k": even, "n": odd})
    return ds.assign(scaled=ds.gap * (ds.n - 1) ** ((ds.k - 1) / 2))


@majority_gap.claim(
    "14.1",
    "The gap is at least 0.03 (n-1)^(-(k-1)/2) for all even k <= 20 and odd n in (4k, 600)",
    source="Lemma B.2",
)
def gap_bound_holds(ds: xr.Dataset):
    return at_least(float(ds.scaled.min()), 0.03)


@majority_gap.figure
def plot_majority_gap(ds: xr.Dataset) -> "Figure":
    figure, ax = figures.new_figure(size=(3.6, 2.6))
    for k in ds.k.values[::2]:
        ax.loglog(ds.n, ds.scaled.sel(k=k), label=f"k = {k}")
    figures.theory(ax, ds.n, np.full(ds.sizes["n"], 0.03), "Lemma B.2: 0.03")
    ax.set(xlabel="n", ylabel="gap × (n−1)^((k−1)/2)", title="Majority's gap, far above its bound")
    ax.legend(ncols=2)
    return figure


@dataclass(frozen=True)
class Gradient:
    n: int = 15
    ks: tuple[int, ...] = (2, 3, 4, 5, 6)
    flips: tuple[float, ...] = (0.0, 0.1, 0.25, 0.4, 0.49)
    neurons: int = 16


@system.experiment(
    "lemma-B.3",
    "The exact population gradient of a sign-initialised ReLU network, with and without label noise",
    presets={"smoke": Gradient(n=9, ks=(2, 3, 4), neurons=4), "quick": Gradient()},
)
def gradient(s: Gradient) -> xr.Dataset:
    rng = np.random.default_rng(0)
    w = rng.choice([-1.0, 1.0], (s.neurons, s.n))
    b, u = rng.uniform(-1, 1, s.neurons), rng.choice([-1.0, 1.0], s.neurons)
    with jax.enable_x64(True):
        measured = [[_hinge_gradient(w, b, u, k, flip) for flip in s.flips] for k in s.ks]
    closed = [sign_neuron_gradient(w, u, k) for k in s.ks]
    return xr.Dataset(
        {
            "by_weight": (("k", "flip", "neuron", "coordinate"), [[g for g, _ in row] for row in measured]),
            "by_bias": (("k", "flip", "neuron"), [[g for _, g in row] for row in measured]),
            "closed_weight": (("k", "neuron", "coordinate"), [g for g, _ in closed]),
            "closed_bias": (("k", "neuron"), [g for _, g in closed]),
        },
        coords={"k": list(s.ks), "flip": list(s.flips), "coordinate": np.arange(s.n)},
    )


def _hinge_gradient(w: np.ndarray, b: np.ndarray, u: np.ndarray, k: int, flip: float) -> tuple[np.ndarray, np.ndarray]:
    """Autodiff of the hinge loss averaged over all inputs and label flips, at the paired initialisation f = 0."""
    x = jnp.asarray(cube(w.shape[1]))
    y = jnp.prod(x[:, :k], axis=1)

    def loss(first: tuple[Array, Array]) -> Array:
        f = jax.nn.relu(x @ first[0].T + first[1]) @ u - jax.nn.relu(x @ w.T + b) @ u
        return jnp.mean((1 - flip) * jax.nn.relu(1 - y * f) + flip * jax.nn.relu(1 + y * f))

    by_weight, by_bias = jax.grad(loss)((jnp.asarray(w), jnp.asarray(b)))
    return np.asarray(by_weight), np.asarray(by_bias)


@gradient.claim(
    "14.3",
    "At n = 15 the enumerated gradient equals Lemma B.3 within 1e-12 for k = 2, 4, 6 and its weight part is 0 for "
    "k = 3, 5",
    source="Lemma B.3",
)
def closed_form(ds: xr.Dataset):
    clean = ds.sel(flip=0.0)
    odd = clean.k[clean.k % 2 == 1]
    error = abs(clean.by_weight - clean.closed_weight).max(), abs(clean.by_bias - clean.closed_bias).max()
    return all_of(
        weights=at_most(float(error[0]), 1e-12),
        biases=at_most(float(error[1]), 1e-12),
        odd_k=at_most(float(abs(clean.by_weight.sel(k=odd)).max()), 1e-12),
    )


@gradient.claim(
    "14.29",
    "Flipping labels with probability p multiplies the exact gradient by 1 - 2p (within 1e-12)",
    source="§B.3.6",
)
def noise_scales(ds: xr.Dataset):
    factor = noise_factor(ds.flip)
    weights = abs(ds.by_weight - factor * ds.by_weight.sel(flip=0.0)).max()
    biases = abs(ds.by_bias - factor * ds.by_bias.sel(flip=0.0)).max()
    return at_most(max(float(weights), float(biases)), 1e-12)


@gradient.figure
def plot_gradient(ds: xr.Dataset) -> "Figure":
    even = ds.k[ds.k % 2 == 0].values
    figure, axes = figures.new_figure(len(even) + 1)
    for ax, k in zip(axes, even, strict=False):
        cell = ds.sel(k=k, flip=0.0).isel(neuron=0)
        colours = np.where(ds.coordinate < k, figures.COLOURS[1], figures.COLOURS[0])
        ax.bar(ds.coordinate + 1, abs(cell.by_weight), color=colours)
        ax.plot(ds.coordinate + 1, abs(cell.closed_weight), "_", color="black", markersize=7)
        ax.set(xlabel="coordinate", ylabel="|gradient|", title=f"k = {k}: relevant bits stand out")
        size = abs(ds.by_weight.sel(k=k).isel(neuron=0, coordinate=0))
        axes[-1].plot(ds.flip, size / size.sel(flip=0.0), "o", label=f"k = {k}")
    figures.theory(axes[-1], ds.flip, noise_factor(ds.flip), "1 − 2p")
    axes[-1].set(xlabel="label noise p", ylabel="gradient / clean gradient", title="Noise scales the gap")
    axes[-1].legend()
    return figure


@dataclass(frozen=True)
class RandomGaps:
    n: int = 15
    ks: tuple[int, ...] = (2, 4, 6)
    draws: int = 1000
    odd_k: int = 3


def _random_weights(n: int, draws: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"uniform": rng.uniform(-1, 1, (draws, n)), "gaussian": rng.normal(size=(draws, n))}


@system.experiment(
    "fig-B.7",
    "Fourier gaps of ReLU neurons at random initialisation",
    presets={"smoke": RandomGaps(n=9, draws=50), "quick": RandomGaps(), "paper": RandomGaps(draws=10_000)},
)
def relu_gaps(s: RandomGaps) -> xr.Dataset:
    weights = _random_weights(s.n, s.draws)
    gaps = [[relaxed_gap(population_gradient(step, w, k), k) for k in s.ks] for w in weights.values()]
    odd = [relaxed_gap(population_gradient(step, w[:50], s.odd_k), s.odd_k) for w in weights.values()]
    return xr.Dataset(
        {
            "gap": (("init", "k", "draw"), gaps),
            "odd_gap": (("init", "odd_draw"), odd),
            # a threshold 1[w.x > 0] is 1/2 + Maj/2 for sign weights: half of majority's gap
            "majority": ("k", [majority.gap(s.n, k) / 2 for k in s.ks]),
        },
        coords={"init": list(weights), "k": list(s.ks)},
    )


@relu_gaps.claim(
    "14.4",
    "n = 15: the gap is positive in >= 97 % of draws for k = 2, and for k = 4 in >= 80 % (uniform) and >= 65 % "
    "(Gaussian); it exceeds the sign-initialised neuron's in >= 20 % for k = 2, 4, 6; it is 0 for odd k",
    source="Fig B.7",
)
def positive_at_random(ds: xr.Dataset):
    bounds = {("uniform", 2): 0.97, ("gaussian", 2): 0.97, ("uniform", 4): 0.8, ("gaussian", 4): 0.65}
    positive = {
        f"{init}_k{k}_positive": share_at_least(ds.gap.sel(init=init, k=k) > 0, bound, over="draw")
        for (init, k), bound in bounds.items()
    }
    above = {
        f"{init}_k{k}_above_majority": share_at_least(
            ds.gap.sel(init=init, k=k) > ds.majority.sel(k=k), 0.2, over="draw"
        )
        for init in ds.init.values
        for k in ds.k.values
    }
    return all_of(**positive, **above, odd_k=at_most(float(abs(ds.odd_gap).max()), 1e-12))


def _gap_histograms(ds: xr.Dataset) -> "Figure":
    figure, axes = figures.new_figure(ds.sizes["k"])
    for ax, k in zip(axes, ds.k.values, strict=True):
        values = ds.gap.sel(k=k)
        bins = np.linspace(float(values.quantile(0.005)), float(values.quantile(0.995)), 40).tolist()
        for init in ds.init.values:
            share = float((values.sel(init=init) > 0).mean())
            label = f"{init}: {share:.0%} positive"
            ax.hist(values.sel(init=init), bins=bins, histtype="step", density=True, label=label)
        ax.axvline(float(ds.majority.sel(k=k)), color="red", linestyle="--", linewidth=1, label="sign weights")
        ax.axvline(0, color="0.7", linewidth=0.7)
        ax.ticklabel_format(axis="x", style="sci", scilimits=(-2, 2))
        ax.set(xlabel="Fourier gap Γ", ylabel="density", title=f"k = {k}")
        ax.legend(fontsize=6)
    return figure


relu_gaps.figure(_gap_histograms)


@system.experiment(
    "fig-B.8-left",
    "Fourier gaps of sinusoidal gradients at random initialisation",
    presets={"smoke": RandomGaps(n=9, draws=50), "quick": RandomGaps(), "paper": RandomGaps(draws=10_000)},
)
def sine_gaps(s: RandomGaps) -> xr.Dataset:
    weights = {init: w / np.sqrt(s.n) for init, w in _random_weights(s.n, s.draws).items()}
    with jax.enable_x64(True):
        closed = {k: [np.asarray(sine_gradient(jnp.asarray(w), 0.0, k)) for w in weights.values()] for k in s.ks}
    enumerated = {k: [population_gradient(np.sin, w[:50], k) for w in weights.values()] for k in s.ks}
    error = [max(abs(e - c[:50]).max() for e, c in zip(enumerated[k], closed[k], strict=True)) for k in s.ks]
    return xr.Dataset(
        {
            "gap": (("k", "init", "draw"), [[relaxed_gap(g, k) for g in closed[k]] for k in s.ks]),
            "strict_gap": (("k", "init", "draw"), [[strict_gap(g, k) for g in closed[k]] for k in s.ks]),
            "closed_form_error": ("k", error),
            "majority": ("k", [majority.gap(s.n, k) / 2 for k in s.ks]),
        },
        coords={"init": list(weights), "k": list(s.ks)},
    )


@sine_gaps.claim(
    "14.5",
    "E[y x_i sin(w.x/sqrt n)] at n = 15 has a positive gap in >= 98 % of draws and a positive strict gap in >= 90 %, "
    "for k = 2, 4, 6; the closed form equals enumeration",
    source="Fig B.8 left",
)
def sine_positive(ds: xr.Dataset):
    cells = [(init, k) for init in ds.init.values for k in ds.k.values]
    relaxed = {f"{i}_k{k}": share_at_least(ds.gap.sel(init=i, k=k) > 0, 0.98, over="draw") for i, k in cells}
    strict = {
        f"{i}_k{k}_strict": share_at_least(ds.strict_gap.sel(init=i, k=k) > 0, 0.9, over="draw") for i, k in cells
    }
    return all_of(**relaxed, **strict, closed_form=at_most(float(ds.closed_form_error.max()), 1e-12))


sine_gaps.figure(_gap_histograms)
