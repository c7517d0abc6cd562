"""Networks on symbols: every input picks a row of its own table (003 §7.2)."""

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from krogh.nn.activations import Activation, OfDegree, activation, power
from krogh.nn.base import Architecture, width_of
from krogh.tasks.base import Task


class LookupNetwork(eqx.Module):
    """f(x) = Σ_i σ(Σ_j weights[j, x_j, i]) output[i]: one-hot inputs as rows of tables, no bias.

    For two inputs `weights[0]` and `weights[1]` hold u and v, one neuron per column, and `output` holds w, one
    neuron per row. Constructed networks hold NumPy arrays in double precision.
    """

    weights: Float[Array | np.ndarray, "inputs elements width"]
    output: Float[Array | np.ndarray, "width outputs"]
    activation: Activation = eqx.field(static=True)

    def hidden(self, x: Int[Array, " inputs"]) -> Float[Array, " width"]:
        """Activations of the hidden layer."""
        return self.activation(jnp.sum(self.weights[jnp.arange(len(x)), x], axis=0))

    def __call__(self, x: Int[Array, " inputs"]) -> Float[Array, " outputs"]:
        return self.hidden(x) @ self.output

    def on_domain(self) -> Float[Array | np.ndarray, "points outputs"]:
        """Outputs on all elements^inputs inputs, the last input fastest: sums of tables, nothing is looked up."""
        total = self.weights[0]
        for table in self.weights[1:]:
            total = (total[:, None, :] + table).reshape(-1, table.shape[1])
        return self.activation(total) @ self.output


class Lookup(Architecture):
    """A hidden layer of tables, one per input of the task; entries start as N(0, scale²/elements).

    The task has `elements` symbols per input and `in_shape == (inputs,)`; by default σ(z) = z^inputs (`task.k`).
    """

    width: int = eqx.field(static=True)
    activation: str | Activation | OfDegree = eqx.field(static=True, default=OfDegree(power))
    scale: float = 1.0

    def __check_init__(self):
        width_of(width=self.width)

    def build(self, task: Task, key: PRNGKeyArray) -> LookupNetwork:
        elements: int = task.elements  # type: ignore[attr-defined]
        table_key, output_key = jax.random.split(key)
        std = self.scale / math.sqrt(elements)
        return LookupNetwork(
            std * jax.random.normal(table_key, (*task.in_shape, elements, self.width)),
            std * jax.random.normal(output_key, (self.width, task.outputs)),
            activation(self.activation, task),
        )


@dataclass(frozen=True)
class Normal:
    """Initialiser for any layer: independent N(0, std²) whatever the fan."""

    std: float

    def __call__(self, key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int, fan_out: int) -> Array:
        return self.std * jax.random.normal(key, shape)


def neurons(network: Any) -> Float[Array, "width size"]:
    """ω_i: all weights into and out of each hidden neuron of a network with `weights` (…, width) and `output`."""
    width = network.weights.shape[-1]
    return jnp.concatenate([network.weights.reshape(-1, width).T, network.output.reshape(width, -1)], axis=1)
