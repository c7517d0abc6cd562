"""Do weight vectors gather into clusters? Two-way split, its tightness, and a map in the plane (000 §A.7.4)."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Rows = Float[Array, "points size"] | Float[np.ndarray, "points size"]


class Split(NamedTuple):
    """Mean cosine of each cluster's members to its centre, and the cosine between the two centres."""

    first: Float[Array, ""]
    second: Float[Array, ""]
    between: Float[Array, ""]


def unit(rows: Float[Array, "*points size"] | Float[np.ndarray, "*points size"]) -> Float[Array, "*points size"]:
    return rows / jnp.maximum(jnp.linalg.norm(rows, axis=-1, keepdims=True), 1e-30)  # type: ignore[return-value]


def members(rows: Rows) -> Bool[Array, " points"]:
    """Which side of the split a row lies on: the sign of the top eigenvector of the cosine Gram matrix, the larger
    side first (True)."""
    points = unit(rows)
    side = _top_eigenvector(points @ points.T) > 0
    return jnp.where(2 * side.sum() >= side.size, side, ~side)


def _top_eigenvector(gram: Float[Array, "points points"], squarings: int = 12) -> Float[Array, " points"]:
    """The power method by repeated squaring: gram^(2^squarings) is of rank one but for ratios of eigenvalues near 1."""
    for _ in range(squarings):
        gram = gram @ gram
        gram = gram / jnp.trace(gram)
    return gram[jnp.argmax(jnp.diagonal(gram))]


def split(rows: Rows, side: Bool[Array, " points"] | None = None) -> Split:
    """The (first, second, between) cosines of a split of the rows, by default the one `members` finds.

    A centre is the mean of its members' unit vectors; an empty side counts as cosine 0.
    """
    points = unit(rows)
    side = members(rows) if side is None else side
    weights = jnp.stack([side, ~side]).astype(points.dtype)
    centres = unit(weights @ points)
    own = (weights * (centres @ points.T)).sum(1) / jnp.maximum(weights.sum(1), 1)
    return Split(own[0], own[1], centres[0] @ centres[1])


def tightest(rows: Rows, share: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the `share` of rows nearest each end of the top eigenvector: two clusters picked by rule, where the
    source picks them by hand from the map."""
    points = np.asarray(unit(rows))
    order = np.argsort(np.linalg.eigh(points @ points.T)[1][:, -1])
    count = max(2, round(share * len(points)))
    return order[:count], order[-count:]


def plane(rows: Rows) -> Float[np.ndarray, "points 2"]:
    """Metric multidimensional scaling of the rows under the dissimilarity 1 - cos, from the top two eigenvectors."""
    from sklearn.manifold import smacof

    points = np.asarray(unit(rows), np.float64)
    apart = np.clip(1 - points @ points.T, 0, 2)
    np.fill_diagonal(apart, 0)
    values, vectors = np.linalg.eigh(points @ points.T)
    start = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))
    return smacof(apart, n_components=2, init=start, n_init=1)[0]  # type: ignore[return-value]


def count_clusters(rows: Rows, most: int = 6) -> int:
    """The number of clusters of the unit rows, 2 to `most`, with the best mean silhouette (cosine distance)."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    points = np.asarray(rows, np.float64)
    points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-30)
    # The same points in as few dimensions as there are of them.
    values, vectors = np.linalg.eigh(points @ points.T)
    points = vectors * np.sqrt(np.maximum(values, 0))
    scores = {
        k: silhouette_score(points, KMeans(k, n_init=10, random_state=0).fit_predict(points), metric="cosine")  # type: ignore[arg-type]
        for k in range(2, most + 1)
    }
    return max(scores, key=scores.__getitem__)
