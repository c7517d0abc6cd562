"""The same measurement for many seeds where nothing is trained step by step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def over_seeds(measure: Callable[..., Any], seeds: int, *columns: Any, double: bool = False) -> Any:
    """`measure(key, *row)` for every seed and every row of the columns in one compiled program; `double` for float64.

    The leaves get the axes (row, seed), or (seed,) without columns. Seeds follow each other: the memory they need is
    that of one data set.
    """
    with jax.enable_x64(double):
        rows = len(columns[0]) if columns else 1
        keys = jax.vmap(jax.random.key)(jnp.tile(jnp.arange(seeds), rows))
        grid = [jnp.repeat(jnp.asarray(column, float), seeds) for column in columns]
        run = jax.jit(lambda *rows: jax.lax.map(lambda row: measure(*row), rows))
        shape = (rows, seeds) if columns else (seeds,)
        return jax.tree.map(lambda a: np.asarray(a).reshape(*shape, *a.shape[1:]), run(keys, *grid))
