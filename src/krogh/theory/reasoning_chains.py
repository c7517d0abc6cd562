"""Reasoning in K steps from examples that contain errors: quantities, constructions, votes and times (004 chapter 7).

A task on M patterns is `maps` (K, M), maps[k, i] the right answer of step k + 1 to i; its examples follow the step-wise
transition matrices `A` (K, M, M), A[k, i, j] = Pr(step k + 1 answers j | i) (7.12). Leading axes of A are tasks.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from krogh.errors import InputError

Maps = Int[np.ndarray, "K M"]
Transitions = Float[np.ndarray, "*tasks K M M"]
Quantity = Float[np.ndarray, "*tasks"] | np.floating


# ------------------------------------------------------------------------------------------- quantities of a task


def trajectories(maps: Maps) -> Int[np.ndarray, "states M"]:
    """Row k: f_k ∘ … ∘ f_1 of every pattern; row 0 the patterns themselves."""
    rows = [np.arange(maps.shape[1])]
    for step in maps:
        rows.append(step[rows[-1]])
    return np.array(rows)


def tau(maps: Maps, A: Transitions) -> Quantity:
    """min_i Π_k A_k(f_{k−1}∘…(i), f_k∘…(i)): the least likely fully right trajectory (7.17)."""
    path = trajectories(maps)
    return A[..., np.arange(len(maps))[:, None], path[:-1], path[1:]].prod(-2).min(-1)


def primacy(maps: Maps, A: Transitions) -> Quantity:
    """The largest ρ with A_k(i, f_k(i)) ≥ A_k(i, j)/(1 − ρ) for all k, i and j ≠ f_k(i) (7.12)."""
    K, M = maps.shape
    right = np.arange(M) == maps[..., None]
    best_wrong = np.where(right, 0.0, A).max(-1)
    return (1 - best_wrong / A[..., np.arange(K)[:, None], np.arange(M), maps]).min((-2, -1))


def composed(A: Transitions) -> Float[np.ndarray, "*tasks M M"]:
    """B = A_1 A_2 ⋯ A_K: from an example's input to its final answer."""
    product = A[..., 0, :, :]
    for k in range(1, A.shape[-3]):
        product = product @ A[..., k, :, :]
    return product


def tau_o(A: Transitions) -> Quantity:
    """min_i max_j B(i, j) (7.18)."""
    return composed(A).max(-1).min(-1)


def primacy_o(A: Transitions) -> Quantity:
    """ρ_o: how far every row's largest entry of B is above the next one, min_i 1 − second/first (7.13)."""
    ordered = np.sort(composed(A), axis=-1)
    return (1 - ordered[..., -2] / ordered[..., -1]).min(-1)


def condition(maps: Maps, A: Transitions) -> Bool[np.ndarray, "*tasks M"]:
    """Condition 7.3.2 for every input: the likeliest final answer is the right one (7.21)."""
    return composed(A).argmax(-1) == trajectories(maps)[-1]


def icl_limit(maps: Maps, A: Transitions) -> Quantity:
    """In-context learning's error with infinitely many examples: the share of inputs that violate Condition 7.3.2."""
    return 1 - condition(maps, A).mean(-1)


# ------------------------------------------------------------------------------------------- constructions


def shifts(M: int, K: int) -> Maps:
    """f_k(i) = i + k mod M (004 §7.5; any cycle through the patterns is this up to their names)."""
    return (np.arange(M) + np.arange(1, K + 1)[:, None]) % M


class Feasible(NamedTuple):
    """Which primacies a row with probability p of the right answer among M can have."""

    low: float
    high: float


def feasible(p: float, M: int) -> Feasible:
    """[max(0, (2p − 1)/p), 1 − (1 − p)/((M − 1) p)]: all error on one answer, or spread evenly over M − 1."""
    return Feasible(max(0.0, (2 * p - 1) / p), 1 - (1 - p) / ((M - 1) * p))


def erroneous(
    rng: np.random.Generator, maps: Maps, right: tuple[float, ...], rho: float, tasks: int = 1, exact: bool = True
) -> Float[np.ndarray, "tasks K M M"]:
    """Transition matrices with probability right[k] of step k + 1's right answer and primacy ρ.

    In every row one random wrong answer gets (1 − ρ) p, as far as 1 − p reaches, and the rest is spread over the
    others; steps with p = 1 make no errors. τ = Π right. With `exact` false the primacy may exceed ρ, which is all that
    (7.12) asks for.
    """
    K, M = maps.shape
    if len(right) != K:
        raise InputError(f"the task has {K} steps, but {len(right)} probabilities of right answers were given")
    for p in right:
        low, high = feasible(p, M)
        if p < 1 and not ((low - 1e-9 if exact else -np.inf) <= rho <= high + 1e-9):
            raise InputError(
                f"rho={rho:g} cannot be had with a step right with probability {p:.3g} among {M} patterns; "
                f"it can lie in [{low:.3g}, {high:.3g}]"
            )
    p = np.asarray(right, float)[:, None]
    top = np.minimum((1 - rho) * p, 1 - p)
    rest = (1 - p - top) / max(M - 2, 1)
    A = np.broadcast_to(rest[..., None], (tasks, K, M, M)).copy()
    wrong = (maps + rng.integers(1, M, (tasks, K, M))) % M
    np.put_along_axis(A, wrong[..., None], np.broadcast_to(top[..., None], (tasks, K, M, 1)), -1)
    right_entries = np.broadcast_to(p[..., None], (tasks, K, M, 1))
    np.put_along_axis(A, np.broadcast_to(maps[..., None], (tasks, K, M, 1)), right_entries, -1)
    return A


