"""Training on a whole multiplication table, and what is read off all neurons of all seeds (003 §D.2)."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from krogh.nn.activations import Activation
from krogh.nn.tables import Lookup, LookupNetwork
from krogh.probes.margins import NormalisedMargin, margins, neuron_norms
from krogh.tasks.groups import GroupComposition
from krogh.theory.groups import Group
from krogh.train import SGD, Run, train
from krogh.train.objectives import NeuronDecay
from krogh.train.schedules import Doubling

# Live neurons have ‖ω‖^ν above this share of the largest.
LIVE = 0.01

THOUSANDS = tuple(range(1000, 10_001, 1000))
TWO_HUNDREDS = (*range(200, 2601, 200), 5000, 10_000)


@dataclass(frozen=True)
class Training:
    """The document's settings go by table 003 §D.2; the learning rate doubles at `doublings`."""

    group: str = "Z_23"
    width: int = 150
    steps: int = 20_000
    doublings: tuple[int, ...] = THOUSANDS
    strength: float = 1e-4
    lr: float = 0.05
    batch: int | None = None
    records: int = 40
    seeds: int = 16


def run_on(
    group: Group,
    s: Training,
    features: Callable,
    activation: str | Activation = "square",
    nu: int = 3,
    exponent: int | None = None,
) -> Run:
    """Train a network of degree ν on all of G × G with λ Σ‖ω‖^exponent (default ν); `features` probes the neurons."""
    whole = s.batch is None
    learner = SGD(
        lr=s.lr,
        batch=s.batch,
        samples="all",
        objective=NeuronDecay(s.strength, exponent or nu, whole),
        schedule=Doubling(s.doublings),
    )
    return train(
        GroupComposition(group.table),
        Lookup(s.width, activation),
        learner,
        s.steps,
        seeds=s.seeds,
        probes=[NormalisedMargin(nu, whole=True), neuron_norms, features],
        validation="all",
        every=max(1, s.steps // s.records),
    )


def neurons_of(run: Run, label: str, count: int, nu: int = 3) -> xr.Dataset:
    """Statistics over all live neurons: `label` is the frequency or irrep, of which there are `count`.

    margin (seed, step); purity: median over live neurons of the smaller of u's, v's and w's largest share of power;
    at the start and the end, per neuron: norms, power, label; at the end: neurons and Σ‖ω‖^ν per label.
    """
    data = run.data
    mass = data.neuron_norms**nu
    live = mass > LIVE * mass.max("neuron")
    purity = data.power.min("part")
    ends = data.isel(step=[0, -1]).rename(step="moment").assign_coords(moment=["start", "end"])
    found = ends[label].isel(part=0).sel(moment="end")
    one_hot = xr.DataArray(np.arange(count), dims="feature") == found
    alive, weight = live.isel(step=-1), mass.isel(step=-1)
    return xr.Dataset(
        {
            "margin": data.margin,
            "loss": data.loss,
            "purity": purity.where(live).median("neuron"),
            "power": ends.power,
            "label": ends[label],
            "live": live.isel(step=[0, -1]).rename(step="moment").assign_coords(moment=["start", "end"]),
            "norms": ends.neuron_norms,
            "neurons": (one_hot & alive).sum("neuron"),
            "share": (one_hot * weight).sum("neuron") / weight.sum("neuron"),
            "diverged": data.status == "diverged",
        }
    )


def profile(run: Run, group: Group, nu: int = 3) -> xr.Dataset:
    """g(θ, x, y)/‖θ‖^ν of every point at the end, and how unequal the wrong logits are: their spread over g."""
    y = jnp.asarray(group.table.ravel())
    networks = run.networks

    def one(arrays):
        network = LookupNetwork(*arrays, networks.activation)
        outputs = network.on_domain()
        g = margins(outputs, y)
        wrong = jnp.where(jax.nn.one_hot(y, group.order, dtype=bool), jnp.nan, outputs)
        norm = jnp.sum(neuron_norms(network) ** nu)
        return g / norm, jnp.mean(jnp.nanstd(wrong, axis=1) / jnp.abs(g))

    points, spread = jax.lax.map(one, (jnp.asarray(networks.weights), jnp.asarray(networks.output)))
    return xr.Dataset({"point_margin": (("seed", "point"), points), "wrong_spread": ("seed", spread)})


def first_neurons(run: Run) -> xr.DataArray:
    """All weights of the first seed's network: (part, neuron, element)."""
    network = run.network(seed=int(run.data.seed[0]))
    stacked = np.concatenate([network.weights.swapaxes(1, 2), network.output[None]])
    return xr.DataArray(stacked, dims=("part", "neuron", "element"))
