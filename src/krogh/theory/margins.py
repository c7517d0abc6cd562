"""Maximum normalised margins: closed forms, constructions, certificates (003 chapter 7, appendix D)."""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from krogh.errors import InputError
from krogh.nn.activations import power
from krogh.nn.tables import LookupNetwork
from krogh.theory.groups import Group, character_table

# ------------------------------------------------------------------------------------------- margins of a network


def evaluate(network: LookupNetwork, x: Int[np.ndarray, "points inputs"], at_once: int = 2048) -> np.ndarray:
    """A network's outputs in double precision, (points, outputs), a few points at a time."""
    parts = []
    for start in range(0, len(x), at_once):
        rows = x[start : start + at_once].T
        total: Any = sum(np.asarray(table, float)[row] for table, row in zip(network.weights, rows, strict=True))
        parts.append(network.activation(total) @ np.asarray(network.output, float))
    return np.concatenate(parts)


def pairs(group: Group) -> tuple[Int[np.ndarray, "points 2"], Int[np.ndarray, " points"]]:
    """All (a, b) and the number of ab, b fastest."""
    a, b = np.divmod(np.arange(group.order**2), group.order)
    return np.stack([a, b], axis=1), group.table.ravel()


def point_margins(outputs: Float[np.ndarray, "points classes"], y: Int[np.ndarray, " points"]) -> np.ndarray:
    """g(θ, x, y) = f[y] − max_{y'≠y} f[y'] (003 §7.3)."""
    right = np.take_along_axis(outputs, y[:, None], axis=1)
    others = outputs.copy()
    np.put_along_axis(others, y[:, None], -np.inf, axis=1)
    return right[:, 0] - others.max(axis=1)


def norm_power(network: Any, nu: float) -> float:
    """‖θ‖_{2,ν}^ν = Σ_i ‖ω_i‖₂^ν: what divides a ν-homogeneous network's margin."""
    weights, output = np.asarray(network.weights, float), np.asarray(network.output, float)
    squares = (weights.reshape(-1, weights.shape[-1]) ** 2).sum(axis=0) + (output**2).sum(axis=1)
    return float((squares ** (nu / 2)).sum())


# ------------------------------------------------------------------------------------------- closed forms


def cyclic_margin(p: int) -> float:
    """γ* = √(2/27) / (√p (p−1)) for addition modulo an odd p (003 Thm 7.7)."""
    return math.sqrt(2 / 27) / (math.sqrt(p) * (p - 1))


def parity_margin(k: int) -> float:
    """γ* = k! √(2 (k+1)^{−(k+1)}) for parities of k bits and σ(z) = z^k (003 Thm 7.8)."""
    return math.factorial(k) * math.sqrt(2 * (k + 1.0) ** -(k + 1))


def memorising_margin(order: int) -> float:
    """4·3^{−3/2}/(2|G|²): the best rescaling of the network that stores the table pair by pair (003 §D.4)."""
    return 4 * 3**-1.5 / (2 * order**2)


def balance(group: Group) -> Float[np.ndarray, " classes"]:
    """Σ_{R nontrivial} d_R^{1.5} χ_R(C) / kind_R for every class but the identity's.

    Where all are negative the theorem applies: every irrep is used and every class is on the margin (003 Thm 7.9).
    kind is 1 for the real types the theorem speaks of; the same sum with kind 2 (complex) and 4 (quaternionic) is
    what the argument needs for any finite group, and on Z_p it gives Thm 7.7.
    """
    return _powers(group, 1.5) @ character_table(group)[1:, 1:]


def balanced_margin(group: Group) -> float:
    """γ* = 2/(3√(3|G|)) / Σ_{R nontrivial} d_R^{2.5}/kind_R, if `balance` is negative everywhere (003 Thm 7.9)."""
    return 2 / (3 * math.sqrt(3 * group.order)) / _powers(group, 2.5).sum()


def balanced_shares(group: Group) -> Float[np.ndarray, " irreps"]:
    """Share of Σ‖ω‖³ on each irrep in any maximum margin network, d_R^{2.5}/kind_R over its sum; trivial: 0."""
    shares = _powers(group, 2.5)
    return np.concatenate([[0.0], shares / shares.sum()])


def balanced_weights(group: Group) -> Float[np.ndarray, " classes"]:
    """τ_C = −Σ_R z_R χ_R(C), z_R = d_R^{1.5}/kind_R / Σ d^{2.5}/kind, with Σ_C |C| τ_C = 1 (003 Lemma D.14, whose
    z is printed as the reciprocal and without the minus sign). τ of the identity is 0."""
    return np.concatenate([[0.0], -balance(group) / _powers(group, 2.5).sum()])


def _powers(group: Group, exponent: float) -> Float[np.ndarray, " nontrivial"]:
    return np.array([r.dim**exponent / r.kind for r in group.irreps[1:]])


