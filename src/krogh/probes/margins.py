"""Probes of the margin of a homogeneous network and of the size of its neurons (003 §7.2, §7.3)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from krogh.nn.tables import neurons
from krogh.probes.basic import outputs_on, probe
from krogh.tasks.base import Batch


def margins(outputs: Float[Array, "points classes"], y: Array) -> Float[Array, " points"]:
    """g = f[y] − max_{y'≠y} f[y'] of every point."""
    right = jax.nn.one_hot(y, outputs.shape[-1], dtype=bool)
    return jnp.sum(outputs, axis=-1, where=right) - jnp.max(outputs, axis=-1, where=~right, initial=-jnp.inf)


@dataclass(frozen=True)
class NormalisedMargin:
    """min over the validation points of g(θ)/‖θ‖_{2,ν}^ν, ν the network's degree; exact with `validation="all"`.

    `whole=True` reads a `LookupNetwork` on its whole domain without lookups, given `validation="all"`.
    """

    nu: float
    whole: bool = False
    name: str = "margin"

    def __call__(self, network: Any, validation: Batch) -> Float[Array, ""]:
        outputs = network.on_domain() if self.whole else outputs_on(network, validation.x)
        return jnp.min(margins(outputs, validation.y)) / jnp.sum(neuron_norms(network) ** self.nu)


@probe(dims=("neuron",))
def neuron_norms(network: Any) -> Float[Array, " width"]:
    """‖ω_i‖₂: all weights into and out of hidden neuron i."""
    return jnp.sqrt(jnp.sum(neurons(network) ** 2, axis=1))
