"""Maximum-margin networks for k-input modular addition, f(a)[c] = Σ_i (u_{i,1}(a_1) + … + u_{i,k}(a_k))^k w_i(c).

Networks are arrays `u` (m, k, p) and `w` (m, p); f̂(j) = Σ_a f(a) e^{−2πi ja/p} (000 §4.4, §C).
"""

import itertools
import math

import numpy as np
from jaxtyping import Complex, Float, Int

from krogh.errors import InputError

# 000 §C.7 prints these for k = 3, and (p − 1)/2 and 0 for the two values of Σ_ζ cos_ζ.
PRINTED_NEURONS_PER_FREQUENCY_3 = 56
PRINTED_WRONG_CLASS = 0.0
# 000 eq. C.20: (θ_{u_1}, θ_{u_2}, θ_{u_3}, θ_w) of the four neurons said to make −24 sin a_1 sin a_2 cos a_3 cos c.
PRINTED_SINE_PHASES = np.pi * np.array([[0.5, 0.5, 0, 1], [0.5, 0.5, -1, 0], [0.5, -0.5, 0, 0], [-0.5, 0.5, 0, 0]])


def max_margin(k: int, p: int) -> float:
    """γ* = 2 k! / ((2k+2)^{(k+1)/2} (p−1) p^{(k−1)/2}), the largest L_{2,k+1}-normalised margin (000 Thm 4.9)."""
    return 2 * math.factorial(k) / ((2 * k + 2) ** ((k + 1) / 2) * (p - 1) * p ** ((k - 1) / 2))


def neurons_per_frequency(k: int) -> int:
    """2^{2k−1} (000 Lemma 4.11)."""
    return 2 ** (2 * k - 1)


def sufficient_width(k: int, p: int) -> int:
    """m = 2^{2k−2} (p − 1), enough for the maximum margin and not claimed to be the least (000 Thm 4.9)."""
    return neurons_per_frequency(k) * (p - 1) // 2


def unit_logit_scale(k: int, m: int) -> float:
    """s = (m (2k−1)!! k^k)^{−1/(2(k+1))}: with N(0, s²) weights the logits start with unit variance."""
    return (m * math.prod(range(2 * k - 1, 0, -2)) * k**k) ** (-1 / (2 * (k + 1)))


def optimal_neuron(
    p: int, zeta: int, phases: Float[np.ndarray, " k"]
) -> tuple[Float[np.ndarray, "k p"], Float[np.ndarray, " p"]]:
    """u_i(a) = √(2/((k+1)p)) cos(θ_i + 2πζa/p) and w(c) with phase Σ θ_i, a unit neuron (000 Lemma C.15)."""
    turn = 2 * np.pi * zeta * np.arange(p) / p
    size = math.sqrt(2 / ((len(phases) + 1) * p))
    return size * np.cos(np.asarray(phases)[:, None] + turn), size * np.cos(np.sum(phases) + turn)


def network_norm(u: Float[np.ndarray, "m k p"], w: Float[np.ndarray, "m p"]) -> float:
    """‖θ‖_{2,k+1} = (Σ_i (Σ_j ‖u_{i,j}‖² + ‖w_i‖²)^{(k+1)/2})^{1/(k+1)}."""
    k = u.shape[1]
    return float(np.sum((np.sum(u**2, axis=(1, 2)) + np.sum(w**2, axis=1)) ** ((k + 1) / 2)) ** (1 / (k + 1)))


def table(k: int, p: int) -> Int[np.ndarray, "rows k"]:
    """All of Z_p^k, the first input slowest."""
    if p**k > 2**20:
        raise InputError(f"a table of {p}^{k} rows is too large for an exact check; at most {2**20} are allowed")
    return np.indices((p,) * k).reshape(k, -1).T


def outputs(
    u: Float[np.ndarray, "m k p"], w: Float[np.ndarray, "m p"], x: Int[np.ndarray, "rows k"]
) -> Float[np.ndarray, "rows p"]:
    """f(a)[c] for every row a."""
    k = u.shape[1]
    return np.sum([u[:, j, x[:, j]] for j in range(k)], axis=0).T ** k @ w


def margins(u: Float[np.ndarray, "m k p"], w: Float[np.ndarray, "m p"]) -> Float[np.ndarray, " rows"]:
    """f(a)[y] − max_{c≠y} f(a)[c] of θ/‖θ‖_{2,k+1} at every row."""
    k, p = u.shape[1:]
    x = table(k, p)
    f, y = outputs(u, w, x), x.sum(axis=1) % p
    right = f[np.arange(len(y)), y]
    f[np.arange(len(y)), y] = -np.inf
    return (right - f.max(axis=1)) / network_norm(u, w) ** (k + 1)


def class_margin(u: Float[np.ndarray, "*m k p"], w: Float[np.ndarray, "*m p"]) -> Float[np.ndarray, "*m"] | float:
    """E_a[φ(a)[y] − mean_{c≠y} φ(a)[c]] of each neuron, wrong classes weighted alike (000 eq. C.10):

    k!/((p−1) p^k) Σ_{j≠0} ŵ(−j) Π_i û_i(j), for any w: what is left of the other terms does not depend on c − y.
    """
    *_, k, p = u.shape
    product = np.prod(np.fft.fft(u), axis=-2) * np.conj(np.fft.fft(w))
    return math.factorial(k) / ((p - 1) * p**k) * np.sum(product[..., 1:].real, axis=-1)


