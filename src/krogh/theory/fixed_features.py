"""Why no fixed low-dimensional feature map learns all parities (003 Thm 5.6), computed on the enumerated cube.

Psi is tabulated on `boolean.cube(n)`: an array (2^n, D) with sup ||Psi(x)|| <= 1.
"""

import math

import numpy as np
from jaxtyping import Float

from krogh.theory.boolean import character, cube, degrees, walsh_hadamard


def correlations(features: Float[np.ndarray, "points D"], k: int) -> Float[np.ndarray, " subsets"]:
    """||v_S||^2 for all |S| = k, v_S = E[Psi(x) chi_S(x)]; over all S they sum to E||Psi||^2 <= 1 (Parseval)."""
    spectrum = walsh_hadamard(features)
    size = degrees(len(features).bit_length() - 1)
    return (spectrum[size == k] ** 2).sum(axis=1)


def hinge_bound(correlation: Float[np.ndarray, "*subsets"], radius: float) -> Float[np.ndarray, "*subsets"]:
    """Lower bound 1 - R ||v_S|| on the hinge loss of every linear head of norm <= R, from ||v_S||^2."""
    return 1 - radius * np.sqrt(correlation)


def average_bound(n: int, k: int) -> float:
    """1/C(n,k): what ||v_S||^2 can average to over |S| = k."""
    return 1 / math.comb(n, k)


def fit_shares(features: Float[np.ndarray, "points D"], k: int) -> Float[np.ndarray, " subsets"]:
    """R^2 of the best linear fit of chi_S by the features for all |S| = k: on average at most D/C(n,k)."""
    points = len(features)
    left, singular, _ = np.linalg.svd(features, full_matrices=False)
    basis = left[:, singular > singular[0] * 1e-10] * math.sqrt(points)
    return correlations(basis, k)


def hard_eps(n: int, k: int, dimension: int, radius: float) -> float:
    """Smallest eps of Theorem 5.6: D R^2 < eps^2 C(n,k) forces a hinge loss above 1 - eps for some S."""
    return math.sqrt(dimension * radius**2 / math.comb(n, k))


def width_needed(n: int, k: int, radius: float, eps: float) -> float:
    """Dimension D = eps^2 C(n,k) / R^2 below which Theorem 5.6 excludes a fixed feature map."""
    return eps**2 * math.comb(n, k) / radius**2


def tangent_features(
    w: Float[np.ndarray, "width n"], b: Float[np.ndarray, " width"], u: Float[np.ndarray, " width"]
) -> Float[np.ndarray, "points D"]:
    """Tangent features (gradient in all parameters W, b, u) of f = u.relu(Wx + b) on the cube, over their sup norm.

    D = width (n + 2).
    """
    x = cube(w.shape[1])
    drive = x @ w.T + b
    slope = u * (drive > 0)
    by_weight = (slope[:, :, None] * x[:, None, :]).reshape(len(x), -1)
    features = np.concatenate([by_weight, slope, np.maximum(drive, 0)], axis=1)
    return features / np.linalg.norm(features, axis=1).max()


def best_hinge(features: Float[np.ndarray, "points D"], k: int, radius: float, steps: int = 400) -> float:
    """Hinge loss of the best head with ||a|| <= R for S = [k], by projected subgradient steps (an upper bound)."""
    n = len(features).bit_length() - 1
    y = character(cube(n), range(k))
    a, best = np.zeros(features.shape[1]), 1.0
    for t in range(steps):
        inside = y * (features @ a) < 1
        a = a + radius / math.sqrt(t + 1) * ((y * inside) @ features) / len(y)
        a = a * min(1.0, radius / max(np.linalg.norm(a), 1e-300))
        best = min(best, float(np.maximum(1 - y * (features @ a), 0).mean()))
    return best
