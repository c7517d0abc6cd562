"""What Theorem 3.12 asks for and promises, family by family, every hidden constant one (000 §3.3.3, B.4, B.5)."""

import math
from dataclasses import dataclass

from krogh.theory import majority
from krogh.theory.dictionary import Condition


@dataclass(frozen=True)
class FeatureFamily:
    """(p, gamma, B_G) of the gradient features of a problem, and the size B_F = (B_a1, B_a2, B_b) of a network of r
    such features with loss `opt`; B_x1 = E||x||, B_x2 = E||x||^2, and B_x bounds ||x|| (with high probability for
    Gaussians).

    `cone` is the loss added by features that are only gamma-close, sqrt(2 gamma) B_x1 unless the family has its own.
    """

    name: str
    p: float
    gamma: float
    B_G: float
    r: int
    B_a1: float
    B_a2: float
    B_b: float
    B_x1: float
    B_x2: float
    B_x: float
    opt: float = 0.0
    cone: float | None = None
    conditions: tuple[Condition, ...] = ()

    @property
    def threshold(self) -> float:
        """b~ = B_G^{1/4} B_a2 B_b^{3/4} / sqrt(r B_a1): balances B.122 (B.171 reads as sqrt(r) B_a1)."""
        return self.B_G**0.25 * self.B_a2 * self.B_b**0.75 / math.sqrt(self.r * self.B_a1)

    @property
    def cone_loss(self) -> float:
        """r B_a1 B_x1 sqrt(2 gamma)."""
        per_feature = self.B_x1 * math.sqrt(2 * self.gamma) if self.cone is None else self.cone
        return self.r * self.B_a1 * per_feature


@dataclass(frozen=True)
class MainTheorem:
    """Theorem 3.12 at accuracy eps and confidence 1 - delta: width, steps, samples and the promised loss."""

    family: FeatureFamily
    eps: float = 0.1
    delta: float = 0.1

    @property
    def width(self) -> float:
        """m = (r B_a1 B_x1 sqrt(B_b/B_G))^4 / (p eps^4) + delta^{-1/2} + log(r/delta)^2 / p (000 eq. 3.10)."""
        f = self.family
        size = f.r * f.B_a1 * f.B_x1 * math.sqrt(f.B_b / f.B_G)
        return size**4 / (f.p * self.eps**4) + self.delta**-0.5 + math.log(f.r / self.delta) ** 2 / f.p

    @property
    def steps(self) -> float:
        """T (000 eq. 3.11)."""
        f, m, mp = self.family, self.width, self.width * self.family.p
        first = math.sqrt(f.r) * f.B_a2 * f.B_b * f.B_x1 / mp**0.25 + m * f.threshold
        return first * (math.sqrt(math.log(m)) / math.sqrt(f.B_b * f.B_G) + 1 / (f.B_x1 * mp**0.25)) / self.eps

    @property
    def log10_samples(self) -> float:
        """log10 of n (000 eq. 3.12); n itself leaves the range of floating-point numbers."""
        f, m = self.family, self.width
        heads = math.log10(m * f.B_x * f.B_a2**2 * math.sqrt(f.B_b) * math.log(m))
        heads += 0.5 * math.log10(m * f.p) - math.log10(self.eps * f.r * f.B_a1 * math.sqrt(f.B_G))
        data = f.B_x / math.sqrt(f.B_x2) + math.log(self.steps) + math.log(m / (f.p * self.delta))
        data += (1 + 1 / f.B_G) * math.sqrt(f.B_x2)
        larger, smaller = sorted((heads, math.log10(data)), reverse=True)
        return 3 * larger + math.log10(1 + 10 ** (3 * (smaller - larger)))

    @property
    def bound(self) -> float:
        """OPT + r B_a1 B_x1 sqrt(2 gamma) + eps, the samples' term left out (000 Thm B.3)."""
        return self.family.opt + self.family.cone_loss + self.eps

    def sampled_bound(self, n: float) -> float:
        """OPT + r B_a1 B_x1 sqrt(2 gamma + sqrt(B_x2)/(B_G n^{1/3})) + eps (000 eq. 3.13)."""
        f = self.family
        error = f.cone_loss**2 + (f.r * f.B_a1 * f.B_x1) ** 2 * math.sqrt(f.B_x2) / (f.B_G * n ** (1 / 3))
        return f.opt + math.sqrt(error) + self.eps

    @property
    def lr(self) -> float:
        """eta of the later steps (000 eq. B.172)."""
        f, m, mp = self.family, self.width, self.width * self.family.p
        first = math.sqrt(f.r) * f.B_a2 * f.B_b * f.B_x1 / mp**0.25 + m * f.threshold
        return self.eps / (first * (math.sqrt(math.log(m)) * f.B_x1 * mp**0.25 / math.sqrt(f.B_b * f.B_G) + 1))

    def first_lr(self, d: int, sigma_w: float = 1.0) -> float:
        """eta^(1) = min(eta, eta b~) / (B_x1 sigma_w sqrt(d) + b~), |l'(0)| = 1."""
        b = self.family.threshold
        return min(self.lr, self.lr * b) / (self.family.B_x1 * sigma_w * math.sqrt(d) + b)

    def sigma_a(self, d: int) -> float:
        """sigma_a = b~ (mp)^{1/4} / (eta^(1) B_x1 sqrt(B_G B_b)), |l'(0)| = 1."""
        f = self.family
        return f.threshold * (self.width * f.p) ** 0.25 / (self.first_lr(d) * f.B_x1 * math.sqrt(f.B_G * f.B_b))


