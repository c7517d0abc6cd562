"""Lottery tickets for offline parities: the population gradient, luck and readout of one sparse neuron (003 §C.2).

The target is y = chi_[k](x), S = the first k coordinates. A neuron relu(w.x + b) has ones on s coordinates, its support
S'; outside it is 0 (over-sparse, s > k, s odd, k even) or eps < 1/(n-s) (under-sparse, s < k, both even, n odd). Biases
are too small to change which inputs it fires on. G_i = E[chi_S(x) x_i 1[w.x + b > 0]]; dL/dw = -u G for hinge at f = 0.
"""

import math

import numpy as np
from jaxtyping import Float

from krogh.theory import majority
from krogh.theory.boolean import degrees, walsh_hadamard


def half(n: int, k: int) -> float:
    """Halfhat_n([k]) of Half(x) = 1[x_1 + ... + x_n = 0], n even: equal to Majhat_{n+1}([k+1]) (003 Lemma C.12)."""
    return majority.coefficient(n + 1, k + 1)


def half_printed(n: int, k: int) -> float:
    """Lemma C.12 as printed, without the factor 2^-n."""
    return 2**n * half(n, k)


def relevant(s: int, k: int) -> float:
    """C_{k,s} = Maj_s^(k-1) / 2: G_i of an over-sparse neuron that contains S, for i in S (003 Lemma C.3)."""
    return majority.coefficient(s, k - 1) / 2


def irrelevant(s: int, k: int) -> float:
    """c_{k,s} = Maj_s^(k+1) / 2: the same for i in the support but not in S; |c/C| = (k-1)/(s-k)."""
    return majority.coefficient(s, k + 1) / 2


