"""Every loop is a step of gradient descent, and what breaks it (000 Lemmas 8.13, 8.20–8.23, Theorem 8.14)."""

from dataclasses import dataclass
from itertools import product

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_most, every
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, theory
from krogh.nn.attention import earlier
from krogh.nn.looped import gradient_steps, inverse_smoothness
from krogh.systems.looped_transformer import system
from krogh.tasks.vector_generation import VectorGeneration
from krogh.theory.looped import curvature, gradient_descent, log_contraction, log_decay
from krogh.train.seeds import over_seeds

# --- Lemma 8.13 and Theorem 8.14


@dataclass(frozen=True)
class Exactness:
    """Prompts start from Gaussian q; step sizes are 1/L, or uniform in (0, 1/L] and different in every loop."""

    ns: tuple[int, ...] = (8, 16, 32, 64, 128)
    ds: tuple[int, ...] = (2, 4, 8, 16)
    loops: int = 200
    seeds: int = 25


@system.experiment(
    "thm-8.14",
    "Every loop is one step of gradient descent on the prompt's examples",
    presets={"smoke": Exactness(ns=(8, 16), ds=(2, 4), loops=50, seeds=8), "quick": Exactness()},
)
def exactness(s: Exactness) -> xr.Dataset:
    shape = (len(s.ns), len(s.ds), s.seeds)
    attention, frozen = np.zeros(shape), np.zeros((*shape, 2))
    gap, apart = np.zeros((*shape, 2, s.loops + 1)), np.zeros((*shape, 2))
    for (i, n), (j, d) in product(enumerate(s.ns), enumerate(s.ds)):
        network = gradient_steps(d, s.loops)

        def measure(key, n=n, d=d, network=network):
            drawn, sizes = jr.split(key)
            z = VectorGeneration(n, d, start=1.0).sample(drawn, 1).x[0]
            x, y, q, alpha = z[:-1, :-1], z[:-1, -1], z[-1, :-1], z[-1, -1]
            closed = jnp.zeros_like(z).at[-1, :-1].set(q @ x.T @ x + alpha * y @ x)
            step = inverse_smoothness(z)
            etas = jnp.stack([jnp.full(s.loops, step), step * (1 - jr.uniform(sizes, (s.loops,)))])

            def run(eta, visible=None):
                states = network.states(z, eta, 0, visible)
                steps = -alpha * gradient_descent(x, y, -q / alpha, eta)
                off = jnp.linalg.norm(states[:, -1, :-1] - steps, axis=1) / jnp.linalg.norm(steps, axis=1)
                return off, jnp.abs(states - z).at[:, -1, :-1].set(0.0).max()

            off, still = jax.vmap(run)(etas)
            among, _ = jax.vmap(lambda eta: run(eta, np.tile(earlier(n), (n + 1, 1))))(etas)
            return jnp.abs(network.attention(z) - closed).max() / jnp.abs(closed).max(), still, off, among[:, -1]

        attention[i, j], frozen[i, j], gap[i, j], apart[i, j] = over_seeds(measure, s.seeds, double=True)
    cell = ("n", "d", "seed")
    return xr.Dataset(
        {
            "attention": (cell, attention),
            "frozen": ((*cell, "steps"), frozen),
            "gap": ((*cell, "steps", "loop"), gap),
            "among_examples": ((*cell, "steps"), apart),
        },
        coords={"n": list(s.ns), "d": list(s.ds), "steps": ["1/L", "random"], "loop": np.arange(s.loops + 1)},
    )


@exactness.claim(
    "07.1",
    "Attn(Z) with Q = I, P = diag(I, 0) is zero but for q'X'X + alpha y'X in the query's row, within 1e-10 relative, "
    "for 20 pairs (n, d) and random alpha and q",
    source="Lemma 8.13",
)
def single_layer(ds: xr.Dataset):
    return at_most(float(ds.attention.max(skipna=False)), 1e-10)


@exactness.claim(
    "07.2",
    "The output after T = 1, 2, 5, 50, 200 loops is alpha theta^(T) of gradient descent within 1e-9 relative, for "
    "equal and for random step sizes, n = 8..128, d = 2..16",
    source="Thm 8.14",
    finding="The theorem's index set {2..T} should begin at 1, and Q, P are (d+1) x (d+1), not d x d (Def 8.6).",
)
def loops_are_steps(ds: xr.Dataset):
    after = [t for t in (1, 2, 5, 50, 200) if t in ds.loop]
    return at_most(float(ds.gap.sel(loop=after).max(skipna=False)), 1e-9)


