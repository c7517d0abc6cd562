"""Reasoning in K steps on orthonormal patterns: prompts to train on, noisy and erroneous ones to test on (004 §7.2)."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task
from krogh.tasks.prompts import evenly, orthonormalised, step_columns


class ChainPrompts(Task):
    """Training prompts (7.1): examples of K steps, the query's first k − 1 steps, and (z_{k−1}, 0); the label is z_k.

        x = (E_1, …, E_l, Q_k) transposed, rows (input + c_step, output); y = z_k, a vector

    A task is a random cycle through the M patterns on which step k moves k places on; every prompt has its own, and
    its own k. A share `alpha` of the examples starts from the query's first input, the others elsewhere. The c_k are
    orthogonal to the patterns and live in the upper half, so that W_V = (0 I) removes them.

    The query is the last row. Where k < K the first K − k rows are zero: they are no columns of the prompt.
    columns   keep that many of the last columns instead of K (l + 1); K l + 1 gives every prompt the same length, at
              the cost of the first k − 1 columns of E_1
    coded     False leaves the c_k out, for networks with positions of their own
    """

    M: int = eqx.field(static=True, default=20)
    K: int = eqx.field(static=True, default=3)
    d: int = eqx.field(static=True, default=30)
    examples: int = eqx.field(static=True, default=20)
    alpha: float = 0.4
    columns: int | None = eqx.field(static=True, default=None)
    coded: bool = eqx.field(static=True, default=True)
    frame: Float[Array, "vectors d"] | None = None

    def __post_init__(self):
        # coordinate axes until `instance` draws a frame: a run's tasks keep one tree structure
        if self.frame is None:
            self.frame = jnp.eye(self.M + self.K, self.d)

    def __check_init__(self):
        if self.d < self.M + self.K:
            raise InputError(f"{self.M} patterns and {self.K} step vectors need d >= {self.M + self.K}, got {self.d}")
        if self.columns is not None and not 1 < self.columns <= self.K * (self.examples + 1):
            raise InputError(
                f"columns must lie between 2 and K (l + 1) = {self.K * (self.examples + 1)}, got {self.columns}"
            )

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.columns or self.K * (self.examples + 1), 2 * self.d)

    @property
    def outputs(self) -> int:
        return self.d

    @property
    def patterns(self) -> Float[Array, "M d"]:
        return self.frame[: self.M]  # type: ignore[index]

    @property
    def steps(self) -> Float[Array, "K d"]:
        return self.frame[self.M :]  # type: ignore[index]

    def instance(self, key: PRNGKeyArray) -> "ChainPrompts":
        vectors = orthonormalised(jax.random.normal(key, (self.M + self.K, self.d)))
        return eqx.tree_at(lambda task: task.frame, self, vectors)

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        cycle_key, step_key, phase_key, start_key = jax.random.split(key, 4)
        cycle = jnp.argsort(jax.random.bits(cycle_key, (size, self.M)), axis=1)
        k = jax.random.randint(step_key, (size, 1), 1, self.K + 1)
        # the cycle is uniformly random, so that the query may start at its place 0
        elsewhere = jax.random.randint(start_key, (size, self.examples), 1, self.M)
        starts = jnp.where(evenly(jax.random.uniform(phase_key, (size,)), self.alpha, self.examples), 0, elsewhere)
        starts = jnp.pad(starts, ((0, 0), (0, 1)))
        moved = np.cumsum(np.arange(self.K + 1))
        places = (starts[..., None] + moved) % self.M
        states = jnp.take_along_axis(cycle, places.reshape(size, -1), axis=1).reshape(places.shape)

        column = jnp.arange(self.in_shape[0]) + self.K * self.examples + k - self.in_shape[0]
        present, column = column >= 0, jnp.maximum(column, 0)
        step = column % self.K
        given, answer = (
            jnp.take_along_axis(part.reshape(size, -1), column, axis=1) for part in (states[..., :-1], states[..., 1:])
        )
        codes = self.steps if self.coded else jnp.zeros_like(self.steps)
        upper = (self.patterns[:, None] + codes).reshape(-1, self.d)[given * self.K + step]
        lower = self.patterns[answer].at[:, -1].set(0.0)
        x = jnp.concatenate([upper, lower], axis=-1) * present[..., None]
        latents = {"pattern": given, "step": step, "present": present}
        return Batch(x, self.patterns[answer[:, -1]], latents)


class ErroneousChains(Task):
    """Test examples of one K-step task on M' patterns, with noise and wrong steps (7.11)–(7.12).

        x = (y_{i,0}, …, y_{i,K})_i, vectors μ'_j + δ with δ ⊥ all μ' and ‖δ‖ = noise;   y = z_0, …, z_K, indices

    The index of y_{i,k} is drawn from row y_{i,k−1} of A_k; a share `alpha` of the examples starts from z_0, the
    others elsewhere. The query's own chain is noiseless and right: z_k = maps_k[z_{k−1}].
    """

    patterns: Float[Array, "M d"]
    steps: Float[Array, "K d"]
    maps: Int[Array, "K M"]
    transitions: Float[Array, "K M M"]
    alpha: float | Array = 0.8
    noise: float | Array = 0.2
    examples: int = eqx.field(static=True, default=40)

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.examples, len(self.steps) + 1, self.patterns.shape[1])

    @property
    def outputs(self) -> int:
        return len(self.patterns)

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        query_key, phase_key, start_key, chain_key, noise_key = jax.random.split(key, 5)
        M, K = len(self.patterns), len(self.steps)
        query = jax.random.randint(query_key, (size, 1), 0, M)
        elsewhere = (query + jax.random.randint(start_key, (size, self.examples), 1, M)) % M
        starts = jnp.where(evenly(jax.random.uniform(phase_key, (size,)), self.alpha, self.examples), query, elsewhere)

        def draw(state: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            below, chance = step
            state = jnp.minimum(jnp.sum(chance[..., None] > below[state], axis=-1), M - 1)
            return state, state

        chances = jax.random.uniform(chain_key, (K, size, self.examples))
        later = jax.lax.scan(draw, starts, (jnp.cumsum(self.transitions, axis=-1), chances))[1]
        states = jnp.concatenate([starts[None], later]).transpose(1, 2, 0)
        answers = jax.lax.scan(lambda z, step: (step[z],) * 2, query[:, 0], self.maps)[1].T  # type: ignore[arg-type]

        delta = jax.random.normal(noise_key, (*states.shape, self.patterns.shape[1]))
        delta = delta - (delta @ self.patterns.T) @ self.patterns
        delta = self.noise * delta / jnp.linalg.norm(delta, axis=-1, keepdims=True)
        return Batch(self.patterns[states] + delta, jnp.concatenate([query, answers], axis=1), {"states": states})

    def columns(self, chains: Float[Array, "*batch l states d"]) -> Float[Array, "*batch columns width"]:
        """The examples of a chain-of-thought prompt (7.4)."""
        return step_columns(chains, self.steps)

    def pairs(self, chains: Float[Array, "*batch l states d"]) -> Float[Array, "*batch columns width"]:
        """The examples of an in-context-learning prompt (7.8): (x_i, y_{i,K}) and K − 1 columns of zeros, c_k added."""
        first = jnp.concatenate([chains[..., 0, :], chains[..., -1, :]], axis=-1)
        rest = jnp.zeros((*first.shape[:-1], len(self.steps) - 1, first.shape[-1]))
        rows = jnp.concatenate([first[..., None, :], rest], axis=-2)
        rows = rows + jnp.pad(self.steps, ((0, 0), (0, self.steps.shape[1])))
        return rows.reshape(*chains.shape[:-3], -1, rows.shape[-1])


@partial(jax.vmap, in_axes=(0, None, 0))
def rotated(key: PRNGKeyArray, count: int, patterns: Float[Array, "M d"]) -> Float[Array, "count d"]:
    """`count` random orthonormal vectors in the span of the patterns, for each key and its set (7.19)."""
    return orthonormalised(jax.random.normal(key, (count, len(patterns)))) @ patterns
