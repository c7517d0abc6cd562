"""Sparse parities in context (000 §5.5)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task
from krogh.tasks.parity import sign_words, signs
from krogh.tasks.prompts import orthonormal, prompt


def ordered_pairs(d: int, k: int) -> tuple[Int[np.ndarray, "s1 2"], Int[np.ndarray, "s2 2"]]:
    """S_1: ordered pairs of distinct features below k; S_2: all others among d features."""
    pairs = np.array([(i, j) for i in range(d) for j in range(d) if i != j])
    inside = (pairs < k).all(axis=1)
    return pairs[inside], pairs[~inside]


class ParityPrompts(Task):
    """Rows (G φ_l, y_l), l ≤ n, and (G φ_q, 0), with y = φ_i φ_j for one pair (i, j) of features per prompt.

        ParityPrompts(d=4, k=2, n=3):  x of shape (4, 5), y = φ_{q,i} φ_{q,j}

    The pair is uniform on S_1 with probability 1 − others, on S_2 otherwise. φ is uniform on {±1}^d but for
    (φ_i, φ_j), which is (1, 1), (1, −1), (−1, 1), (−1, −1) with probability 1/4 + γ, 1/4, 1/4, 1/4 − γ.

    rotated   every replica draws its own orthonormal dictionary G; otherwise G = I
    """

    d: int = eqx.field(static=True)
    k: int = eqx.field(static=True)
    n: int = eqx.field(static=True)
    gamma: float = 0.1
    others: float = 0.0
    rotated: bool = eqx.field(static=True, default=False)
    dictionary: Float[Array, "d d"] | None = None

    def __post_init__(self):
        # NaN until `instance` draws it: a run's tasks keep one tree structure.
        if self.rotated and self.dictionary is None:
            self.dictionary = jnp.full((self.d, self.d), jnp.nan)

    def __check_init__(self):
        if not 2 <= self.k < self.d or self.n < 1:
            raise InputError(f"ParityPrompts needs 2 <= k < d and n >= 1, got k={self.k}, d={self.d}, n={self.n}")
        if isinstance(self.gamma, float) and not 0 <= self.gamma <= 0.25:
            raise InputError(f"gamma must lie between 0 and 1/4, got {self.gamma}")

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.n + 1, self.d + 1)

    def instance(self, key: PRNGKeyArray) -> "ParityPrompts":
        if not self.rotated:
            return self
        return eqx.tree_at(lambda task: task.dictionary, self, orthonormal(key, self.d, self.d))

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        bit_key, pair_key, choice_key, sign_key = jax.random.split(key, 4)
        rows = size * (self.n + 1)
        bits = signs(sign_words(bit_key, rows, self.d), rows, self.d).reshape(size, self.n + 1, self.d)
        important, less = (jnp.asarray(pairs) for pairs in ordered_pairs(self.d, self.k))
        place = jax.random.uniform(pair_key, (size,))
        choose_less = jax.random.uniform(choice_key, (size,)) < self.others
        first = important[(place * len(important)).astype(int)]
        pair = jnp.where(choose_less[:, None], less[(place * len(less)).astype(int)], first)
        u = jax.random.uniform(sign_key, (size, self.n + 1))
        by_i = jnp.where(u < 0.5 + self.gamma, 1.0, -1.0)
        by_j = jnp.where((u < 0.25 + self.gamma) | ((u >= 0.5 + self.gamma) & (u < 0.75 + self.gamma)), 1.0, -1.0)
        feature = jnp.arange(self.d)
        phi = jnp.where(feature == pair[:, None, :1], by_i[..., None], bits)
        phi = jnp.where(feature == pair[:, None, 1:], by_j[..., None], phi)
        x = phi if self.dictionary is None else phi @ self.dictionary.T
        y = by_i * by_j
        return Batch(prompt(x[:, :-1], y[:, :-1, None], x[:, -1]), y[:, -1], {"pair": pair})
