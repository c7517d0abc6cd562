"""Composition in a finite group: the whole multiplication table is the data (003 §7.4, §7.6)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int, PRNGKeyArray

from krogh.errors import InputError, check_integer
from krogh.tasks.base import Batch, Task
from krogh.theory.groups import check_table


def _held(table: Any) -> Any:
    """A table as an array whose entries can be looked at, unless it is being traced."""
    return table if isinstance(table, Tracer) else np.asarray(table)


class GroupComposition(Task):
    """x = (a, b, …) uniform on G^k as element numbers, y = the number of the product a b ⋯ (k = `inputs`).

        GroupComposition(cyclic(5).table):  x = (3, 4)  →  y = 2

    `table[a, b]` is the number of ab; any finite group's table will do, from `krogh.theory.groups` or your own.
    """

    table: Int[Array, "elements elements"] | np.ndarray = eqx.field(converter=_held)
    inputs: int = eqx.field(static=True, default=2)

    def __check_init__(self):
        if isinstance(self.table, np.ndarray):
            check_table(self.table)
        check_integer("the number of inputs", self.inputs, least=1)

    @property
    def elements(self) -> int:
        """Number of group elements: of symbols per input, and of classes."""
        return self.table.shape[0]

    @property
    def k(self) -> int:
        """Degree of the activation that fits: the number of inputs."""
        return self.inputs

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.inputs,)

    @property
    def outputs(self) -> int:
        return self.elements

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        x = jax.random.randint(key, (size, self.inputs), 0, self.elements)
        table = jnp.asarray(self.table)
        y = x[:, 0]
        for j in range(1, self.inputs):
            y = table[y, x[:, j]]
        return Batch(x, y)

    def enumerate(self) -> Batch:
        """All of G^k, the last input fastest."""
        if self.elements**self.inputs > 2**24:
            raise InputError(f"{self.elements}^{self.inputs} inputs are too many to enumerate; draw a sample instead")
        axes = [jnp.arange(self.elements)] * self.inputs
        x = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.inputs)
        y = jnp.arange(self.elements)
        for _ in range(1, self.inputs):
            y = jnp.asarray(self.table)[y].reshape(-1)
        return Batch(x, y)
