"""Probes of what a network does and how far it has moved; and how to make a probe."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from krogh.tasks.base import Batch


def probe(dims: tuple[str, ...] | dict[str, tuple[str, ...]] = (), name: str | None = None) -> Callable:
    """Name the axes of what a probe returns (per record, where it returns several), and the probe itself."""

    def decorate(function: Callable) -> Callable:
        function.dims = dims  # type: ignore[attr-defined]
        if name is not None:
            function.name = name  # type: ignore[attr-defined]
        return function

    return decorate


def outputs_on(network: Any, x: Array) -> Array:
    """The network's outputs on a batch of inputs."""
    return jax.vmap(network)(x)


def correct(outputs: Array, y: Array) -> Array:
    """Which predictions are right: the sign (of 0: +1) for one real output, the largest logit otherwise."""
    if outputs.ndim == 1:
        return jnp.where(outputs >= 0, 1.0, -1.0) == y
    return jnp.argmax(outputs, axis=-1) == y


def accuracy(network: Any, validation: Batch) -> Float[Array, ""]:
    """Share of the validation examples that are classified correctly; noisy tasks are judged on clean labels."""
    y = (validation.latents or {}).get("clean", validation.y)
    return jnp.mean(correct(outputs_on(network, validation.x), y))  # type: ignore[arg-type]


@probe(name="accuracy")
def accuracy_in_parts(network: Any, validation: Batch) -> Float[Array, ""]:
    """`accuracy`, 500 examples at a time: 10^4 examples of 10^4 activations each would otherwise lie in memory for
    every replica."""
    y = (validation.latents or {}).get("clean", validation.y)
    return jnp.mean(correct(jax.lax.map(network, validation.x, batch_size=500), y))  # type: ignore[arg-type]


def train_accuracy(network: Any, sample: Batch) -> Float[Array, ""]:
    """Share of the training sample that is classified correctly."""
    return jnp.mean(correct(outputs_on(network, sample.x), sample.y))


def hinge_error(network: Any, validation: Batch) -> Float[Array, ""]:
    """Mean hinge loss on the validation examples."""
    return jnp.mean(jax.nn.relu(1 - validation.y * outputs_on(network, validation.x)))


def parameter_norm(network: Any) -> Float[Array, ""]:
    """Euclidean norm of all parameters."""
    leaves = jax.tree.leaves(eqx.filter(network, eqx.is_inexact_array))
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves))
