"""Markov chains in context: every sequence comes from a chain of its own (003 §8.2.1).

A task's sequence and its labels (k = 3, t = 8):  x = 1 0 2 2 1 0 2 1,  y = 0 2 2 1 0 2 1 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, PRNGKeyArray

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task

# (key, sequences, contexts, symbols) → rows of transition probabilities
Prior = Callable[[PRNGKeyArray, int, int, int], Float[Array, "size contexts k"]]


def flat_rows(key: PRNGKeyArray, *shape: int) -> Float[Array, "*shape"]:
    """Points of the simplex, uniformly: Dirichlet(1, …, 1) on the last axis."""
    weights = jax.random.exponential(key, shape)
    return weights / weights.sum(axis=-1, keepdims=True)


def dirichlet(key: PRNGKeyArray, size: int, contexts: int, k: int) -> Float[Array, "{size} {contexts} {k}"]:
    """Independent flat rows: the main prior."""
    return flat_rows(key, size, contexts, k)


def unigrams(key: PRNGKeyArray, size: int, contexts: int, k: int) -> Float[Array, "{size} {contexts} {k}"]:
    """All rows are one flat draw: tokens are independent, counting them is optimal."""
    return jnp.broadcast_to(flat_rows(key, size, 1, k), (size, contexts, k))


# Volume of the k × k doubly stochastic matrices relative to k − 1 free flat rows.
BIRKHOFF = {2: 1.0, 3: 1 / 2, 4: 216 * 11 / 11340, 5: 24**4 * 188723 / 836911595520}


def doubly_stochastic(key: PRNGKeyArray, size: int, contexts: int, k: int) -> Float[Array, "{size} {k} {k}"]:
    """Uniform on the doubly stochastic matrices: unigrams say nothing (003 Fig 8.4a).

    k − 1 flat rows are kept if their columns leave something for the last row; a pool of proposals serves all
    sequences, six standard deviations larger than needed.
    """
    if contexts != k or k not in BIRKHOFF:
        raise InputError(f"doubly stochastic matrices need n = 2 and k from 2 to {max(BIRKHOFF)}, got k={k}")
    proposals = math.ceil((size + 6 * math.sqrt(size) + 12) / BIRKHOFF[k])
    rows = flat_rows(key, proposals, k - 1, k)
    last = 1 - rows.sum(axis=1, keepdims=True)
    kept = jnp.nonzero(jnp.all(last >= 0, axis=(1, 2)), size=size, fill_value=0)[0]
    return jnp.concatenate([rows, last], axis=1)[kept]


@dataclass(frozen=True)
class Mixture:
    """A sequence's chain comes from `second` with probability `share` and else from `first`."""

    first: Prior
    second: Prior
    share: float = 0.5

    def __call__(self, key: PRNGKeyArray, size: int, contexts: int, k: int) -> Float[Array, "size contexts k"]:
        keys = jax.random.split(key, 3)
        chosen = jax.random.bernoulli(keys[2], self.share, (size, 1, 1))
        return jnp.where(chosen, self.second(keys[1], size, contexts, k), self.first(keys[0], size, contexts, k))


def stationary(chain: Float[Array, "*batch states states"]) -> Float[Array, "*batch states"]:
    """π with π P = π, by elimination of one state after another without subtractions (Grassmann, Taksar, Heyman).

    Powers of P would not converge for chains that are nearly periodic.
    """
    eliminated = []
    while chain.shape[-1] > 1:
        leaves = chain[..., -1, :-1]
        enters = chain[..., :-1, -1] / leaves.sum(axis=-1, keepdims=True)
        eliminated.append(enters)
        chain = chain[..., :-1, :-1] + enters[..., :, None] * leaves[..., None, :]
    weights = jnp.ones_like(chain[..., 0])
    for enters in reversed(eliminated):
        weights = jnp.concatenate([weights, jnp.sum(weights * enters, axis=-1, keepdims=True)], axis=-1)
    return weights / weights.sum(axis=-1, keepdims=True)


