"""Activation functions, by name or made for a parity degree (003 §B.4.1)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from krogh.errors import InputError, nearest
from krogh.tasks.base import Task

Activation = Callable[[Array], Array]


def _named(function: Activation, name: str) -> Activation:
    function.__name__ = function.__qualname__ = name
    return function


def identity(z: Array) -> Array:
    """σ(z) = z."""
    return z


def square(z: Array) -> Array:
    """σ(z) = z²."""
    return z * z


@cache
def power(k: int) -> Activation:
    """σ(z) = z^k."""
    return _named(lambda z: z**k, f"power({k})")


@cache
def zigzag(k: int) -> Activation:
    """Piecewise linear through (k, +1), (k−2, −1), …, (−k, (−1)^k), the end pieces extended."""

    def function(z: Array) -> Array:
        wave = jnp.abs((z - k) % 4 - 2) - 1
        left = (-1) ** k * (1 - (z + k))
        return jnp.where(z > k - 2, z - (k - 1), jnp.where(z < 2 - k, left, wave))

    return _named(function, f"zigzag({k})")


@cache
def oscillating_polynomial(k: int) -> Activation:
    """The degree-k polynomial through (k−2j, (−1)^j), j = 0..k."""
    nodes = k - 2.0 * np.arange(k + 1)
    coefficients = np.linalg.solve(np.vander(nodes), (-1.0) ** np.arange(k + 1))
    coefficients[np.abs(coefficients) < 1e-12] = 0.0

    def function(z: Array) -> Array:
        return jnp.polyval(jnp.asarray(coefficients, z.dtype), z)

    return _named(function, f"oscillating_polynomial({k})")


@cache
def triangle_wave(k: int) -> Activation:
    """σ(z) = |((z−k) mod 4) − 2| − 1: the zigzag continued for ever."""
    return _named(lambda z: jnp.abs((z - k) % 4 - 2) - 1, f"triangle_wave({k})")


@cache
def sinusoid(k: int, scale: float = 1.0) -> Activation:
    """σ(z) = cos(π(s z − k)/2), s = `scale`."""
    return _named(lambda z: jnp.cos(math.pi / 2 * (scale * z - k)), f"sinusoid({k}, {scale})")


@dataclass(frozen=True)
class OfDegree:
    """An activation family whose degree is the task's parity degree k."""

    family: Callable[[int], Activation]

    def __call__(self, task: Task) -> Activation:
        return self.family(task.k)  # type: ignore[attr-defined]

    # Checkpoints are named by this text; a cached family would only show an address.
    def __repr__(self) -> str:
        return f"OfDegree({self.family.__name__})"


ACTIVATIONS: dict[str, Activation] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "square": square,
    "identity": identity,
}


def activation(choice: "str | Activation | OfDegree", task: Task) -> Activation:
    """The activation a setting stands for on `task`."""
    if isinstance(choice, OfDegree):
        return choice(task)
    if callable(choice):
        return choice
    if choice not in ACTIVATIONS:
        raise InputError(
            f"activation must be a function or one of {', '.join(ACTIVATIONS)}, got {choice!r}"
            f"{nearest(choice, ACTIVATIONS)}"
        )
    return ACTIVATIONS[choice]
