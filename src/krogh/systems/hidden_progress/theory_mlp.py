"""One step finds the features, fixed features do not, and what a narrow network can express (003 §5.4.1, B.2.1, B.4.1)."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.lab import all_of, at_least, at_most, equals, every, share_at_least
from krogh.nn.activations import oscillating_polynomial, power, sinusoid, triangle_wave, zigzag
from krogh.systems.hidden_progress import system
from krogh.theory import fixed_features, majority, one_step
from krogh.theory.boolean import cube
from krogh.theory.fourier_gap import leads, sign_neuron_gradient
from krogh.theory.limits import gaussian_elimination


@dataclass(frozen=True)
class Heads:
    ks: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)


@system.experiment("lemma-B.4", "The constructed head, corrected and as printed", presets={"quick": Heads()})
def heads(s: Heads) -> xr.Dataset:
    values = np.full((len(s.ks), 2, max(s.ks) + 1), np.nan)
    for row, k in enumerate(s.ks):
        # f depends on x only through the number of -1s among the k relevant bits
        x = 1.0 - 2.0 * (np.arange(k)[None, :] < np.arange(k + 1)[:, None])
        for column, head in enumerate((one_step.constructed_head(k), one_step.printed_head(k))):
            values[row, column, : k + 1] = head(x) * x.prod(axis=1)
    return xr.Dataset(
        {"margin": (("k", "head", "minus_ones"), values)},
        coords={"k": list(s.ks), "head": ["corrected", "printed"], "minus_ones": np.arange(max(s.ks) + 1)},
    )


@heads.claim(
    "14.9",
    "The corrected head of k + 1 neurons gives y f = 2 on all inputs for k = 2..8; the printed head of k neurons does "
    "so for no k",
    source="Lemma B.4, Claim 5",
    finding="As printed (k neurons, even k) y f is -2 on every value of sum x but the last, where it is 6: the sign is "
    "flipped and the end point needs a neuron more.",
)
def head_is_exact(ds: xr.Dataset):
    corrected, printed = ds.margin.sel(head="corrected"), ds.margin.sel(head="printed")
    wrong = (abs(printed - 2) > 1e-6).where(printed.notnull(), False).any("minus_ones")
    return all_of(
        corrected=at_most(float(abs(corrected - 2).max()), 1e-9),
        printed_is_wrong=every(wrong),
    )


@dataclass(frozen=True)
class OneStep:
    """Cases are (n, k, width, batch of the first step; 0 for the exact gradient, steps of the head)."""

    cases: tuple[tuple[int, int, int, int, int], ...] = (
        (51, 2, 64, 100_000, 2_000),
        (101, 4, 256, 0, 5_000),
        (21, 4, 256, 2_000_000, 30_000),
    )
    head_batch: int = 128
    head_lr: float = 0.3
    seeds: int = 8


@system.experiment(
    "thm-5.5",
    "One big step finds the features, then the head learns",
    presets={
        "smoke": OneStep(cases=((21, 2, 32, 20_000, 500), (31, 4, 64, 0, 500)), seeds=2),
        "quick": OneStep(),
    },
)
def one_big_step(s: OneStep) -> xr.Dataset:
    widest = max(case[0] for case in s.cases)
    shape = len(s.cases), s.seeds
    leading, accuracy = np.zeros(shape), np.zeros((*shape, 50))
    relevant, irrelevant = np.zeros(shape), np.zeros(shape)
    measured, closed = np.full((2, len(s.cases), widest), np.nan)
    conditions = []
    for row, (n, k, width, batch, steps) in enumerate(s.cases):
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(row)))(jnp.arange(s.seeds))
        w, b, u = jax.vmap(lambda key, n=n, k=k, r=width: one_step.initial(key, n, k, r))(keys)
        flat = np.asarray(w, float).reshape(-1, n), np.asarray(u, float).reshape(-1)
        exact = sign_neuron_gradient(*flat, k)[0].reshape(s.seeds, width, n)
        if batch:
            first = jax.vmap(partial(jax.random.fold_in, data=1))(keys)
            sampled = jax.vmap(partial(one_step.sampled_gradient, k=k, batch=batch))
            g, gamma = sampled(first, w, b, u)
        else:
            g, gamma = jnp.asarray(exact, jnp.float32), jnp.zeros((s.seeds, width))
        w, b = jax.vmap(partial(one_step.first_step, k=k))(g, gamma, b)
        second = jax.vmap(partial(jax.random.fold_in, data=2))(keys)
        train = partial(one_step.train_head, k=k, steps=steps, batch=s.head_batch, lr=s.head_lr)
        _, accuracy[row] = jax.vmap(train)(second, w, b)
        leading[row] = leads(np.asarray(g), k).mean(axis=1)
        relevant[row] = abs(np.asarray(w[:, :, :k])).mean(axis=(1, 2)) * 2 * k
        irrelevant[row] = abs(np.asarray(w[:, :, k:])).max(axis=(1, 2)) * 2 * k
        measured[row, :n], closed[row, :n] = np.asarray(g)[0, 0], exact[0, 0]
        told = one_step.Thresholds(n, k, eps=0.1).report(width, batch or math.inf, steps)
        conditions.append(f"n = {n}, k = {k}\n{told}")
    return xr.Dataset(
        {
            "leading": (("case", "seed"), leading),
            "accuracy": (("case", "seed", "progress"), accuracy),
            "relevant": (("case", "seed"), relevant),
            "irrelevant": (("case", "seed"), irrelevant),
            "gradient": (("case", "coordinate"), measured),
            "closed_form": (("case", "coordinate"), closed),
            "conditions": ("case", conditions),
        },
        coords={
            "case": [f"n={n}, k={k}, " + (f"B={batch:,}" if batch else "exact") for n, k, _, batch, _ in s.cases],
            "k": ("case", [case[1] for case in s.cases]),
            "steps": ("case", [case[4] for case in s.cases]),
            "progress": np.linspace(0.02, 1.0, 50),
        },
    )


@one_big_step.claim(
    "14.8",
    "n = 51, k = 2, B = 1e5 and n = 101, k = 4 with the exact gradient: every neuron's top-k gradient coordinates are S "
    "and training only u then reaches >= 99 % accuracy; n = 21, k = 4, B = 2e6: >= 97 %",
    source="Thm 5.5",
)
def one_step_suffices(ds: xr.Dataset):
    final = ds.accuracy.isel(progress=-1)
    parts = {f"{case}: features": every(ds.leading.sel(case=case) == 1, over="seed") for case in ds.case.values[:2]}
    for case, bound in zip(ds.case.values, (0.99, 0.99, 0.97), strict=False):
        parts[f"{case}: accuracy"] = at_least(final.sel(case=case), bound, over="seed")
    return all_of(**parts)


@dataclass(frozen=True)
class FixedFeatures:
    n: int = 12
    k: int = 3
    width: int = 10
    degrees: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    radii: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0)
    seeds: int = 20


@system.experiment(
    "thm-5.6",
    "Tangent features of a narrow network against all parities",
    presets={"smoke": FixedFeatures(n=8, seeds=2), "quick": FixedFeatures()},
)
def fixed(s: FixedFeatures) -> xr.Dataset:
    largest = max(math.comb(s.n, k) for k in s.degrees)
    correlation = np.full((s.seeds, len(s.degrees), largest), np.nan)
    fit = np.zeros((s.seeds, len(s.degrees)))
    hinge, bound = np.zeros((2, s.seeds, len(s.radii)))
    for seed in range(s.seeds):
        rng = np.random.default_rng(seed)
        w, b = (rng.uniform(-1, 1, shape) / math.sqrt(s.n) for shape in ((s.width, s.n), s.width))
        u = rng.uniform(-1, 1, s.width) / math.sqrt(s.width)
        psi = fixed_features.tangent_features(w, b, u)
        for column, k in enumerate(s.degrees):
            values = fixed_features.correlations(psi, k)
            correlation[seed, column, : len(values)] = values
            fit[seed, column] = fixed_features.fit_shares(psi, k).mean()
        # masks ascend, so the first subset of size k is [k]
        own = fixed_features.correlations(psi, s.k)[0]
        bound[seed] = [fixed_features.hinge_bound(own, radius) for radius in s.radii]
        hinge[seed] = [fixed_features.best_hinge(psi, s.k, radius) for radius in s.radii]
    return xr.Dataset(
        {
            "correlation": (("seed", "degree", "subset"), correlation),
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
    mean = ds.correlation.mean("subset").sel(degree=k)
    return all_of(
        average=every(mean <= ds.average_bound.sel(degree=k), over="seed"),
        hinge=every((ds.hinge >= ds.hinge_bound).all("radius"), over="seed"),
        best_fit=every((ds.fit_share <= ds.attrs["dimension"] * ds.average_bound).all("degree"), over="seed"),
    )


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


@partial(jax.jit, static_argnames=("k", "powers", "output_bias", "steps"))
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


@dataclass(frozen=True)
class Elimination:
    n: int = 30
    k: int = 3
    spare: int = 10
    flips: tuple[float, ...] = (0.0, 0.01, 0.03, 0.1, 0.25)
    seeds: int = 200


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
    "14.28b",
    "Gaussian elimination recovers S from n + 10 clean samples and fails at p = 0.1 (each in >= 95 % of trials)",
    source="§B.3.6",
)
def breaks_under_noise(ds: xr.Dataset):
    return all_of(
        clean=share_at_least(ds.found.sel(flip=0.0), 0.95, over="seed"),
        noisy=share_at_least(~ds.found.sel(flip=0.1), 0.95, over="seed"),
    )


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
        {"z": (("k", "point"), z), "value": (("k", "family", "point"), curves), "node": (("k", "family", "j"), nodes)},
        coords={"k": list(s.ks), "family": list(families), "j": np.arange(max(s.ks) + 1)},
    )


@activations.claim(
    "14.B14",
    "With w = sum_{i in S} e_i and b = 0 each activation computes chi_S: sigma(k - 2j) = (-1)^j",
    source="Fig B.14, §B.4.1",
)
def computes_parity(ds: xr.Dataset):
    return at_most(float(abs(ds.node - (-1.0) ** ds.j).max()), 1e-12)
