"""What linear attention learns in context, in closed form: regression by rank, parities by heads (000 §5.4, §5.5, §D).

Regression: x ~ N(0, Λ) with eigenvalues `spectrum` (falling), N examples per prompt in pretraining, M in evaluation;
task vectors are given by their components along the eigenvectors. Parities: heads are diagonal in the dictionary, and
given as (a, V) with V of shape (heads, d).
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Vector = Sequence[float] | np.ndarray

# ------------------------------------------------------------------------------------------- pretraining on regression


def gamma_matrix(covariance: Float[np.ndarray, "d d"], N: int) -> Float[np.ndarray, "d d"]:
    """Γ = (1 + 1/N) Λ + (tr Λ/N) I (Lemma 5.1)."""
    return (1 + 1 / N) * covariance + np.trace(covariance) / N * np.eye(len(covariance))


def pretraining_loss(U: Float[np.ndarray, "d d"], u: float, covariance: Float[np.ndarray, "d d"], N: int) -> float:
    """ℓ~(U, u) = tr(u²/2 Γ Λ U Λ Uᵀ − u Λ² Uᵀ); the population loss is ℓ~ + tr(Λ)/2 (Lemma 5.1)."""
    L = covariance
    return float(np.trace(u**2 / 2 * gamma_matrix(L, N) @ L @ U @ L @ U.T - u * L @ L @ U.T))


def pretraining_gradient(U: Float[np.ndarray, "d d"], covariance: Float[np.ndarray, "d d"], N: int) -> np.ndarray:
    """∂ℓ~(U, 1)/∂U = Γ Λ U Λ − Λ²."""
    return gamma_matrix(covariance, N) @ covariance @ U @ covariance - covariance @ covariance


def pretraining_gap(U: Float[np.ndarray, "d d"], u: float, covariance: Float[np.ndarray, "d d"], N: int) -> float:
    """ℓ~(U, u) above its unrestricted minimum: ½ ‖Γ^½ (u Λ^½ U Λ^½ − Λ Γ⁻¹)‖²_F (Lemma D.1)."""
    values, Q = np.linalg.eigh(covariance)
    root = (Q * np.sqrt(values)) @ Q.T
    gamma = gamma_matrix(covariance, N)
    values, Q = np.linalg.eigh(gamma)
    inner = (Q * np.sqrt(values)) @ Q.T @ (u * root @ U @ root - covariance @ np.linalg.inv(gamma))
    return float(np.sum(inner**2) / 2)


def optimal_values(spectrum: Vector, N: int, r: int) -> Float[np.ndarray, " d"]:
    """v_i* = N/((N + 1) λ_i + tr D) for i ≤ r and 0 beyond: the best U of rank r is Q diag(v*) Qᵀ (Thm 5.4.1)."""
    values = np.asarray(spectrum, float)
    return np.where(np.arange(len(values)) < r, N / ((N + 1) * values + values.sum()), 0.0)


def optimal_loss(spectrum: Vector, N: int, r: int) -> float:
    """ℓ~* = −½ Σ_{i ≤ r} λ_i² v_i*, the least ℓ~ of rank r."""
    return -float(np.sum(np.asarray(spectrum, float) ** 2 * optimal_values(spectrum, N, r))) / 2


# ------------------------------------------------------------------------------------------- evaluation on regression


class Evaluation(NamedTuple):
    """A prompt of M examples with labels ±⟨w, x⟩ + σ ε, the sign being wrong with probability `flip`."""

    w: Vector
    M: int
    sigma: float = 0.0
    flip: float = 0.0


def evaluation_loss(spectrum: Vector, N: int, r: int, e: Evaluation) -> float:
    """E(ŷ − ⟨w, x_q⟩)² of the optimal rank-r model, w = s + ξ split at r (Thm 5.4.2; there flip = 0, c = 1):

        (2 − c²)/M sᵀV²D³s + (‖w‖²_D + σ²)/M tr(V²D²) + ‖ξ‖²_D + Σ_{i ≤ r} s_i² λ_i (c λ_i v_i − 1)²,  c = 1 − 2 flip.

    A flipped label has the same square, so that flips leave the second term alone.
    """
    values, v = np.asarray(spectrum, float), optimal_values(spectrum, N, r)
    w, c, kept = np.asarray(e.w, float), 1 - 2 * e.flip, np.arange(len(values)) < r
    own = (2 - c**2) * np.sum(w**2 * v**2 * values**3)
    noise = (np.sum(w**2 * values) + e.sigma**2) * np.sum(v**2 * values**2)
    missed = np.sum(w**2 * values * np.where(kept, (c * values * v - 1) ** 2, 1.0))
    return float((own + noise) / e.M + missed)


def long_pretraining_loss(spectrum: Vector, r: int, e: Evaluation) -> float:
    """Its limit for N λ_r ≫ tr D: ‖ξ‖²_D + ((r + 1) ‖s‖²_D + r ‖ξ‖²_D + r σ²)/M (000 §5.4.2)."""
    energy = np.asarray(e.w, float) ** 2 * np.asarray(spectrum, float)
    s, xi = energy[:r].sum(), energy[r:].sum()
    return float(xi + ((r + 1) * s + r * xi + r * e.sigma**2) / e.M)


def noise_slope(spectrum: Vector, N: int, M: int, r: int, larger: int) -> float:
    """(1/M) Σ_{r < i ≤ r'} (N λ_i/((N + 1) λ_i + tr D))²: how fast L(r') − L(r) grows with σ²."""
    gained = (np.asarray(spectrum, float) * optimal_values(spectrum, N, larger))[r:]
    return float(np.sum(gained**2)) / M


def rank_gap(spectrum: Vector, N: int, r: int, larger: int, e: Evaluation) -> float:
    """L(r') − L(r) = (‖s‖²_D + σ²) · noise_slope where w has no component beyond r (Thm 5.4.3)."""
    energy = float(np.sum(np.asarray(e.w, float) ** 2 * np.asarray(spectrum, float)))
    return (energy + e.sigma**2) * noise_slope(spectrum, N, e.M, r, larger)


def label_moment(
    w: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"], sigma: float, printed: bool = False
) -> Float[np.ndarray, "d d"]:
    """E[y² x xᵀ] = (σ² + ‖w‖²_Λ) Λ + 2 Λ w wᵀ Λ; `printed` has Λ wᵀw Λ in the last term (Lemma D.2)."""
    L = covariance
    last = (w @ w) * (L @ L) if printed else np.outer(L @ w, L @ w)
    return (sigma**2 + w @ L @ w) * L + 2 * last


# ------------------------------------------------------------------------------------------- heads for parities


class Heads(NamedTuple):
    """Σ_h a_h ReLU(zᵀ diag(V_h) φ_q) with z = 2γ (e_i + e_j) after infinitely many examples of the pair (i, j)."""

    a: Float[np.ndarray, " heads"]
    V: Float[np.ndarray, "heads d"]

    def outputs(self, gamma: float) -> Float[np.ndarray, "d d 4"]:
        """g for every pair (i, j) and (φ_i, φ_j) = (1, 1), (1, −1), (−1, 1), (−1, −1)."""
        seen = np.einsum("ps,shij->hijp", SIGNS, np.stack(np.broadcast_arrays(self.V[:, :, None], self.V[:, None])))
        return np.einsum("h,hijp->ijp", self.a, np.maximum(2 * gamma * seen, 0))

    def margins(self, gamma: float) -> Float[np.ndarray, "d d 4"]:
        """y g for every pair and sign pattern; NaN where i = j."""
        margins = self.outputs(gamma) * SIGNS.prod(axis=1)
        return np.where(np.eye(self.V.shape[1], dtype=bool)[..., None], np.nan, margins)

    @property
    def norm(self) -> float:
        """Σ_h ‖V_h‖²_F."""
        return float(np.sum(self.V**2))


SIGNS = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])


