"""What any learner of (n, k)-parities needs, and two rivals of gradient descent (003 §5.2, §5.3, B.1)."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float


def samples_needed(n: int, k: int) -> float:
    """log2 C(n,k): noiseless samples below which no learner can name S."""
    return math.log2(math.comb(n, k))


def noise_factor(flip: float) -> float:
    """1 - 2p: what flipping labels with probability p multiplies every correlation and every Fourier gap by."""
    return 1 - 2 * flip


@dataclass(frozen=True)
class RandomSearch:
    """Testing uniformly random k-subsets, `copies` at a time: success time ~ Geom(1 - (1 - 1/C(n,k))^copies)."""

    n: int
    k: int
    copies: int = 1

    @property
    def rate(self) -> float:
        """Probability of success in one step."""
        return -math.expm1(self.copies * math.log1p(-1 / math.comb(self.n, self.k)))

    @property
    def mean(self) -> float:
        """Expected steps, C(n,k) / copies when that is large."""
        return 1 / self.rate

    def cdf(self, t: Float[np.ndarray, "*times"] | float) -> Float[np.ndarray, "*times"]:
        """P[success within t steps]."""
        return np.asarray(-np.expm1(np.asarray(t) * np.log1p(-self.rate)))

    def quantile(self, q: float) -> float:
        """Steps within which a share q of the searches succeeds."""
        return math.log1p(-q) / math.log1p(-self.rate)


def gaussian_elimination(
    x: Float[np.ndarray, "samples n"], y: Float[np.ndarray, " samples"]
) -> Bool[np.ndarray, " n"] | None:
    """Solve y = prod_{i in S} x_i for S by elimination over GF(2): its indicator, or None if no S fits all samples.

    Free coordinates (fewer independent samples than n) are left out of S.
    """
    system = np.column_stack([x, y]) < 0
    n, row, pivots = x.shape[1], 0, []
    for column in range(n):
        below = np.flatnonzero(system[row:, column])
        if len(below) == 0:
            continue
        system[[row, row + below[0]]] = system[[row + below[0], row]]
        others = system[:, column].copy()
        others[row] = False
        system[others] ^= system[row]
        pivots.append(column)
        row += 1
        if row == len(system):
            break
    if system[row:, n].any():
        return None
    subset = np.zeros(n, dtype=bool)
    subset[pivots] = system[: len(pivots), n]
    return subset
