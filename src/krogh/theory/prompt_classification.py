"""In-context classification by one nonlinear Transformer layer: what chapter 6 of 004 predicts, in closed form."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# ------------------------------------------------------------------------------------------- prompts and tasks


def uncovered(alpha: Any, length: Any) -> Any:
    """P_0 = (1 − α/2)^l, the probability that no example has the query's pattern.

    A model that attends to such examples alone is right whenever there is one. Where there is none, the decisive
    examples that it sees carry the wrong label: its error lies between P_0/2 and P_0.
    """
    return (1 - np.asarray(alpha) / 2) ** np.asarray(length)


def task_share(M1: int) -> float:
    """M1 / (M1 (M1 − 1)): the share of all tasks that the smallest balanced training set needs (004 Lemma E.4.11)."""
    return 1 / (M1 - 1)


def task_share_printed(M1: int) -> float:
    """(M1 − 1)^(−1/2), as §6.3.3 and §E.3.2 of 004 print it."""
    return (M1 - 1) ** -0.5


def balanced(shares: Float[Any, "M1 M1"]) -> bool:
    """Condition 6.3.2 of 004: every pattern has either label equally often."""
    sums = np.stack([np.sum(shares, axis=1), np.sum(shares, axis=0)])
    return bool(np.allclose(sums, 1 / len(shares), atol=1e-6))


def coefficient_sums(coefficients: Float[Any, "M1_new M1"]) -> Float[np.ndarray, " M1_new"]:
    """S_j = Σ_i k_ji of the new patterns; Theorem 6.3.4 asks for S_j ≥ 1 (004 (6.12))."""
    return np.asarray(coefficients).sum(axis=1)


# ------------------------------------------------------------------------------------------- attention


def initial_attention(
    length: int, alpha: float, delta: float, beta: float, K: float, M2: int, nodes: int = 24
) -> float:
    """E[Σ_same w_i / Σ_i w_i] with w_i = exp(δ²β²(1[same pattern] + κκ_i 1[same ν])): the attention on the query's
    pattern at initialisation, where W_Q = W_K = δI on the features.

    Given κ the examples are independent, so the ratio is l ∫ E[w 1[same] e^{−tw}] E[e^{−tw}]^{l−1} dt.
    """
    s, weight = np.polynomial.legendre.leggauss(nodes)
    kappa = K * s
    product = np.exp((delta * beta) ** 2 * np.outer(kappa, kappa))
    r, measure = np.polynomial.legendre.leggauss(200)
    r, measure = (r + 1) / 2, measure / 2
    t = (r / (1 - r) / length)[:, None, None]
    base = math.exp((delta * beta) ** 2)

    def mean(function: Any) -> Any:
        """Over κ_i and whether ν coincides; axes (t, κ)."""
        apart = function(np.ones_like(product))
        return (1 - 1 / M2) * apart @ weight / 2 + function(product) @ weight / 2 / M2

    same = mean(lambda w: base * w * np.exp(-t * base * w))
    rest = mean(lambda w: alpha / 2 * np.exp(-t * base * w) + (1 - alpha / 2) * np.exp(-t * w))
    inner = length * alpha / 2 * same * rest ** (length - 1) / length / (1 - r[:, None]) ** 2
    return float(measure @ inner @ weight / 2)


def attention_elsewhere(alpha: Any, gap: Any) -> tuple[Any, Any]:
    """γ when every other example's score is `gap` lower: c e^{−gap}/(1 + c e^{−gap}) and the printed bound c e^{−gap},
    c = (2 − α)/α (004 (E.55), where gap = (η Σ_b γ_b Δ_T)²)."""
    odds = (2 - np.asarray(alpha)) / np.asarray(alpha) * np.exp(-np.asarray(gap))
    return odds / (1 + odds), odds


# ------------------------------------------------------------------------------------------- requirements


def iterations(M1: float, alpha: Any, eta: Any = 1.0, beta: Any = 1.0, delta: Any = 1.0) -> Any:
    """T = η⁻¹ M1 δ^{−2/3} β^{−2/3} α^{−2/3} √log M1, the hidden constant one (004 (6.10), (E.62))."""
    return M1 * np.sqrt(np.log(M1)) / np.asarray(eta) * (np.asarray(alpha) * beta * delta) ** (-2 / 3)


def training_length(M1: float, alpha: Any, beta: float = 1.0) -> Any:
    """l_tr = max(log M1/α, 1/(β²α)), the hidden constants one (004 (6.9))."""
    return max(math.log(M1), 1 / beta**2) / np.asarray(alpha)


# ------------------------------------------------------------------------------------------- neurons and pruning


def cap_share(phi: float, d: int) -> float:
    """(1/2) I_{sin²φ}((d − 1)/2, 1/2): the share of the sphere in R^d within the angle φ ≤ π/2 of a point
    (004 (E.215))."""
    from scipy.special import betainc

    return 0.5 * float(betainc((d - 1) / 2, 0.5, math.sin(phi) ** 2))


def lucky_share(dx: int, dy: int) -> float:
    """Probability that a neuron is lucky for a prompt and has a given sign of a_i: two half-spheres and a coin."""
    return cap_share(math.pi / 2, dx) * cap_share(math.pi / 2, dy) / 2


def pruned_small_bound(alpha_test: float, alpha: float, M1: int, eps: float = 0.0) -> float:
    """Upper bound on the hinge loss without the small neurons, first line of (E.107) of 004."""
    concentration = (1 - 2 / (alpha_test * M1)) / (1 - 2 / (alpha * M1))
    return 1 - concentration * (1 - eps) * (1 - M1**-0.5)


def pruned_large_bound(R: Any, alpha_test: float, alpha: float, M1: int, eps: float = 0.0) -> Any:
    """Lower bound on the hinge loss without a share R of the large neurons, first line of (E.109) of 004."""
    concentration = (1 - 2 / (alpha_test * M1)) / (1 - 2 / (alpha * M1))
    return 1 - concentration * (1 + eps) * (1 - np.asarray(R))


# ------------------------------------------------------------------------------------------- gradients


def hinge_gradients(network: Any, x: Float[Array, "l1 d"], z: Float[Array, ""]) -> dict[str, Array]:
    """Gradients of max(0, 1 − zF(P)) of a one-head `PromptNetwork` in the closed forms (E.110), (E.167), (E.189) of
    004, with the sign of the loss (the lemmas print the descent direction), stored (in, out) like the weights.

    s = softmax, V = Σ s_i W_V p_i, u_k = −z 1[zF < 1] a_k 1[W_O[k]·V ≥ 0]:
    dW_O[k] = u_k Vᵀ;  dW_V = Σ_k u_k W_O[k]ᵀ (Σ_i s_i p_i)ᵀ;
    dW_Q = Σ_i s_i c_i (W_K p_i − Σ_r s_r W_K p_r) p_queryᵀ,  dW_K = W_Q p_query Σ_i s_i c_i (p_i − Σ_r s_r p_r)ᵀ,
    c_i = Σ_k u_k W_O[k] W_V p_i.
    """
    query, key, value = network.query[:, 0], network.key[:, 0], network.value[:, 0]
    p, p_query = x[:-1], x[-1]
    s = jax.nn.softmax((p @ key) @ (p_query @ query))
    p_mean = s @ p
    V = p_mean @ value
    a = network.output.value
    open_gates = (V @ network.hidden >= 0).astype(V.dtype)
    F = a @ jnp.maximum(V @ network.hidden, 0)
    u = -z * (z * F < 1) * a * open_gates
    back = network.hidden @ u
    c = p @ value @ back
    spread = (s * c) @ (p - p_mean)
    return {
        "hidden": jnp.outer(V, u),
        "value": jnp.outer(p_mean, back)[:, None],
        "query": jnp.outer(p_query, spread @ key)[:, None],
        "key": jnp.outer(spread, p_query @ query)[:, None],
    }
