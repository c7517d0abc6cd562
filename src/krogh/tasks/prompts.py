"""Prompts: examples of a task with their answers, and a query without one."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def prompt(
    x: Float[Array, "*batch l dx"], y: Float[Array, "*batch l dy"], query: Float[Array, "*batch dx"]
) -> Float[Array, "*batch l1 dx_dy"]:
    """Rows (x_i, y_i) of the examples and (x_query, 0): [x_1 … x_l x_query; y_1 … y_l 0] transposed."""
    rows = jnp.concatenate([x, query[..., None, :]], axis=-2)
    answers = jnp.concatenate([y, jnp.zeros_like(y[..., :1, :])], axis=-2)
    return jnp.concatenate([rows, answers], axis=-1)


def orthonormal(key: PRNGKeyArray, count: int, dim: int) -> Float[Array, "{count} {dim}"]:
    """`count` orthonormal rows in R^dim, uniformly distributed."""
    gaussian = jax.random.normal(key, (dim, count))
    q, r = jnp.linalg.qr(gaussian)
    return (q * jnp.sign(jnp.diagonal(r))).T
