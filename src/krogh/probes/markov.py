"""Probes of networks that predict Markov chains in context: nearest strategy, attention scores, weights by lag."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from krogh.nn.decoder import Decoder
from krogh.probes.basic import probe
from krogh.tasks.base import Batch
from krogh.tasks.markov import MarkovChains, Prior, next_law
from krogh.theory.markov import divergence, gram


def last_log_probabilities(network: Any, x: Int[Array, "size t"]) -> Float[Array, "size k"]:
    """log softmax of the outputs at the last position, the only one that is computed where the network allows it."""
    if isinstance(network, Decoder):
        outputs = jax.vmap(dataclasses.replace(network, reads="last"))(x)
    else:
        outputs = jax.vmap(network)(x)[:, -1]
    return jax.nn.log_softmax(outputs)


def strategies(x: Int[Array, "size t"], k: int, n: int) -> Float[Array, "strategies size k"]:
    """Predictions of the strategies uniform, unigram, …, n-gram."""
    return jnp.stack([jax.vmap(lambda row, m=m: gram(row, k, m))(x) for m in range(n + 1)])


def divergences(n: int = 2) -> Callable:
    """A probe of KL(true ‖ model), KL(strategy ‖ model) and KL(true ‖ strategy), at the last position (003 §E.2)."""

    @probe(dims={"kl_to": ("strategy",), "level": ("strategy",)})
    def measured(network: Any, validation: Batch) -> dict[str, Array]:
        true, log_q = next_law(validation), last_log_probabilities(network, validation.x)
        plans = strategies(validation.x, true.shape[-1], n)
        return {
            "kl": divergence(true, log_q).mean(),
            "kl_to": divergence(plans, log_q).mean(axis=-1),
            "level": divergence(true, jnp.log(plans)).mean(axis=-1),
        }

    return measured


@dataclass(frozen=True)
class OnOtherChains:
    """KL(true ‖ model) and the uniform and unigram levels on chains of another prior, as `kl_<name>` and so on."""

    prior: Prior
    name: str
    size: int = 512

    def __call__(self, network: Any, task: MarkovChains, key: PRNGKeyArray) -> dict[str, Array]:
        other = dataclasses.replace(task, prior=self.prior).sample(key, self.size)
        true = next_law(other)
        plans = strategies(other.x, true.shape[-1], task.n)
        return {
            f"kl_{self.name}": divergence(true, last_log_probabilities(network, other.x)).mean(),
            f"level_{self.name}": divergence(true, jnp.log(plans)).mean(axis=-1),
        }

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        return {f"level_{self.name}": ("strategy",)}


@probe(dims={"by_lag": ("lag",)})
def induction_scores(network: Decoder, validation: Batch) -> dict[str, Array]:
    """What both layers of an induction head do, averaged over heads and 64 sequences (003 Figs 8.2, E.5).

    previous    layer 1: mean weight of the position before
    by_lag      layer 1: weights by lag 0, …, 7 as seen from the later half of the positions
    induction   layer 2: weight that the last position gives to followers of its own symbol
    baseline    share of such followers among all positions: what uniform attention would give
    """
    x = validation.x[:64]

    def one(x: Int[Array, " t"]) -> dict[str, Array]:
        first, second = (weights.mean(axis=0) for weights in network.attention(x)[:2])
        t = len(x)
        lag = jnp.stack([jnp.diagonal(first, -j)[t // 2 :].mean() for j in range(8)])
        follows = jnp.append(False, x[:-1] == x[-1])
        return {
            "previous": jnp.diagonal(first, -1).mean(),
            "by_lag": lag,
            "induction": jnp.sum(second[-1] * follows),
            "baseline": follows.mean(),
        }

    return {name: values.mean(axis=0) for name, values in jax.vmap(one)(x).items()}


@probe(dims=("place",), name="positional")
def positional_weights(network: Decoder) -> Float[Array, " 12"]:
    """Effective weights of layer 1 by place: v̂_j = mean over symbols of softmax_j(LN(e) Q r_jᵀ/√d), j = 1, …, 12."""
    block = network.blocks[0]
    attention = block.attention
    query = (
        jnp.einsum("se,eha->sha", block.normed(network.embedded()), attention.query) / attention.key.shape[-1] ** 0.5
    )
    scores = jnp.einsum("sha,lha->shl", query, attention.lags)
    return jax.nn.softmax(scores, axis=-1).mean(axis=(0, 1))[:12]


def even_odd(v: Any) -> Any:
    """mean(v_2, v_4, v_6) − mean(v_3, v_5, v_7) over the last axis, whose first entry is v_1."""
    return v[..., 1:6:2].mean(-1) - v[..., 2:7:2].mean(-1)
