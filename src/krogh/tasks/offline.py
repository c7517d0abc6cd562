"""A parity learned from a fixed sample that is never stored: row i is a hash of the replica's salt and of i."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

from krogh.errors import InputError
from krogh.tasks.base import Batch
from krogh.tasks.parity import SparseParity, sign_words, signs

# Whole numbers that float32 holds exactly; `m` is a number so that sample sizes share one program.
LARGEST = 2**24
# Rows of the "infinite" sample: 10^5 steps of 32 examples repeat one in 300.
ENDLESS = 2**30


class OfflineParity(SparseParity):
    """m uniform examples of the (n, k)-parity, fixed for each replica; batches are drawn from them with replacement.

    Row i has the bits of Threefry(salt; i, 0), Threefry(salt; i, 1), ..., so that m = 10^6 rows cost no memory, and m,
    being no shape, may differ between replicas of one program. m = inf is online learning. Validation is fresh.
    """

    m: float | Array
    salt: UInt32[Array, "2"] | UInt32[np.ndarray, "2"] = eqx.field(default_factory=lambda: np.zeros(2, np.uint32))

    def __check_init__(self):
        if isinstance(self.m, float | int) and not (self.m == float("inf") or 1 <= self.m <= LARGEST):
            raise InputError(f"OfflineParity needs a sample of 1 <= m <= {LARGEST} rows, or m = inf, got m={self.m!r}")

    def instance(self, key: PRNGKeyArray) -> "OfflineParity":
        return eqx.tree_at(lambda task: task.salt, self, jax.random.bits(key, (2,), jnp.uint32))

    def words(self, rows: Int[Array, " size"]) -> UInt32[Array, "size words"]:
        """The packed bits of these rows."""
        words = -(-self.n // 32)
        pairs = -(-words // 2)
        counter = jnp.repeat(rows.astype(jnp.uint32), pairs), jnp.tile(jnp.arange(pairs, dtype=jnp.uint32), len(rows))
        hashed = threefry_2x32(jnp.asarray(self.salt), jnp.concatenate(counter))
        return hashed.reshape(2, len(rows), pairs).transpose(1, 2, 0).reshape(len(rows), -1)[:, :words]

    def rows(self, rows: Int[Array, " size"]) -> Batch:
        """These rows of the sample."""
        return self.decode(self.words(rows), len(rows))

    def draw(self, key: PRNGKeyArray, size: int) -> UInt32[Array, "size words"]:
        m = jnp.minimum(self.m, ENDLESS).astype(jnp.int32)
        return self.words(jax.random.randint(key, (size,), 0, m))

    def held_out(self, key: PRNGKeyArray, size: int) -> Batch:
        return self.decode(sign_words(key, size, self.n), size)

    def decode(self, raw: UInt32[Array, "rows words"], size: int) -> Batch:
        x = signs(raw, size, self.n)
        return Batch(x, self.label(x))
