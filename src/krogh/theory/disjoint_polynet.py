"""The disjoint-PolyNet f(x) = prod_i <w_i, x_{P_i}> on a disjoint parity, correlation loss (003 §5.4.2, B.2.3).

Block i has one relevant weight v_i and n' - 1 irrelevant weights u_i; n = k n'. The population gradient moves only
the relevant weights, dv_i/dt = prod_{j != i} v_j, and the network is learnable when prod_i v_i(0) > 0.
"""

import math

import numpy as np
from jaxtyping import Float


def relevant_weight(t: Float[np.ndarray, "*times"], k: int) -> Float[np.ndarray, "*times"]:
    """v(t) from v(0) = 1: (1 - (k-2) t)^(-1/(k-2)) for k > 2, e^t for k = 2 (003 §5.4.2)."""
    return np.exp(t) if k == 2 else (1 - (k - 2) * t) ** (-1 / (k - 2))


def reach_time(b: Float[np.ndarray, "*values"] | float, k: int) -> Float[np.ndarray, "*values"]:
    """T(b), when v reaches b from v(0) = 1: (1 - b^(2-k))/(k-2), finite (1/(k-2)) even for b = inf when k > 2."""
    b = np.asarray(b, dtype=float)
    return np.asarray(np.log(b) if k == 2 else (1 - b ** (2 - k)) / (k - 2))


def flow(v0: Float[np.ndarray, " k"], times: Float[np.ndarray, " times"]) -> Float[np.ndarray, "times k"]:
    """Relevant weights along the gradient flow dv_i/dt = prod_{j != i} v_j, integrated numerically."""
    from scipy.integrate import solve_ivp

    others = ~np.eye(len(v0), dtype=bool)

    def velocity(_: float, v: np.ndarray) -> np.ndarray:
        return np.prod(np.where(others, v, 1.0), axis=1)

    span = (0.0, float(times[-1]))
    solution = solve_ivp(velocity, span, v0, t_eval=times, method="DOP853", rtol=1e-11, atol=1e-13)
    return solution.y.T


def flow_time(q: float, v0: Float[np.ndarray, " k"]) -> float:
    """Time at which every v_i^2 has grown by q: t(q) = 1/2 int_0^q prod_i (g + v_i(0)^2)^(-1/2) dg (q may be inf)."""
    from scipy.integrate import quad

    squares = np.asarray(v0, dtype=float) ** 2

    # g = s (e^a - 1), s the smallest square: the integrand is then smooth on the whole range
    smallest = squares.min()

    def integrand(a: float) -> float:
        grown = smallest * math.expm1(a)
        return 0.5 * smallest * math.exp(a) / math.sqrt(np.prod(grown + squares))

    # beyond a = 80 the integrand is below e^(-80 (k/2 - 1)) of its start
    top = min(math.log1p(q / smallest), 80.0 / max(len(squares) / 2 - 1, 0.25) + 20.0)
    return quad(integrand, 0.0, top, epsabs=1e-13, epsrel=1e-12, limit=400)[0]


