"""Parities of r blocks of k bits on structured inputs (000 §3.4.2)."""

import math

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task


class BlockParity(Task):
    """y = sign(sum_j prod_{A_j} x), r and k odd, A_j = the j-th k coordinates, dictionary M = I (000 §3.4.2).

    With probability p_a each: block j all +1 (or all -1) and the other blocks 0; else x_A is uniform on {±1}^{rk}.
    Off A a coordinate is ±1 with probability p_o each, else 0. `replace(task, p_a=0.0)` is the uniform component.

        BlockParity(d=5, r=1, k=3):  x = (+1, -1, -1 | 0, +1)  →  y = +1
    """

    d: int = eqx.field(static=True)
    r: int = eqx.field(static=True, default=1)
    k: int = eqx.field(static=True, default=5)
    p_a: float | Array = 0.25
    p_o: float | Array = 0.5

    def __check_init__(self):
        if self.r % 2 == 0 or self.k % 2 == 0 or self.r * self.k > self.d:
            raise InputError(
                f"BlockParity needs odd r and k with r k <= d, got d={self.d!r}, r={self.r!r}, k={self.k!r}"
            )

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.d,)

    @property
    def directions(self) -> Float[Array, "r d"]:
        """D_j = sum_{A_j} e_l / sqrt(k)."""
        blocks = np.kron(np.eye(self.r), np.ones(self.k)) / math.sqrt(self.k)
        return jnp.asarray(np.pad(blocks, ((0, 0), (0, self.d - self.r * self.k))))

    def label(self, x: Float[Array, "size d"]) -> Float[Array, " size"]:
        blocks = x[:, : self.r * self.k].reshape(-1, self.r, self.k)
        return jnp.sign(jnp.prod(blocks, axis=2).sum(axis=1))

    def sample(self, key: Key[Array, ""], size: int) -> Batch:
        which, inside, outside = jr.split(key, 3)
        uniform = jr.uniform(which, (size,))
        # [0, 2 r p_a) is cut into 2 r cells of p_a: cell 2j is block j at +1, cell 2j + 1 at -1
        cell = jnp.floor(uniform / jnp.maximum(self.p_a, 1e-30)).astype(int)
        structured = uniform < 2 * self.r * self.p_a
        alone = jnp.where(cell % 2 == 0, 1.0, -1.0)[:, None] * (cell[:, None] // 2 == jnp.arange(self.r))
        blocks = jnp.repeat(alone, self.k, axis=1, total_repeat_length=self.r * self.k)
        free = jr.rademacher(inside, (size, self.r * self.k), float)
        rest = jr.uniform(outside, (size, self.d - self.r * self.k))
        background = jnp.where(rest < self.p_o, 1.0, jnp.where(rest < 2 * self.p_o, -1.0, 0.0))
        x = jnp.concatenate([jnp.where(structured[:, None], blocks, free), background], axis=1)
        return Batch(x, self.label(x), {"structured": structured})
