"""Probes of the first layer: what the weights of a network on {±1}^n look at."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from krogh.probes.basic import probe
from krogh.tasks.base import Task


def weight_movement(network: Any, start: Any) -> Float[Array, ""]:
    """ρ(w_{0:t}) = ‖w_t − w_0‖_∞ over the first layer: the hidden progress measure (003 §5.5)."""
    return jnp.max(jnp.abs(network.weights - start.weights))


@probe(dims=("coordinate", "neuron"))
def weights(network: Any) -> Float[Array, "n width"]:
    """All first-layer weights."""
    return network.weights


@probe(dims=("coordinate",))
def coordinate_movement(network: Any, start: Any) -> Float[Array, " n"]:
    """Mean over neurons of |w_t − w_0| for every coordinate."""
    return jnp.mean(jnp.abs(network.weights - start.weights), axis=1)


def relevant_on_top(network: Any, task: Task) -> Float[Array, ""]:
    """Share of neurons whose k largest |weights| are exactly the relevant coordinates."""
    size = jnp.abs(network.weights)
    support = task.support  # type: ignore[attr-defined]
    inside = jnp.min(size[support], axis=0)
    outside = jnp.max(size.at[support].set(-jnp.inf), axis=0)
    return jnp.mean(inside > outside)
