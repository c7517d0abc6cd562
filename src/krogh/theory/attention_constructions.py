"""Attention heads that compute sparse Boolean functions exactly, weight by weight (003 §4.5, §A.2)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from krogh.theory.attention_capacity import softmax

Bits = Int[np.ndarray, "inputs T"]


def all_bits(T: int) -> Bits:
    """{0,1}^T, row r having b_t = 1 where digit t of r is 1."""
    return (np.arange(2**T)[:, None] >> np.arange(T)) & 1


class Embedding(NamedTuple):
    """b ↦ X(b): rows E_{b_t} + v_t, or b_t v_t where `bits` is None (bag of vectors); [CLS] comes last."""

    positions: Float[np.ndarray, "T d"]
    bits: Float[np.ndarray, "2 d"] | None
    cls: Float[np.ndarray, " d"]

    def __call__(self, b: Bits) -> Float[np.ndarray, "inputs T1 d"]:
        rows = b[..., None] * self.positions if self.bits is None else self.bits[b] + self.positions
        return np.concatenate([rows, np.broadcast_to(self.cls, (len(b), 1, len(self.cls)))], axis=1)


def embedding(positions: Float[np.ndarray, "T d"], bag: bool = False) -> Embedding:
    """Positions with E_0, E_1 and v_CLS along three further axes, orthogonal to them and to each other."""
    T, d = positions.shape
    special = np.eye(d + 3)[d:]
    return Embedding(np.pad(positions, ((0, 0), (0, 3))), None if bag else special[:2], special[2])


def random_positions(rng: np.random.Generator, T: int, d: int) -> Float[np.ndarray, "T d"]:
    """T independent random unit vectors."""
    v = rng.standard_normal((T, d))
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def coherence(positions: Float[np.ndarray, "T d"]) -> float:
    """Δ = max_{i≠j} |v_i·v_j|."""
    products = np.abs(positions @ positions.T)
    return float(products[~np.eye(len(products), dtype=bool)].max())


class Head(NamedTuple):
    """W_Q, W_K, W_V (d, k) and W_C (k, d)."""

    query: Float[np.ndarray, "d k"]
    key: Float[np.ndarray, "d k"]
    value: Float[np.ndarray, "d k"]
    out: Float[np.ndarray, "k d"]

    def norms(self) -> tuple[float, ...]:
        """Frobenius norms of W_Q, W_K, W_V, W_C."""
        return tuple(float(np.linalg.norm(w)) for w in self)


def attention(head: Head, at: Embedding, b: Bits) -> Float[np.ndarray, "inputs T1"]:
    """softmax(v_CLSᵀ W_Q W_Kᵀ X(b)ᵀ)."""
    return softmax(at(b) @ (head.key @ (head.query.T @ at.cls)))


def apply(heads: Sequence[Head], at: Embedding, b: Bits) -> Float[np.ndarray, "inputs d"]:
    """Σ_h softmax(v_CLSᵀ W_Q W_Kᵀ Xᵀ) X W_V W_C (003 §A.2.1)."""
    rows = at(b)
    return sum(np.einsum("nt,ntd->nd", attention(h, at, b), rows) @ h.value @ h.out for h in heads)  # type: ignore[return-value]


def selection_vector(positions: Float[np.ndarray, "T d"], dual: bool) -> Float[np.ndarray, " d"]:
    """k with k·v_i = 1 on the chosen v_i: their sum (as printed: exact for Δ = 0 only), or the dual-basis vector

    V_Iᵀ (V_I V_Iᵀ)⁻¹ 1, whose scores on I are equal for every Δ.
    """
    if not dual:
        return positions.sum(axis=0)
    return positions.T @ np.linalg.solve(positions @ positions.T, np.ones(len(positions)))


def scale(T: int, gamma: float, leak: float = 0.0) -> float:
    """R = log(8T/γ)/(1 − leak); the leak is sΔ in 003 Lemma A.19 and 0 for trainable positions (A.20).

    NaN where scores off I may reach those on I (leak ≥ 1): then no R works.
    """
    return math.log(8 * T / gamma) / (1 - leak) if leak < 1 else math.nan


def dual_leak(s: int, delta: float) -> float:
    """sΔ/(1 − (s−1)Δ): what the dual basis scores off I at most; below 1 only for Δ < 1/(2s − 1)."""
    return s * delta / (1 - (s - 1) * delta) if (s - 1) * delta < 1 else math.inf


def bag_scale(T: int, gamma: float, s: int, delta: float = 0.0) -> float:
    """R = log(8Ts(1 + Δ)/(γ − sΔ))/(1 − sΔ) (003 Lemma A.21)."""
    return math.log(8 * T * s * (1 + delta) / (gamma - s * delta)) / (1 - s * delta)


def deterministic_head(at: Embedding, subset: Sequence[int], R: float, dual: bool = False) -> Head:
    """Output e_1 component ≈ (1/s) Σ_{i∈I} χ_i, χ = +1 for a 0 and −1 for a 1 (003 Lemma A.19)."""
    key = selection_vector(at.positions[list(subset)], dual)
    return _selecting_head(at, key, R, output=0)


def deterministic_heads(at: Embedding, subset: Sequence[int], R: float, printed: bool = False) -> list[Head]:
    """s heads, head h putting χ of its own position on e_h; printed with W_V along e_2, which W_C maps to 0."""
    return [_selecting_head(at, at.positions[i], R, h, int(printed)) for h, i in enumerate(subset)]


def _selecting_head(at: Embedding, key: Float[np.ndarray, " d"], R: float, output: int, column: int = 0) -> Head:
    assert at.bits is not None
    e, unit = np.eye(2), np.eye(len(key))[output]
    seen = np.outer(at.bits[0] - at.bits[1], e[column])
    return Head(np.outer(R * at.cls, e[0]), np.outer(key, e[0]), seen, np.outer(e[0], unit))


def trainable_head(T: int, subset: Sequence[int], R: float) -> tuple[Embedding, Head]:
    """Positions v_1 on I and 0 elsewhere: scores exactly R and 0 with d = 4 (003 Lemma A.20)."""
    at = embedding(np.isin(np.arange(T), list(subset)).astype(float)[:, None])
    return at, deterministic_head(at, subset[:1], R)


def trainable_heads(T: int, subset: Sequence[int], R: float) -> tuple[Embedding, list[Head]]:
    """Positions e_{n(i)} on I: s heads with the scores of single positions, d = s + 3."""
    positions = np.zeros((T, len(subset)))
    positions[list(subset), np.arange(len(subset))] = 1
    at = embedding(positions)
    return at, deterministic_heads(at, subset, R)


def bag_head(at: Embedding, subset: Sequence[int], R: float, vector: bool = False) -> Head:
    """Output ≈ (r − s)/(r + 1) on e_1, or ((b_i − 1)/(r + 1))_{i∈I} on e_1..e_s (003 Lemma A.21); r = Σ_I b_i."""
    s, chosen = len(subset), at.positions[list(subset)]
    ones, first = np.ones(s), np.eye(s)[0]
    return Head(
        np.outer(R * at.cls, first),
        np.outer(chosen.sum(axis=0) + at.cls, first),
        chosen.T - np.outer(at.cls, ones),
        np.eye(s, len(at.cls)) if vector else np.outer(ones, np.eye(len(at.cls))[0]),
    )


# ------------------------------------------------------------------------------------------- look-up networks


class LookUp(NamedTuple):
    """((y W_1)_+ W_2)_+ w, bias rows last: f_i on the cube of half-width δ around each point x_i (003 Lemma A.25)."""

    first: Float[np.ndarray, "d1 hidden"]
    second: Float[np.ndarray, "hidden1 units"]
    readout: Float[np.ndarray, " units"]

    def __call__(self, y: Float[np.ndarray, "inputs d"]) -> Float[np.ndarray, " inputs"]:
        hidden = np.maximum(y @ self.first[:-1] + self.first[-1], 0)
        return np.maximum(hidden @ self.second[:-1] + self.second[-1], 0) @ self.readout


def look_up(
    points: Float[np.ndarray, "n d"], values: Float[np.ndarray, " n"], delta: float, printed: bool = False
) -> LookUp:
    """Exact memory of n values at points ≥ 4δ apart (sup norm), 4nd and 2n wide; δ ≤ 1.

    A coordinate within δ of x_0 gives ψ = (u+2)_+ − (u+1)_+ + (2−u)_+ − (1−u)_+ − 1 = 1, u = (z − x_0)/δ, and one
    beyond 2δ gives 0; the printed signs (+ − − +) make ψ = 0 at the centre.
    """
    n, d = points.shape
    signs = (1, -1, -1, 1) if printed else (1, -1, 1, -1)
    ramps = ((1, 2), (1, 1), (-1, 2), (-1, 1))
    slopes = np.concatenate([np.tile(np.eye(d), n) * way / delta for way, _ in ramps], axis=1)
    offsets = [shift - way * points.ravel() / delta for way, shift in ramps]
    gather = np.repeat(np.eye(n), d, axis=0) / delta
    second = np.tile(np.concatenate([sign * gather for sign in signs]), 2)
    level = (1 if printed else 2) * d / delta
    bias = np.concatenate([np.full(n, 1 - level), np.full(n, -level)])
    return LookUp(
        np.vstack([slopes, np.concatenate(offsets)]), np.vstack([second, bias]), np.concatenate([values, -values])
    )
