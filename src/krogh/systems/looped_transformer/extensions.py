"""Ours, not the document's: a step without the spectrum, an answer without θ*, and networks whose Q, P are trained."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, every, share_at_least
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, theory
from krogh.nn.looped import (
    LoopedNetwork,
    LoopedTransformer,
    answer_steps,
    gradient_steps,
    inverse_answers,
    inverse_smoothness,
    inverse_trace,
)
from krogh.systems.looped_transformer import system
from krogh.tasks.vector_generation import VectorGeneration, missed, squared_miss
from krogh.theory.looped import curvature, log_contraction, log_decay
from krogh.train import Adam, spec, sweep
from krogh.train.seeds import over_seeds

# --- step sizes that need no spectrum


@dataclass(frozen=True)
class Steps:
    ns: tuple[int, ...] = (16, 32, 64, 128)
    d: int = 4
    loops: int = 200
    seeds: int = 1000


@system.experiment(
    "ext-trace",
    "The step 1/trace, which is told nothing about the spectrum (ours)",
    presets={"smoke": Steps(ns=(16, 64), seeds=20), "quick": Steps()},
)
def spectrum_free(s: Steps) -> xr.Dataset:
    loops = np.arange(s.loops + 1)
    network = gradient_steps(s.d, s.loops)
    parts = []
    for n in s.ns:

        def measure(key, n=n):
            batch = VectorGeneration(n, s.d).sample(key, 1)
            z = batch.x[0]
            theta = batch.y[0] / z[-1, -1]
            q = network.states(z, jnp.full(s.loops, inverse_trace(z)))[:, 0, :-1]
            return jnp.sum((-q / z[-1, -1] - theta) ** 2, axis=-1), z[:-1, :-1].T @ z[:-1, :-1], theta

        error, gram, theta = over_seeds(measure, s.seeds, double=True)
        smooth, convex = curvature(gram)
        steps = {
            "1/L": 1 / smooth,
            "1/trace": 1 / np.trace(gram, axis1=1, axis2=2),
            "2/(L + mu)": 2 / (smooth + convex),
        }
        exact = np.array([log_decay(gram, -theta, eta, 2 * loops) for eta in steps.values()])
        values = {
            "exact": (("rule", "seed", "loop"), exact.astype(np.float32)),
            "off": ("seed", np.abs(np.log(error) - exact[1]).max(axis=1, where=~(exact[1] <= -50), initial=0.0)),
            "step": (("rule", "seed"), np.array(list(steps.values())) * smooth),
            "lemma": ("seed", (exact[1] - log_contraction(steps["1/trace"], convex, loops[:, None]).T).max(axis=1)),
            "d_kappa": ("seed", (exact[1] + loops * (convex / smooth / s.d)[:, None]).max(axis=1)),
        }
        parts.append(xr.Dataset(values).assign_coords(rule=list(steps), loop=loops).expand_dims(n=[n]))
    return xr.concat(parts, "n")


@spectrum_free.claim(
    "07.E1",
    "Ours: 1/trace <= 1/L in every prompt; with it the error respects Lemma 8.23 and is at most exp(-t/(d kappa)) at "
    "every t <= 200, in every prompt and n",
    source="extension of Thm 8.25",
)
def safe_without_spectrum(ds: xr.Dataset):
    return all_of(
        shorter=every((ds.step.sel(rule="1/trace") <= 1).all("n"), over="seed"),
        lemma=every((ds.lemma <= 1e-9).all("n"), over="seed"),
        d_kappa=every((ds.d_kappa <= 1e-9).all("n"), over="seed"),
        loop_follows=at_most(float(ds.off.max(skipna=False)), 1e-3),
    )


@spectrum_free.figure
def plot_spectrum_free(ds: xr.Dataset):
    figure, axes = new_figure(ds.sizes["n"], sharey=True, size=(2.2 * ds.sizes["n"], 2.4), squeeze=False)
    for ax, n in zip(axes[0], ds.n.values, strict=True):
        for rule in ds.rule.values:
            curve_with_spread(ax, ds.exact.sel(n=n, rule=rule), x="loop", label=f"η = {rule}")
        ax.set(xlabel="loops t", title=f"n = {n}", ylim=(-200, 5))
    axes[0, 0].set_ylabel("log normalised squared error")
    axes[0, 0].legend(fontsize=6)
    return figure


# --- an answer without θ*


@dataclass(frozen=True)
class OneLoop:
    ns: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    d: int = 4
    seeds: int = 1000


@system.experiment(
    "def-8.4",
    "One loop answers the task exactly and does not estimate theta* (ours)",
    presets={"smoke": OneLoop(ns=(1, 16), seeds=20), "quick": OneLoop()},
)
def one_loop(s: OneLoop) -> xr.Dataset:
    parts = []
    for n in s.ns:

        def measure(key, n=n):
            batch = VectorGeneration(n, s.d).sample(key, 1)
            z, alpha = batch.x[0], batch.x[0, -1, -1]
            theta = batch.y[0] / alpha
            answers = [gradient_steps(s.d, 1, step)(z) for step in (inverse_smoothness, inverse_answers)]
            answers.append(answer_steps(s.d, 1)(z))
            wrong = [jnp.abs(q @ theta - alpha) / jnp.abs(alpha) for q in answers]
            return jnp.stack(wrong), jnp.stack([jnp.linalg.norm(q / alpha - theta) for q in answers])

        wrong, distance = over_seeds(measure, s.seeds, double=True)
        values = {"missed": (("seed", "model"), wrong), "distance": (("seed", "model"), distance)}
        parts.append(xr.Dataset(values).expand_dims(n=[n]))
    models = ["gradient step, 1/L", "gradient step, 1/|y|^2", "Q = diag(0, 1), P = I, 1/|y|^2"]
    return xr.concat(parts, "n").assign_coords(model=models)


@one_loop.claim(
    "07.E2",
    "Ours: with the residual weight 1/|y|^2 a single loop has a prediction error <= 1e-10 |alpha| in every prompt, for "
    "every n from 1 (fewer than d = 4) to 128, whatever kappa is",
    source="extension of Def 8.4",
)
def one_loop_is_enough(ds: xr.Dataset):
    exact = ds.missed.isel(model=slice(1, None)) <= 1e-10
    return every(exact.all(("n", "model")), over="seed")


@one_loop.claim(
    "07.E2-printed",
    "Vector generation is as hard as linear regression: an answer with an error below 1e-10 |alpha| comes with an "
    "estimate of theta* (|TF/alpha - theta*| <= 0.1 in >= 50 % of such prompts at n = 16)",
    source="Def 8.4, remark",
    finding="As <X'y, theta*> = |y|^2, q = alpha X'y/|y|^2 is a right answer for every X: no inverse of X'X, no "
    "dependence on kappa, one loop, one example. It is one step of the document's own loop with eta = 1/|y|^2, a "
    "number the prompt shows. The bounds of the chapter are about estimating theta*, which this task does not need.",
)
def needs_theta(ds: xr.Dataset):
    near = ds.distance.sel(n=16).isel(model=1) <= 0.1
    return at_least(near.where(ds.missed.sel(n=16).isel(model=1) <= 1e-10), 0.5, over="seed")


@one_loop.figure
def plot_one_loop(ds: xr.Dataset):
    figure, (left, right) = new_figure(2)
    for place, model in enumerate(ds.model.values):
        style = {"linestyle": (0, (1, 1))} if place == 2 else {}
        curve_with_spread(left, np.maximum(ds.missed.sel(model=model), 1e-17), x="n", label=model, **style)
        curve_with_spread(right, ds.distance.sel(model=model), x="n", **style)
    left.set(xlabel="examples n", ylabel="|⟨TF, θ*⟩ − α| / |α|, one loop", xscale="log", yscale="log")
    left.legend(fontsize=6)
    right.set(
        xlabel="examples n", ylabel="‖TF/α − θ*‖, one loop", xscale="log", yscale="log", title="θ* is not estimated"
    )
    return figure


# --- trained Q and P


@dataclass(frozen=True)
class Trained:
    """Adam on (<TF, theta*> - alpha)^2 through all loops with the step 1/trace, from Gaussian Q and P.

    Seeds below 200 were looked at when the thresholds were chosen; the experiment's own begin there.
    """

    n: int = 16
    d: int = 4
    loops: int = 4
    scales: tuple[float, ...] = (0.02, 0.3)
    steps: int = 2000
    lr: float = 0.01
    batch: int = 64
    prompts: int = 1000
    seeds: int = 48


def relative_miss(network, validation):
    """Mean of |⟨TF, θ*⟩ − α|/|α| over fresh prompts."""
    wrong = missed(jax.vmap(network)(validation.x), validation.y)
    return jnp.mean(jnp.abs(wrong) / jnp.linalg.norm(validation.y, axis=1))


@system.experiment(
    "ext-trained",
    "What Q and P become when they are trained through the loops (ours)",
    presets={
        "smoke": Trained(steps=100, prompts=50, seeds=4),
        "quick": Trained(),
        "paper": Trained(steps=10_000, prompts=4000, seeds=96),
    },
)
def trained(s: Trained) -> xr.Dataset:
    task = VectorGeneration(s.n, s.d)
    run = sweep(
        spec(
            task,
            LoopedTransformer(s.loops, "gaussian"),
            Adam(lr=s.lr, batch=s.batch, loss=squared_miss),
            s.steps,
            seeds=range(200, 200 + s.seeds),
            probes=[relative_miss],
            every=max(1, s.steps // 40),
            validation=256,
        ),
        scale=list(s.scales),
    )
    fresh = task.sample(jax.random.key(7), s.prompts)
    more = 4 * s.loops

    @jax.jit
    def after_loops(network):
        def one(z, answer):
            q = -network.states(z, jnp.full(more, inverse_trace(z)))[:, 0, :-1]
            return jnp.abs(missed(q, jnp.broadcast_to(answer, q.shape))) / jnp.linalg.norm(answer)

        return jax.vmap(one)(fresh.x, fresh.y).mean(axis=0)

    networks = jax.tree.map(jnp.asarray, run.networks)
    q, p = np.asarray(networks.query_key), np.asarray(networks.value_out)
    shape, replica = (len(s.scales), s.seeds), ("scale", "seed")
    multiples = jnp.linspace(1, 2 * s.d, 29)

    def scaled(built: LoopedNetwork):
        """The loop with η multiplied by each of the multiples."""
        return jax.vmap(lambda c: after_loops(eqx.tree_at(lambda b: b.query_key, built, c * built.query_key)))(
            multiples
        )

    values = {
        "missed": ((*replica, "loop"), np.asarray(eqx.filter_vmap(after_loops)(networks)).reshape(*shape, -1)),
        "query_part": (replica, (np.trace(q[:, :-1, :-1], axis1=1, axis2=2) / s.d / q[:, -1, -1]).reshape(shape)),
        "answer_part": (replica, (p[:, -1, -1] * s.d / np.trace(p[:, :-1, :-1], axis1=1, axis2=2)).reshape(shape)),
        "query_key": ((*replica, "row", "column"), q.reshape(*shape, *q.shape[1:])),
        "value_out": ((*replica, "row", "column"), p.reshape(*shape, *p.shape[1:])),
        "gradient_steps": (("multiple", "loop"), np.asarray(scaled(gradient_steps(s.d, s.loops)))),
        "answer_steps": (("multiple", "loop"), np.asarray(scaled(answer_steps(s.d, s.loops)))),
    }
    coords = {"loop": np.arange(more + 1), "multiple": np.asarray(multiples)}
    training = run.data.relative_miss.rename("training")
    return xr.Dataset(values, coords=coords, attrs={"loops": s.loops}).merge(training)


def _solved(ds: xr.Dataset) -> xr.DataArray:
    """Replicas with at most the error of gradient descent with the best multiple of 1/trace, after as many loops."""
    return ds.missed.sel(loop=ds.attrs["loops"]) <= _best(ds, "gradient_steps")


def _best(ds: xr.Dataset, family: str) -> float:
    return float(ds[family].sel(loop=ds.attrs["loops"]).min())


@trained.claim(
    "07.E3",
    "Ours: from Q, P of scale 0.02 the median trained network of 4 loops has at most half the prediction error of "
    "gradient descent with the best constant multiple of 1/trace",
    source="extension of Thm 8.16",
    presets=("quick", "paper"),
)
def better_than_gradient_descent(ds: xr.Dataset):
    ratio = ds.missed.sel(loop=ds.attrs["loops"], scale=0.02) / _best(ds, "gradient_steps")
    return at_most(ratio, 0.5, stat="median", over="seed")


@trained.claim(
    "07.E4",
    "Ours: where training from scale 0.02 succeeds it does not find the construction (tr Q_11/(d Q_22) = 1, P_22 = 0) "
    "but Q near diag(0, b) and P near a multiple of I: |tr Q_11/(d Q_22)| <= 0.2 and P_22 d/tr P_11 in [0.8, 1.2] in "
    ">= 90 % of the successful replicas",
    source="extension of Lemma 8.13",
    presets=("quick", "paper"),
    finding="With P a multiple of I the alpha left in the prompt is the network's own prediction error, and Q = "
    "diag(0, b) drives it to zero along X'y: the one-loop answer of 07.E2, not gradient descent on theta.",
)
def finds_the_shortcut(ds: xr.Dataset):
    small = ds.sel(scale=0.02)
    near = (abs(small.query_part) <= 0.2) & (small.answer_part >= 0.8) & (small.answer_part <= 1.2)
    return share_at_least(near[_solved(ds).sel(scale=0.02)], 0.9, over="seed")


@trained.claim(
    "07.E5",
    "Ours: a larger initial scale (0.3 against 0.02) gets more replicas stuck above gradient descent's error",
    source="extension",
    presets=("quick", "paper"),
)
def scale_matters(ds: xr.Dataset):
    stuck = (~_solved(ds)).astype(float)
    return at_least(stuck.sel(scale=0.3) - stuck.sel(scale=0.02), 0.0, over="seed")


@trained.claim(
    "07.E6",
    "Ours: a successful network run for four times the loops it was trained for has a larger error than at those, in "
    ">= 90 % of the successful replicas from scale 0.02: unlike gradient descent's, its error does not fall with the "
    "loops",
    source="extension of Thm 8.16",
    presets=("quick", "paper"),
)
def only_as_long_as_trained(ds: xr.Dataset):
    small = ds.missed.sel(scale=0.02)
    longer = small.isel(loop=-1) > small.sel(loop=ds.attrs["loops"])
    return share_at_least(longer[_solved(ds).sel(scale=0.02)], 0.9, over="seed")


@trained.figure
def plot_trained(ds: xr.Dataset):
    figure, axes = new_figure(4, size=(12, 2.6))
    solved = _solved(ds)
    for place, scale in enumerate(ds.scale.values):
        cell, good = ds.sel(scale=scale), solved.sel(scale=scale)
        label = f"scale {scale:g}: {int(good.sum())} of {good.size} solve it"
        curve_with_spread(axes[0], cell.training, x="step", label=label, color=COLOURS[place])
        curve_with_spread(axes[1], cell.missed, x="loop", label=f"trained, scale {scale:g}", color=COLOURS[place])
        for chosen, marker in ((good, "o"), (~good, "x")):
            axes[2].plot(
                cell.query_part[chosen], cell.answer_part[chosen], marker, color=COLOURS[place], markersize=3, alpha=0.7
            )
    loops = ds.attrs["loops"]
    best = ds.gradient_steps.isel(multiple=np.argmin(ds.gradient_steps.sel(loop=loops).values))
    axes[1].plot(ds.loop, best, "--", color=COLOURS[6], label="gradient descent, best multiple")
    best = ds.answer_steps.isel(multiple=np.argmin(ds.answer_steps.sel(loop=loops).values))
    theory(axes[1], ds.loop, best, "Q = diag(0, 1), P = I, best multiple")
    axes[1].axvline(loops, color="0.7", linewidth=0.8)
    axes[0].set(xlabel="steps", ylabel="|⟨TF, θ*⟩ − α| / |α|", yscale="log", title=f"Training through {loops} loops")
    axes[1].set(xlabel="loops", yscale="log", ylim=(1e-6, 2), title="Running longer than trained (grey)")
    axes[2].plot([1], [0], "*", color="black", markersize=8, label="construction")
    axes[2].plot([0], [1], "P", color="black", markersize=6, label="Q = diag(0, 1), P = I")
    axes[2].set(
        xlabel="tr Q₁₁/(d Q₂₂)", ylabel="P₂₂ d/tr P₁₁", title="o solved, x stuck", xlim=(-0.6, 1.6), ylim=(-0.5, 1.6)
    )
    for ax in axes[:3]:
        ax.legend(fontsize=6)
    first = ds.isel(scale=0, seed=np.argmax(solved.isel(scale=0).values))
    pair = np.concatenate([first.query_key, np.full((first.sizes["row"], 1), np.nan), first.value_out], axis=1)
    axes[3].imshow(pair, cmap="RdBu", vmin=-np.nanmax(abs(pair)), vmax=np.nanmax(abs(pair)))
    axes[3].set(xticks=[], yticks=[], title="Q and P of a trained replica")
    return figure
