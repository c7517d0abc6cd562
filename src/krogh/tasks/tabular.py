"""Tables: rows of numbers with a ±1 label, from real data or from rules that are as hard for networks as these."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from krogh.data.tabular import table
from krogh.errors import InputError
from krogh.tasks.base import Batch, Task


class Table(Task):
    """A fixed table, standardised over all rows. Every replica draws its own `test_rows`, a tenth of the table, and
    from the others its own training `rows` (003 §C.3.3); all share the numbers.

    `sample` takes training rows without replacement, so that `samples=len(task.rows)` is the whole training set.
    """

    x: Float[Array, "n features"]
    y: Float[Array, " n"]
    rows: Int[Array, " m"]
    test_rows: Int[Array, " t"]

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]

    def instance(self, key: PRNGKeyArray) -> "Table":
        order = jr.permutation(key, len(self.y))
        held, kept = len(self.test_rows), len(self.rows)
        parts = order[held : held + kept], order[:held]
        return eqx.tree_at(lambda task: (task.rows, task.test_rows), self, parts)

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        if size > len(self.rows):
            raise InputError(f"this table has {len(self.rows)} training rows; {size} were asked for")
        chosen = self.rows[jr.permutation(key, len(self.rows))[:size]]
        return Batch(self.x[chosen], self.y[chosen])

    def held_out(self, key: PRNGKeyArray, size: int) -> Batch:
        """The test rows, at most `size` of them."""
        chosen = self.test_rows[:size]
        return Batch(self.x[chosen], self.y[chosen])


def tabular(name: str, fraction: float = 1.0, arrays: Mapping[str, np.ndarray] | None = None) -> Table:
    """A table of `krogh.data`, classes balanced by leaving out rows of the larger, as in the benchmark; `fraction` of
    the nine tenths that are not test rows is for training."""
    arrays = table(name) if arrays is None else arrays
    rng = np.random.default_rng(0)
    classes = [np.flatnonzero(arrays["y"] == label) for label in (0, 1)]
    least = min(map(len, classes))
    kept = np.sort(np.concatenate([rng.permutation(members)[:least] for members in classes]))
    x, y = arrays["x"][kept].astype(np.float64), 2.0 * arrays["y"][kept] - 1
    spread = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1)
    held = len(y) // 10
    m = max(2, round(fraction * (len(y) - held)))
    return Table(
        jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), jnp.arange(m), jnp.arange(len(y) - held, len(y))
    )


KINDS = ("tree", "xor", "band")


class RuleTable(Task):
    """A surrogate table: n heavy-tailed features x = z³/√15, z ~ N(0, 1), of which a rule uses few, axis by axis.

    kind 0   a random decision tree of depth 3: inner nodes compare a feature with a threshold, half the leaves are +1
    kind 1   xor: sign(x_a x_b)
    kind 2   band: +1 where |x_a| is below its median

    Every replica has its own rule; labels are flipped with probability `noise`. `kind` is a number, so that the kinds
    share one program.
    """

    n: int = eqx.field(static=True)
    kind: float | Array = 0.0
    noise: float | Array = 0.05
    features: Int[Array, "7"] | Int[np.ndarray, "7"] = eqx.field(default_factory=lambda: np.arange(7))
    thresholds: Float[Array, "7"] | Float[np.ndarray, "7"] = eqx.field(default_factory=lambda: np.zeros(7, np.float32))
    leaves: Float[Array, "8"] | Float[np.ndarray, "8"] = eqx.field(
        default_factory=lambda: np.array([1, -1] * 4, np.float32)
    )

    def __check_init__(self):
        if self.n < 7:
            raise InputError(f"RuleTable needs at least 7 features, got n={self.n}")

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.n,)

    def instance(self, key: PRNGKeyArray) -> "RuleTable":
        which, where, leaf = jr.split(key, 3)
        thresholds = (0.5 * jr.normal(where, (7,))) ** 3 / jnp.sqrt(15.0)
        parts = jr.permutation(which, self.n)[:7], thresholds, jr.permutation(leaf, self.leaves)
        return eqx.tree_at(lambda task: (task.features, task.thresholds, task.leaves), self, parts)

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        inputs, flips = jr.split(key)
        x = jr.normal(inputs, (size, self.n)) ** 3 / jnp.sqrt(15.0)
        flipped = jr.bernoulli(flips, self.noise, (size,))
        clean = self.label(x)
        return Batch(x, jnp.where(flipped, -clean, clean))

    def label(self, x: Float[Array, "size n"]) -> Float[Array, " size"]:
        """The rule without noise."""
        used = x[:, jnp.asarray(self.features)]
        right = used > jnp.asarray(self.thresholds)
        node = jnp.zeros(len(x), jnp.int32)
        for _ in range(3):
            node = 2 * node + 1 + jnp.take_along_axis(right, node[:, None], axis=1)[:, 0]
        tree = jnp.asarray(self.leaves)[node - 7]
        xor = jnp.where(used[:, 0] * used[:, 1] >= 0, 1.0, -1.0)
        # the median of |z|^3 / sqrt(15)
        band = jnp.where(jnp.abs(used[:, 0]) < 0.67449**3 / 15**0.5, 1.0, -1.0)
        return jnp.where(self.kind == 0, tree, jnp.where(self.kind == 1, xor, band))
