"""Modular addition: whole tables of (a_1 + … + a_k) mod p, split into a seen and a held-out part (000 §4.3)."""

import math
from collections import Counter
from itertools import combinations_with_replacement

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32, PRNGKeyArray, UInt32

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task

# More rows than this are never held at once: larger tables are drawn from row by row.
ENUMERABLE_ROWS = 2**20
LARGEST_TABLE = 2**31
ROUNDS = 8


def permuted(rows: UInt32[Array, " n"], size: int, words: UInt32[Array, " rounds"]) -> UInt32[Array, " n"]:
    """Where a pseudo-random permutation of {0, …, size − 1}, fixed by `words`, sends these rows.

    A Feistel network on Z_a × Z_b, a·b ≥ size, walked until it is back inside: any part of a shuffled table without
    the table.
    """
    a = math.isqrt(size - 1) + 1
    b = -(-size // a)

    def shuffle(x):
        left, right = x // b, x % b
        for number in range(ROUNDS):
            if number % 2 == 0:
                left = (left + _hash(right, words[number]) % a) % a
            else:
                right = (right + _hash(left, words[number]) % b) % b
        return left * b + right

    return lax.while_loop(
        lambda x: jnp.any(x >= size), lambda x: jnp.where(x >= size, shuffle(x), x), shuffle(rows.astype(jnp.uint32))
    )


def _hash(x: UInt32[Array, " n"], word: UInt32[Array, ""]) -> UInt32[Array, " n"]:
    """Murmur3's finaliser of x keyed by a word."""
    x = (x + jnp.uint32(1)) * jnp.uint32(0x9E3779B1) ^ word
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _log_falling(n: int, count: int) -> float:
    """log n (n − 1) … (n − count + 1)."""
    return math.lgamma(n + 1) - math.lgamma(n - count + 1)


class ModularAddition(Task):
    """x = (a_1, …, a_k) uniform on Z_p^k, y = Σ a_j mod p; a share of the p^k rows is seen, the others are held out.

        ModularAddition(p=7, k=3):  x = (5, 4, 6)  →  y = 1

    Every replica draws its own split, uniformly and without repetition (000 Figs 4.1–4.4). Neither part is ever
    stored: a batch is `size` different rows of the seen part. With share = 1 all rows are seen and validated on.
    """

    p: int = eqx.field(static=True)
    k: int = eqx.field(static=True)
    share: float = eqx.field(static=True, default=0.5)
    split: UInt32[Array, " rounds"] | np.ndarray = eqx.field(default_factory=lambda: np.zeros(ROUNDS, np.uint32))

    def __check_init__(self):
        if not (isinstance(self.p, int) and isinstance(self.k, int) and self.p >= 2 and self.k >= 1):
            raise InputError(f"ModularAddition needs whole numbers p >= 2 and k >= 1, got p={self.p!r}, k={self.k!r}")
        if self.rows > LARGEST_TABLE:
            raise InputError(f"a table of {self.p}^{self.k} rows is too large; at most {LARGEST_TABLE} are allowed")
        if not 0 < self.share <= 1 or self.seen < 1:
            raise InputError(f"share must lie in (0, 1] and leave a row to be seen, got share={self.share!r}")

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.k,)

    @property
    def outputs(self) -> int:
        return self.p

    @property
    def elements(self) -> int:
        """How many different values an input has."""
        return self.p

    @property
    def rows(self) -> int:
        """p^k."""
        return self.p**self.k

    @property
    def seen(self) -> int:
        """Rows that training may use."""
        return int(self.rows * self.share)

    @property
    def unseen_in_any_order(self) -> float:
        """Expected share of the held-out rows of which no other order of the same numbers is seen either.

        These are what a network gets wrong that knows the seen part and that order does not matter, and nothing else.
        """
        rows, hidden, total = self.rows, self.rows - self.seen, 0.0
        for different in range(1, min(self.k, self.p) + 1):
            for repeats in combinations_with_replacement(range(1, self.k + 1), different):
                if sum(repeats) != self.k:
                    continue
                orders = math.factorial(self.k) // math.prod(map(math.factorial, repeats))
                sets = math.perm(self.p, different) // math.prod(map(math.factorial, Counter(repeats).values()))
                if orders <= hidden:
                    total += sets * orders * math.exp(_log_falling(hidden, orders) - _log_falling(rows, orders))
        return total / hidden if hidden else 0.0

    def instance(self, key: PRNGKeyArray) -> "ModularAddition":
        return eqx.tree_at(lambda task: task.split, self, jax.random.bits(key, (ROUNDS,), jnp.uint32))

    def row(self, rows: Int32[Array, " n"] | UInt32[Array, " n"]) -> Batch:
        """Rows of the table by number: row r has a_j = ⌊r / p^(k−j)⌋ mod p."""
        places = self.p ** np.arange(self.k - 1, -1, -1)
        x = (rows[:, None] // places.astype(rows.dtype) % self.p).astype(jnp.int32)
        return Batch(x, x.sum(axis=1) % self.p)

    def draw(self, key: PRNGKeyArray, size: int) -> UInt32[Array, " size"]:
        """Numbers of `size` different rows of the seen part: a walk with an unknown end, which many steps share."""
        if size > self.seen:
            raise InputError(
                f"only {self.seen} of {self.p}^{self.k} rows are seen; {size} different ones cannot be drawn"
            )
        return permuted(self._some(key, self.seen, size), self.rows, jnp.asarray(self.split))

    def decode(self, raw: UInt32[Array, " size"], size: int) -> Batch:
        return self.row(raw)

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        """`size` different rows of the seen part."""
        return self.decode(self.draw(key, size), size)

    def held_out(self, key: PRNGKeyArray, size: int) -> Batch:
        """`size` different rows of the held-out part; all of them where it has no more."""
        hidden, first = self.rows - self.seen, self.seen
        if hidden == 0:
            hidden, first = self.rows, 0
        some = self._some(key, hidden, min(size, hidden))
        return self.row(permuted(some + jnp.uint32(first), self.rows, jnp.asarray(self.split)))

    def enumerate(self) -> Batch:
        if self.rows > ENUMERABLE_ROWS:
            raise InputError(f"{self.p}^{self.k} rows are too many to enumerate; at most {ENUMERABLE_ROWS} are allowed")
        return self.row(jnp.arange(self.rows, dtype=jnp.int32))

    @staticmethod
    def _some(key: PRNGKeyArray, of: int, size: int) -> UInt32[Array, " size"]:
        """`size` different numbers below `of`, in random order."""
        return permuted(jnp.arange(size, dtype=jnp.uint32), of, jax.random.bits(key, (ROUNDS,), jnp.uint32))
