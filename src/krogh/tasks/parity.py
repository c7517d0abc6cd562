"""Sparse parities: the XOR of k hidden bits out of n (003 §5.2)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task
from krogh.theory.boolean import cube


def sign_words(key: PRNGKeyArray, size: int, n: int) -> UInt32[Array, "rows words"]:
    """Random words holding `size × n` fair bits, packed along whichever axis wastes fewer of them."""
    along_examples = -(-size // 32) * n <= size * -(-n // 32)
    shape = (-(-size // 32), n) if along_examples else (size, -(-n // 32))
    return jax.random.bits(key, shape, jnp.uint32)


def signs(words: UInt32[Array, "rows words"], size: int, n: int) -> Float[Array, "size n"]:
    """Words from `sign_words` as ±1: each bit becomes the sign bit of a float one."""
    shifts = jnp.arange(31, -1, -1, dtype=jnp.uint32)
    if words.shape == (-(-size // 32), n):
        spread = words[:, None, :] << shifts[:, None]
    else:
        spread = words[:, :, None] << shifts
    bits = (spread & jnp.uint32(0x80000000)) | jnp.uint32(0x3F800000)
    values = jax.lax.bitcast_convert_type(bits, jnp.float32)
    if words.shape == (-(-size // 32), n):
        return values.reshape(-1, n)[:size]
    return values.reshape(size, -1)[:, :n]


class SparseParity(Task):
    """x uniform on {±1}^n, y = ∏_{i<k} x_i: the hidden set is the first k coordinates without loss of
    generality, because every network here treats coordinates alike (003 §B.1).

        SparseParity(n=5, k=2):  x = (+1, −1, +1, +1, −1)  →  y = −1
    """

    n: int = eqx.field(static=True)
    k: int = eqx.field(static=True)

    def __check_init__(self):
        if not (isinstance(self.n, int) and isinstance(self.k, int) and 1 <= self.k <= self.n):
            raise InputError(f"SparseParity needs whole numbers 1 <= k <= n, got n={self.n!r}, k={self.k!r}")

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def signs(self) -> bool:
        return True

    @property
    def support(self) -> np.ndarray:
        """The relevant coordinates."""
        return np.arange(self.k)

    def label(self, x: Float[Array, "size n"]) -> Float[Array, " size"]:
        return jnp.prod(x[:, self.support], axis=1)

    def draw(self, key: PRNGKeyArray, size: int) -> UInt32[Array, "rows words"]:
        return sign_words(key, size, self.n)

    def decode(self, raw: UInt32[Array, "rows words"], size: int) -> Batch:
        x = signs(raw, size, self.n)
        return Batch(x, self.label(x))

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        return self.decode(self.draw(key, size), size)

    def enumerate(self) -> Batch:
        x = jnp.asarray(cube(self.n), jnp.float32)
        return Batch(x, self.label(x))


class DisjointParity(SparseParity):
    """A parity with one relevant coordinate in each of k equal blocks: the first of each (003 §5.4)."""

    def __check_init__(self):
        if self.n % self.k:
            raise InputError(f"DisjointParity needs k to divide n, got n={self.n}, k={self.k}")

    @property
    def support(self) -> np.ndarray:
        return np.arange(self.k) * (self.n // self.k)


class LabelNoise(Task):
    """`task` with each ±1 label flipped independently with probability `flip`; 1/2 is the random-label control."""

    task: Task
    flip: float = 0.5

    def __check_init__(self):
        if isinstance(self.flip, float | int) and not 0 <= self.flip <= 1:
            raise InputError(f"LabelNoise needs a probability 0 <= flip <= 1, got flip={self.flip!r}")
        if self.task.outputs != 1:
            raise InputError("LabelNoise flips ±1 labels; this task has class labels")

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.task.in_shape

    @property
    def signs(self) -> bool:
        return self.task.signs

    @property
    def k(self) -> int:
        return self.task.k  # type: ignore[attr-defined]

    @property
    def support(self) -> np.ndarray:
        return self.task.support  # type: ignore[attr-defined]

    def draw(self, key: PRNGKeyArray, size: int):
        # The inputs use the undivided key: the same seed sees the same inputs at every noise level.
        return self.task.draw(key, size), jax.random.bits(jax.random.fold_in(key, 0), (size,), jnp.uint32)

    def decode(self, raw, size: int) -> Batch:
        inner, words = raw
        batch = self.task.decode(inner, size)
        uniform = words.astype(jnp.float32) * 2.0**-32
        y = jnp.where(uniform < self.flip, -batch.y, batch.y)
        return Batch(batch.x, y, {**(batch.latents or {}), "clean": batch.y})

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        return self.decode(self.draw(key, size), size)