def paired(
    maps: Int[np.ndarray, "2 M"], a: float, weak: tuple[float, float], strong: tuple[float, float]
) -> Float[np.ndarray, "2 M M"]:
    """Transition matrices of a two-step task on M/2 pairs of a weak pattern i and a strong one i' = i + M/2.

    Step 1 answers f_1(i) with probability a and f_1(i') with 1 − a, and likewise for i'. Step 2 from f_1(i) gives its
    own image with the first and its partner's with the second probability of `weak`, from f_1(i') those of `strong`,
    and any of the other M − 2 otherwise. For a weak input B(right) = a w + (1 − a) v' and B(partner's) = a v +
    (1 − a) w'. With f_1 = identity and f_2 = swap on M = 2, a = .6, weak = (.6, .4) and strong = (.8, .2) it is Example
    1, whose fourth map is printed f_1(μ'_2) for f_2(μ'_2).
    """
    M = maps.shape[1]
    if M % 2:
        raise InputError(f"patterns come in pairs, so their number must be even, got {M}")
    own = np.arange(M)
    partner = (own + M // 2) % M
    after, final = maps[0], maps[1][maps[0]]
    right, other = (np.where(own < M // 2, weak[i], strong[i]) for i in range(2))
    A = np.zeros((2, M, M))
    A[0, own, after], A[0, own, after[partner]] = a, 1 - a
    A[1, after] = ((1 - right - other) / max(M - 2, 1))[:, None]
    A[1, after, final], A[1, after, final[partner]] = right, other
    return A


# ------------------------------------------------------------------------------------------- votes


def votes(
    key: PRNGKeyArray, states: Int[Array, "l states"], start: Int[Array, ""], used: Bool[Array, " l"], M: int
) -> Int[Array, " steps"]:
    """Chain of thought with perfect attention: step k answers what most examples do whose step-k input equals the
    current state (F.63); ties and states that no example has are broken at random. states: (l, K + 1) indices."""

    def step(state: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        given, answers, tie = inputs
        counts = jnp.sum((used & (given == state))[:, None] * (answers[:, None] == jnp.arange(M)), axis=0)
        state = jnp.argmax(counts + tie)
        return state, state

    ties = jax.random.uniform(key, (states.shape[1] - 1, M))
    return jax.lax.scan(step, start, (states[:, :-1].T, states[:, 1:].T, ties))[1]


# ------------------------------------------------------------------------------------------- times and bounds


def training_times(eta: float, alpha: float, K: float, M: float, eps: float) -> tuple[float, float, float]:
    """T_1 = α⁻² K³ log(K/ε)/η, T_2 = K M/(α η), T_3 = K M/(ε η); Theorem 3 asks for their sum (7.15)."""
    return K**3 * np.log(K / eps) / (alpha**2 * eta), K * M / (alpha * eta), K * M / (eps * eta)


def late_miss(eta: float, t: Any, K: int, M: int) -> Any:
    """1 − p_n(t) ≤ (1 − α)/α e^{−u} = √(K M/(η t)) from u ≥ ½ log(η (1 − α)² t/(α² K M)) (F.24)–(F.31)."""
    return np.sqrt(K * M / (eta * np.asarray(t, float)))


def initial_attention(alpha: float, K: int, examples: int) -> float:
    """Mass on the right columns at W = 0: α l/(K l + k − 1), averaged over k = 1, …, K; α/K for long prompts."""
    return float(np.mean(alpha * examples / (K * examples + np.arange(K))))


def examples_needed(alpha: Any, tau: Any, rho: Any, M: int) -> Any:
    """(α' τ ρ)⁻² log M, the number of test examples of (7.20), or of (7.22) with τ_o and ρ_o, up to a constant."""
    return (np.asarray(alpha) * tau * rho) ** -2.0 * np.log(M)


# ------------------------------------------------------------------------------------------- gradient


def gradient(
    W: Float[Array, "width width"],
    columns: Float[Array, "n width"],
    query: Float[Array, " width"],
    z: Float[Array, " half"],
    printed: bool = False,
) -> Float[Array, "width width"]:
    """∂/∂W of ½‖z − F‖² = Σ_i s_i ((F − z)ᵀ W_V p_i)(p_i − Σ_r s_r p_r) p_queryᵀ, s = softmax_i(p_iᵀ W p_query).

    `printed` takes softmax(p_rᵀ W p_i) in the inner sum, as (F.66) has it.
    """
    s = jax.nn.softmax(columns @ W @ query)
    values = columns[:, len(z) :]
    errors = values @ (s @ values - z)
    means = jax.nn.softmax(columns @ W @ columns.T, axis=0).T @ columns if printed else s @ columns
    return jnp.outer((s * errors) @ (columns - means), query)