class Programme(NamedTuple):
    """Solution of the linear programme: γ*, the irreps' shares of Σ‖ω‖³, the classes' weights τ_C (Σ|C|τ_C = 1), and
    how far every class is from the margin, in units of γ*. Entries of the trivial irrep and class are 0."""

    margin: float
    shares: Float[np.ndarray, " irreps"]
    weights: Float[np.ndarray, " classes"]
    slack: Float[np.ndarray, " classes"]


def margin_programme(group: Group) -> Programme:
    """γ* of any finite group: max_q min_{C≠e} Σ_R q_R 2 (3|G|d_R)^{−3/2} (d_R − χ_R(C)), q a distribution over the
    nontrivial irreps (003 §D.9.2 as a linear programme). Its dual is the choice of τ, so duality is the certificate.
    """
    from scipy.optimize import linprog

    gain = class_gain(group)[1:, 1:]
    scale = np.abs(gain).max()
    irreps, classes = gain.shape
    # maximise γ subject to γ − Σ_R q_R gain[R, C] ≤ 0 for every C and Σ q = 1
    found = linprog(
        np.append(np.zeros(irreps), -1.0),
        A_ub=np.column_stack([-gain.T / scale, np.ones(classes)]),
        b_ub=np.zeros(classes),
        A_eq=np.append(np.ones(irreps), 0.0)[None],
        b_eq=[1.0],
        method="highs-ds",
    )
    if not found.success:
        raise InputError(f"the linear programme of {group.name} was not solved: {found.message}")
    margin = float(found.x[-1]) * scale
    weights = -found.ineqlin.marginals / group.class_sizes[1:]
    # real characters do not tell a class from its inverse, single neurons do
    weights = (weights + weights[group.class_of[group.inverse[[c[0] for c in group.classes[1:]]]] - 1]) / 2
    return Programme(
        margin,
        np.concatenate([[0.0], found.x[:-1]]),
        np.concatenate([[0.0], weights]),
        np.concatenate([[0.0], found.x[:-1] @ gain / margin - 1]),
    )


def class_gain(group: Group) -> Float[np.ndarray, "irreps classes"]:
    """2 (3|G|d_R)^{−3/2} (d_R − χ_R(C)): right minus wrong logit, per unit of Σ‖ω‖³ on R, at distance C."""
    dims = np.array([r.dim for r in group.irreps], float)
    return (2 * (3 * group.order * dims) ** -1.5)[:, None] * (dims[:, None] - character_table(group))


def neuron_bound(group: Group, weights: Float[np.ndarray, " classes"]) -> float:
    """max over unit neurons of the class-weighted margin: 2/(3√3|G|^{3/2}) max_R d_R^{−1/2} (1 − Σ_C τ_C|C|χ_R(C)/d_R)
    over nontrivial R (003 Lemma D.12); an upper bound of γ* for every τ ≥ 0 with Σ|C|τ_C = 1."""
    return float((class_gain(group)[1:] @ (weights * group.class_sizes)).max())


# ------------------------------------------------------------------------------------------- constructions


