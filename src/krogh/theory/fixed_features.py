"""Why no fixed low-dimensional feature map learns all parities (003 Thm 5.6), computed on the enumerated cube.

Psi is tabulated on `boolean.cube(n)`: an array (2^n, D) with sup ||Psi(x)|| <= 1.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from krogh.theory.boolean import character, cube, walsh_hadamard


def correlations(features: Float[np.ndarray, "points D"]) -> Float[np.ndarray, " subsets"]:
    """||v_S||^2 for every S, v_S = E[Psi(x) chi_S(x)]; they sum to E||Psi||^2 <= 1 (Parseval)."""
    return (walsh_hadamard(features) ** 2).sum(axis=1)


def hinge_bound(correlation: float, radius: Float[np.ndarray, "*radii"]) -> Float[np.ndarray, "*radii"]:
    """Lower bound 1 - R ||v_S|| on the hinge loss of every linear head of norm <= R, from ||v_S||^2."""
    return 1 - radius * np.sqrt(correlation)


def average_bound(n: int, k: int) -> float:
    """1/C(n,k): what ||v_S||^2 can average to over |S| = k."""
    return 1 / math.comb(n, k)


def fit_shares(features: Float[np.ndarray, "points D"]) -> Float[np.ndarray, " subsets"]:
    """R^2 of the best linear fit of chi_S by the features, for every S: over |S| = k at most D/C(n,k) on average."""
    left, singular, _ = np.linalg.svd(features, full_matrices=False)
    return correlations(left[:, singular > singular[0] * 1e-10] * math.sqrt(len(features)))


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


@partial(jax.jit, static_argnames=("k", "steps"))
def best_hinge(
    features: Float[Array, "points D"], k: int, radii: Float[Array, " radii"], steps: int = 400
) -> Float[Array, " radii"]:
    """Least hinge loss found for S = [k] by projected subgradient steps over heads with ||a|| <= R, for each R."""
    points = len(features)
    y = jnp.asarray(character(cube(points.bit_length() - 1), range(k)), features.dtype)[:, None]

    def step(carry: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], None]:
        a, best = carry
        margin = y * (features @ a)
        best = jnp.minimum(best, jax.nn.relu(1 - margin).mean(0))
        a = a + radii / jnp.sqrt(t + 1.0) * (features.T @ jnp.where(margin < 1, y, 0.0)) / points
        return (a * jnp.minimum(1.0, radii / jnp.maximum(jnp.linalg.norm(a, axis=0), 1e-30)), best), None

    start = jnp.zeros((features.shape[1], len(radii)), features.dtype), jnp.ones(len(radii), features.dtype)
    return jax.lax.scan(step, start, jnp.arange(steps))[0][1]
