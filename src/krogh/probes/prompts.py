"""What a one-layer Transformer does with prompts of patterns: attention, projections, neurons, pruning (004 §6.4)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from krogh.tasks.base import Batch
from krogh.tasks.pattern_prompts import PatternPrompts, same_pattern

PRUNING_ORDERS = ("smallest", "random", "largest")


def errors(outputs: Float[Array, "*cases size"], z: Float[Array, " size"]) -> dict[str, Float[Array, "*cases"]]:
    """Classification error Pr[z F < 0] (004 §6.5), where F = 0, a silent network's answer, is half an error, as a
    coin's; and mean hinge loss."""
    margin = z * outputs
    wrong = (margin < 0) + 0.5 * (margin == 0)
    return {"error": jnp.mean(wrong, axis=-1), "hinge": jnp.mean(jax.nn.relu(1 - margin), axis=-1)}


def attention_mass(network: Any, batch: Batch) -> Float[Array, " heads"]:
    """Mean over prompts of the attention on examples with the query's pattern (004 Cor. 6.4.3)."""
    weights = jax.vmap(network.attention)(batch.x)[..., :-1]
    return jnp.mean(jnp.sum(weights * same_pattern(batch)[:, None], axis=-1), axis=0)


def pattern_projections(network: Any, task: PatternPrompts, batch: Batch) -> dict[str, Float[Array, ""]]:
    """Mean ‖W p‖ and mean |⟨μ, W p⟩| along the unit pattern μ of p, for W_Q on queries and W_K on examples
    (004 Prop. 6.4.1, Fig 6.2a); of the first head."""
    latents: dict[str, Array] = batch.latents or {}
    found = {}
    for name, matrix, rows, pattern in (
        ("query", network.query, batch.x[:, -1], latents["query_pattern"]),
        ("key", network.key, batch.x[:, :-1], latents["pattern"]),
    ):
        image = rows @ matrix[:, 0]
        along = jnp.sum(image[..., : task.features] * task.relevant[pattern], axis=-1)
        found[f"{name}_norm"] = jnp.mean(jnp.linalg.norm(image, axis=-1))
        found[f"{name}_along"] = jnp.mean(jnp.abs(along))
    return found


def neuron_alignment(network: Any, task: PatternPrompts) -> dict[str, Float[Array, " m"]]:
    """Of r_i, row i of W_O W_V: its norm, those of its feature and label parts, and their cosines with the mean
    relevant pattern and with sign(a_i) q (004 Prop. 6.4.5)."""
    rows = network.neurons()
    feature, label = rows[:, : task.features], rows[:, task.features :]
    signed = jnp.sign(network.output.value)[:, None] * task.label
    sizes = {"feature_norm": jnp.linalg.norm(feature, axis=1), "label_norm": jnp.linalg.norm(label, axis=1)}
    mean = task.mean_pattern / jnp.linalg.norm(task.mean_pattern)
    return {
        "norm": jnp.linalg.norm(rows, axis=1),
        **sizes,
        "feature_cosine": feature @ mean / sizes["feature_norm"],
        "label_cosine": jnp.sum(label * signed, axis=1) / sizes["label_norm"] / jnp.linalg.norm(task.label),
    }


def kept_neurons(
    sizes: Float[Array, " m"], fractions: Sequence[float], key: PRNGKeyArray
) -> Bool[Array, "orders fractions m"]:
    """Which neurons stay when a fraction of them is deleted, the smallest first, in random order, the largest first."""
    m = len(sizes)
    rank = jnp.argsort(jnp.argsort(sizes))
    order = jnp.stack([rank, jax.random.permutation(key, m), m - 1 - rank])
    return order[:, None] >= jnp.round(jnp.asarray(fractions) * m)[:, None]


def pruned_outputs(
    network: Any, x: Float[Array, "size l1 d"], kept: Bool[Array, "*cases m"]
) -> Float[Array, "*cases size"]:
    """Outputs of the network without the rows of W_O that are not kept; of all cases from one pass (004 §6.2.4)."""
    return (network.output.value * kept) @ jax.vmap(network.activations)(x).T


def outputs_by_length(
    network: Any, x: Float[Array, "size l1 d"], lengths: Sequence[int]
) -> Float[Array, "lengths size"]:
    """Outputs when the query sees only the first l examples, for every l of `lengths`."""
    visible = jnp.arange(x.shape[1]) < jnp.asarray(lengths)[:, None]
    return jax.vmap(lambda seen: jax.vmap(lambda row: network(row, seen))(x))(visible)


def lucky_neurons(network: Any, task: PatternPrompts, x: Float[Array, "size l1 d"]) -> Bool[Array, "size m"]:
    """Neurons whose feature part and label part both have a positive product with that of V = Σ_i W_V p_i s_i
    (004 (E.31), (E.32), for either sign of a_i)."""
    d = task.features
    mixed = jax.vmap(network.mixed)(x)
    return (mixed[:, :d] @ network.hidden[:d] > 0) & (mixed[:, d:] @ network.hidden[d:] > 0)