class MarkovChains(Task):
    """Sequences of t symbols out of k, each from its own random chain of order n − 1; y is the next symbol everywhere.

    n       n-grams: a symbol depends on the n − 1 before it
    prior   what chains are drawn from: `dirichlet`, `unigrams`, `doubly_stochastic`, `Mixture`

    `latents["next"]` is the true distribution of the symbol after the last one. The first n − 1 symbols are stationary.
    """

    k: int = eqx.field(static=True)
    t: int = eqx.field(static=True, default=100)
    n: int = eqx.field(static=True, default=2)
    prior: Prior = eqx.field(static=True, default=dirichlet)

    def __check_init__(self):
        for name, value, least in (("k", self.k, 2), ("n", self.n, 2), ("t", self.t, self.n)):
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        # contexts are numbered by bytes
        if self.contexts > 256:
            raise InputError(
                f"k={self.k} and n={self.n} give {self.contexts} contexts k^(n-1); at most 256 can be walked"
            )

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.t,)

    @property
    def elements(self) -> int:
        return self.k

    @property
    def outputs(self) -> int:
        return self.k

    @property
    def contexts(self) -> int:
        """Number of (n − 1)-tuples; the tuple (x_1, …, x_{n−1}) has number Σ x_i k^{n−1−i}."""
        return self.k ** (self.n - 1)

    def rows(self, key: PRNGKeyArray, size: int) -> Float[Array, "{size} contexts k"]:
        """Transition probabilities of `size` chains."""
        return self.prior(key, size, self.contexts, self.k)

    def walk(self, key: PRNGKeyArray, rows: Float[Array, "size contexts k"]) -> Integer[Array, "size t1"]:
        """t + 1 symbols of each chain.

        One uniform number per position is a map of the contexts into themselves (by the inverse distribution
        function); maps compose in any order, so all prefixes take log t rounds.
        """
        k, contexts, size = self.k, self.contexts, len(rows)
        after = (np.arange(contexts)[:, None] * k + np.arange(k)) % contexts
        chain = jnp.einsum("bck,cks->bcs", rows, jnp.asarray(np.eye(contexts)[after], rows.dtype))
        uniform = jax.random.uniform(key, (self.t + 3 - self.n, size))

        def drawn(u: Array, probabilities: Float[Array, "... size outcomes"]) -> Integer[Array, "..."]:
            steps = jnp.cumsum(probabilities, axis=-1)[..., :-1]
            return sum((u >= steps[..., j]).astype(jnp.uint8) for j in range(steps.shape[-1]))  # type: ignore[return-value]

        start = jnp.broadcast_to(drawn(uniform[0], stationary(chain)), (contexts, 1, size))
        next_symbol = drawn(uniform[1:], rows.transpose(1, 0, 2)[:, None])
        shifted = (np.arange(contexts) * k % contexts).astype(np.uint8)[:, None, None]
        maps = jnp.concatenate([start, shifted + next_symbol], axis=1)

        def then(first: Array, second: Array) -> Array:
            return sum(jnp.where(first == c, second[c], 0) for c in range(contexts)).astype(jnp.uint8)  # type: ignore[union-attr]

        # the first map is constant, hence all prefixes are
        states = jax.lax.associative_scan(then, maps, axis=1)[0]
        opening = [states[:1] // k**place for place in range(self.n - 2, 0, -1)]
        return (jnp.concatenate([*opening, states]) % k).T

    def draw(self, key: PRNGKeyArray, size: int) -> tuple[Integer[Array, "{size} t1"], Float[Array, "{size} k"]]:
        """The sequences themselves, so that composing maps is shared by many steps; and the next symbol's law."""
        row_key, walk_key = jax.random.split(key)
        rows = self.rows(row_key, size)
        sequence = self.walk(walk_key, rows)
        places = self.k ** jnp.arange(self.n - 2, -1, -1)
        context = sequence[:, self.t - self.n + 1 : self.t] @ places
        return sequence, jnp.take_along_axis(rows, context[:, None, None], axis=1)[:, 0]

    def decode(self, raw: tuple[Array, Array], size: int) -> Batch:
        sequence, after = raw
        sequence = sequence.astype(jnp.int32)
        return Batch(sequence[:, :-1], sequence[:, 1:], {"next": after})

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        return self.decode(self.draw(key, size), size)


def next_law(batch: Batch) -> Float[Array, "size k"]:
    """The true distribution of the symbol after the last one of every sequence."""
    return (batch.latents or {})["next"]
