"""Measurements on trained networks, all replicas of a run in one compiled program."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray


def over_networks(networks: Any, measure: Callable[[Any, PRNGKeyArray], Any], seed: int = 0) -> Any:
    """`measure(network, key)` of every network of a run, each with a key of its own; the replica axis comes first.

    Networks follow each other: the memory they need is that of one.
    """
    arrays, rest = eqx.partition(networks, lambda leaf: isinstance(leaf, np.ndarray | jax.Array))
    arrays = jax.tree.map(jnp.asarray, arrays)
    keys = jax.random.split(jax.random.key(seed), len(jax.tree.leaves(arrays)[0]))

    def one(row: tuple[Any, PRNGKeyArray]) -> Any:
        return measure(eqx.combine(row[0], rest), row[1])

    return jax.device_get(jax.jit(lambda a, k: jax.lax.map(one, (a, k)))(arrays, keys))