def cyclic_network(p: int) -> LookupNetwork:
    """4(p−1) neurons, eight phases for each frequency, that attain `cyclic_margin` on every point (003 §D.6.2).

    u(a) = cos(θ_u + 2πζa/p), …, all of one norm, Σ‖ω‖³ = 1; the outputs are ∝ Σ_ζ cos(2πζ(a+b−c)/p), which is
    (p−1)/2 for c = a+b and −1/2 for every other c.
    """
    h = math.pi / 2
    phases = [(0, 0, 0), (0, 2, 2), (1, -1, 0), (1, 1, 2), (-1, 0, -1), (-1, 2, 1), (0, -1, -1), (0, 1, 1)]
    theta = h * np.array(phases, float)
    turn = 2 * math.pi * np.outer(np.arange(1, (p - 1) // 2 + 1), np.arange(p)) / p
    waves = np.cos(theta.T[:, None, :, None] + turn[:, None, :]).reshape(3, -1, p)
    waves *= math.sqrt(2 / (3 * p)) * waves.shape[1] ** (-1 / 3)
    return LookupNetwork(waves[:2].swapaxes(1, 2), waves[2], power(2))


class PowerNetwork(NamedTuple):
    """f(x) = Σ_i (weights[:, i]·x)^k output[i] in double precision."""

    weights: Float[np.ndarray, "n width"]
    output: Float[np.ndarray, "width classes"]
    k: int

    def __call__(self, x: Float[np.ndarray, "points n"]) -> Float[np.ndarray, "points classes"]:
        return (x @ self.weights) ** self.k @ self.output


def parity_network(n: int, k: int) -> PowerNetwork:
    """2^{k−1} neurons, one of each ±σ ∈ {±1}^k, that attain `parity_margin` on every point (003 §D.7).

    u_S = σ/√(k+1), w = ∏σ [1, −1]/√(2(k+1)); output 0 is the logit of y = +1. Σ‖ω‖^{k+1} = 1.
    """
    count = 2 ** (k - 1)
    signs = np.ones((count, k))
    signs[:, 1:] -= 2 * ((np.arange(count)[:, None] >> np.arange(k - 1)) & 1)
    scale = count ** (-1 / (k + 1)) / math.sqrt(k + 1)
    weights = np.zeros((n, count))
    weights[:k] = scale * signs.T
    output = scale * signs.prod(axis=1)[:, None] * np.array([1, -1]) / math.sqrt(2)
    return PowerNetwork(weights, output, k)


def group_network(group: Group, shares: Float[np.ndarray, " irreps"] | None = None) -> LookupNetwork:
    """2 Σ d³ neurons over the nontrivial irreps with a share of Σ‖ω‖³ = 1 (default: `balanced_shares`).

    For each R and (i, j, k) two neurons u = A R_ij, v = ±A R_jk, w = ±A R_ik, A = √(d/(3|G|)): each pair gives
    4A³ R(a)_ij R(b)_jk R(c)_ik, and the sum over (i, j, k) gives χ_R(abc⁻¹) (003 Lemmas D.15, D.16, corrected: the
    amplitude is printed without d, the index of w as (i, j), the output without the 4).
    """
    shares = balanced_shares(group) if shares is None else shares
    tables: list[list[np.ndarray]] = [[], [], []]
    for irrep, share in zip(group.irreps, shares, strict=True):
        d = irrep.dim
        if share <= 0:
            continue
        scale = math.sqrt(d / (3 * group.order)) * (share / (2 * d**3)) ** (1 / 3)
        i, j, k = (axis.ravel() for axis in np.indices((d, d, d)))
        for rows, columns, table, sign in ((i, j, tables[0], 1), (j, k, tables[1], -1), (i, k, tables[2], -1)):
            waves = scale * irrep.matrices[:, rows, columns]
            table += [waves, sign * waves]
    u, v, w = (np.concatenate(table, axis=1) for table in tables)
    return LookupNetwork(np.stack([u, v]), w.T, power(2))


def memorising_network(table: Int[np.ndarray, "n n"], balanced: bool = True) -> LookupNetwork:
    """2n² neurons that store a table pair by pair, for any binary operation (003 §D.4).

    u = e_a, v = ±e_b, w = ±e_{ab}/4 as printed gives exactly 1[c = ab]; `balanced` gives u, v and w the same norm
    1/√3, the best rescaling.
    """
    n = len(table)
    a, b = np.divmod(np.arange(n**2), n)
    eye = np.eye(n)
    u, v, w = (3**-0.5, 3**-0.5, 3**-0.5) if balanced else (1.0, 1.0, 0.25)
    weights = np.stack([np.concatenate([u * eye[a], u * eye[a]]), np.concatenate([v * eye[b], -v * eye[b]])])
    output = w * eye[np.asarray(table).ravel()]
    return LookupNetwork(weights.swapaxes(1, 2), np.concatenate([output, -output]), power(2))


# ------------------------------------------------------------------------------------------- one neuron


def spectral_value(
    u: Float[np.ndarray, "*some p"], v: Float[np.ndarray, "*some p"], w: Float[np.ndarray, "*some p"]
) -> Any:
    """E[ψ'] = 2/((p−1)p²) Σ_{j≠0} û(j) v̂(j) ŵ(−j), uniform q and τ on Z_p (003 §7.4, Lemma D.5)."""
    p = u.shape[-1]
    terms = np.fft.fft(u) * np.fft.fft(v) * np.conj(np.fft.fft(w))
    return 2 / ((p - 1) * p**2) * terms[..., 1:].sum(axis=-1).real


def representation_value(
    group: Group,
    weights: Float[np.ndarray, " classes"],
    u: Float[np.ndarray, " n"],
    v: Float[np.ndarray, " n"],
    w: Float[np.ndarray, " n"],
) -> float:
    """E[ψ'] = 2 Σ_{R nontrivial} (1 − Σ_C τ_C|C|χ_R(C)/d_R) tr(α_R β_R γ_Rᵀ)/d_R², u = Σ_R Σ_ij α_ij R_ij and so on,
    for real types (003 Lemma D.11, where the factor 2 is missing)."""
    total = 0.0
    for irrep in group.irreps[1:]:
        if irrep.kind != 1:
            raise InputError("the coefficients α, β, γ are unique only where every irrep is of real type")
        d = irrep.dim
        alpha, beta, gamma = (d / group.order * np.einsum("g,gij->ij", x, irrep.matrices) for x in (u, v, w))
        character = irrep.character[[members[0] for members in group.classes]]
        factor = 1 - (weights * group.class_sizes) @ character / d
        total += 2 * factor * np.trace(alpha @ beta @ gamma.T) / d**2
    return total


def parity_value(u: Float[np.ndarray, "*some n"], w: Float[np.ndarray, "*some 2"], k: int) -> Any:
    """E[ψ] = k! ∏_{i<k} u_i (w_0 − w_1), uniform q, σ(z) = z^k, the parity of the first k bits (003 §D.7)."""
    return math.factorial(k) * u[..., :k].prod(axis=-1) * (w[..., 0] - w[..., 1])


def parity_bound(n: int, k: int, starts: int = 100, steps: int = 1000, seed: int = 0) -> float:
    """Largest `parity_value` of a unit neuron (u, w), by an ascent like that of `ascend` from random starts: no network
    has a larger normalised margin (003 Lemma 7.3)."""
    x = np.random.default_rng(seed).normal(size=(starts, n + 2))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    for _ in range(steps):
        gradient = np.zeros_like(x)
        for i in range(k):
            others = np.delete(x[:, :k], i, axis=1).prod(axis=1)
            gradient[:, i] = others * (x[:, -2] - x[:, -1])
        gradient[:, -2:] = x[:, :k].prod(axis=1)[:, None] * np.array([1, -1])
        x = gradient + np.linalg.norm(gradient, axis=1, keepdims=True) * x
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    return float(parity_value(x[:, :n], x[:, n:], k).max())


def wrong_label_weights(group: Group, weights: Float[np.ndarray, " classes"]) -> Float[np.ndarray, "n n"]:
    """τ[y, c] of a wrong label c for the right label y: that of the class of y c⁻¹, 0 on the diagonal."""
    return weights[group.class_of[group.table[:, group.inverse]]]


def class_weighted_margin(
    table: Int[np.ndarray, "n n"],
    tau: Float[np.ndarray, "n n"],
    u: Float[np.ndarray, "*some n"],
    v: Float[np.ndarray, "*some n"],
    w: Float[np.ndarray, "*some n"],
) -> Any:
    """E_{a,b}[ψ'(ω)] = E (u_a + v_b)² (w_{ab} − Σ_c τ[ab, c] w_c), by enumeration (003 §7.3.2)."""
    lead = w - w @ tau.T
    return ((u[..., :, None] + v[..., None, :]) ** 2 * lead[..., table]).mean(axis=(-2, -1))


def ascend(
    group: Group, tau: Float[np.ndarray, "n n"], starts: int, steps: int = 300, seed: int = 0
) -> tuple[Float[np.ndarray, " starts"], Float[np.ndarray, "starts 3 n"]]:
    """Projected gradient ascent of the class-weighted margin over unit neurons, from random starts: values, neurons.

    x ← (∇E + s x)/‖·‖, s twice the largest ‖∇E‖: enough for E, a cubic form, not to overshoot.
    """
    n, table = group.order, group.table
    second = table[group.inverse]  # second[a, c] is the b with ab = c
    lift = np.eye(n) - tau
    x = np.random.default_rng(seed).normal(size=(starts, 3, n))
    x /= np.linalg.norm(x, axis=(1, 2), keepdims=True)
    for _ in range(steps):
        u, v, w = x.swapaxes(0, 1)
        total = u[:, :, None] + v[:, None, :]
        slope = 2 * total * (w @ lift.T)[:, table]
        by_label = (total**2)[:, np.arange(n)[:, None], second].sum(axis=1)
        gradient = np.stack([slope.sum(axis=2), slope.sum(axis=1), by_label @ lift], axis=1) / n**2
        size = np.linalg.norm(gradient, axis=(1, 2), keepdims=True)
        x = gradient + 2 * size.max() * x
        x /= np.linalg.norm(x, axis=(1, 2), keepdims=True)
    u, v, w = x.swapaxes(0, 1)
    return class_weighted_margin(table, tau, u, v, w), x


class Certificate(NamedTuple):
    """`lower` ≤ γ* ≤ `upper`: the network's own normalised margin and the best unit neuron under (q uniform, τ)."""

    lower: float
    upper: float


def certificate(group: Group, network: LookupNetwork, weights: Float[np.ndarray, " classes"]) -> Certificate:
    """A pair (θ*, τ) with uniform q* as bounds of γ*; no gap means that θ* has maximum margin (003 Lemma 7.6)."""
    if np.any(weights < -1e-12) or not math.isclose(weights @ group.class_sizes, 1.0, abs_tol=1e-9):
        raise InputError("τ must be nonnegative with Σ|C|τ_C = 1 over the classes other than the identity's")
    x, y = pairs(group)
    lower = point_margins(evaluate(network, x), y).min() / norm_power(network, 3)
    return Certificate(float(lower), neuron_bound(group, weights))
