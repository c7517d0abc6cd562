"""Probes of the Fourier gap: what the correlation gradient of the first layer says about the relevant coordinates."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task
from krogh.theory.fourier_gap import fourier_gap_sinusoid


def correlation_gradient(network: Any, batch: Batch) -> Float[Array, "n width"]:
    """g = E[y x σ'(w·x + b)] of every first-layer neuron, as a mean over `batch` (003 §B.3.1)."""
    if not hasattr(network, "activation") or getattr(network.weights, "ndim", 0) != 2:
        raise InputError(f"the Fourier gap is that of a two-layer network's neurons, not of {type(network).__name__}")
    z = batch.x @ network.weights
    z = z if network.bias is None else z + network.bias
    _, slope = jax.jvp(network.activation, (z,), (jnp.ones_like(z),))
    return (batch.x * batch.y[:, None]).T @ slope / len(batch.y)


def fourier_gap(network: Any, task: Task, validation: Batch) -> Float[Array, ""]:
    """Mean over neurons of Γ = max_{i∈S} |g_i| − max_{i∉S} |g_i|, g = E[y x σ'(w·x + b)] (003 §B.3.1).

    Exact with `validation="all"`. A sample of m examples adds noise of order 1/√m to every g_i, and the maximum
    over the many irrelevant ones then biases Γ down by about √(2 ln n / m).
    """
    size = jnp.abs(correlation_gradient(network, validation))
    support = task.support  # type: ignore[attr-defined]
    inside = jnp.max(size[support], axis=0)
    outside = jnp.max(size.at[support].set(0.0), axis=0)
    return jnp.mean(inside - outside)


def fourier_gap_exact(network: Any, task: Task) -> Float[Array, ""]:
    """Mean over neurons of the exact Γ at any n, for the parity sinusoid σ(z) = cos(π(z − k)/2) (003 §B.3.1)."""
    k = len(task.support)  # type: ignore[attr-defined]
    return jnp.mean(fourier_gap_sinusoid(network.weights.T, network.bias, k))
