"""How close a network's neurons are to the effective feature of a pattern dictionary (000 §2.6, A.7)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from krogh.tasks.base import Batch


def feature_cosines(network: Any, task: Any, off_span: Float[Array, " width"] | float = 0.0) -> Float[Array, " width"]:
    """cos(w_i, sum_A M_j) of every neuron; `off_span` adds the squared norm that reduced coordinates leave out."""
    feature = task.feature / jnp.linalg.norm(task.feature)
    norm = jnp.sqrt(jnp.sum(network.weights**2, axis=0) + off_span)
    return feature @ network.weights / jnp.where(norm > 0, norm, 1.0)


class PatternComponents(NamedTuple):
    """T_j = <M_j, -dL/dw_i> / a_i split: mean over A, root mean square outside A, and their ratio, per neuron."""

    signal: Float[Array, " width"]
    noise: Float[Array, " width"]

    @property
    def ratio(self) -> Float[Array, " width"]:
        return self.noise / jnp.where(self.signal == 0, jnp.nan, jnp.abs(self.signal))


def pattern_components(
    gradient: Float[Array, "d width"], output: Float[Array, " width"], task: Any
) -> PatternComponents:
    """The T_j of Lemma 2.6 from a first-layer gradient and the output weights it was taken at."""
    T = task.project(-gradient) / output
    return PatternComponents(jnp.mean(T[: task.k], axis=0), jnp.sqrt(jnp.mean(T[task.k :] ** 2, axis=0)))


def unmet_margin(network: Any, validation: Batch) -> Float[Array, ""]:
    """Share of examples with y g(x) <= 1, on which the hinge loss still has a gradient."""
    return jnp.mean(validation.y * (network.hidden(validation.x) @ network.output) <= 1)


def centre_coverage(network: Any, task: Any) -> Float[Array, " clusters"]:
    """max_i cos(w_i, c) for every cluster centre c."""
    centres = task.centres / jnp.linalg.norm(task.centres, axis=1, keepdims=True)
    return jnp.max(centres @ (network.weights / jnp.linalg.norm(network.weights, axis=0)), axis=1)
