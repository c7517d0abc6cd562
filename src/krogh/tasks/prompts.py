"""Prompts: examples of a task with their answers, and a query without one."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray


def prompt(
    x: Float[Array, "*batch l dx"], y: Float[Array, "*batch l dy"], query: Float[Array, "*batch dx"]
) -> Float[Array, "*batch l1 dx_dy"]:
    """Rows (x_i, y_i) of the examples and (x_query, 0): [x_1 … x_l x_query; y_1 … y_l 0] transposed."""
    rows = jnp.concatenate([x, query[..., None, :]], axis=-2)
    answers = jnp.concatenate([y, jnp.zeros_like(y[..., :1, :])], axis=-2)
    return jnp.concatenate([rows, answers], axis=-1)


def orthonormal(key: PRNGKeyArray, count: int, dim: int) -> Float[Array, "{count} {dim}"]:
    """`count` orthonormal rows in R^dim, uniformly distributed."""
    return orthonormalised(jax.random.normal(key, (dim, count)).T)


def orthonormalised(rows: Float[Array, "count dim"]) -> Float[Array, "count dim"]:
    """Gram–Schmidt, twice for the sake of rounding.

    Products alone: many matrices at once on several CPU devices can make LAPACK's QR wait for ever.
    """

    def step(done: Array, numbered: tuple[Array, Array]) -> tuple[Array, None]:
        i, row = numbered
        row = row - (done @ row) @ done
        row = row / jnp.linalg.norm(row)
        row = row - (done @ row) @ done
        return done.at[i].set(row / jnp.linalg.norm(row)), None

    return jax.lax.scan(step, jnp.zeros_like(rows), (jnp.arange(len(rows)), rows))[0]


def step_columns(
    chains: Float[Array, "*batch l states d"], steps: Float[Array, "steps d"]
) -> Float[Array, "*batch columns width"]:
    """Rows (y_{i,k−1} + c_k, y_{i,k}) for the K steps of every example, one example after the other (004 (7.1)).

    `chains` holds y_{i,0} = x_i, …, y_{i,K}; `steps` holds c_1, …, c_K.
    """
    rows = jnp.concatenate([chains[..., :-1, :] + steps, chains[..., 1:, :]], axis=-1)
    return rows.reshape(*chains.shape[:-3], -1, rows.shape[-1])


def evenly(phase: Float[Array, "*batch"], share: Any, count: int) -> Bool[Array, "*batch {count}"]:
    """Which of `count` examples are chosen: of the first L, share·L rounded down or up; each with probability `share`.

    ⌊share (i + 1) + phase⌋ > ⌊share i + phase⌋, with a phase uniform in [0, 1).
    """
    reached = jnp.floor(share * jnp.arange(count + 1) + phase[..., None])
    return jnp.diff(reached, axis=-1) > 0
