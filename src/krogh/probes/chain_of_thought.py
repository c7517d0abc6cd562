"""Chain-of-thought and in-context inference by a trained head, and where it looks (004 §7.2.3, §7.2.4, §7.4)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from krogh.nn.attention import softmax_weights
from krogh.nn.query_attention import QueryReader
from krogh.probes.basic import probe
from krogh.tasks.base import Batch
from krogh.tasks.chain_of_thought import ErroneousChains
from krogh.theory.reasoning_chains import votes

KINDS = ("same pattern, same step", "same pattern, other step", "other pattern, same step", "other pattern, other step")


def kinds_of(pattern: Bool[Array, "*batch n"], step: Bool[Array, "*batch n"]) -> Float[Array, "*batch n 4"]:
    """Indicators of `KINDS`, from which columns share the query's pattern and its step."""
    both = [a & b for a in (pattern, ~pattern) for b in (step, ~step)]
    return jnp.stack(both, axis=-1).astype(jnp.float32)


def reason(
    network: QueryReader,
    task: ErroneousChains,
    columns: Float[Array, "n width"],
    states: Int[Array, " n"],
    used: Bool[Array, " n"],
    start: Int[Array, ""],
) -> tuple[Int[Array, " steps"], Float[Array, "steps kinds"]]:
    """K greedy decodes (7.5)–(7.6): the answers, and every step's attention on the four kinds of examples' columns.

    After step k the query's last column (v_{k−1}, 0) becomes (v_{k−1}, v_k) and (v_k, 0) is appended. Patterns have
    equal norms, so that the nearest one to F is that with the largest product. `states` are the indices of the columns'
    inputs.
    """
    (n, width), K = columns.shape, len(task.steps)
    d = width // 2
    codes = columns[:, d:] @ task.patterns.T

    def step(carry: tuple[Array, Array], k: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        state, own = carry
        upper = task.patterns[state] + task.steps[k]
        query = jnp.pad(upper, (0, d))
        scores = jnp.concatenate([network.scores(columns, query), network.scores(own, query)])
        seen = jnp.concatenate([used, jnp.arange(K) < k])
        weights = softmax_weights(scores[None], seen[None])[0]
        heard = weights[:n] @ codes + weights[n:] @ (own[:, d:] @ task.patterns.T)
        answer = jnp.argmax(heard)
        own = own.at[k].set(jnp.concatenate([upper, task.patterns[answer]]))
        return (answer, own), (answer, weights[:n] @ kinds_of(states == state, jnp.arange(n) % K == k))

    return jax.lax.scan(step, (start, jnp.zeros((K, width))), jnp.arange(K))[1]


def infer(
    network: QueryReader, task: ErroneousChains, key: PRNGKeyArray, size: int, lengths: Sequence[int]
) -> dict[str, Float[Array, "..."]]:
    """Errors on `size` fresh queries with the first L of their examples, for every L in `lengths`:

    cot (L, K)   Pr[v_k ≠ z_k] of every step; (7.7) is their mean        icl (L,)   Pr[v ≠ z_K] (7.9)
    cot_vote, icl_vote   the same for perfect attention on the same examples
    attention (L, K, 4)   every step's weights on the four kinds of columns; the first is S_k* (7.23)
    """
    sample_key, *tie_keys = jax.random.split(key, 3)
    chains, answers, latents = task.sample(sample_key, size)
    M, K = len(task.patterns), len(task.steps)
    ends = latents["states"][..., np.array([0, K])]  # type: ignore[index]

    def one(chain: Array, z: Array, states: Array, end: Array, *ties: PRNGKeyArray) -> dict[str, Array]:
        columns, pairs = task.columns(chain), task.pairs(chain)
        query = jnp.pad(task.patterns[z[0]] + task.steps[0], (0, pairs.shape[1] // 2))
        pair_scores = network.scores(pairs, query)
        codes = pairs[:, pairs.shape[1] // 2 :] @ task.patterns.T

        def at(length: Array) -> dict[str, Array]:
            used = jnp.arange(task.examples) < length
            seen = jnp.repeat(used, K)
            v, attention = reason(network, task, columns, states[:, :-1].ravel(), seen, z[0])
            last = jnp.argmax(softmax_weights(pair_scores[None], seen[None])[0] @ codes)
            return {
                "cot": v != z[1:],
                "icl": last != z[-1],
                "cot_vote": votes(ties[0], states, z[0], used, M) != z[1:],
                "icl_vote": votes(ties[1], end, z[0], used, M)[0] != z[-1],
                "attention": attention,
            }

        return jax.vmap(at)(jnp.asarray(lengths))

    each = jax.vmap(one)(
        chains,
        answers,
        latents["states"],  # type: ignore[index]
        ends,
        *(jax.random.split(tie, size) for tie in tie_keys),  # type: ignore[index]
    )
    return {name: jnp.mean(values, axis=0, dtype=jnp.float32) for name, values in each.items()}


@probe(dims={"attention": ("head", "kind")})
def attention_classes(network: Any, validation: Batch) -> dict[str, Float[Array, "heads 4"]]:
    """Mean attention of the query on the columns before it, by `KINDS`; one row per head, layer after layer. A query
    that sees itself keeps the rest."""
    latents: Any = validation.latents
    kinds = kinds_of(*((latents[name] == latents[name][:, -1:])[:, :-1] for name in ("pattern", "step")))

    def look(x: Array) -> Array:
        maps = network.attention(x)
        if isinstance(maps, list):
            return jnp.concatenate([layer[:, -1, :-1] for layer in maps])
        return maps[None]

    return {"attention": jnp.mean(jnp.einsum("bhn,bnk->bhk", jax.vmap(look)(validation.x), kinds), axis=0)}
