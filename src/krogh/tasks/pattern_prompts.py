"""Prompts whose examples carry one relevant and one irrelevant pattern (004 §6.2, §6.3.2)."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.errors import InputError, check_integer
from krogh.tasks.base import Batch, Task
from krogh.tasks.prompts import orthonormal, prompt


class PatternPrompts(Task):
    """Binary classification in context of x = β(μ_j + κ ν_k), κ ~ U(−K, K), k uniform: the task (a, b) labels μ_a with
    +1, μ_b with −1 and any other pattern with a fair coin (004 Def. 6.3.1).

    A prompt has `length` examples, of pattern a and b with probability alpha/2 each and of any other with
    (1 − alpha)/(M1 − 2), their labels embedded as ±q, and a query of pattern a or b, evenly (004 (6.1)).

    relevant     μ_j, orthonormal rows
    irrelevant   ν_k, orthonormal rows
    label        q
    shares       probability of every task (a, b), 0 where classes overlap. Validation is on tasks of probability 0
    per_class    patterns of a class, equally likely: in a circle those from a on, and those from b on (004 §E.2.3)
    tasks        where set, every replica draws this many tasks of its own: the cycle (j, j+1) in random order, then any

    Latents: `pattern` of the examples (size, length), `query_pattern` (size,), and `sign` of the examples' labels.
    """

    relevant: Float[Array, "M1 dx"]
    irrelevant: Float[Array, "M2 dx"]
    label: Float[Array, " dy"]
    shares: Float[Array, "M1 M1"]
    length: int = eqx.field(static=True, default=20)
    per_class: int = eqx.field(static=True, default=1)
    alpha: float | Array = 0.8
    K: float | Array = 0.5
    beta: float | Array = 3.0
    tasks: float | Array | None = None

    def __check_init__(self):
        least = 2 * check_integer("the number of patterns in a class", self.per_class, least=1) + 1
        if len(self.relevant) < least:
            raise InputError(
                f"Prompts with {self.per_class} pattern(s) in either class need at least {least} relevant patterns, "
                f"not {len(self.relevant)}."
            )

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.length + 1, self.relevant.shape[1] + len(self.label)

    @property
    def features(self) -> int:
        """d_x: the leading entries of a row that hold x."""
        return self.relevant.shape[1]

    @property
    def mean_pattern(self) -> Float[Array, " dx"]:
        """β Σ_j μ_j / M1."""
        return self.beta * jnp.mean(self.relevant, axis=0)

    def instance(self, key: PRNGKeyArray) -> "PatternPrompts":
        if self.tasks is None:
            return self
        order = jr.uniform(key, self.shares.shape) - (cyclic_tasks(len(self.relevant), 1, self.per_class) > 0)
        order = jnp.where(self._possible, order, jnp.inf)
        chosen = (jnp.argsort(jnp.argsort(order.ravel())) < self.tasks).reshape(order.shape)
        return eqx.tree_at(lambda t: t.shares, self, chosen / self.tasks)

    @property
    def unseen(self) -> "PatternPrompts":
        """The same prompts of the tasks whose share is 0."""
        others = (self.shares == 0) & self._possible
        return eqx.tree_at(lambda t: t.shares, self, others / jnp.sum(others))

    @property
    def _possible(self) -> Array:
        return all_tasks(len(self.relevant), self.per_class) > 0

    def shifted(self, coefficients: Float[Array, "M1_new M1"], K: float = 5.0) -> "PatternPrompts":
        """Out of domain: all tasks between the patterns μ'_j = Σ_i coefficients_ji μ_i, with irrelevant parts up to K
        (004 (6.8), (6.12))."""
        count = len(coefficients)
        shares = all_tasks(count, self.per_class)
        return replace(self, relevant=coefficients @ self.relevant, shares=shares, K=K, tasks=None)

    def held_out(self, key: PRNGKeyArray, size: int) -> Batch:
        return self.unseen.sample(key, size)

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        task_key, sign_key, place_key = jr.split(key, 3)
        M1, M2 = len(self.relevant), len(self.irrelevant)
        task = jr.choice(task_key, M1 * M1, (size,), p=self.shares.ravel())[:, None]
        a, b = task // M1, task % M1
        z = jr.rademacher(sign_key, (size,), self.label.dtype)

        u, v, w = jr.uniform(place_key, (3, size, self.length + 1))
        # the class of an example, 0 positive, 1 negative, from 2 on neither, and its place in the class
        side, place = jnp.divmod(2 * u / self.alpha, 1.0)
        side, place = side.at[:, -1].set(z < 0), place.at[:, -1].set(u[:, -1])
        decisive = (jnp.where(side < 1, a, b) + (place * self.per_class).astype(jnp.int32)) % M1
        positive, negative = ((jnp.arange(M1) - first) % M1 < self.per_class for first in (a, b))
        others, count = jnp.argsort(positive | negative, axis=1), M1 - 2 * self.per_class
        rank = ((u - self.alpha) / jnp.maximum(1 - self.alpha, 1e-6) * count).astype(jnp.int32)
        other = jnp.take_along_axis(others, jnp.clip(rank, 0, count - 1), axis=1)
        pattern = jnp.where(side < 2, decisive, other)
        k, coin = jnp.divmod(v * M2, 1.0)
        sign = jnp.where(side < 1, 1.0, jnp.where(side < 2, -1.0, jnp.where(coin < 0.5, 1.0, -1.0)))

        kappa = self.K * (2 * w - 1)
        x = self.relevant[pattern] + kappa[..., None] * self.irrelevant[k.astype(jnp.int32)]
        x = self.beta * x
        rows = prompt(x[:, :-1], sign[:, :-1, None] * self.label, x[:, -1])
        return Batch(rows, z, {"pattern": pattern[:, :-1], "query_pattern": pattern[:, -1], "sign": sign[:, :-1]})


def pattern_prompts(
    M1: int = 6, M2: int = 24, dy: int = 30, shifts: int = 1, key: PRNGKeyArray | None = None, **fields
) -> PatternPrompts:
    """Random orthonormal patterns in R^{M1+M2}, a random unit q in R^dy, and the cyclic training tasks (004 §6.5)."""
    pattern_key, label_key = jr.split(jr.key(0) if key is None else key)
    patterns = orthonormal(pattern_key, M1 + M2, M1 + M2)
    q = orthonormal(label_key, 1, dy)[0]
    shares = cyclic_tasks(M1, shifts, fields.get("per_class", 1))
    return PatternPrompts(patterns[:M1], patterns[M1:], q, shares, **fields)


def cyclic_tasks(M1: int, shifts: int = 1, per_class: int = 1) -> Float[Array, "{M1} {M1}"]:
    """Equal shares of the tasks (j, j + k mod M1), k = per_class, per_class + 1, … (`shifts` of them): every pattern
    has both labels equally often (004 Condition 6.3.2, §6.5)."""
    most = M1 - 2 * per_class + 1
    if not 1 <= shifts <= most:
        raise InputError(f"Shifts of {M1} patterns, {per_class} to a class, lie between 1 and {most}, not {shifts}.")
    distance = (np.arange(M1) - np.arange(M1)[:, None]) % M1
    chosen = (distance >= per_class) & (distance < per_class + shifts)
    return jnp.asarray(chosen / chosen.sum(), jnp.zeros(()).dtype)


def all_tasks(M1: int, per_class: int = 1) -> Float[Array, "{M1} {M1}"]:
    """Equal shares of all tasks whose classes do not overlap: M1 (M1 − 1) with one pattern to a class."""
    return cyclic_tasks(M1, M1 - 2 * per_class + 1, per_class)


def shifted_patterns(sum_1: float = 1.28, M1: int = 6) -> Float[np.ndarray, "3 {M1}"]:
    """Coefficients of μ'_1 = 0.3(μ_1 − μ_2) + aμ_5 + bμ_6 with a + b = sum_1 and unit norm, μ'_2 = (μ_1 + μ_2)/√2 and
    μ'_3 = (μ_3 + μ_4)/√2 (004 §6.5)."""
    spread = 0.41 - sum_1**2 / 4
    if spread < 0:
        raise InputError(f"The coefficients of the first pattern sum to at most sqrt(1.64), not {sum_1}.")
    rows = np.zeros((3, M1))
    rows[0, [0, 1, 4, 5]] = 0.3, -0.3, sum_1 / 2 + spread**0.5, sum_1 / 2 - spread**0.5
    rows[1, :2] = rows[2, 2:4] = 0.5**0.5
    return rows


def same_pattern(batch: Batch) -> Array:
    """Which examples of a prompt carry the query's pattern, (size, length)."""
    latents: dict[str, jax.Array] = batch.latents or {}
    return latents["pattern"] == latents["query_pattern"][:, None]