@exactness.claim(
    "07.3", "No row but the query's and no entry of the last column of Z ever changes", source="Thm 8.14, proof"
)
def only_the_query_moves(ds: xr.Dataset):
    return at_most(float(ds.frozen.max(skipna=False)), 0.0)


@exactness.claim(
    "07.12-mask",
    "With a mask that lets the examples see each other the output differs from gradient descent's by more than 1e-3 "
    "relative, in every prompt",
    source="Def 8.6, negative control",
)
def mask_matters(ds: xr.Dataset):
    return every((ds.among_examples > 1e-3).all(("n", "d", "steps")), over="seed")


@exactness.figure
def hidden_state_probe(ds: xr.Dataset):
    figure, axes = new_figure(2, sharey=True)
    shown = ds.gap.where(ds.gap > 0, 1e-17).isel(loop=slice(1, None)).stack(cell=("n", "seed"))
    for ax, steps in zip(axes, ds.steps.values, strict=True):
        for d in ds.d.values:
            curve_with_spread(ax, shown.sel(steps=steps, d=d), x="loop", over="cell", label=f"d = {d}")
        theory(ax, [1, ds.loop[-1]], [1e-9, 1e-9], "claim: 1e-9")
        ax.set(
            xlabel="loops t",
            yscale="log",
            title=f"steps: {steps}; {ds.sizes['seed']} prompts of each n",
            ylim=(1e-18, 1e-7),
        )
    axes[0].set_ylabel("‖q⁽ᵗ⁾ + α θ⁽ᵗ⁾‖ / ‖α θ⁽ᵗ⁾‖")
    axes[0].legend(fontsize=6, ncols=2)
    return figure


# --- Lemmas 8.20 and 8.22


@dataclass(frozen=True)
class Curvature:
    n: int = 16
    d: int = 4
    difference: float = 1e-3
    seeds: int = 1000


@system.experiment(
    "lemma-8.22",
    "Smoothness and strong convexity of the in-context loss are the extreme eigenvalues of X'X",
    presets={"smoke": Curvature(seeds=20), "quick": Curvature()},
)
def curvatures(s: Curvature) -> xr.Dataset:
    def measure(key):
        drawn, at, to = jr.split(key, 3)
        z = VectorGeneration(s.n, s.d).sample(drawn, 1).x[0]
        x, y = z[:-1, :-1], z[:-1, -1]

        def slope(theta):
            return jax.grad(lambda theta: 0.5 * jnp.sum((y - x @ theta) ** 2))(theta)

        theta, other = jr.normal(at, (s.d,)), jr.normal(to, (100, s.d))
        shifts = s.difference * jnp.eye(s.d)
        hessian = jax.vmap(lambda h: slope(theta + h) - slope(theta - h))(shifts) / (2 * s.difference)
        secants = jax.vmap(lambda b: jnp.linalg.norm(slope(theta) - slope(b)) / jnp.linalg.norm(theta - b))(other)
        return x.T @ x, jnp.linalg.eigvalsh((hessian + hessian.T) / 2), secants.min(), secants.max()

    gram, found, least, most = over_seeds(measure, s.seeds, double=True)
    smooth, convex = curvature(gram)
    values = {"L": smooth, "mu": convex, "L_found": found[:, -1], "mu_found": found[:, 0], "least": least, "most": most}
    return xr.Dataset({name: ("seed", value) for name, value in values.items()})


@curvatures.claim(
    "07.L",
    "The extreme curvatures by finite differences of the gradient are L and mu within 1e-6 relative, and no secant of "
    "the gradient leaves [mu, L], in every prompt",
    source="Lemmas 8.20, 8.22",
)
def extreme_curvatures(ds: xr.Dataset):
    return all_of(
        L=at_most(float(abs(ds.L_found / ds.L - 1).max(skipna=False)), 1e-6),
        mu=at_most(float(abs(ds.mu_found / ds.mu - 1).max(skipna=False)), 1e-6),
        secants=every((ds.least >= ds.mu * (1 - 1e-9)) & (ds.most <= ds.L * (1 + 1e-9)), over="seed"),
    )


