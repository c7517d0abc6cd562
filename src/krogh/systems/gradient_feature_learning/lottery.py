"""Lottery tickets: the few neurons that carry the gradient features do the work of all (000 §B.3.2, Prop. B.1)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float

from krogh.lab import all_of, at_least, at_most
from krogh.lab.figures import COLOURS, new_figure
from krogh.nn.mlp import TwoLayer
from krogh.nn.symmetric import SymmetricReLU
from krogh.probes.clusters import plane
from krogh.systems.gradient_feature_learning import system
from krogh.systems.gradient_feature_learning.learning import (
    hidden,
    one_step,
    parity_threshold,
    random_features,
    subnetwork,
    test_accuracy,
    xor_threshold,
)
from krogh.tasks.base import Batch
from krogh.tasks.block_parity import BlockParity
from krogh.tasks.mixtures import xor_mixture
from krogh.theory.gradient_features import cosines
from krogh.train.seeds import over_seeds


@dataclass(frozen=True)
class Lottery:
    """A ticket is every neuron with |cos| >= `cosine` to a feature after the first step; the LASSO's is the `share` of
    the neurons with the largest |a~|, or fewer where fewer coefficients are not zero."""

    d: int = 400
    ratio: float = 0.25
    factor: float = 0.3
    m: int = 50
    samples: int = 32_000
    cosine: float = 0.95
    lasso: float = 0.02
    share: float = 0.1
    parity_d: int = 60
    parity_k: int = 5
    test: int = 5000
    seeds: int = 16


def lasso_head(network: TwoLayer, train: Batch, strength: float, steps: int = 400) -> Float[Array, " width"]:
    """argmin ||H a - y||^2/(2n) + lambda |a|_1 on centred features H, lambda = strength max|H^T y/n|, by accelerated
    proximal steps."""
    features = hidden(network)(train.x)
    features = features - features.mean(0)
    gram, cross = features.T @ features / len(train.y), features.T @ train.y / len(train.y)
    rate, limit = 1 / jnp.trace(gram), strength * jnp.abs(cross).max()

    def step(carry, t):
        a, ahead = carry
        moved = ahead - rate * (gram @ ahead - cross)
        new = jnp.sign(moved) * jax.nn.relu(jnp.abs(moved) - rate * limit)
        return (new, new + t / (t + 3) * (new - a)), None

    zero = jnp.zeros_like(cross)
    return jax.lax.scan(step, (zero, zero), jnp.arange(steps, dtype=cross.dtype))[0][0]


def largest(a: Float[Array, " width"], most: int) -> Bool[Array, " width"]:
    """The `most` largest |a_i|, without those that are zero."""
    size = jnp.abs(a)
    return ((-size).argsort().argsort() < most) & (size > 0)


LEARNERS = ("full", "ticket", "random subnet", "untrained", "LASSO ticket", "random of its size")


@system.experiment(
    "gf-9",
    "Lottery tickets: the neurons near a feature, the LASSO's choice, and random ones",
    presets={
        "smoke": Lottery(d=50, m=25, samples=4000, test=1000, seeds=2),
        "quick": Lottery(seeds=12),
        "paper": Lottery(seeds=400, test=10_000),
    },
)
def lottery(s: Lottery) -> xr.Dataset:
    sigma = s.ratio * math.sqrt(s.d)
    tasks = {
        "XOR": (xor_mixture(s.d, sigma), xor_threshold(s.d, sigma, s.factor)),
        "parity": (BlockParity(s.parity_d, 1, s.parity_k), parity_threshold(s.parity_d, 1, s.parity_k)),
    }
    score = np.zeros((len(tasks), len(LEARNERS), s.seeds))
    size, kept, overlap = np.zeros((3, len(tasks), s.seeds))
    maps, features = {}, {}
    for row, (name, (task, threshold)) in enumerate(tasks.items()):

        def measure(key, task=task, threshold=threshold):
            data, test, start, pick, fixed = jr.split(key, 5)
            batch, fresh = task.sample(data, s.samples), task.sample(test, s.test)
            network = one_step(SymmetricReLU(s.m, threshold=threshold), task, start, batch)
            ticket = jnp.abs(cosines(task.directions, network.weights)).max(0) >= s.cosine
            count = ticket.sum()
            chosen = largest(lasso_head(network, batch, s.lasso), round(4 * s.m * s.share))
            few, order = chosen.sum(), jr.permutation(pick, 4 * s.m)
            untrained = random_features(fixed, 4 * s.m, batch.x)
            networks = [
                network,
                subnetwork(network, ticket),
                subnetwork(network, order < count),
                subnetwork(untrained, jnp.arange(4 * s.m) < count),
                subnetwork(network, chosen),
                subnetwork(network, order < few),
            ]
            scores = jnp.stack([test_accuracy(one, batch, fresh) for one in networks])
            return scores, count, few, (chosen & ticket).sum() / jnp.maximum(few, 1), network.weights

        found, size[row], kept[row], overlap[row], weights = over_seeds(measure, s.seeds)
        score[row] = found.T
        directions = np.asarray(task.directions)
        rows = np.concatenate(
            [weights[0].T, directions, -directions] if name == "parity" else [weights[0].T, directions]
        )
        position = plane(rows)
        maps[name], features[name] = position[: 4 * s.m], position[4 * s.m :]
    stars = np.full((2, max(map(len, features.values())), 2), np.nan)
    for row, value in enumerate(features.values()):
        stars[row, : len(value)] = value
    return xr.Dataset(
        {
            "accuracy": (("task", "learner", "seed"), score),
            "neurons": (("task", "seed"), size),
            "lasso_neurons": (("task", "seed"), kept),
            "overlap": (("task", "seed"), overlap),
            "map": (("task", "neuron", "axis"), np.stack(list(maps.values()))),
            "stars": (("task", "feature", "axis"), stars),
        },
        coords={"task": list(tasks), "learner": list(LEARNERS)},
        attrs={"width": 4 * s.m},
    )


@lottery.claim(
    "02.20",
    "XOR, d = 400, sigma_B = sqrt(d)/4, 4m = 200: the neurons with cos >= 0.95 to a feature after step 1, head "
    "retrained, are >= 0.3 above untrained features of that number, and on average no worse than a random subnetwork "
    "of that size after the step",
    source="Prop. B.1",
    presets=("quick", "paper"),
)
def ticket_wins(ds: xr.Dataset):
    at = ds.accuracy.sel(task="XOR")
    ticket = at.sel(learner="ticket")
    return all_of(
        untrained=at_least(ticket - at.sel(learner="untrained"), 0.3, over="seed"),
        random=at_least(ticket - at.sel(learner="random subnet"), 0.0, over="seed"),
    )


@lottery.claim(
    "02.20b",
    "In the setting of 02.20 the subnetwork of these neurons, head retrained, is within 0.06 of the full network",
    source="Prop. B.1",
    presets=("paper",),
    finding="Few seeds cannot tell: four in five are within 0.06, but in one of thirty no neuron comes near some "
    "feature, and the ticket loses up to 0.5. The mean is .026 of 12 seeds, .049 of 32, .051 (.037 to .067) "
    "of 128 and .058 (.048 to .068) of 400: so near the bound, which is ours, that thousands would be needed.",
)
def ticket_keeps_up(ds: xr.Dataset):
    at = ds.accuracy.sel(task="XOR")
    return at_most(at.sel(learner="full") - at.sel(learner="ticket"), 0.06, over="seed")


@lottery.figure
def plot_lottery(ds: xr.Dataset):
    fig, axes = new_figure(2, 2, size=(6.4, 5.0))
    for (top, bottom), task in zip(axes.T, ds.task.values, strict=True):
        at = ds.sel(task=task)
        for place, learner in enumerate(ds.learner.values):
            top.plot(
                np.full(at.sizes["seed"], place), at.accuracy.sel(learner=learner), "o", color=COLOURS[place], alpha=0.6
            )
        top.set_xticks(range(len(LEARNERS)), [name.replace(" ", "\n") for name in LEARNERS])
        count, kept, both = (float(at[name].mean()) for name in ("neurons", "lasso_neurons", "overlap"))
        title = (
            f"{task}: {count:.0f} of {ds.attrs['width']} neurons in the ticket,\n{both:.0%} of the LASSO's {kept:.0f}"
        )
        top.set(ylabel="test accuracy", title=title)
        bottom.plot(*at["map"].values.T, ".", color=COLOURS[0], markersize=3, label="neurons after one step")
        bottom.plot(*at.stars.values.T, "*", color=COLOURS[1], markersize=9, label="features")
        bottom.set(xticks=[], yticks=[], title="map of the weights, 1 - cos")
    axes[1, 0].legend()
    return fig
