"""The identity of the first step, and linear data (000 eq. 3.9, §B.5.1)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most
from krogh.lab.figures import COLOURS, new_figure, theory
from krogh.nn.symmetric import SymmetricReLU, neurons
from krogh.systems.gradient_feature_learning import system
from krogh.systems.gradient_feature_learning.learning import hinge, one_step, test_accuracy
from krogh.tasks.mixtures import LinearMargin, xor_mixture
from krogh.theory.gradient_features import cosines, linear_gradient, linear_network, sampled_gradient
from krogh.train import SGD, Stage, train
from krogh.train.seeds import over_seeds

# --- Equation 3.9, Lemmas B.70 and B.71 ---


@dataclass(frozen=True)
class FirstStep:
    d: int = 20
    m: int = 25
    samples: int = 500
    lr: float = 0.25
    sigma: float = 1.0
    seeds: int = 16


def identity_errors(network, start, sample):
    """Largest relative errors of W^(1) ~ a G~ in direction, of w_i = -w_{i+2m} and of g^(0) = 0; and W^(1) / (a G~)."""
    half = start.bias.shape[0] // 2
    expected = start.output * sampled_gradient(start.weights, -start.bias, sample.x, sample.y)
    moved = jnp.abs(network.weights).max()
    parts = jnp.abs(jax.vmap(start.hidden)(sample.x)) @ jnp.abs(start.output)
    return {
        "identity": jnp.abs(network.weights / moved - expected / jnp.abs(expected).max()).max(),
        "scale": moved / jnp.abs(expected).max(),
        "mirror": jnp.abs(network.weights[:, :half] + network.weights[:, half:]).max() / moved,
        "start_output": jnp.max(jnp.abs(jax.vmap(start)(sample.x)) / jnp.maximum(parts, 1e-30)),
    }


@system.experiment(
    "eq-3.9",
    "The first step by automatic differentiation is the simplified gradient",
    presets={"smoke": FirstStep(seeds=4), "quick": FirstStep()},
)
def first_step(s: FirstStep) -> xr.Dataset:
    # a direct decay of 1 is the wipe lambda = 1/lr, exactly
    learner = SGD(lr=s.lr, batch=None, samples=s.samples, loss="hinge", weight_decay=1.0, decay="direct")
    data = []
    for name, task in (("linear", LinearMargin(s.d)), ("XOR", xor_mixture(s.d, s.sigma))):
        run = train(
            task,
            SymmetricReLU(s.m, threshold=1.0),
            [Stage(learner, 1, trains=("weights", "output"))],
            seeds=s.seeds,
            probes=[identity_errors],
            record=[1],
            networks=False,
        )
        data.append(run.data.isel(step=-1, drop=True).expand_dims(task=[name]))
    return xr.concat(data, "task").assign_attrs(lr=s.lr)


@first_step.claim(
    "02.1",
    "Symmetric start, wiped first step: W1 = -lr l'(0) a G~ to 1e-5 of the largest weight, g0 = 0 and w_i = -w_{i+2m}",
    source="eq. 3.9, Lemmas B.70, B.71",
)
def step_is_the_gradient(ds: xr.Dataset):
    return all_of(
        direction=at_most(float(ds.identity.max()), 1e-5),
        scale=at_most(float(abs(ds.scale / ds.attrs["lr"] - 1).max()), 1e-5),
        start=at_most(float(ds.start_output.max()), 1e-5),
        mirror=at_most(float(ds.mirror.max()), 1e-5),
    )


@first_step.figure
def plot_first_step(ds: xr.Dataset):
    fig, ax = new_figure(size=(4.0, 2.4))
    names = {"identity": "W1 against lr a G~", "start_output": "g0 against 0", "mirror": "w_i + w_{i+2m}"}
    for place, (name, label) in enumerate(names.items()):
        values = np.maximum(ds[name].values.ravel(), 1e-9)
        ax.plot(np.full(values.size, place) + np.linspace(-0.2, 0.2, values.size), values, "o", label=label)
    theory(ax, [-0.5, 2.5], [1e-5, 1e-5], "claimed")
    ax.set(yscale="log", xticks=[], ylabel="relative error", xlabel="identity, one dot per task and seed")
    ax.legend()
    return fig


# --- Theorem B.27 ---


@dataclass(frozen=True)
class Linear:
    """Threshold d^tau B_x1; 4m neurons, of which the m with b < 0 carry the feature."""

    d: int = 50
    margin: float = 0.5
    tau: float = 0.5
    m: int = 200
    samples: int = 50_000
    test: int = 10_000
    seeds: int = 16


@system.experiment(
    "thm-B.27",
    "Linear data: always-active neurons all point to w*",
    presets={"smoke": Linear(samples=20_000, m=20, test=2000, seeds=4), "quick": Linear()},
)
def linear(s: Linear) -> xr.Dataset:
    task = LinearMargin(s.d, s.margin)
    radius = math.sqrt(s.d - 1 + s.margin**2 + 2 * s.margin * math.sqrt(2 / math.pi) + 1)
    init = SymmetricReLU(s.m, threshold=s.d**s.tau * radius)

    def measure(key):
        start, data, test = jr.split(key, 3)
        batch, fresh = task.sample(data, s.samples), task.sample(test, s.test)
        w, b, _ = neurons(init.build(task, start))
        w, b = w[:, s.m : 2 * s.m], b[s.m : 2 * s.m]
        sampled = sampled_gradient(w, b, batch.x, batch.y)
        return {
            "cosine": cosines(task.directions, sampled)[0],
            "size": jnp.linalg.norm(sampled, axis=0) / task.signal,
            "exact_cosine": cosines(task.directions, linear_gradient(task, w, b))[0],
            "accuracy": test_accuracy(one_step(init, task, start, batch), batch, fresh),
            "constructed": hinge(linear_network(task.directions[0], s.margin), fresh),
        }

    out = over_seeds(measure, s.seeds)
    dims = {"cosine": ("seed", "neuron"), "size": ("seed", "neuron"), "exact_cosine": ("seed", "neuron")}
    return xr.Dataset({name: (dims.get(name, ("seed",)), value) for name, value in out.items()})


@linear.claim(
    "02.2",
    "d = 50, margin 0.5, tau = 0.5, b < 0: every neuron has cos(G~, w*) >= 0.995 and | ||G~||/rho - 1 | <= 0.02; one "
    "step and a ridge head test at >= 0.99; the constructed g* has hinge loss 0",
    source="Lemmas B.25, B.26, Thm B.27",
)
def linear_is_learned(ds: xr.Dataset):
    return all_of(
        cosine=at_least(ds.cosine.min("neuron"), 0.995, stat="min", over="seed"),
        size=at_most(abs(ds["size"] - 1).max("neuron"), 0.02, stat="max", over="seed"),
        accuracy=at_least(ds.accuracy, 0.99, over="seed"),
        constructed=at_most(float(ds.constructed.max()), 1e-5),
    )


@linear.figure
def plot_linear(ds: xr.Dataset):
    fig, (left, right) = new_figure(2)
    left.hist(1 - ds.cosine.values.ravel(), bins=40, color=COLOURS[0], label="sampled")
    left.axvline(float((1 - ds.exact_cosine).mean()), color="black", linestyle="--", label="population")
    left.set(xlabel="1 - cos(G~, w*)", ylabel="neurons with b < 0")
    left.legend()
    right.plot(ds.accuracy, "o", label="one step + ridge")
    right.set(xlabel="seed", ylabel="test accuracy", ylim=(0.9, 1.005))
    right.axhline(0.99, color="black", linestyle="--", linewidth=1, label="claimed")
    right.legend()
    return fig
