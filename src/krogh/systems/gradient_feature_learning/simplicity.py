"""Simplicity bias: clusters of larger share are fitted first (000 §B.3.1)."""

from dataclasses import dataclass

import jax.numpy as jnp
import xarray as xr

from krogh.lab import at_least
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure
from krogh.nn.symmetric import SymmetricReLU
from krogh.probes.basic import accuracy, correct, outputs_on, probe
from krogh.systems.gradient_feature_learning import system
from krogh.tasks.mixtures import orthogonal_mixture
from krogh.train import SGD, Stage, train


@dataclass(frozen=True)
class Simplicity:
    """Pairs of clusters (one per label) of equal share; Algorithm 1 with a fresh sample in every step."""

    shares: tuple[float, ...] = (0.30, 0.14, 0.06)
    d: int = 100
    length: float = 6.0
    m: int = 100
    first_samples: int = 5000
    first_lr: float = 0.5
    batch: int = 256
    lr: float = 0.01
    steps: int = 400
    every: int = 5
    seeds: int = 16


@probe(dims=("component",))
def cluster_accuracy(network, task, validation):
    """Accuracy on each component of the mixture."""
    right = correct(outputs_on(network, validation.x), validation.y)
    which = validation.latents["component"]
    member = which[:, None] == jnp.arange(len(task.shares))
    return (right[:, None] * member).sum(0) / member.sum(0)


@system.experiment(
    "gf-10",
    "Unequal clusters: the accuracy on each while the network trains",
    presets={"smoke": Simplicity(d=20, m=20, first_samples=1000, steps=50, seeds=2), "quick": Simplicity()},
)
def simplicity(s: Simplicity) -> xr.Dataset:
    shares = tuple(p for share in s.shares for p in (share, share))
    task = orthogonal_mixture((1.0, -1.0) * len(s.shares), s.d, s.length, 1.0, shares)
    wiped = SGD(lr=s.first_lr, batch=None, samples=s.first_samples, loss="hinge", weight_decay=1.0, decay="direct")
    moving = ("weights", "output")
    run = train(
        task,
        SymmetricReLU(s.m, threshold=s.length),
        [Stage(wiped, 1, trains=moving), Stage(SGD(lr=s.lr, batch=s.batch, loss="hinge"), s.steps, trains=moving)],
        seeds=s.seeds,
        probes=[cluster_accuracy, accuracy],
        record=[1, *range(1 + s.every, s.steps + 2, s.every)],
        validation=4000,
        networks=False,
    )
    pairs = run.data.cluster_accuracy.coarsen(component=2).mean().assign_coords(component=list(s.shares))
    return run.data[["accuracy", "loss"]].assign(pair=pairs.rename(component="share")).isel(step=slice(1, None))


@simplicity.claim(
    "GF-10",
    "Averaged over training, a pair of clusters of larger share is classified better than any of smaller share",
    source="§B.3.1",
)
def larger_first(ds: xr.Dataset):
    mean = ds.pair.mean("step")

    def smallest_gap(values):
        return float((values[:, :-1] - values[:, 1:]).mean(0).min())

    return at_least(mean.transpose("seed", "share").values, 0.0, stat=smallest_gap)


@simplicity.figure
def plot_simplicity(ds: xr.Dataset):
    fig, ax = new_figure(size=(4.0, 2.6))
    for share, colour in zip(ds.share.values, COLOURS, strict=False):
        curve_with_spread(ax, ds.pair.sel(share=share), label=f"p_j = {share:g}", color=colour)
    curve_with_spread(ax, ds.accuracy, label="all", color="0.6")
    ax.set(xlabel="step", ylabel="accuracy on the pair of clusters", ylim=(0.3, 1.02), xscale="log")
    ax.legend()
    return fig
