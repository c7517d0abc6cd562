"""The same measurement for many seeds where nothing is trained step by step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from krogh.train.checkpoint import Checkpoint, current_workspace
from krogh.train.spec import digest

# How often progress is told, and what is finished is kept for a run that goes on after an interrupt.
PORTIONS = 20


def over_seeds(measure: Callable[..., Any], seeds: int, *columns: Any, double: bool = False) -> Any:
    """`measure(key, *row)` for every seed and every row of the columns in one compiled program; `double` for float64.

    The leaves get the axes (row, seed), or (seed,) without columns. Seeds follow each other: the memory they need is
    that of one data set.
    """
    with jax.enable_x64(double):
        rows = len(columns[0]) if columns else 1
        total = rows * seeds
        size = -(-total // PORTIONS)
        keys = jax.vmap(jax.random.key)(jnp.tile(jnp.arange(seeds), rows))
        grid = [keys, *(jnp.repeat(jnp.asarray(column, float), seeds) for column in columns)]
        run = jax.jit(lambda *rows: jax.lax.map(lambda row: measure(*row), rows))
        checkpoint = Checkpoint(digest(measure, seeds, columns, double))
        found = checkpoint.load() or []
        for start in range(len(found) * size, total, size):
            # The last portion is filled up: all are one program.
            places = np.arange(start, start + size) % total
            found.append(jax.tree.map(np.asarray, run(*(column[places] for column in grid))))
            if checkpoint.due():
                checkpoint.save(found)
            current_workspace().tell("measuring", min(start + size, total), total)
        shape = (rows, seeds) if columns else (seeds,)

        def joined(*parts: np.ndarray) -> np.ndarray:
            return np.concatenate(parts)[:total].reshape(*shape, *parts[0].shape[1:])

        return jax.tree.map(joined, *found)