def good_network_bound(family: FeatureFamily, m: float, smallest_bias: float) -> float:
    """OPT + r B_a1 (B_x1^2 B_b / (sqrt(mp) B_G B_eps) + B_x1 sqrt(2 gamma) + B_eps): some head on W^(1) is this good
    (000 Lemma B.6)."""
    f = family
    sampled = f.B_x1**2 * f.B_b / (math.sqrt(m * f.p) * f.B_G * smallest_bias)
    return f.opt + f.r * f.B_a1 * (sampled + f.B_x1 * math.sqrt(2 * f.gamma) + smallest_bias)


def concentration(B_x2: float, n: float) -> tuple[float, float]:
    """||G~ - G|| <= sqrt(B_x2) / n^{1/3} with probability 1 - exp(-n^{1/3}) (000 Lemma B.18), and the true rate
    sqrt(B_x2 / n)."""
    return math.sqrt(B_x2) / n ** (1 / 3), math.sqrt(B_x2 / n)


def frozen_layer_bound(smooth: float, distance: float, steps: float) -> float:
    """mean_{t<=T} L(a^(t)) - L(a*) <= L ||a^(1) - a*||^2 / (2T) for steps 1/L (000 eq. B.12)."""
    return smooth * distance**2 / (2 * steps)


# --- The families ---


def linear_family(d: int, margin: float, signal: float, second_moment: float, tau: float = 8.0) -> FeatureFamily:
    """000 Lemmas B.25-B.27, threshold d^tau B_x1 sigma_w; B_x1 = sqrt(E||x||^2)."""
    radius = math.sqrt(second_moment)
    error = radius / d ** (tau / 2 - 0.25)
    return FeatureFamily(
        "linear", 0.5, error / signal, signal - error, 2, 1 / margin, math.sqrt(2) / margin, second_moment**-1.0,
        radius, second_moment, 2 * radius,
        conditions=(Condition("d^(tau/2 - 1/4) >= sqrt(B_x2)/rho", d ** (tau / 2 - 0.25), radius / signal),),
    )  # fmt: skip


def mixture_family(
    d: int, r: int, smallest: float, largest: float, sigma: float, share: float, tau: float = 8.0, constant: float = 1.0
) -> FeatureFamily:
    """000 Lemma 3.17, B.30-B.35: B_mu1 = `smallest`, B_mu2 = `largest`, p_B = `share`, C_b = `constant`; the condition
    on B_mu1 with the proof's constant 4."""
    plus, root = max(sigma, largest), math.sqrt(tau * math.log(d))
    return FeatureFamily(
        "mixture",
        p=smallest / (root * plus) * d ** (-9 * constant**2 * tau * plus**2 / (2 * smallest**2)),
        gamma=d ** -(0.9 * tau - 1.5),
        B_G=share * smallest * math.sqrt(d) - plus * d ** (-0.9 * tau),
        r=r,
        B_a1=1 / (root * plus),
        B_a2=math.sqrt(r) / (root * plus),
        B_b=2 * root * plus,
        B_x1=(largest + plus) * math.sqrt(d),
        B_x2=(largest + plus) ** 2 * d,
        B_x=(largest + 2 * plus) * math.sqrt(d),
        opt=3 * d**-tau + 4 / (d ** (0.9 * tau - 1) * root),
        conditions=(
            Condition("B_mu1 >= 4 sigma_B+ sqrt(tau log d / d)", smallest, 4 * plus * root / math.sqrt(d)),
            Condition("tau >= 8", tau, 8),
            Condition("r <= 2d", r, 2 * d, at_least=False),
            Condition("p_B >= 1/(2d)", share, 1 / (2 * d)),
        ),
    )


