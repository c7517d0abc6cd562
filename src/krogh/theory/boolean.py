"""Functions on the Boolean cube: enumeration, the Walsh–Hadamard transform, Fourier coefficients and gaps.

A point of {±1}^n is also an integer: bit i of the integer is 1 where x_i = -1. A subset of coordinates is an
integer mask in the same way, so chi_S(x) = (-1)^popcount(S & x) and a spectrum is an array indexed by masks.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from krogh.errors import InputError

ENUMERABLE_BITS = 22


def cube(n: int) -> Float[np.ndarray, "points n"]:
    """All 2^n points of {±1}^n, row r having x_i = -1 where bit i of r is set."""
    if n > ENUMERABLE_BITS:
        raise InputError(f"n={n} is too large to enumerate; at most {ENUMERABLE_BITS} bits are allowed")
    return 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)


def mask(subset: Sequence[int]) -> int:
    """The integer whose set bits are the members of the subset."""
    return sum(1 << i for i in set(subset))


def degrees(n: int) -> Int[np.ndarray, " subsets"]:
    """|S| for every mask S = 0 .. 2^n - 1."""
    return np.bitwise_count(np.arange(2**n)).astype(int)


def character(x: Float[np.ndarray, "*batch n"], subset: Sequence[int]) -> Float[np.ndarray, "*batch"]:
    """chi_S(x) = prod_{i in S} x_i (003 eq. B.1)."""
    return np.prod(x[..., list(subset)], axis=-1)


def walsh_hadamard(values: Float[np.ndarray, "points *rest"]) -> Float[np.ndarray, "points *rest"]:
    """Fourier coefficients fhat(S) = E[f(x) chi_S(x)] of functions tabulated on `cube(n)`, in n 2^n additions."""
    points, *rest = values.shape
    n = points.bit_length() - 1
    if points != 1 << n:
        raise InputError(f"a table on the cube has 2^n rows, not {points}.")
    spectrum = np.asarray(values, dtype=float)
    for i in range(n):
        pairs = spectrum.reshape(2 ** (n - 1 - i), 2, 2**i, *rest)
        spectrum = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
    return spectrum.reshape(points, *rest) / points


def level_weights(spectrum: Float[np.ndarray, " subsets"]) -> Float[np.ndarray, " levels"]:
    """W_d = sum over |S| = d of fhat(S)^2, for d = 0 .. n."""
    n = len(spectrum).bit_length() - 1
    return np.bincount(degrees(n), weights=spectrum**2, minlength=n + 1)


def fourier_gap(spectrum: Float[np.ndarray, " subsets"], subset: Sequence[int]) -> float:
    """Largest gamma with |fhat(S minus one)| >= |fhat(S plus one)| + gamma for all such sets (003 Def. 5.4)."""
    n, s = len(spectrum).bit_length() - 1, mask(subset)
    below = [abs(spectrum[s ^ (1 << i)]) for i in range(n) if s >> i & 1]
    above = [abs(spectrum[s ^ (1 << i)]) for i in range(n) if not s >> i & 1]
    return float(min(below) - max(above, default=0.0))
