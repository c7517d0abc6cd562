"""Losses of one example: (output, label) → real."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from krogh.errors import InputError, nearest

Loss = Callable[[Array, Array], Float[Array, ""]]


def hinge(output: Array, y: Array) -> Float[Array, ""]:
    """max(0, 1 − y f)."""
    return jax.nn.relu(1 - y * output)


def square(output: Array, y: Array) -> Float[Array, ""]:
    """(y − f)²."""
    return (y - output) ** 2


def logistic(output: Array, y: Array) -> Float[Array, ""]:
    """log(1 + exp(−y f))."""
    return jax.nn.softplus(-y * output)


def correlation(output: Array, y: Array) -> Float[Array, ""]:
    """−y f."""
    return -y * output


def cross_entropy(output: Float[Array, " classes"], y: Array) -> Float[Array, ""]:
    """−log softmax(f)_y for a class index y."""
    if output.ndim == 0:
        raise InputError("cross_entropy needs an output for every class; this network has a single one")
    return -jax.nn.log_softmax(output)[y.astype(jnp.int32)]


def mean_cross_entropy(outputs: Float[Array, "*positions classes"], y: Array) -> Float[Array, ""]:
    """Mean of −log softmax(f)_y over a batch or over the positions of a sequence, on which it serves as a loss.

    Labels are one-hot factors, so that the gradient needs no scatter.
    """
    chosen = jnp.sum(outputs * jax.nn.one_hot(y, outputs.shape[-1], dtype=outputs.dtype), axis=-1)
    return jnp.mean(jax.nn.logsumexp(outputs, axis=-1) - chosen)


LOSSES: dict[str, Loss] = {
    "hinge": hinge,
    "square": square,
    "logistic": logistic,
    "correlation": correlation,
    "cross_entropy": cross_entropy,
}


def loss_function(choice: str | Loss) -> Loss:
    """A loss by name, or the function itself."""
    if callable(choice):
        return choice
    if choice not in LOSSES:
        raise InputError(
            f"loss must be a function or one of {', '.join(LOSSES)}, got {choice!r}{nearest(choice, LOSSES)}"
        )
    return LOSSES[choice]
