"""Probes for learning from a fixed sample of a parity."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from krogh.probes.basic import correct
from krogh.tasks.offline import OfflineParity


def sample_accuracy(network: Any, task: OfflineParity) -> Float[Array, ""]:
    """Share of the first 1000 rows of the training sample (of all, where it has fewer) classified correctly."""
    rows = jnp.arange(1000)
    x, y, _ = task.rows(rows)
    return jnp.mean(correct(jax.lax.map(network, x, batch_size=500), y), where=rows < task.m)