def class_margin_enumerated(u: Float[np.ndarray, "k p"], w: Float[np.ndarray, " p"]) -> float:
    """The same mean over all p^k rows, by its definition."""
    k, p = u.shape
    x = table(k, p)
    y = x.sum(axis=1) % p
    hidden = np.sum([u[j, x[:, j]] for j in range(k)], axis=0) ** k
    return float(np.mean(hidden * (w[y] - (w.sum() - w[y]) / (p - 1))))


def even_products(k: int) -> list[tuple[tuple[int, ...], int]]:
    """cos(x_1 + … + x_{k+1}) = Σ_b sign(b) Π_i (sin x_i if b_i else cos x_i) over b of even weight (000 eq. C.21).

    sign(b) is −1 where the weight is 2 mod 4; 2^k terms.
    """
    even = (b for b in itertools.product((0, 1), repeat=k + 1) if sum(b) % 2 == 0)
    return [(b, -1 if sum(b) % 4 == 2 else 1) for b in even]


def polarised(d: Float[np.ndarray, "... k"]) -> Float[np.ndarray, "..."]:
    """Σ_{s∈{±1}^k} (−1)^{(k−Σs)/2} (Σ_j s_j d_j)^k, which is 2^k k! Π d_j (000 Lemma C.16)."""
    k = d.shape[-1]
    s = np.array(list(itertools.product((1, -1), repeat=k)))
    return (d @ s.T) ** k @ np.prod(s, axis=1)


def construction(k: int, p: int) -> tuple[Float[np.ndarray, "m k p"], Float[np.ndarray, "m p"]]:
    """The network of Lemma 4.11 with ‖θ‖_{2,k+1} = 1: each of the (p−1)/2 frequencies has 2^{2k−1} equal neurons.

    Each product of `even_products` is made of the 2^{k−1} sign patterns of Lemma C.16 with s_1 = 1; f = const·Σ_ζ
    cos_ζ(Σ a − c). A sine is a cosine of phase −π/2; that of −c has phase +π/2.
    """
    if p < 3 or p % 2 == 0:
        raise InputError(f"the construction needs an odd p of at least 3, got p={p}")
    patterns = [(1, *s) for s in itertools.product((1, -1), repeat=k - 1)]
    u, w = [], []
    for zeta in range(1, (p - 1) // 2 + 1):
        turn = 2 * np.pi * zeta * np.arange(p) / p
        for b, sign in even_products(k):
            factors = np.array([np.sin(turn) if b_i else np.cos(turn) for b_i in b[:k]])
            out = sign * (-np.sin(turn) if b[k] else np.cos(turn))
            for s in patterns:
                u.append(np.array(s)[:, None] * factors)
                w.append(np.prod(s) * out)
    size = math.sqrt(2 / ((k + 1) * p)) * len(w) ** (-1 / (k + 1))
    return size * np.array(u), size * np.array(w)


def spectrum(u: Float[np.ndarray, "m k p"], w: Float[np.ndarray, "m p"]) -> Complex[np.ndarray, "..."]:
    """The (k+1)-dimensional transform of f, axes a_1, …, a_k, c; of a maximum-margin network f̂(j, …, j, −j) > 0 for all
    j ≠ 0 (000 Lemma C.20)."""
    k, p = u.shape[1:]
    return np.fft.fftn(outputs(u, w, table(k, p)).reshape((p,) * (k + 1)))


def ascend(k: int, p: int, rng: np.random.Generator) -> tuple[float, Float[np.ndarray, "k p"], Float[np.ndarray, " p"]]:
    """The largest class-weighted margin of a unit neuron that L-BFGS finds from a random start, and the neuron."""
    from scipy.optimize import minimize

    constant = math.factorial(k) / ((p - 1) * p**k)

    def lowered(theta):
        """−E[g'](θ/‖θ‖)/γ* and its gradient, by the transforms."""
        u, w = theta[: k * p].reshape(k, p), theta[k * p :]
        u_hat, w_hat = np.fft.fft(u), np.fft.fft(w)
        u_hat[:, 0] = 0
        others = np.array([np.prod(np.delete(u_hat, i, axis=0), axis=0) for i in range(k)])
        value = constant * np.sum(np.prod(u_hat, axis=0) * np.conj(w_hat)).real
        du = constant * np.fft.fft(np.conj(w_hat) * others * (np.arange(p) > 0)).real
        dw = constant * p * np.fft.ifft(np.prod(u_hat, axis=0)).real
        norm = np.linalg.norm(theta)
        gradient = np.concatenate([du.ravel(), dw]) - (k + 1) * value * theta / norm**2
        scale = max_margin(k, p) * norm ** (k + 1)
        return -value / scale, -gradient / scale

    start = rng.normal(size=(k + 1) * p)
    found = minimize(lowered, start / np.linalg.norm(start), jac=True, method="L-BFGS-B", options={"maxiter": 2000})
    theta = found.x / np.linalg.norm(found.x)
    return -found.fun * max_margin(k, p), theta[: k * p].reshape(k, p), theta[k * p :]
