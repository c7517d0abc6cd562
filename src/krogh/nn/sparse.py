"""Sparse first layers: s-hot rows in front of any network, the paired networks of the theory, and chosen tickets."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.errors import InputError
from krogh.nn.activations import ACTIVATIONS
from krogh.nn.base import Architecture
from krogh.nn.mlp import TwoLayer
from krogh.tasks.base import Task


def hot_rows(
    key: PRNGKeyArray, n: int, width: int, s: float | Array, first: np.ndarray | tuple[int, ...] = ()
) -> Float[Array, "n width"]:
    """A random s-hot vector for every neuron: 1 on a uniform s-subset of the n inputs, 0 elsewhere, stored (n, width).

    The inputs in `first` are taken before all others.
    """
    score = jr.uniform(key, (n, width))
    if len(first):
        score = score.at[jnp.asarray(first)].add(-1.0)
    return (jnp.argsort(jnp.argsort(score, axis=0), axis=0) < s).astype(jnp.zeros(()).dtype)


class SparseRows(Architecture):
    """`architecture` with the first layer replaced by s-hot rows, everything else as it was (003 §C.3.1).

    s = 0 leaves the first layer dense. s is a number, so that dense and sparse networks share one program and, at
    equal seeds, all other parameters.
    """

    architecture: Any
    s: float | Array = 2.0

    def build(self, task: Task, key: PRNGKeyArray) -> eqx.Module:
        network = self.architecture.build(task, key)
        layered = isinstance(network.weights, tuple)
        dense = network.weights[0] if layered else network.weights
        # The next free number: the architectures count their layers' keys up from 0.
        n, width = dense.shape
        hot = hot_rows(jr.fold_in(key, 2**16), n, width, self.s)
        where = (lambda net: net.weights[0]) if layered else (lambda net: net.weights)
        return eqx.tree_at(where, network, jnp.where(self.s > 0, hot, dense))


class PairedTickets(Architecture):
    """f = sum_i u_i relu(w_i.x + b_i) + c with s-hot w_i, b_i uniform over `biases`, u_i = ±1, and every neuron twice
    with opposite u, so that f = 0 (003 §C.2.2; with `background` = eps in place of the zeros §C.2.3).

    `good` draws only neurons whose support contains the task's.
    """

    width: int = eqx.field(static=True)
    s: float | Array
    biases: tuple[float, ...] = eqx.field(static=True)
    background: float = 0.0
    good: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if self.width % 2:
            raise InputError(f"PairedTickets needs an even width, got {self.width}")

    def build(self, task: Any, key: PRNGKeyArray) -> TwoLayer:
        half, (n,) = self.width // 2, task.in_shape
        w_key, b_key, u_key = jr.split(key, 3)
        hot = hot_rows(w_key, n, half, self.s, task.support if self.good else ())
        w = hot + self.background * (1 - hot)
        b = jr.choice(b_key, jnp.asarray(self.biases, w.dtype), (half,))
        return paired(w, b, jr.rademacher(u_key, (half,), w.dtype))


def paired(w: Float[Array, "n half"], b: Float[Array, " half"], u: Float[Array, " half"]) -> TwoLayer:
    """The ReLU network of these neurons and of their copies with -u, which together give f = 0."""
    return TwoLayer(
        weights=jnp.concatenate([w, w], axis=1),
        bias=jnp.concatenate([b, b]),
        output=jnp.concatenate([u, -u]),
        output_bias=jnp.zeros((), w.dtype),
        activation=ACTIVATIONS["relu"],
    )


class Ticket(Architecture):
    """One of several given networks: number `ticket` of `networks`, whose arrays carry a leading axis."""

    networks: Any
    ticket: float | Array = 0.0

    def build(self, task: Task, key: PRNGKeyArray) -> eqx.Module:
        arrays, rest = eqx.partition(self.networks, lambda leaf: isinstance(leaf, jax.Array | np.ndarray))
        which = jnp.asarray(self.ticket).astype(jnp.int32)
        return eqx.combine(jax.tree.map(lambda a: jnp.asarray(a)[which], arrays), rest)


def keep_neurons(network: TwoLayer, neurons: np.ndarray) -> TwoLayer:
    """The subnetworks of these neurons; `network` and `neurons` carry a leading replica axis."""

    def pick(array: Any) -> np.ndarray:
        index = neurons[:, None, :] if array.ndim == 3 else neurons
        return np.take_along_axis(np.asarray(array), index, axis=-1)

    parts = pick(network.weights), pick(network.bias), pick(network.output)
    return eqx.tree_at(lambda net: (net.weights, net.bias, net.output), network, parts)