def sign_probabilities(gamma: float) -> Float[np.ndarray, " 4"]:
    """Of the four sign patterns, in the order of `SIGNS`."""
    return np.array([0.25 + gamma, 0.25, 0.25, 0.25 - gamma])


def hinge(margins: Float[np.ndarray, "d d 4"], gamma: float) -> Float[np.ndarray, "d d"]:
    """E[max(0, 1 − y g)] of every task (i, j); NaN where i = j."""
    return np.maximum(0, 1 - margins) @ sign_probabilities(gamma)


def digits(d: int, bits: int) -> Int[np.ndarray, "bits d"]:
    """digit(bin(i − 1), h) for i = 1, …, d and h = 1, …, bits, counted from the right."""
    return (np.arange(d) >> np.arange(bits)[:, None]) & 1


def with_opposites(a: Vector, V: np.ndarray) -> Heads:
    """Every head and its opposite: (a, V) and (a, −V)."""
    a, V = np.asarray(a, float), np.asarray(V, float)
    return Heads(np.concatenate([a, a]), np.concatenate([V, -V]))


def binary_heads(d: int, bits: int, gamma: float, scale: int | None = None) -> Heads:
    """The heads of Theorem 5.5.1 with g = y · Hamming distance of the lowest `bits` binary digits of i − 1 and j − 1.

    Negative heads ±(2 digit_h − 1)/(4γ) for every digit and positive heads ±(scale/(4γ)) 1. g_2 has all ν_2 = log₂ d
    digits, g_1 the ν_1 = log₂ k lowest; each has its own number of digits as its scale.
    """
    scale = bits if scale is None else scale
    V = np.concatenate([2 * digits(d, bits) - 1, np.full((1, d), -scale)]) / (4 * gamma)
    return with_opposites([-1.0] * bits + [1.0], V)