def reach_time_bound(b: float, v0: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Lower bound on T_i(b), the last time |v_i| <= b (003 Lemma B.8), k > 2, va = mean of v_i(0)^2:

    T_i(b) >= (va^(1-k/2) - (va + b^2 - v_i(0)^2)^(1-k/2)) / (k-2).
    """
    k, squares = len(v0), np.asarray(v0) ** 2
    mean = squares.mean()
    return (mean ** (1 - k / 2) - (mean + b**2 - squares) ** (1 - k / 2)) / (k - 2)


def remaining_time_bound(b: float, v0: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Upper bound on T_i(inf) - T_i(b) (003 Lemma B.8), k > 2, vg = geometric mean of v_i(0)^2:

    T_i(inf) - T_i(b) <= (vg + b^2 - v_i(0)^2)^(1-k/2) / (k-2).
    """
    k, squares = len(v0), np.asarray(v0) ** 2
    return (np.exp(np.log(squares).mean()) + b**2 - squares) ** (1 - k / 2) / (k - 2)


def overturned(u: Float[np.ndarray, " m"], v: float) -> tuple[float, float]:
    """p = P[u.z > |v|] and t = P[u.z = |v|] for z uniform on {±1}^m, exactly (half the cube against the other)."""
    half = len(u) // 2
    left, right = (np.sort(_signed_sums(part)) for part in (u[:half], u[half:]))
    above = len(right) - np.searchsorted(right, abs(v) - left, side="right")
    at_least = len(right) - np.searchsorted(right, abs(v) - left, side="left")
    points = 2.0 ** len(u)
    return above.sum() / points, (at_least - above).sum() / points


def _signed_sums(u: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for weight in u:
        sums = np.concatenate([sums + weight, sums - weight])
    return sums


def overturned_signs(m: int, v: float) -> tuple[float, float]:
    """`overturned` for m weights of modulus one, where u.z = 2 Bin(m, 1/2) - m."""
    from scipy.stats import binom

    count = (m + abs(v)) / 2
    above = float(binom.sf(math.floor(count), m, 0.5))
    return above, float(binom.pmf(count, m, 0.5)) if count == int(count) else 0.0


def error(p: Float[np.ndarray, " k"], t: Float[np.ndarray, " k"]) -> float:
    """0-1 error at prod v_i > 0, ties counted as errors: 1 - 1/2 prod(1 - t_i) - 1/2 prod(1 - t_i - 2 p_i)."""
    p, t = np.asarray(p), np.asarray(t)
    return float(1 - 0.5 * np.prod(1 - t) - 0.5 * np.prod(1 - t - 2 * p))


def printed_error(p: Float[np.ndarray, " k"], t: Float[np.ndarray, " k"]) -> float:
    """Equation B.11: 1/2 - 1/2 prod(1 - 2 p_i) + P[tie], which counts a tie beside an odd number of errors twice."""
    p, t = np.asarray(p), np.asarray(t)
    return float(0.5 - 0.5 * np.prod(1 - 2 * p) + 1 - np.prod(1 - t))


def network_error(w: Float[np.ndarray, "k block"]) -> float:
    """Exact 0-1 error of a disjoint-PolyNet whose relevant weights are w[:, 0] (the truth when prod w[:, 0] > 0).

    A negative product makes the network predict the opposite label: 1/2 prod(1 - t_i) + 1/2 prod(1 - t_i - 2 p_i)
    is then its chance of a wrong answer, and ties come on top.
    """
    p, t = np.array([overturned(block[1:], block[0]) for block in w]).T
    if np.prod(w[:, 0]) > 0:
        return error(p, t)
    return float(1 - 0.5 * np.prod(1 - t) + 0.5 * np.prod(1 - t - 2 * p))


def error_upper_bound(v: np.ndarray, norms: np.ndarray, printed: bool = False) -> float:
    """2 sum_i exp(-v_i^2 / (2 ||u_i||^2)) (003 Lemma B.9). The source prints the exponent without its 2."""
    return float(2 * np.exp(-(np.asarray(v) ** 2) / ((1 if printed else 2) * np.asarray(norms) ** 2)).sum())


def tail_bound(v: float, norm: float, printed: bool = False) -> float:
    """Bound on P[u.z >= v] inside Lemma B.9: Hoeffding's exp(-v^2/(2||u||^2)); printed without the 2."""
    return math.exp(-(v**2) / ((1 if printed else 2) * norm**2))


def error_lower_bound(v: np.ndarray, u: Float[np.ndarray, "k m"], c: float = 0.56, printed: bool = False) -> float:
    """1/2 - 1/2 prod_i (erf(|v_i|/(||u_i|| sqrt 2)) + slack_i), capped factors (003 Lemma B.9).

    Berry–Esseen gives slack = 2 c max|u| / ||u||, twice because P[|u.z| <= v] has two ends; the source prints
    c max|u| / ||u||^3.
    """
    from scipy.special import erf

    norm, largest = np.linalg.norm(u, axis=1), np.abs(u).max(axis=1)
    slack = c * largest / norm**3 if printed else 2 * c * largest / norm
    return float(0.5 - 0.5 * np.prod(np.minimum(erf(np.abs(v) / (norm * math.sqrt(2))) + slack, 1.0)))


def plateau_value(block: int, k: int, target: float = 0.49) -> int:
    """Smallest v past which a ±1-initialised network errs on at most `target` of the inputs.

    Between two values of u.z the error is constant, so v is looked for on their lattice.
    """
    m = block - 1
    low, high = -1, m // 2  # the error just past v = 2 j + (m mod 2) is above the target at low, not at high
    while high - low > 1:
        middle = (low + high) // 2
        p, t = overturned_signs(m, 2 * middle + m % 2)
        if error(np.full(k, p), np.zeros(k)) <= target:
            high = middle
        else:
            low = middle
    return 2 * high + m % 2


def plateau_share(block: int, k: int, target: float = 0.49) -> float:
    """T(target)/T(0) of the gradient flow from ±1 weights: 1 - O(n'^(1-k/2)) (003 Thm 5.7, Cor. B.10).

    The error is exactly 0 once v > ||u||_1 = n' - 1.
    """
    return float(reach_time(plateau_value(block, k, target), k) / reach_time(block - 1, k))


def sgd_steps(block: int, k: int, eps: float, delta: float) -> int:
    """Smallest T with T >= 6 ln(2nT/delta) ln(2k/eps) (3n'-2)^(2k-1) (003 Thm 5.8)."""
    scale = 6 * math.log(2 * k / eps) * (3 * block - 2) ** (2 * k - 1)
    steps = scale
    for _ in range(200):
        steps = scale * math.log(2 * k * block * steps / delta)
    return math.ceil(steps)


def sgd_rate(steps: int, n: int, delta: float) -> float:
    """1/(2 sqrt(2 T ln(2nT/delta))): block i's step size is this over prod_{l != i} ||w_l||_1 (003 Thm 5.8).

    Azuma's inequality gives the stated probability with a 4 in place of the printed 2.
    """
    return 1 / (2 * math.sqrt(2 * steps * math.log(2 * n * steps / delta)))


def relevant_bound(block: int, k: int, steps: int, delta: float, t: int | None = None) -> float:
    """Lower bound on every relevant |w_i1| after t of the T steps (all of them by default; 003 Claim B.12):

    1/2 (1 + (3n'-2)^-(k-1) t / sqrt(2 T ln(2nT/delta))).
    """
    spread = math.sqrt(2 * steps * math.log(2 * k * block * steps / delta))
    return 0.5 * (1 + (3 * block - 2) ** -(k - 1) * (steps if t is None else t) / spread)