def rho(v: int) -> float:
    """4/(pi v 2^v) C(v-1, (v-1)/2), the limit of C(n,v) Maj_n^(v)^2 as n grows; printed with v^(2v) for v 2^v."""
    return 4 / (math.pi * v * 2**v) * math.comb(v - 1, (v - 1) // 2)


def relevant_bound(s: int, k: int) -> float:
    """|C_{k,s}| >= sqrt(rho(k-1)) C(s, k-1)^(-1/2) / 2 (003 Lemma C.4)."""
    return 0.5 * math.sqrt(rho(k - 1) / math.comb(s, k - 1))


def over_sparse_gradient(support: Float[np.ndarray, "neurons n"], k: int) -> Float[np.ndarray, "neurons n"]:
    """G of neurons with s ones, s odd (003 Lemmas C.3, C.4): C on S and c on the rest of the support where this
    contains S; C on the one coordinate of S that it misses; 0 where it misses more."""
    s = int(support[0].sum())
    inside = np.arange(support.shape[1]) < k
    missing = k - support[:, :k].sum(axis=1, keepdims=True)
    good = relevant(s, k) * inside + irrelevant(s, k) * (1 - inside) * support
    return np.where(missing == 0, good, np.where(missing == 1, relevant(s, k) * inside * (1 - support), 0.0))


def under_sparse_gradient(support: Float[np.ndarray, "neurons n"], k: int) -> Float[np.ndarray, "neurons n"]:
    """G of neurons with s ones and eps elsewhere, s even, n-s odd (003 Lemmas C.13-C.15):

    G_i = 1/2 Half_s^(a) Maj_{n-s}^(b), a and b counting the coordinates of S xor {i} inside and outside the support.
    """
    neurons, n = support.shape
    s = int(support[0].sum())
    out = np.zeros((neurons, n))
    for i in range(n):
        flipped = np.arange(n) < k
        flipped[i] = not flipped[i]
        within = support[:, flipped].sum(axis=1).astype(int)
        outside = flipped.sum() - within
        parts = zip(within.tolist(), outside.tolist(), strict=True)
        out[:, i] = [half(s, a) * majority.coefficient(n - s, b) / 2 for a, b in parts]
    return out


def gap_ratio(n: int, s: int, k: int) -> float:
    """|G| on S minus S' over |G| off S for an under-sparse neuron inside S: (n-k)/(k-s-1)."""
    return (n - k) / (k - s - 1)


def gap_ratio_printed(n: int, s: int, k: int) -> float:
    """The same as printed in the proof of Theorem C.16: (n-s)/(k-s-1)."""
    return (n - s) / (k - s - 1)


def luck_over(n: int, s: int, k: int) -> float:
    """P[S inside the support] = C(n-k, s-k) / C(n, s) (003 Lemma C.2)."""
    return math.comb(n - k, s - k) / math.comb(n, s)


def luck_over_bound(n: int, s: int, k: int) -> float:
    """(s/2n)^k, a lower bound on `luck_over`."""
    return (s / (2 * n)) ** k


def luck_under(n: int, s: int, k: int) -> float:
    """P[the support inside S] = C(k, s) / C(n, s)."""
    return math.comb(k, s) / math.comb(n, s)


def width_needed(luck: float, confidence: float = 0.95) -> float:
    """Neurons among which at least one is good with this probability: ln(1-p) / ln(1-luck)."""
    return math.log1p(-confidence) / math.log1p(-luck)


def width_proven(n: int, s: int, k: int, delta: float) -> float:
    """r = 20 k (2n/s)^k ln(2k/delta) of Lemma C.10."""
    return 20 * k * (2 * n / s) ** k * math.log(2 * k / delta)


def samples_proven(n: int, s: int, k: int, delta: float) -> float:
    """m = 4 ln(4nr/delta) / tau^2 with tau = 1/(16 eta k n), eta = 1/(2k|C|) (003 Lemmas C.5, C.6)."""
    tau = abs(relevant(s, k)) / (8 * n)
    return 4 * math.log(4 * n * width_proven(n, s, k, delta) / delta) / tau**2


def over_biases(k: int, offset: float = 1 / 16, printed: bool = False) -> tuple[float, ...]:
    """beta_j = (-k + 2j + offset) / (2k) for j = 0 .. k/2-1; printed, the first of them is missing (003 §C.2.2)."""
    return tuple((-k + 2 * j + offset) / (2 * k) for j in range(int(printed), k // 2))


def under_biases(k: int, eps: float) -> tuple[float, ...]:
    """±eps (2j-1)/(2k) for j = 1 .. k/2 (003 §C.2.3)."""
    return tuple(sign * eps * (2 * j - 1) / (2 * k) for j in range(1, k // 2 + 1) for sign in (-1, 1))


def readout(
    k: int, biases: tuple[float, ...]
) -> tuple[Float[np.ndarray, "values features"], Float[np.ndarray, " values"]]:
    """Features (1, relu(t/2k + b), relu(-t/2k + b))_b of t = sum_{i in S} x_i = -k, -k+2, .., k, and chi_S at t."""
    t = np.arange(-k, k + 1, 2)
    drive = t[:, None] / (2 * k)
    b = np.asarray(biases)
    features = np.concatenate([np.ones((k + 1, 1)), np.maximum(drive + b, 0), np.maximum(-drive + b, 0)], axis=1)
    return features, (-1.0) ** ((k - t) // 2)


def query_correlations(
    gradients: Float[np.ndarray, "points parameters"], k: int
) -> Float[np.ndarray, "subsets parameters"]:
    """E_x[chi_S(x) dh/dtheta_i]^2 for all |S| = k, from the gradients on `boolean.cube(n)`; over S they average to at
    most max (dh/dtheta_i)^2 / C(n,k) (Parseval, 003 Lemma C.1)."""
    spectrum = walsh_hadamard(gradients)
    return spectrum[degrees(len(gradients).bit_length() - 1) == k] ** 2


def query_cost(parameters: float, steps: float, tau: float, delta: float) -> float:
    """r T / (tau^2 delta): at most C(n,k)/2 leaves some parity unlearned (003 Prop. 6.3); r counts parameters."""
    return parameters * steps / (tau**2 * delta)