def small_heads(nu_1: int, nu_2: int) -> list[int]:
    """Which of the 2(ν_2 + 1) heads, counted from 1, the smaller model keeps (Thm 5.5.1)."""
    return [*range(1, nu_1 + 1), nu_2 + 1, *range(nu_2 + 2, nu_2 + nu_1 + 2), 2 * nu_2 + 2]


def four_heads(d: int, gamma: float) -> Heads:
    """Zero hinge loss on every pair with four heads, whatever d.

    2γV = ±v with v = (0, …, d − 1) − (d − 1)/2 and a = −1, and ±c 1 with 2c = v_d + v_{d−1} + 1 and a = 1: then
    g = −|v_i − v_j| ≤ −1 where y = −1 and 2c − |v_i + v_j| ≥ 1 where y = 1.
    """
    v = np.arange(d) - (d - 1) / 2
    c = (v[-1] + v[-2] + 1) / 2
    return with_opposites([-1.0, 1.0], np.stack([v, np.full(d, c)]) / (2 * gamma))


def separating_count(d: int) -> int:
    """The least n with C(n, ⌊n/2⌋) ≥ d: negative heads of `separating_heads`, which has two positive ones besides."""
    return next(n for n in range(2, d + 2) if math.comb(n, n // 2) >= d)


def separating_heads(d: int, gamma: float) -> Heads:
    """Zero hinge loss with heads that differ in signs alone: n negative ones suffice when C(n, ⌊n/2⌋) ≥ d.

    Every feature gets its own ⌊n/2⌋-subset of the negative heads, where its sign is +; no subset contains another, so
    that each ordered pair is told apart by some head. Positive heads ±c 1 outweigh what negative ones say at y = 1.
    """
    n = separating_count(d)
    V = -np.ones((n, d))
    for feature, subset in zip(range(d), combinations(range(n), n // 2), strict=False):
        V[list(subset), feature] = 1
    # at y = 1 a negative head says |V_i + V_j|/2 = 1 at most, where the signs of i and j agree
    most = max(np.maximum(s * (V[:, i] + V[:, j]) / 2, 0).sum() for i, j in combinations(range(d), 2) for s in (1, -1))
    positive = np.full((2, d), (most + 1) / 2) * np.array([[1], [-1]])
    return Heads(np.array([-1.0] * n + [1.0] * 2), np.concatenate([V / 2, positive]) / (2 * gamma))


def mixture_threshold(d: int, gamma: float) -> float:
    """p_T below which Theorem 5.5.1 lets S_1 come first: (1/4 − γ)/(d(d − 1)/2 (1/4 + γ) + 1/4 − γ)."""
    least = 0.25 - gamma
    return least / (d * (d - 1) / 2 * (0.25 + gamma) + least)


def unanswered(d: int, k: int) -> int:
    """Ordered pairs with equal lowest digits, on which g_1 is 0: d (d/k − 1)."""
    return d * (d // k - 1)


def projection(heads: Heads) -> Float[np.ndarray, "d d"]:
    """P_D onto the span of the heads' diagonals, by the pseudo-inverse: they come in opposite pairs (Thm 5.5.2)."""
    D = heads.V.T
    return D @ np.linalg.pinv(D)
