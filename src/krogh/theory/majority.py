"""The Fourier spectrum of majority, Maj(x) = sign(x_1 + ... + x_n) for odd n (003 Lemmas B.1 and B.2)."""

import math
from fractions import Fraction

from krogh.errors import InputError

PRINTED_LEVEL_EXPONENT = -2 / 3
LEVEL_EXPONENT = -3 / 2


def coefficient(n: int, k: int) -> float:
    """xi_k = Majhat([k]) (003 Lemma B.1): 0 for even k, and for odd k

    xi_k = (-1)^((k-1)/2) C((n-1)/2, (k-1)/2) / C(n-1, k-1) 2^-(n-1) C(n-1, (n-1)/2).
    """
    return float(_coefficient(n, k))


def _coefficient(n: int, k: int) -> Fraction:
    if n % 2 == 0 or not 0 <= k <= n:
        raise InputError(f"majority needs an odd n and 0 <= k <= n, not n = {n} and k = {k}.")
    if k % 2 == 0:
        return Fraction(0)
    half = (n - 1) // 2
    size = Fraction(math.comb(half, (k - 1) // 2) * math.comb(n - 1, half), math.comb(n - 1, k - 1) * 2 ** (n - 1))
    return (-1) ** ((k - 1) // 2) * size


def coefficient_limit(n: int, k: int) -> float:
    """|xi_k| for n >> k^2 and odd k: sqrt(2/pi) (k-2)!! n^(-k/2), with (-1)!! = 1."""
    return math.sqrt(2 / math.pi) * math.prod(range(k - 2, 0, -2)) * n ** (-k / 2)


def level_weight(n: int, k: int) -> float:
    """W_k = C(n,k) xi_k^2."""
    return float(math.comb(n, k) * _coefficient(n, k) ** 2)


def level_weight_limit(k: float, exponent: float = LEVEL_EXPONENT) -> float:
    """W_k for n >> k^2 and large odd k: (2/pi)^1.5 k^-1.5. The source prints the exponent -2/3."""
    return (2 / math.pi) ** 1.5 * k**exponent


def gap(n: int, k: int) -> float:
    """Fourier gap at any S of even size k: |xi_{k-1}| - |xi_{k+1}|, where |xi_{k-1}| = (n-k)/(k-1) |xi_{k+1}|."""
    return float(abs(_coefficient(n, k - 1)) - abs(_coefficient(n, k + 1)))


def gap_bound(n: int, k: int) -> float:
    """0.03 (n-1)^(-(k-1)/2), a lower bound on the gap for n >= 4k (003 Lemma B.2)."""
    return 0.03 * (n - 1) ** (-(k - 1) / 2)
