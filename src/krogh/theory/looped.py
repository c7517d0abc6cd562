"""Gradient descent on least squares, as a looped transformer runs it: exact errors, bounds, conditioning (000 §8.5)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike


def gradient_descent(
    x: Float[Array, "n d"], y: Float[Array, " n"], start: Float[Array, " d"], eta: Float[Array, " steps"]
) -> Float[Array, "steps1 d"]:
    """θ⁰ = start and θᵗ = θᵗ⁻¹ − ηᵗ⁻¹ ∇ℓ(θᵗ⁻¹), ℓ(θ) = ½‖y − Xθ‖² (000 Def 8.9, eq. 8.2)."""

    def step(theta, eta):
        theta = theta - eta * jax.grad(lambda theta: 0.5 * jnp.sum((y - x @ theta) ** 2))(theta)
        return theta, theta

    return jnp.concatenate([start[None], jax.lax.scan(step, start, eta)[1]])


def log_decay(
    gram: Float[Any, "*batch d d"], start: Float[Any, "*batch d"], eta: ArrayLike, powers: ArrayLike
) -> Float[np.ndarray, "*batch powers"]:
    """log(Σ_i |1 − ηλ_i|^p c_i² / Σ_i c_i²), XᵀX = V diag(λ) Vᵀ, c = Vᵀ·start, start = θ⁰ − θ*.

    Exact, and in logarithms, so that no power is too large for it. p = 2t is log ‖θᵗ − θ*‖²/‖θ⁰ − θ*‖² for gradient
    descent with the step η; p = t, for θ⁰ = 0, ‖θ*‖ = 1 and η ≤ 1/L, is log |⟨TF, θ*⟩ − α|/|α| after t loops.
    """
    values, vectors = np.linalg.eigh(gram)
    powers = np.asarray(powers, float)
    shares = np.einsum("...ij,...i->...j", vectors, start) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.abs(1 - np.asarray(eta, float)[..., None] * values))[..., None, :] * powers[:, None]
        logs = (
            np.where(powers[:, None] == 0, 0.0, logs)
            + np.log(shares / shares.sum(axis=-1, keepdims=True))[..., None, :]
        )
    return np.logaddexp.reduce(logs, axis=-1)


def curvature(gram: Float[Any, "*batch d d"]) -> tuple[np.ndarray, np.ndarray]:
    """L = λ_max(XᵀX) and μ = λ_min(XᵀX); κ = L/μ (000 Def 8.12, Lemmas 8.20, 8.22)."""
    values = np.linalg.eigvalsh(gram)
    return values[..., -1], values[..., 0]


def log_contraction(eta: ArrayLike, mu: ArrayLike, t: ArrayLike) -> Any:
    """Lemma 8.23: log of ‖θᵗ − θ*‖²/‖θ⁰ − θ*‖² is at most t log(1 − ημ), for η ≤ 1/L."""
    return np.asarray(t) * np.log1p(-np.asarray(eta, float) * mu)


def log_error_bound(kappa: ArrayLike, t: ArrayLike) -> Any:
    """Theorem 8.25: log of ‖θᵗ − θ*‖²/‖θ⁰ − θ*‖² is at most −t/κ with the step 1/L."""
    return -np.asarray(t) / np.asarray(kappa, float)


def log_prediction_bound(kappa: ArrayLike, t: ArrayLike, printed: bool = True) -> Any:
    """Theorem 8.16: log of |⟨TF, θ*⟩ − α|/|α| is at most −t/(2κ) after t loops with the step 1/L.

    printed=False: −t/κ, ours. From q = 0 the miss is Σ_i (1 − λ_i/L)^t ⟨v_i, θ*⟩², no detour by Cauchy–Schwarz.
    """
    return log_error_bound(kappa, t) / (2 if printed else 1)


def tail_slope(kappa: ArrayLike) -> Any:
    """2 log(1 − 1/κ): the slope to which the log of the squared error tends with the step 1/L."""
    return 2 * np.log1p(-1 / np.asarray(kappa, float))


def older_bound(t: ArrayLike, d: int, n: ArrayLike) -> Any:
    """8 T d² 4^T/√n, the bound of earlier work, which needs n ≥ (8 T d² 4^T)² to be at most 1 (000 Thm 8.17)."""
    t = np.asarray(t, float)
    return 8 * t * d**2 * 4**t / np.sqrt(np.asarray(n, float))


def limiting_kappa(ratio: ArrayLike) -> Any:
    """((1 + √r)/(1 − √r))², r = d/n: κ of Gaussian XᵀX as n and d grow together (Marchenko and Pastur's edges)."""
    root = np.sqrt(np.asarray(ratio, float))
    return ((1 + root) / (1 - root)) ** 2
