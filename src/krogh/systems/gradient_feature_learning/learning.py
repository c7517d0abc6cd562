"""One step on the first layer, then an exact head; random features of the same width; all seeds in one program."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from krogh.nn.fixed_features import ridge_head
from krogh.nn.mlp import TwoLayer
from krogh.nn.symmetric import SymmetricReLU, neurons, relu_network
from krogh.probes.basic import correct
from krogh.tasks.base import Batch, Task
from krogh.theory.gradient_features import rescaled, spread, symmetric_step

RIDGE = 1e-3


def hidden(network: TwoLayer) -> Callable[[Float[Array, "n d"]], Float[Array, "n width"]]:
    """The hidden layer on a batch."""
    return jax.vmap(network.hidden)


def one_step(init: SymmetricReLU, task: Task, key: Array, train: Batch) -> TwoLayer:
    """The symmetric network after its wiped first step, rescaled."""
    return rescaled(symmetric_step(init.build(task, key), train.x, train.y), train.x)


def random_features(key: Array, width: int, x: Float[Array, "n d"]) -> TwoLayer:
    """relu(<w, x> - b) with Gaussian w, scaled to unit spread on the sample, and b ~ N(0, 1)."""
    first, second = jr.split(key)
    weights = jr.normal(first, (x.shape[1], width))
    return relu_network(weights / spread(weights, x), jr.normal(second, (width,)))


def with_ridge_head(network: TwoLayer, train: Batch, relative: float = RIDGE) -> Callable[[Array], Array]:
    """x -> outputs of the least-squares head on the network's hidden layer."""
    head = ridge_head(hidden(network), train.x, train.y, relative)
    return lambda x: head(hidden(network)(x))


def test_accuracy(network: TwoLayer, train: Batch, test: Batch, relative: float = RIDGE) -> Float[Array, ""]:
    """Accuracy of the network with the least-squares head; not a number where its system could not be solved."""
    outputs = with_ridge_head(network, train, relative)(test.x)
    return jnp.where(jnp.isfinite(outputs).all(), jnp.mean(correct(outputs, test.y)), jnp.nan)


def hinge(network: Callable[[Array], Array], batch: Batch) -> Float[Array, ""]:
    """Mean hinge loss of a network on a batch."""
    return jnp.mean(jax.nn.relu(1 - batch.y * jax.vmap(network)(batch.x)))


def subnetwork(network: TwoLayer, kept: Array) -> TwoLayer:
    """The network with every other neuron silenced: a zero column with a zero bias, which a ridge head ignores."""
    w, b, a = neurons(network)
    return relu_network(w * kept, b * kept, a)


def xor_threshold(d: int, sigma: float, factor: float = 1.0, tau: float = 1.0) -> float:
    """b~ = c sqrt(tau d log log d) sigma_w sigma_B, sigma_w = 1 (000 Lemma B.37)."""
    return factor * math.sqrt(tau * d * math.log(math.log(d))) * sigma


def parity_threshold(d: int, r: int, k: int, factor: float = 1.0) -> float:
    """b~ = C_b sqrt(r k log d) sigma_w, sigma_w = 1 (000 Lemma B.47)."""
    return factor * math.sqrt(r * k * math.log(d))
