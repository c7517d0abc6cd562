"""Sparse Boolean functions of biased bits (003 §4.6, §A.3)."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from krogh.errors import InputError, nearest
from krogh.tasks.base import Batch, Task

GATES: dict[str, Callable[[Bool[Array, "size s"]], Bool[Array, " size"]]] = {
    "and": lambda bits: jnp.all(bits, axis=1),
    "or": lambda bits: jnp.any(bits, axis=1),
    "xor": lambda bits: jnp.sum(bits, axis=1) % 2 == 1,
}

# A sample whose positives leave more positions than this counts as ambiguous without being enumerated.
CANDIDATES = 32


def balanced_bias(s: int) -> float:
    """p = (1/2)^(1/s): the bias of the bits at which the AND of s of them is 1 half of the time."""
    return 0.5 ** (1 / s)


def consistent_conjunctions(x: Float[Array, "size n"], y: Int[Array, " size"], s: int) -> Int[Array, ""]:
    """How many conjunctions of s of the n bits agree with all examples that have y = 0 or 1 (others are ignored).

    A conjunction agrees iff its bits are 1 in every positive example and not all 1 in any negative one. Only positions
    that are 1 in all positives are enumerated; more than `CANDIDATES` of them count as C(n, s) conjunctions.
    """
    size, n = x.shape
    possible = jnp.all((x > 0.5) | (y != 1)[:, None], axis=0)
    kept = min(CANDIDATES, n)

    def enumerated() -> Int[Array, ""]:
        position = jnp.nonzero(possible, size=kept, fill_value=n)[0]
        bits = jnp.where((y == 0)[:, None], x, 0.0).at[:, position].get(mode="fill", fill_value=1.0)
        together = bits
        for _ in range(s - 2):
            together = (together[:, :, None] * bits[:, None, :]).reshape(size, -1)
        violations = (together.T @ bits if s > 1 else bits.sum(axis=0)).reshape((kept,) * s)
        grid = jnp.meshgrid(*[jnp.arange(kept)] * s, indexing="ij")
        chosen = jnp.ones((kept,) * s, bool)
        for first, second in zip(grid, grid[1:], strict=False):
            chosen &= first < second
        for index in grid:
            chosen &= position[index] < n
        return jnp.sum(chosen & (violations < 0.5))

    every = jnp.int32(min(math.comb(n, s), 2**31 - 1))
    return lax.cond(jnp.sum(possible) > kept, lambda: every, enumerated)


class SparseBoolean(Task):
    """Bits b_t = 1 with probability `bias`, independently; the class is a gate of the bits at `support`.

        SparseBoolean(n=5, gate="and"):  b = (1, 1, 1, 0, 1)  →  y = 1

    By symmetry of the networks trained here the support may be the first s positions (003 §A.3.1).

    m        a training sample's first m examples carry weight (`latents["weight"]`, mean 1 over the sample), the rest
             none: samples of different sizes share one program. None: all of them, and no weights
    redraws  conjunctions only: a training sample that agrees with another conjunction of as many bits is drawn again,
             at most so many times; what is still ambiguous then stays. 0 takes the first sample
    """

    n: int = eqx.field(static=True)
    gate: str = eqx.field(static=True, default="and")
    support: tuple[int, ...] = eqx.field(static=True, default=(0, 1, 2))
    bias: float = 0.5
    m: float | None = None
    redraws: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        if self.gate not in GATES:
            raise InputError(f"gate must be one of {', '.join(GATES)}, got {self.gate!r}{nearest(self.gate, GATES)}")
        inside = all(0 <= i < self.n for i in self.support)
        if not self.support or len(set(self.support)) != len(self.support) or not inside:
            raise InputError(f"support must be distinct positions below n={self.n}, got {self.support}")
        if self.redraws and self.gate != "and":
            raise InputError(f"only samples of conjunctions can be redrawn, not of gate={self.gate!r}")
        if isinstance(self.bias, float | int) and not 0 <= self.bias <= 1:
            raise InputError(f"bias must be a probability, got {self.bias!r}")

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def outputs(self) -> int:
        return 2

    @property
    def s(self) -> int:
        """Number of relevant bits."""
        return len(self.support)

    def label(self, x: Float[Array, "size n"]) -> Int[Array, " size"]:
        return GATES[self.gate](x[:, np.array(self.support)] > 0.5).astype(jnp.int32)

    def held_out(self, key: PRNGKeyArray, size: int) -> Batch:
        bits = jax.random.bits(key, (size, self.n), jnp.uint16).astype(jnp.float32)
        x = (bits < jnp.asarray(self.bias) * 2**16).astype(jnp.float32)
        return Batch(x, self.label(x))

    def decode(self, raw: PRNGKeyArray, size: int) -> Batch:
        return self.held_out(raw, size)

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        """A training sample."""
        counted = jnp.ones(size) if self.m is None else (jnp.arange(size) < self.m).astype(jnp.float32)
        if self.redraws:
            # On a CPU replicas redraw in turn, so that each draws as often as its own sample needs.
            in_turn = jax.default_backend() == "cpu"
            redrawn = sequential_vmap(self._redrawn) if in_turn else self._redrawn
            key = redrawn(key, jnp.asarray(self.bias), counted)
        batch = self.held_out(key, size)
        if self.m is None:
            return batch
        return Batch(batch.x, batch.y, {"weight": counted * (size / self.m)})

    def _redrawn(self, key: PRNGKeyArray, bias: Float[Array, ""], counted: Float[Array, " size"]) -> PRNGKeyArray:
        """The key of the first unambiguous sample, or of the last one tried."""
        task = eqx.tree_at(lambda task: task.bias, self, bias)

        def nth(redraw: Int[Array, ""]) -> PRNGKeyArray:
            return jnp.where(redraw == 0, key, jax.random.fold_in(key, redraw - 1))

        def goes_on(redraw: Int[Array, ""]) -> Bool[Array, ""]:
            batch = task.held_out(nth(redraw), len(counted))
            seen = jnp.where(counted > 0, batch.y, -1)
            return (redraw < self.redraws) & (consistent_conjunctions(batch.x, seen, self.s) > 1)

        return nth(lax.while_loop(goes_on, lambda redraw: redraw + 1, jnp.int32(0)))

    def enumerate(self) -> Batch:
        if isinstance(self.bias, float | int) and self.bias != 0.5:
            raise InputError("only fair bits can be enumerated with equal weights")
        x = jnp.asarray((np.arange(2**self.n)[:, None] >> np.arange(self.n)) & 1, jnp.float32)
        return Batch(x, self.label(x))
