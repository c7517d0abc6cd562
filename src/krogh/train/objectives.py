"""Objectives beyond the mean of a loss: (network, batch, key) → (scalar, aux)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.nn.tables import neurons
from krogh.tasks.base import Batch
from krogh.train.losses import mean_cross_entropy


@dataclass(frozen=True)
class NeuronDecay:
    """Mean cross-entropy + strength · Σ_i ‖ω_i‖₂^exponent, ω_i all weights of hidden neuron i (003 §7.3, §D.2).

    With exponent ν it is λ‖θ‖^ν in the norm L_{2,ν}; exponent 2 is plain weight decay. `whole=True` promises that
    every batch is the task's enumerated domain, so that a `LookupNetwork` needs no lookups.
    """

    strength: float
    exponent: float
    whole: bool = False

    def __call__(self, network: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Float[Array, ""], None]:
        outputs = network.on_domain() if self.whole else jax.vmap(network)(batch.x)
        squares = jnp.sum(neurons(network) ** 2, axis=1)
        return mean_cross_entropy(outputs, batch.y) + self.strength * jnp.sum(squares ** (self.exponent / 2)), None
