"""Two-layer ReLU networks that start as the zero function in four symmetric copies (000 eq. 3.9)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key

from krogh.nn.base import Architecture, width_of
from krogh.nn.mlp import TwoLayer
from krogh.tasks.base import Task


def relu_network(
    weights: Float[Array, "d width"], threshold: Float[Array, " width"], output: Float[Array, " width"] | None = None
) -> TwoLayer:
    """g(x) = sum_i a_i relu(<w_i, x> - b_i); a = 0 unless given (000 eq. 3.1, where the bias is subtracted)."""
    head = jnp.zeros_like(threshold) if output is None else output
    return TwoLayer(weights, -threshold, head, None, jax.nn.relu)


class Neurons(NamedTuple):
    weights: Float[Array, "d width"]
    threshold: Float[Array, " width"]
    output: Float[Array, " width"]


def neurons(network: TwoLayer) -> Neurons:
    """w_i, b_i (subtracted) and a_i of a ReLU network with bias and head."""
    assert network.bias is not None and network.output is not None
    return Neurons(network.weights, -network.bias, network.output)


class SymmetricReLU(Architecture):
    """4m neurons: (a, w, b) with a ~ N(0, sigma_a^2), w ~ N(0, sigma_w^2 I) (or ±sigma_w signs) and b = threshold > 0;
    then (-a, -w, -b), (-a, w, b), (a, -w, -b): the output is 0 (000 eq. 3.9).

    Biases are never trained there: name `trains=("weights", "output")` in every stage.
    """

    m: int = eqx.field(static=True)
    threshold: float | Array = 1.0
    sigma_w: float | Array = 1.0
    sigma_a: float | Array = 1.0
    signs: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        width_of(m=self.m)

    def build(self, task: Task, key: Key[Array, ""]) -> TwoLayer:
        first, second = jr.split(key)
        draw = jr.rademacher if self.signs else jr.normal
        w = self.sigma_w * draw(first, (*task.in_shape, self.m), dtype=jnp.zeros(()).dtype)
        a = self.sigma_a * jr.normal(second, (self.m,))
        b = jnp.full(self.m, self.threshold)
        return relu_network(
            jnp.concatenate([w, -w, w, -w], axis=1), jnp.concatenate([b, -b, b, -b]), jnp.concatenate([a, -a, -a, a])
        )
