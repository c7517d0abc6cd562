"""What fixed features, narrow networks and noise-intolerant rivals cannot do (003 Thm 5.6, §B.3.6, §B.4.1)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.lab import all_of, at_most, equals, every, figures, share_at_least
from krogh.nn.activations import oscillating_polynomial, power, sinusoid, triangle_wave, zigzag
from krogh.systems.hidden_progress import system
from krogh.theory import fixed_features
from krogh.theory.boolean import cube, degrees, mask
from krogh.theory.limits import gaussian_elimination

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FixedFeatures:
    n: int = 12
    k: int = 3
    width: int = 10
    degrees: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    radii: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0)
    seeds: int = 10


@system.experiment(
    "thm-5.6",
    "Tangent features of a narrow network against all parities",
    presets={"smoke": FixedFeatures(n=8, seeds=2), "quick": FixedFeatures()},
)
def fixed(s: FixedFeatures) -> xr.Dataset:
    size = degrees(s.n)
    mean, largest, fit = np.zeros((3, s.seeds, len(s.degrees)))
    hinge, bound = np.zeros((2, s.seeds, len(s.radii)))
    for seed in range(s.seeds):
        rng = np.random.default_rng(seed)
        w, b = (rng.uniform(-1, 1, shape) / math.sqrt(s.n) for shape in ((s.width, s.n), s.width))
        u = rng.uniform(-1, 1, s.width) / math.sqrt(s.width)
        psi = fixed_features.tangent_features(w, b, u)
        correlation, share = fixed_features.correlations(psi), fixed_features.fit_shares(psi)
        mean[seed] = [correlation[size == k].mean() for k in s.degrees]
        largest[seed] = [correlation[size == k].max() for k in s.degrees]
        fit[seed] = [share[size == k].mean() for k in s.degrees]
        bound[seed] = fixed_features.hinge_bound(correlation[mask(range(s.k))], np.array(s.radii))
        hinge[seed] = fixed_features.best_hinge(jnp.asarray(psi, jnp.float32), s.k, jnp.array(s.radii))
    return xr.Dataset(
        {
            "correlation": (("seed", "degree"), mean),
            "largest_correlation": (("seed", "degree"), largest),
            "fit_share": (("seed", "degree"), fit),
            "hinge": (("seed", "radius"), hinge),
            "hinge_bound": (("seed", "radius"), bound),
            "average_bound": ("degree", [fixed_features.average_bound(s.n, k) for k in s.degrees]),
            "theorem_eps": ("radius", [fixed_features.hard_eps(s.n, s.k, psi.shape[1], r) for r in s.radii]),
        },
        coords={"degree": list(s.degrees), "radius": list(s.radii)},
        attrs={"n": s.n, "k": s.k, "dimension": psi.shape[1]},
    )


@fixed.claim(
    "14.10a",
    "n = 12, k = 3, tangent features of a width-10 ReLU net scaled to sup norm 1: ||v_S||^2 averages to at most "
    "1/C(n,k) over all S of size k, and no head of norm R beats 1 - R ||v_S||",
    source="Thm 5.6",
)
def parseval(ds: xr.Dataset):
    k = ds.attrs["k"]
    mean = ds.correlation.sel(degree=k)
    return all_of(
        average=every(mean <= ds.average_bound.sel(degree=k), over="seed"),
        hinge=every((ds.hinge >= ds.hinge_bound - 1e-6).all("radius"), over="seed"),
        best_fit=every((ds.fit_share <= ds.attrs["dimension"] * ds.average_bound).all("degree"), over="seed"),
    )


@fixed.figure
def plot_fixed(ds: xr.Dataset) -> "Figure":
    figure, (left, middle, right) = figures.new_figure(3)
    left.semilogy(ds.degree, ds.correlation.mean("seed"), "o", label="mean over S")
    left.semilogy(ds.degree, ds.largest_correlation.mean("seed"), "^", color="0.6", label="largest")
    figures.theory(left, ds.degree, ds.average_bound, "1/C(n,k)")
    left.set(xlabel="k", ylabel="‖E[Ψ χ_S]‖²", title=f"n = {ds.attrs['n']}, D = {ds.attrs['dimension']}")
    left.legend()
    middle.plot(ds.degree, ds.fit_share.mean("seed"), "o", label="mean over S")
    figures.theory(middle, ds.degree, np.minimum(1, ds.attrs["dimension"] * ds.average_bound), "D/C(n,k)")
    middle.set(xlabel="k", ylabel="R² of the best linear fit", title="Parities outnumber the features")
    middle.legend()
    right.semilogx(ds.radius, ds.hinge.mean("seed"), "o", label="best head found")
    figures.theory(right, ds.radius, np.maximum(0, ds.hinge_bound.mean("seed")), "1 − R‖v_S‖")
    right.plot(ds.radius, np.maximum(0, 1 - ds.theorem_eps), ":", color="0.5", label="Thm 5.6 (worst S)")
    right.set(xlabel="norm R of the head", ylabel="hinge loss", title=f"k = {ds.attrs['k']}", ylim=(-0.02, 1.05))
    right.legend()
    return figure


@dataclass(frozen=True)
class NarrowNetworks:
    ks: tuple[int, ...] = (2, 3)
    restarts: int = 2000
    steps: int = 3000
    lr: float = 0.02


@system.experiment(
    "min-width",
    "What k neurons can express on k bits",
    presets={"smoke": NarrowNetworks(restarts=50, steps=200), "quick": NarrowNetworks()},
)
def narrow(s: NarrowNetworks) -> xr.Dataset:
    networks = {"relu": (False, False), "relu, output bias": (False, True), "z^k": (True, False)}
    accuracy = np.zeros((len(s.ks), len(networks), s.restarts))
    for row, k in enumerate(s.ks):
        for column, (powers, output_bias) in enumerate(networks.values()):
            keys = jax.random.split(jax.random.key(10 * row + column), s.restarts)
            accuracy[row, column] = _fit_cube(keys, k, powers, output_bias, s.steps, s.lr)
    return xr.Dataset(
        {"accuracy": (("k", "network", "restart"), accuracy)},
        coords={"k": list(s.ks), "network": list(networks)},
    )


@partial(jax.jit, static_argnames=("k", "powers", "steps"))
def _fit_cube(
    keys: PRNGKeyArray, k: int, powers: bool, output_bias: bool, steps: int, lr: float
) -> Float[Array, " restarts"]:
    """Best accuracy on all 2^k inputs of width-k networks under full-batch Adam on the hinge loss, one per key.

    An output counts when its margin is above 1e-3: exact ties are errors, rounding does not decide.
    """
    x = jnp.asarray(cube(k), jnp.float32)
    y = jnp.prod(x, axis=1)
    activation = power(k) if powers else jax.nn.relu
    optimizer = optax.adam(lr)

    def margins(theta: dict[str, Array]) -> Array:
        return y * (activation(x @ theta["w"] + theta["b"]) @ theta["u"] + output_bias * theta["c"])

    def one(key: PRNGKeyArray) -> Array:
        shapes = {"w": (k, k), "b": (k,), "u": (k,), "c": ()}
        theta = {
            name: jax.random.uniform(jax.random.fold_in(key, i), shape, minval=-1.5, maxval=1.5)
            for i, (name, shape) in enumerate(shapes.items())
        }

        def step(carry: tuple, _: None) -> tuple[tuple, None]:
            theta, state, best = carry
            best = jnp.maximum(best, jnp.mean(margins(theta) > 1e-3))
            updates, state = optimizer.update(jax.grad(lambda t: jax.nn.relu(1 - margins(t)).mean())(theta), state)
            return (optax.apply_updates(theta, updates), state, best), None

        return jax.lax.scan(step, (theta, optimizer.init(theta), jnp.zeros(())), None, steps)[0][2]

    return jax.vmap(one)(keys)


@narrow.claim(
    "14.31a",
    "On k bits, over 2000 restarts: width-k ReLU without output bias never fits k = 2, 3 (best .75 and .875), with "
    "output bias it does, and z^k of width k does",
    source="§B.4.1",
)
def narrow_networks(ds: xr.Dataset):
    best = ds.accuracy.max("restart")
    return all_of(
        relu_k2=equals(best.sel(k=2, network="relu"), 0.75, 1e-6),
        relu_k3=equals(best.sel(k=3, network="relu"), 0.875, 1e-6),
        relu_output_bias=equals(best.sel(network="relu, output bias"), 1.0, 1e-6),
        powers=equals(best.sel(network="z^k"), 1.0, 1e-6),
    )


@narrow.figure
def plot_narrow(ds: xr.Dataset) -> "Figure":
    figure, axes = figures.new_figure(ds.sizes["k"])
    for ax, k in zip(axes, ds.k.values, strict=True):
        steps = np.arange(2**k + 1) / 2**k
        for place, network in enumerate(ds.network.values):
            share = [float((ds.accuracy.sel(k=k, network=network) >= level - 1e-6).mean()) for level in steps]
            ax.plot(steps, share, "os^"[place] + "-", label=network)
        figures.reported(ax, 1 - 2.0**-k, "best without output bias", axis="x")
        ax.set(xlabel="accuracy on the cube", ylabel="share of restarts reaching it", title=f"k = {k} bits, width {k}")
        ax.legend()
    return figure


@dataclass(frozen=True)
class Elimination:
    n: int = 30
    k: int = 3
    spare: int = 10
    flips: tuple[float, ...] = (0.0, 0.01, 0.03, 0.1, 0.25)
    seeds: int = 1000


@system.experiment(
    "gaussian-elimination",
    "The noise-intolerant rival: elimination over GF(2)",
    presets={"smoke": Elimination(seeds=10), "quick": Elimination()},
)
def elimination(s: Elimination) -> xr.Dataset:
    rng = np.random.default_rng(0)
    truth = np.arange(s.n) < s.k
    found = np.zeros((len(s.flips), s.seeds), dtype=bool)
    for row, flip in enumerate(s.flips):
        for seed in range(s.seeds):
            x = rng.choice([-1.0, 1.0], (s.n + s.spare, s.n))
            y = x[:, truth].prod(axis=1) * np.where(rng.random(len(x)) < flip, -1, 1)
            subset = gaussian_elimination(x, y)
            found[row, seed] = subset is not None and bool((subset == truth).all())
    return xr.Dataset({"found": (("flip", "seed"), found)}, coords={"flip": list(s.flips)}, attrs={"m": len(x)})


@elimination.claim(
    "14.28",
    "Gaussian elimination recovers S from n + 10 clean samples and fails at p = 0.1 (each in >= 95 % of trials)",
    source="§B.3.6",
)
def breaks_under_noise(ds: xr.Dataset):
    return all_of(
        clean=share_at_least(ds.found.sel(flip=0.0), 0.95, over="seed"),
        noisy=share_at_least(~ds.found.sel(flip=0.1), 0.95, over="seed"),
    )


@elimination.figure
def plot_elimination(ds: xr.Dataset) -> "Figure":
    figure, ax = figures.new_figure()
    ax.plot(ds.flip, ds.found.mean("seed"), "o", label="elimination names S")
    flip = np.linspace(0, float(ds.flip.max()), 100)
    figures.theory(ax, flip, (1 - flip) ** ds.attrs["m"], "no label flipped: (1 − p)^m")
    ax.set(xlabel="label noise p", ylabel="share of trials", title=f"{ds.attrs['m']} samples")
    ax.legend()
    return figure


@dataclass(frozen=True)
class Activations:
    ks: tuple[int, ...] = (2, 3, 4)
    points: int = 801
    reach: float = 2.0


@system.experiment("fig-B.14", "The activations made for parity", presets={"quick": Activations()})
def activations(s: Activations) -> xr.Dataset:
    families = {
        "zigzag": zigzag,
        "oscillating polynomial": oscillating_polynomial,
        "triangle wave": triangle_wave,
        "sinusoid": sinusoid,
    }
    nodes = np.full((len(s.ks), len(families), max(s.ks) + 1), np.nan)
    curves = np.zeros((len(s.ks), len(families), s.points))
    z = np.stack([np.linspace(-k - s.reach, k + s.reach, s.points) for k in s.ks])
    with jax.enable_x64(True):
        for row, k in enumerate(s.ks):
            for column, family in enumerate(families.values()):
                curves[row, column] = family(k)(jnp.asarray(z[row]))
                nodes[row, column, : k + 1] = family(k)(k - 2.0 * jnp.arange(k + 1))
    return xr.Dataset(
        {
            "z": (("k", "point"), z),
            "value": (("k", "family", "point"), curves),
            "node": (("k", "family", "j"), nodes),
        },
        coords={"k": list(s.ks), "family": list(families), "j": np.arange(max(s.ks) + 1)},
    )


@activations.claim(
    "14.B14",
    "With w = sum_{i in S} e_i and b = 0 each activation computes chi_S: sigma(k - 2j) = (-1)^j",
    source="Fig B.14, §B.4.1",
)
def computes_parity(ds: xr.Dataset):
    return at_most(float(abs(ds.node - (-1.0) ** ds.j).max()), 1e-12)


@activations.figure
def plot_activations(ds: xr.Dataset) -> "Figure":
    figure, axes = figures.new_figure(ds.sizes["family"], ds.sizes["k"], size=(8.4, 1.5 * ds.sizes["k"]))
    for row, k in zip(axes, ds.k.values, strict=True):
        for ax, family in zip(row, ds.family.values, strict=True):
            cell = ds.sel(k=k, family=family)
            ax.plot(cell.z, cell.value)
            ax.plot(k - 2 * np.arange(k + 1), cell.node.dropna("j"), "o", color=figures.COLOURS[1])
            ax.set(ylim=(-2.2, 2.2), title=f"{family}, k = {k}" if k == ds.k.values[0] else f"k = {k}")
    return figure