def xor_family(d: int, sigma: float, tau: float = 1.0) -> FeatureFamily:
    """000 Lemmas B.37-B.42 with B_G = sqrt(d)/5 and tau~ = d/(16 sigma^2 log d): thresholds at half the radius."""
    root = math.sqrt(d) / 4
    exponent = 18 * tau * sigma**2 / 25
    tilde = d / (16 * sigma**2 * math.log(d))
    return FeatureFamily(
        "XOR mixture",
        p=1 / (math.sqrt(tau * math.log(math.log(d))) * sigma * math.log(d) ** exponent),
        gamma=sigma / math.sqrt(d),
        B_G=math.sqrt(d) / 5,
        r=4,
        B_a1=1 / root,
        B_a2=2 / root,
        B_b=2 * root,
        B_x1=(1 + sigma) * math.sqrt(d),
        B_x2=(1 + sigma) ** 2 * d,
        B_x=(1 + 2 * sigma) * math.sqrt(d),
        opt=min(1.0, 3 * d**-tilde + 4 / (d ** (0.9 * tilde - 1) * math.sqrt(tilde * math.log(d)))),
        conditions=(
            Condition("sigma_B >= 1", sigma, 1),
            Condition("sigma_B <= sqrt(d/(tau log log d))", sigma, math.sqrt(d / (tau * math.log(math.log(d)))), False),
        ),
    )


def block_parity_family(
    d: int, r: int, k: int, p_a: float, p_o: float, tau: float = 8.0, constant: float = 1.0
) -> FeatureFamily:
    """000 Lemma 3.21, B.47-B.52: 3r(k+1) neurons, loss 0."""
    return FeatureFamily(
        "block parity",
        p=1 / math.sqrt(tau * r * math.log(d)) * d ** (-9 * constant**2 * tau * r / 8),
        gamma=d ** -(tau - 2),
        B_G=math.sqrt(k) * (p_a - d**-tau),
        r=3 * r * (k + 1),
        B_a1=2 * math.sqrt(k),
        B_a2=2 * math.sqrt(r * k * (k + 1)),
        B_b=(k + 1) / math.sqrt(k),
        B_x1=math.sqrt(d),
        B_x2=d,
        B_x=math.sqrt(d),
        conditions=(
            Condition("k >= tau log d", k, tau * math.log(d)),
            Condition("d >= rk + tau r log d", d, r * k + tau * r * math.log(d)),
            Condition("p_o <= rk/(d - rk)", p_o, r * k / (d - r * k), at_least=False),
            Condition("p_A >= 1/d", p_a, 1 / d),
        ),
    )


def uniform_parity_family(d: int, k: int) -> FeatureFamily:
    """000 Lemmas B.57-B.65: the cone is in the sup norm, gamma_inf = sqrt(k)/(d-k), and sqrt(2 d log d) gamma_inf
    replaces B_x1 sqrt(2 gamma)."""
    gamma = math.sqrt(k) / (d - k)
    return FeatureFamily(
        "uniform parity",
        p=2.0 ** (1 - k),
        gamma=gamma,
        B_G=math.sqrt(k) * abs(majority.coefficient(d, k - 1)) / 2,
        r=3 * (k + 1),
        B_a1=2 * math.sqrt(k),
        B_a2=2 * math.sqrt(k * (k + 1)),
        B_b=(k + 1) / math.sqrt(k),
        B_x1=math.sqrt(d),
        B_x2=d,
        B_x=math.sqrt(d),
        cone=math.sqrt(2 * d * math.log(d)) * gamma,
        conditions=(
            Condition("d >= 2k^2", d, 2 * k**2),
            Condition("d odd", d % 2, 1),
            Condition("k even", 1 - k % 2, 1),
        ),
    )


def multi_index_loss(n: float, m: float, d: int, r: int, degree: int, kappa: float) -> float:
    """1/n + r^tau kappa^{2 tau} log(nmd)^{6 tau + 1} / m (000 Thm B.69)."""
    return 1 / n + r**degree * kappa ** (2 * degree) * math.log(n * m * d) ** (6 * degree + 1) / m


def multi_index_sizes(eps: float, d: int, r: int, degree: int, kappa: float) -> tuple[float, float]:
    """n = d^2 r kappa^2 log(nmd)^{tau + 1}, at least 2/eps, and the m at which `multi_index_loss` is eps, by iteration:
    both stand inside the logarithm."""
    n = m = float(d)
    for _ in range(200):
        log = math.log(n * m * d)
        n = max(d**2 * r * kappa**2 * log ** (degree + 1), 2 / eps)
        m = r**degree * kappa ** (2 * degree) * log ** (6 * degree + 1) / (eps - 1 / n)
    return n, m
