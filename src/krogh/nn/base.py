"""Architectures (settings) build networks (parameters); initialisation families; non-trained buffers."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from krogh.errors import InputError, nearest
from krogh.tasks.base import Task


class Architecture(eqx.Module):
    """Settings from which `build` makes a network once the task's shapes are known.

    The network is an Equinox module: `network(x)` takes one example and returns a real number
    (`task.outputs == 1`) or a vector of logits. One that must see whole batches in training (batch
    norm, dropout) also defines `batch(x, key) -> outputs, network with its buffers updated`.
    """

    @property
    def at_once(self) -> int | None:
        """How many replicas share a program where the caller does not say; None is as many as memory allows."""
        return None

    def build(self, task: Task, key: PRNGKeyArray) -> eqx.Module:
        raise NotImplementedError


class Buffer(eqx.Module):
    """A network's array that is never trained nor decayed: running statistics, fixed features."""

    value: Any


def trainable(network: eqx.Module) -> Any:
    """Filter tree: True on floating-point leaves outside `Buffer`s."""
    return jax.tree.map(
        lambda leaf: False if isinstance(leaf, Buffer) else eqx.is_inexact_array(leaf),
        network,
        is_leaf=lambda leaf: isinstance(leaf, Buffer),
    )


def uniform(key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int, fan_out: int) -> Array:
    """U[−c, c] with c = 1/√fan_in."""
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) / math.sqrt(fan_in)


def xavier(key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int, fan_out: int) -> Array:
    """U[−c, c] with c = √(6/(fan_in + fan_out))."""
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) * math.sqrt(6 / (fan_in + fan_out))


def gaussian(key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int, fan_out: int) -> Array:
    """N(0, 2/fan_in)."""
    return jax.random.normal(key, shape) * math.sqrt(2 / fan_in)


def bernoulli(key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int, fan_out: int) -> Array:
    """±c with c = 1/√fan_in."""
    return jax.random.rademacher(key, shape, dtype=jnp.zeros(()).dtype) / math.sqrt(fan_in)


INITS: dict[str, Callable[..., Array]] = {
    "uniform": uniform,
    "xavier": xavier,
    "gaussian": gaussian,
    "bernoulli": bernoulli,
}


def initialiser(init: str | Callable[..., Array]) -> Callable[..., Array]:
    """An initialisation family by name, or the function itself."""
    if callable(init):
        return init
    if init not in INITS:
        raise InputError(f"init must be one of {', '.join(INITS)}, got {init!r}{nearest(init, INITS)}")
    return INITS[init]


def width_of(**sizes: int) -> None:
    """Refuse sizes that are not whole numbers of at least one."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {size!r}")