@curvatures.figure
def plot_curvatures(ds: xr.Dataset):
    figure, ax = new_figure()
    for place, (name, low, high) in enumerate((("L", "L_found", "most"), ("mu", "mu_found", "least"))):
        symbol = "L" if name == "L" else "μ"
        ax.loglog(
            ds[name],
            ds[high],
            ".",
            markersize=1.5,
            alpha=0.4,
            color=COLOURS[place + 4],
            label=f"extreme secant, {symbol}",
        )
        ax.loglog(ds[name], ds[low], ".", markersize=2, color=COLOURS[place], label=f"finite differences, {symbol}")
    theory(ax, [ds.mu.min(), ds.L.max()], [ds.mu.min(), ds.L.max()], "equality")
    ax.set(xlabel="extreme eigenvalue of XᵀX", ylabel="measured curvature")
    ax.legend(fontsize=6)
    return figure


# --- step sizes that are too large and too small


@dataclass(frozen=True)
class Controls:
    n: int = 16
    d: int = 4
    loops: int = 200
    factors: tuple[float, ...] = (0.1, 1.0, 2.1)
    seeds: int = 1000


@system.experiment(
    "lemma-8.23",
    "Steps of 1/(10 L), 1/L and 2.1/L",
    presets={"smoke": Controls(loops=50, seeds=20), "quick": Controls()},
)
def controls(s: Controls) -> xr.Dataset:
    network = gradient_steps(s.d, s.loops)

    def measure(key):
        batch = VectorGeneration(s.n, s.d).sample(key, 1)
        z = batch.x[0]
        theta = batch.y[0] / z[-1, -1]
        steps = inverse_smoothness(z) * jnp.array(s.factors)
        q = jax.vmap(lambda eta: network.states(z, jnp.full(s.loops, eta)))(steps)[:, :, 0, :-1]
        return jnp.sum((-q / z[-1, -1] - theta) ** 2, axis=-1), z[:-1, :-1].T @ z[:-1, :-1], theta

    error, gram, theta = over_seeds(measure, s.seeds, double=True)
    smooth, convex = curvature(gram)
    loops = np.arange(s.loops + 1)
    steps = [factor / smooth for factor in s.factors]
    exact = [log_decay(gram, -theta, eta, 2 * loops) for eta in steps]
    dims = ("factor", "seed", "loop")
    return xr.Dataset(
        {
            "log_error": (dims, np.log(np.maximum(error, np.finfo(float).eps ** 2)).swapaxes(0, 1)),
            "exact": (dims, np.array(exact)),
            "bound": (dims[1:], log_contraction(min(s.factors) / smooth, convex, loops[:, None]).T),
        },
        coords={"factor": list(s.factors), "loop": loops},
    )


@controls.claim(
    "07.12",
    "With 2.1/L the error of every prompt ends above its start; with 1/(10 L) it respects (1 - eta mu)^t in every loop "
    "and is larger than with 1/L in every loop",
    source="Lemma 8.23, negative controls",
)
def step_sizes(ds: xr.Dataset):
    small, right = ds.sel(factor=0.1), ds.sel(factor=1.0)
    later = slice(1, None)
    return all_of(
        diverges=every(ds.log_error.sel(factor=2.1).isel(loop=-1) > 0, over="seed"),
        bounded=every((small.exact <= ds.bound + 1e-9).all("loop"), over="seed"),
        slower=every((small.exact > right.exact).isel(loop=later).all("loop"), over="seed"),
    )


@controls.claim(
    "07.oracle",
    "Where the closed form is above exp(-50) the float64 loop's log error agrees with it within 1e-3, for every step "
    "size, prompt and loop",
    source="§8.5, exact form",
)
def oracle(ds: xr.Dataset):
    off = abs(ds.log_error - ds.exact).where(~(ds.exact <= -50), 0.0)
    return at_most(float(off.max(skipna=False)), 1e-3)


@controls.figure
def plot_controls(ds: xr.Dataset):
    figure, ax = new_figure(size=(4, 2.8))
    for factor in ds.factor.values:
        curve_with_spread(ax, ds.log_error.sel(factor=factor), x="loop", label=f"η = {factor:g}/L, float64 loop")
        theory(ax, ds.loop, ds.exact.sel(factor=factor).median("seed"), "closed form (median)" if factor == 1 else None)
    ax.set(xlabel="loops t", ylabel="log normalised squared error", title=f"{ds.sizes['seed']} prompts, 10–90 % band")
    ax.legend(fontsize=6)
    return figure
