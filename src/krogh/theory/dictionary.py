"""What can be computed about a pattern dictionary: constructions, gradients, predictions, bounds (000 ch. 2, A)."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from krogh.nn.fixed_features import sum_over_chunks
from krogh.nn.truncated import TruncatedNetwork, smoothed_gate, smoothed_relu, truncated_relu

# --- A good network exists (Lemma 2.5 = A.2, Lemma A.29) ---


class Construction(NamedTuple):
    """g*(x) = sum_l a_l sigma(weight * (sum_A phi~ - u) + b_l): every w_l = weight * sigma~ sum_A M_j."""

    weight: float
    bias: Float[np.ndarray, " neurons"]
    output: Float[np.ndarray, " neurons"]

    def preactivation(self, z: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n neurons"]:
        """weight z + b_l for z = <sigma~ sum_A M_j, x> = sum_A phi~ - u (plus the error of the general setting)."""
        return self.weight * np.asarray(z)[:, None] + self.bias

    def __call__(self, z: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return np.clip(self.preactivation(z), 0, 1) @ self.output


def constructions(
    k: int, positive: Collection[int], u: float, general: bool = False
) -> tuple[Construction, Construction]:
    """The two candidates g1*, g2*: bumps delta_{p-u,h,1/2} of sign + for p in P, - for the other 0 <= p <= k, where
    delta_{s,h,b}(z) = h relu(z-s+b) - 2h relu(z-s) + h relu(z-s-b); h = 2 and, shifted by 1/4, h = 4; weights and
    biases divided by 4k (000 Lemma A.2; h = 4, 8 and 8k in Lemma A.29).
    """
    height, scale = (4.0, 8 * k) if general else (2.0, 4 * k)
    counts = np.arange(k + 1)
    signs = np.where(np.isin(counts, list(positive)), 1.0, -1.0)

    def build(shift: float, h: float) -> Construction:
        centre = counts - u + shift
        bias = np.stack([0.5 - centre, -centre, -0.5 - centre], axis=1)
        output = signs[:, None] * np.array([h, -2 * h, h])
        return Construction(1 / scale, bias.ravel() / scale, output.ravel() * scale)

    return build(0.0, height), build(0.25, 2 * height)


def constructive_network(k: int, positive: Collection[int], u: float, general: bool = False) -> Construction:
    """The candidate whose biases, before scaling, all satisfy |b| >= 1/8; one always does (000 Lemma A.2, A.29)."""
    return max(constructions(k, positive, u, general), key=lambda c: np.min(np.abs(c.bias)))


# --- Gradients (Lemma A.6) and the two aggressive steps ---


class Gradient(NamedTuple):
    weights: Float[Array, "d width"]
    bias: Float[Array, " width"]
    output: Float[Array, " width"]


def gradient(
    network: TruncatedNetwork,
    x: Float[Array, "n d"],
    y: Float[Array, " n"],
    sigma_xi: float,
    class_weight: Float[Array, " n"] | None = None,
    chunk: int = 5000,
) -> Gradient:
    """Hinge-loss gradient, with 1 = 1[y g <= 1] and E_xi taken analytically (sigma_xi = 0: unsmoothed):
    dL/dw_i = -a_i E{y 1 E_xi sigma'(z_i+xi) x}, dL/db_i without x, dL/da_i = -E{y 1 E_xi sigma(z_i+xi)}
    (000 Lemma A.6; class weights A.293).
    """
    weight = jnp.ones_like(y) if class_weight is None else class_weight

    def part(mask, x, y, weight):
        z = x @ network.weights + network.bias
        if sigma_xi:
            hidden, gate = smoothed_relu(z, sigma_xi), smoothed_gate(z, sigma_xi)
        else:
            hidden, gate = truncated_relu(z), ((z > 0) & (z < 1)).astype(z.dtype)
        pull = mask * weight * y * (y * (hidden @ network.output) <= 1) / n
        return Gradient(-(x * pull[:, None]).T @ gate * network.output, -pull @ gate * network.output, -pull @ hidden)

    n = x.shape[0]
    return sum_over_chunks(part, x, y, weight, chunk=chunk)


def class_weights(y: Float[Array, " n"]) -> Float[Array, " n"]:
    """alpha_y = 1 / (2 Pr[y]), with the sample's own class shares (000 eq. A.293)."""
    share = jnp.mean(y > 0)
    return jnp.where(y > 0, 0.5 / share, 0.5 / (1 - share))


def first_step(
    network: TruncatedNetwork,
    x: Float[Array, "n d"],
    y: Float[Array, " n"],
    lr: float | Array,
    sigma_xi: float,
    kept: float = 0.0,
    weighted: bool = False,
) -> TruncatedNetwork:
    """w1 = lr (kept w0 - dL/dw), b1 = b0 - lr dL/db, a1 = a0 - lr dL/da: kept = (1 - 2 lr lambda_w)/lr is 0 where the
    decay lambda_w = 1/(2 lr) wipes w0 exactly (000 eq. 2.6, A.274).
    """
    grad = gradient(network, x, y, sigma_xi, class_weights(y) if weighted else None)
    return TruncatedNetwork(
        lr * (kept * network.weights - grad.weights),
        network.bias - lr * grad.bias,
        network.output - lr * grad.output,
    )


def second_step(
    network: TruncatedNetwork,
    x: Float[Array, "n d"],
    y: Float[Array, " n"],
    sigma_xi: float,
    weighted: bool = False,
) -> TruncatedNetwork:
    """lr = 1 and lambda_w = lambda_a = 1/2: w2 = -dL/dw, a2 = -dL/da, b2 = b1 - dL/db (000 eq. A.275)."""
    grad = gradient(network, x, y, sigma_xi, class_weights(y) if weighted else None)
    return TruncatedNetwork(-grad.weights, network.bias - grad.bias, -grad.output)


def as_float64(network: TruncatedNetwork) -> TruncatedNetwork:
    """The same network in float64; call under `jax.enable_x64(True)`."""
    return eqx.tree_at(lambda n: (n.weights, n.bias, n.output), network, replace_fn=lambda a: a.astype(jnp.float64))


class Schedule(NamedTuple):
    """First-step learning rate in the three printed forms, and the later learning rate and weight decay."""

    theorem: float
    lemma: float
    general: float
    sigma_xi: float
    sigma_xi_theorem: float
    later_lr: float
    later_decay: float


# The two readings of the first step: wiped as the theorem says, or with a remainder that fits the published cosines.
KEPT = {"wipe": 0.0, "keep": 1 / 8}


def schedule(k: int, m: int, gamma: float, variance: float, steps: float, p_min: float = 0.5) -> Schedule:
    """eta1 = gamma^2 sigma~^2/(k m^3) (Thm A.20), gamma^2 sigma~/(k m^3) (Lemma A.17), gamma^2 p_min sigma~/(k m^3)
    (Thm A.28); sigma_xi = k^-3/2 (lemmas) or k^-2 (Thm A.20); then eta = k^2/(T m^1/3), lambda <= k^3/(sigma~ m^1/3).
    """
    base, spread = gamma**2 / (k * m**3), math.sqrt(variance)
    return Schedule(
        base * variance, base * spread, base * p_min * spread, k**-1.5, k**-2.0,
        k**2 / (steps * m ** (1 / 3)), k**3 / (spread * m ** (1 / 3)),
    )  # fmt: skip


# --- Predictions for direction and magnitude (Lemmas 2.6, A.8, A.9, A.14) ---


def activation_probability(bias: Float[Array, " width"], sigma_xi: float) -> Float[Array, " width"]:
    """beta_i = Phi((1-b_i)/sigma_xi) - Phi(-b_i/sigma_xi), the gate of a neuron whose weights are negligible."""
    return smoothed_gate(bias, sigma_xi)


def predicted_component(
    bias: Float[Array, " width"],
    output: Float[Array, " width"],
    sigma_xi: float,
    gamma: float | Array,
    sigma: float | Array,
) -> Float[Array, " width"]:
    """<w_i^(2), M_j> = a_i beta_i gamma / sigma~ for j in A as eta1 -> 0 (derived from Lemma A.14)."""
    return output * activation_probability(bias, sigma_xi) * gamma / sigma


def predicted_cosine(n: int, D: int, k: int, p_o: float, gamma: float, beta: Any = 1.0) -> Any:
    """cos(w, sum_A M_j) = [1 + (D-k) p_o (1-p_o) / (n beta k gamma^2)]^{-1/2} after step 2 (beta = 1) or 1 (beta = the
    share of active samples), when the background is sampling noise alone (derived)."""
    return (1 + (D - k) * p_o * (1 - p_o) / (n * beta * k * gamma**2)) ** -0.5


def first_step_error(k: int, D: int, m: int, p_o: float, delta: float) -> float:
    """eps_e = (k log^{1/2}(Dm/delta) + log^{3/2}(Dm/delta)) / sqrt(p_o (1-p_o) (D-k)) (000 Lemma A.9)."""
    log = math.log(D * m / delta)
    return (k * log**0.5 + log**1.5) / math.sqrt(p_o * (1 - p_o) * (D - k))


def second_step_error(
    lr: float, a: float, k: int, gamma: float, eps_e: float, variance: float, sigma_xi: float
) -> float:
    """eps_e2 = lr |a| k (gamma + eps_e) / (sigma~^2 sigma_xi) + e^{-k}, constants one (000 Lemma A.14)."""
    return lr * abs(a) * k * (gamma + eps_e) / (variance * sigma_xi) + math.exp(-k)


# --- Accuracy ceilings of the parity mixture (derived) ---


def blind_ceiling(p_o: float) -> float:
    """1 - p_o/2: right on D1, guessing on D0."""
    return 1 - p_o / 2


def threshold_ceiling(k: int, p_o: float) -> float:
    """The best single threshold on s = sum_A phi~, 1 - p_o min_t Pr[error on D0]; 0.84375 at k = 5, p_o = 1/2."""
    counts = np.arange(k + 1)
    weight = np.array([math.comb(k, s) for s in counts]) / 2**k
    wrong = [weight @ ((counts >= t) != (counts % 2 == 1)) for t in range(1, k + 1)]
    return 1 - p_o * float(min(wrong))


# --- Guarantees and lower bounds, every term and condition ---


@dataclass(frozen=True)
class Condition:
    """value >= needed (or <=), the hidden constant taken as one."""

    name: str
    value: float
    needed: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.needed if self.at_least else self.value <= self.needed

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{self.name}: {self.value:.4g} {sign} {self.needed:.4g} {'met' if self.met else 'NOT met'}"


@dataclass(frozen=True)
class Guarantee:
    """Terms of an error bound and the conditions under which it is proved."""

    terms: dict[str, float]
    conditions: tuple[Condition, ...]

    @property
    def bound(self) -> float:
        return sum(self.terms.values())

    @property
    def applies(self) -> bool:
        return all(c.met for c in self.conditions)

    def __str__(self) -> str:
        lines = [f"{name} = {value:.4g}" for name, value in self.terms.items()]
        verdict = "vacuous" if self.bound >= 1 else f"error <= {self.bound:.4g}"
        regime = "inside the regime" if self.applies else "outside the regime"
        return "\n".join([*lines, *map(str, self.conditions), f"bound {self.bound:.4g} ({verdict}), {regime}"])


def network_guarantee(
    k: int,
    D: int,
    m: int,
    p_o: float,
    gamma: float,
    steps: float | None = None,
    delta: float = 0.05,
    eps: float = 0.1,
) -> Guarantee:
    """Pr[error] <= k^8/m^{2/3} + k^3 T/m^2 + k^2 m^{2/3}/T, constants one, T = m^{4/3} unless given (000 Thm A.20)."""
    T = m ** (4 / 3) if steps is None else steps
    return Guarantee(
        {
            "k^8/m^(2/3)": k**8 / m ** (2 / 3),
            "k^3 T/m^2": k**3 * T / m**2,
            "k^2 m^(2/3)/T": k**2 * m ** (2 / 3) / T,
        },
        (
            Condition("k >= log^2(D/(delta gamma))", k, math.log(D / (delta * gamma)) ** 2),
            Condition("p_o >= k^2/D", p_o, k**2 / D),
            Condition("m >= max(k^4, D)", m, max(k**4, D)),
            Condition("m >= max(k^12/eps^(3/2), D)", m, max(k**12 / eps**1.5, D)),
        ),
    )


def general_guarantee(
    k: int, D: int, d: int, m: int, gamma: float, variance: float, mu: float, noise: float,
    p_min: float = 0.5, steps: float | None = None, delta: float = 0.005, eps: float = 0.1,
) -> Guarantee:  # fmt: skip
    """The same bound for a mu-incoherent dictionary, input noise and unequal classes (000 Thm A.28)."""
    log = math.log(D * m * d / (delta * gamma * p_min))
    spread = math.sqrt(variance)
    return Guarantee(
        network_guarantee(k, D, m, 0.5, gamma, steps, delta, eps).terms,
        (
            Condition("delta <= 1/k^3", delta, k**-3.0, at_least=False),
            Condition("mu <= sqrt(d)/D", mu, math.sqrt(d) / D, at_least=False),
            Condition(
                "sigma_zeta <= min(1/sigma~, sigma~/sqrt(d))",
                noise,
                min(1 / spread, spread / math.sqrt(d)),
                False,
            ),
            Condition("k >= log^2(D m d/(delta gamma p_min))", k, log**2),
            Condition("m >= max(k^4, D, d)", m, max(k**4, D, d)),
            Condition("m >= max(k^12/eps^(3/2), D)", m, max(k**12 / eps**1.5, D)),
        ),
    )


def existence_failure(k: int, D: int, d: int, p_o: float, variance: float, mu: float, noise: float) -> Guarantee:
    """Pr[y g* <= 1] <= e^{-k} + exp(-1/(sigma_zeta^2 (k + k^2 mu/sqrt(d)))), constants one (000 Lemma A.29)."""
    spread = noise**2 * (k + k**2 * mu / math.sqrt(d))
    coherent = k * mu / math.sqrt(d) * p_o * D / math.sqrt(variance)
    return Guarantee(
        {
            "e^-k": math.exp(-k),
            "exp(-1/(sigma_zeta^2 (k + k^2 mu/sqrt(d))))": math.exp(-1 / spread) if spread else 0.0,
        },
        (Condition("(k mu/sqrt(d)) (p_o D/sigma~) <= 1/16", coherent, 1 / 16, at_least=False),),
    )


class FixedFeatureBounds(NamedTuple):
    """Lower bounds on the hinge loss of any <Psi, w>, ||w|| <= B, Psi in [-1,1]^N, on the parity mixture."""

    printed: float  # p_o (1 - sqrt(2 N B) / 2^k), B under the root
    corrected: float  # p_o (1 - sqrt(2 N) B / 2^k), linear in B as the proof needs
    derived: float  # p_o (1 - B sqrt(N / C(D,k))), average over A, by Parseval


def fixed_feature_bounds(p_o: float, features: int, norm: float, D: int, k: int) -> FixedFeatureBounds:
    """000 Thm 2.2 as printed, corrected, and the sharper average-case form hinge >= p_o (1 - B ||E_{D0}[y Psi]||) with
    mean_A ||E_A[y Psi]||^2 <= N / C(D,k).
    """
    return FixedFeatureBounds(
        p_o * (1 - math.sqrt(2 * features * norm) / 2**k),
        p_o * (1 - math.sqrt(2 * features) * norm / 2**k),
        p_o * (1 - norm * math.sqrt(features / math.comb(D, k))),
    )


def fixed_feature_conditions(D: int, k: int) -> tuple[Condition, ...]:
    """3 < k <= D/16, k odd (000 Thm 2.2)."""
    return Condition("k > 3", k, 4), Condition("k <= D/16", k, D / 16, False), Condition("k odd", k % 2, 1)


def largest_useful_norm(features: int, D: int, k: int) -> tuple[float, float]:
    """B at which the corrected and the derived bound reach zero: 2^k/sqrt(2N) and sqrt(C(D,k)/N)."""
    return 2**k / math.sqrt(2 * features), math.sqrt(math.comb(D, k) / features)


class StatisticalQueries(NamedTuple):
    """Queries, or 1/tolerance, that error below 1/2 - `margin` needs; `tolerance` is what n samples simulate."""

    needed: float
    margin: float
    tolerance: float


def statistical_queries(D: int, k: int, n: int = 50_000) -> StatisticalQueries:
    """queries or 1/tau >= C(D,k)^{1/3}/2 for error < 1/2 - C(D,k)^{-3}; n samples give tau ~ n^{-1/2} (000 Thm 2.4)."""
    dimension = math.comb(D, k)
    return StatisticalQueries(dimension ** (1 / 3) / 2, float(dimension) ** -3, n**-0.5)


class OnlineConvex(NamedTuple):
    average: float
    comparator: float
    distance: float
    start: float
    steps: float

    @property
    def bound(self) -> float:
        return self.comparator + self.distance + self.start + self.steps


def online_convex(
    losses: Float[np.ndarray, " T"],
    comparator_losses: Float[np.ndarray, " T"],
    gradient_norms: Float[np.ndarray, " T"],
    lr: float,
    start_norm: float,
    comparator_norm: float,
) -> OnlineConvex:
    """mean f_t(theta_t) <= mean f_t(theta*) + ||theta*||^2/(2 lr T) + ||theta_1|| mean||grad_t|| + lr mean||grad_t||^2
    for theta_{t+1} = theta_t - lr grad f_t(theta_t), f_t convex (000 Thm A.21).
    """
    T = len(losses)
    return OnlineConvex(
        float(np.mean(losses)),
        float(np.mean(comparator_losses)),
        comparator_norm**2 / (2 * lr * T),
        start_norm * float(np.mean(gradient_norms)),
        lr * float(np.mean(np.square(gradient_norms))),
    )


# --- The explicit second-layer solution on step-2 features (Lemma A.17) ---


def explicit_head(
    construction: Construction,
    bias: Float[np.ndarray, " width"],
    slope: Float[np.ndarray, " width"],
    k: int,
    tolerance: float,
) -> Float[np.ndarray, " width"]:
    """a~_i = 2 a*_l |b*_l| / (|b_i| n_l) on the n_l neurons I_l assigned to target l: sign b_i = sign b*_l, |b_i| in
    [1/(2k^2), 2/k^2], |4k |b*_l| slope_i / |b_i| - 1| <= tolerance, where <w_i^(2), x> = slope_i (sum_A phi~ - u),
    slope_i = a_i beta_i gamma / sigma~^2; every neuron serves the target it fits best (000 eq. A.218-A.221).
    """
    # Neighbouring bumps share corners: targets of equal bias are one target with the summed output weight.
    level, group = np.unique(np.round(construction.bias, 12), return_inverse=True)
    strength = 2 * np.bincount(group, construction.output) * np.abs(level)
    usable = (np.abs(bias) >= 1 / (2 * k**2)) & (np.abs(bias) <= 2 / k**2)
    ratio = 4 * k * np.abs(level)[:, None] * slope / np.abs(bias)
    misfit = np.where(usable & (np.sign(bias) == np.sign(level)[:, None]), np.abs(ratio - 1), np.inf)
    target = np.argmin(misfit, axis=0)
    chosen = np.min(misfit, axis=0) <= tolerance
    count = np.bincount(target[chosen], minlength=len(level))
    head = np.zeros_like(bias)
    head[chosen] = strength[target[chosen]] / (np.abs(bias[chosen]) * count[target[chosen]])
    return head
