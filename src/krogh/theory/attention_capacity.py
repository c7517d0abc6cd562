"""How large the class of bounded-norm attention heads is: Lipschitz bounds, covers, generalisation (003 §4.4, §A.1).

‖M‖_{2,1} is the sum of the 2-norms of columns; tokens are the rows of Z (T, d), so ‖Zᵀ‖_{2,∞} is the largest token.
Covering numbers are given without the constants that the source hides in ≲.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Matrices = Float[np.ndarray, "... _ _"]
Numbers = Float[np.ndarray, "..."]


def softmax(scores: Float[np.ndarray, "*batch T"]) -> Float[np.ndarray, "*batch T"]:
    """exp(x)/Σ exp(x) over the last axis."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def softmax_jacobian_norm(weights: Float[np.ndarray, "*batch T"]) -> Float[np.ndarray, "*batch"]:
    """‖J‖_{1,1} = 2 Σ p_i (1 − p_i) ≤ 2, the sum of all |∂p_i/∂x_j| (003 Cor. A.7)."""
    return 2 * (weights * (1 - weights)).sum(axis=-1)


def project(x: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch d"]:
    """Π_norm: every row onto the unit ball (003 §4.4.3)."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1)


def largest_row(x: Matrices) -> Numbers:
    """‖xᵀ‖_{2,∞}."""
    return np.linalg.norm(x, axis=-1).max(axis=-1)


def spectral(x: Matrices) -> Numbers:
    return np.linalg.norm(x, 2, axis=(-2, -1))


def two_one(x: Matrices) -> Numbers:
    """‖x‖_{2,1}: the 2-norms of columns, summed."""
    return np.linalg.norm(x, axis=-2).sum(axis=-1)


def attend(tokens: Matrices, query_key: Matrices, value: Matrices, rows: int | None = None) -> Matrices:
    """RowSoftmax(Z W_QK Zᵀ) Z W_V with W_QK = W_Q W_Kᵀ, for the first `rows` queries (003 Def. 4.4)."""
    scores = tokens[..., :rows, :] @ query_key @ tokens.swapaxes(-1, -2)
    return softmax(scores) @ tokens @ value


def weight_change_bound(
    tokens: Matrices, query_key: Matrices, other_query_key: Matrices, value: Matrices, other_value: Matrices
) -> Numbers:
    """2 ‖W_V‖ ‖(W_QK − Ŵ_QK) Zᵀ‖_{2,∞} + ‖(W_V − Ŵ_V)ᵀ Zᵀ‖_{2,∞} for tokens in the unit ball (003 Lemmas 4.7, A.13)."""
    scores = largest_row(tokens @ (query_key - other_query_key).swapaxes(-1, -2))
    return 2 * spectral(value) * scores + largest_row(tokens @ (value - other_value))


def input_change_bound(tokens: Matrices, other_tokens: Matrices, query_key: Matrices, value: Matrices) -> Numbers:
    """‖W_V‖ (1 + 4 ‖W_QK‖) ‖(Z − Ẑ)ᵀ‖_{2,∞} for tokens in the unit ball (003 Lemma A.14)."""
    return spectral(value) * (1 + 4 * spectral(query_key)) * largest_row(tokens - other_tokens)


class Layer(NamedTuple):
    """W_QK (d, d), W_V (d, k), W_C (k, d) of a block."""

    query_key: Matrices
    value: Matrices
    out: Matrices


def block(tokens: Matrices, layer: Layer) -> Matrices:
    """Π(relu(Π(Attention(Z))) W_C): one layer of the deep class, σ = relu (003 §4.4.3)."""
    return project(np.maximum(project(attend(tokens, layer.query_key, layer.value)), 0) @ layer.out)


def block_change_bound(tokens: Matrices, other_tokens: Matrices, layer: Layer, other: Layer) -> Numbers:
    """Lemma A.15 for one block (σ = relu, L_σ = 1) with inputs Z, Ẑ and weights W, Ŵ."""
    inner = np.maximum(project(attend(other_tokens, other.query_key, other.value)), 0)
    weights = weight_change_bound(other_tokens, layer.query_key, other.query_key, layer.value, other.value)
    inputs = input_change_bound(tokens, other_tokens, layer.query_key, layer.value)
    return largest_row(inner @ (layer.out - other.out)) + spectral(layer.out) * (weights + inputs)


def scalar_change_bound(
    readout: Float[np.ndarray, "*batch d"],
    other_readout: Float[np.ndarray, "*batch d"],
    token: Float[np.ndarray, "*batch d"],
    other_token: Float[np.ndarray, "*batch d"],
) -> Float[np.ndarray, "*batch"]:
    """‖w‖ ‖z − ẑ‖ + |(w − ŵ)·ẑ| for w·z, z the last block's row at [CLS] (003 Lemma A.16)."""
    tokens = np.linalg.norm(token - other_token, axis=-1)
    readouts = np.abs(((readout - other_readout) * other_token).sum(axis=-1))
    return np.linalg.norm(readout, axis=-1) * tokens + readouts


# ------------------------------------------------------------------------------------------- covering numbers


def best_split(
    alpha: Float[np.ndarray, " terms"], beta: Float[np.ndarray, " terms"], total: float
) -> tuple[float, Float[np.ndarray, " terms"]]:
    """min Σ α_i/x_i² subject to Σ β_i x_i = C: γ³/C² with γ = Σ α^{1/3} β^{2/3}, and its place x (003 Lemma A.8)."""
    gamma = np.sum(alpha ** (1 / 3) * beta ** (2 / 3))
    return float(gamma**3 / total**2), total / gamma * (alpha / beta) ** (1 / 3)


def linear_cover(eps: float, points: int, size: float = 1.0, weight: float = 1.0) -> float:
    """log N of x ↦ v·x, ‖v‖ ≤ `weight`, on points of norm ≤ `size`, with its constants (003 Lemma A.10)."""
    both = size * weight
    return 36 * (both / eps) ** 2 * math.log(2 * math.ceil(4 * both / eps + 2) * points + 1)


def matrix_cover(eps: float, d: int, points: int, size: float, weight_21: float) -> float:
    """log N ≲ (B_X B_W/ε)² log(d N) of x ↦ W x, ‖Wᵀ‖_{2,1} ≤ B_W (003 Lemma 4.10)."""
    return (size * weight_21 / eps) ** 2 * math.log(d * points)


class HeadNorms(NamedTuple):
    """B_V^{2,1}, B_V and B_QK^{2,1} of one head."""

    value_21: float
    value: float
    query_key_21: float


def heads_cover(
    eps: float,
    d: int,
    m: int,
    T: int,
    heads: Sequence[HeadNorms],
    lipschitz: float = 1.0,
    tokens: float = 1.0,
    positions: float = 0.0,
) -> float:
    """log N ≲ (L B_X/ε)² (Σ_h (B_V^{2,1})^{2/3} + (2 B_QK^{2,1} B_V B_X)^{2/3})³ log(d m T) of a sum of heads.

    003 Cor. 4.9 (one head, with the factors its main text drops), Lemma A.11 (B_X → B_X + B_P) and Lemma A.12.
    """
    size = tokens + positions
    bracket = sum(h.value_21 ** (2 / 3) + (2 * h.query_key_21 * h.value * size) ** (2 / 3) for h in heads)
    return (lipschitz * size / eps) ** 2 * bracket**3 * math.log(d * m * T)


class LayerNorms(NamedTuple):
    """B_C, B_C^{2,1}, B_V, B_V^{2,1}, B_QK and B_QK^{2,1} of one layer."""

    out: float
    out_21: float
    value: float
    value_21: float
    query_key: float
    query_key_21: float

    def growth(self, lipschitz: float = 1.0) -> float:
        """L_σ B_C B_V (1 + 4 B_QK): by how much the layer can stretch a difference of its inputs."""
        return lipschitz * self.out * self.value * (1 + 4 * self.query_key)


def amplification(layers: Sequence[LayerNorms], lipschitz: float = 1.0, printed: bool = False) -> list[float]:
    """α_i, what errors made in layer i are multiplied by: Π_{j>i} growth_j; printed with j < i (003 Thm A.17)."""
    growths = [layer.growth(lipschitz) for layer in layers]
    return [math.prod(growths[:i] if printed else growths[i + 1 :]) for i in range(len(layers))]


def layers_cover(
    eps: float,
    d: int,
    m: int,
    T: int,
    layers: Sequence[LayerNorms],
    readout: float = 1.0,
    lipschitz: float = 1.0,
    printed: int | None = None,
) -> float:
    """log N ≲ log(dmT)/ε² (B_w^{2/3} + Σ_i (B_w α_i)^{2/3} (…))³ of L layers read out by ‖w‖ ≤ B_w (003 Thm A.17),

        (…) = (B_C^{2,1})^{2/3} + (2 L_σ B_C B_V B_QK^{2,1})^{2/3} + (L_σ B_C B_V^{2,1})^{2/3}.

    `printed=k` is the statement as it stands: α_i over earlier layers, no B_w before it, and factors d^{2/3}, k^{2/3}
    on the last two terms, which its proof does not produce.
    """
    wide, narrow = (1.0, 1.0) if printed is None else (d ** (2 / 3), printed ** (2 / 3))
    bracket = readout ** (2 / 3)
    for layer, alpha in zip(layers, amplification(layers, lipschitz, printed is not None), strict=True):
        mixing = (2 * lipschitz * layer.out * layer.value * layer.query_key_21) ** (2 / 3)
        values = (lipschitz * layer.out * layer.value_21) ** (2 / 3)
        factor = alpha if printed is not None else readout * alpha
        bracket += factor ** (2 / 3) * (layer.out_21 ** (2 / 3) + wide * mixing + narrow * values)
    return math.log(d * m * T) / eps**2 * bracket**3


# ------------------------------------------------------------------------------------------- generalisation


def rademacher(capacity: float, m: int, bound: float = 1.0, c: float = 1.0) -> float:
    """c √(C_F/m) (1 + log(A √(m/C_F))) from log N ≤ C_F/ε², |f| ≤ A; c is not specified (003 Cor. A.3).

    Where C_F > A² m the entropy integral is empty and A itself is the bound.
    """
    ratio = bound * math.sqrt(m / capacity)
    return c * math.sqrt(capacity / m) * (1 + math.log(ratio)) if ratio >= 1 else c * bound


def generalisation_gap(
    capacity: float, m: int, bound: float = 1.0, lipschitz: float = 1.0, loss: float = 1.0, delta: float = 0.05
) -> float:
    """4 L · Rademacher + 2 b √(log(1/δ)/2m): with probability 1 − δ, population less empirical loss (003 Lemma A.5)."""
    return 4 * lipschitz * rademacher(capacity, m, bound) + 2 * loss * math.sqrt(math.log(1 / delta) / (2 * m))


# ------------------------------------------------------------------------------------------- pseudo-dimension


class Shattering(NamedTuple):
    """Inputs X^(i) (q, T, 3), context-free scores vectors w_QK^(s) (T, 3) and w_V (3,) of Proposition 4.8."""

    inputs: Float[np.ndarray, "q T 3"]
    query_key: Float[np.ndarray, "T 3"]
    value: Float[np.ndarray, " 3"]

    def weights(self) -> Float[np.ndarray, "T T"]:
        """Softmax weights of head s (rows) on token t: the same for all inputs, whose scores ignore the bit."""
        return softmax(self.query_key @ self.inputs[0].T)

    def outputs(self) -> Float[np.ndarray, "T q"]:
        """f(X^(i)) of head s."""
        return self.weights() @ (self.inputs @ self.value).T


def shattering(q: int) -> Shattering:
    """q inputs of T = 2^q tokens (cos 2πt/T, sin 2πt/T, bit_i(t)), and T heads whose outputs give all 2^q patterns."""
    T = 2**q
    angle = 2 * np.pi * np.arange(T) / T
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    bits = (np.arange(T)[None, :] >> np.arange(q)[:, None]) & 1
    inputs = np.concatenate([np.broadcast_to(circle, (q, T, 2)), bits[..., None]], axis=2)
    query_key = T**2 * np.concatenate([circle, np.zeros((T, 1))], axis=1)
    return Shattering(inputs, query_key, np.array([0.0, 0.0, 1.0]))
