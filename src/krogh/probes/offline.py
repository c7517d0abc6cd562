"""Probes for learning from a fixed sample of a parity, test examples being many and networks wide."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from krogh.probes.basic import correct, probe
from krogh.tasks.base import Batch
from krogh.tasks.offline import OfflineParity


@probe(name="accuracy")
def accuracy_in_parts(network: Any, validation: Batch) -> Float[Array, ""]:
    """Share of the validation examples classified correctly, 500 at a time: 10^4 examples of 10^4 activations each
    would otherwise lie in memory for every replica."""
    return jnp.mean(correct(jax.lax.map(network, validation.x, batch_size=500), validation.y))


def sample_accuracy(network: Any, task: OfflineParity) -> Float[Array, ""]:
    """Share of the first 1000 rows of the training sample (of all, where it has fewer) classified correctly."""
    rows = jnp.arange(1000)
    x, y, _ = task.rows(rows)
    return jnp.mean(correct(jax.lax.map(network, x, batch_size=500), y), where=rows < task.m)
