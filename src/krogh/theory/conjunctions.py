"""What a learner of sparse conjunctions needs, and linear rivals of the transformer (003 §4.6)."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from krogh.tasks.sparse_boolean import balanced_bias


def near_misses(n: int, s: int, m: float, bias: float | None = None) -> float:
    """Expected wrong conjunctions sharing s − 1 positions with the right one that agree with m examples.

    s(n − s) of them, each disagreeing with an example with probability 2 p^s (1 − p): 1 − p for balanced labels.
    """
    p = balanced_bias(s) if bias is None else bias
    return s * (n - s) * (1 - 2 * p**s * (1 - p)) ** m


def identifying_samples(n: int, s: int = 3, expected: float = 0.1) -> float:
    """m_id = ln(s(n − s)/expected)/(−ln p): `expected` near misses of a balanced conjunction are left."""
    return math.log(s * (n - s) / expected) / -math.log(balanced_bias(s))


def ridge(
    x: Float[Array, "m n"], y: Float[Array, " m"], penalties: Float[Array, " penalties"]
) -> tuple[Float[Array, "penalties n"], Float[Array, " penalties"]]:
    """Least squares of y = ±1 on centred bits with λ‖w‖², for each λ: weights and intercept."""
    mean, level = x.mean(axis=0), y.mean()
    centred = x - mean
    values, vectors = jnp.linalg.eigh(centred @ centred.T)
    dual = ((y - level) @ vectors) / (jnp.maximum(values, 0) + penalties[:, None])
    weights = dual @ vectors.T @ centred
    return weights, level - weights @ mean


@partial(jax.jit, static_argnames="steps")
def sparse_logistic(
    x: Float[Array, "m n"], y: Float[Array, " m"], penalties: Float[Array, " penalties"], steps: int = 2000
) -> tuple[Float[Array, "penalties n"], Float[Array, " penalties"]]:
    """argmin mean log(1 + e^{−y f}) + λ‖w‖₁, intercept free, for each λ, by accelerated proximal gradient steps."""
    features = jnp.concatenate([x - x.mean(axis=0), jnp.ones((len(x), 1))], axis=1)
    rate = 4 * len(x) / jnp.linalg.norm(features, 2) ** 2
    shrink = rate * penalties[:, None] * jnp.append(jnp.ones(x.shape[1]), 0.0)

    def step(carry: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], None]:
        w, before = carry
        ahead = w + t / (t + 3) * (w - before)
        gradient = -(y * jax.nn.sigmoid(-y * (ahead @ features.T))) @ features / len(x)
        moved = ahead - rate * gradient
        return (jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - shrink, 0), w), None

    start = jnp.zeros((len(penalties), features.shape[1]))
    weights = lax.scan(step, (start, start), jnp.arange(steps))[0][0]
    return weights[:, :-1], weights[:, -1] - weights[:, :-1] @ x.mean(axis=0)
