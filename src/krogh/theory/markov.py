"""Markov chains in context: strategies, exact gradients, the explicit induction head (003 chapter 8, §E.1).

The gradients belong to the margin loss l = (1/k) Σ_{i≠y} max(0, Δ + f_i − f_y), averaged over positions, where Δ is so
large that it is linear, and to the minimal model f = mask(E W (M E)ᵀ) E with M_ij = v_{i−j+1}.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from krogh.nn.attention import Attention, Block
from krogh.nn.decoder import Decoder

LN2 = math.log(2)
STRATEGIES = ("uniform", "unigram", "bigram", "trigram")

# ------------------------------------------------------------------------------------------- strategies


def gram(x: Int[Array, " t"], k: int, n: int) -> Float[Array, " {k}"]:
    """The n-gram prediction of the next symbol: (c_j + 1)/(N + k), j having followed the last n − 1 symbols c_j times.

    n = 1 counts symbols, n = 0 is uniform (003 §8.2.2; printed (8.3) has N for N_i).
    """
    if n == 0:
        return jnp.full(k, 1 / k)
    t = len(x)
    same = jnp.ones(t - n + 1)
    for lag in range(1, n):
        same = same * (x[n - 1 - lag : t - lag] == x[t - lag])
    counts = same @ jax.nn.one_hot(x[n - 1 :], k)
    return (counts + 1) / (counts.sum() + k)


def divergence(p: Float[Array, "... k"], log_q: Float[Array, "... k"]) -> Float[Array, "..."]:
    """KL(p ‖ q) = Σ p log(p/q), in nats."""
    return jnp.sum(p * (jnp.log(jnp.maximum(p, 1e-30)) - log_q), axis=-1)


# ------------------------------------------------------------------------------------------- averages over chains

Chains = tuple[Float[np.ndarray, "nodes k k"], Float[np.ndarray, " nodes"]]


def flat_chains(radial: int = 120, angular: int = 40) -> Chains:
    """Nodes and weights for averages over P = [[a, 1 − a], [1 − b, b]], a, b ~ U(0, 1).

    Near a = b = 1 the stationary law depends on the direction only: Gauss-Legendre in 1 − a = x, 1 − b = x u and their
    exchange.
    """
    (x, x_weight), (u, u_weight) = (_legendre(n) for n in (radial, angular))
    large, small = np.repeat(x, angular), np.outer(x, u).ravel()
    weight = np.outer(x_weight * x, u_weight).ravel()
    leaves_1, leaves_2 = np.concatenate([large, small]), np.concatenate([small, large])
    return two_states(1 - leaves_1, 1 - leaves_2), np.tile(weight, 2)


def symmetric_chains(eps: float = 0.5, nodes: int = 600) -> Chains:
    """Nodes and weights for a = b ~ U(1/2 − eps, 1/2 + eps)."""
    z, weight = _legendre(nodes)
    a = 0.5 + eps * (2 * z - 1)
    return two_states(a, a), weight


def sampled_chains(rng: np.random.Generator, k: int, size: int) -> Chains:
    """Monte Carlo over k × k matrices with flat rows."""
    return rng.dirichlet(np.ones(k), (size, k)), np.full(size, 1 / size)


def two_states(a: Float[np.ndarray, " nodes"], b: Float[np.ndarray, " nodes"]) -> Float[np.ndarray, "nodes 2 2"]:
    """[[a, 1 − a], [1 − b, b]]."""
    return np.stack([np.stack([a, 1 - a], -1), np.stack([1 - b, b], -1)], axis=1)


def _legendre(n: int) -> tuple[np.ndarray, np.ndarray]:
    z, weight = np.polynomial.legendre.leggauss(n)
    return (z + 1) / 2, weight / 2


def stationary_law(chains: Float[np.ndarray, "nodes k k"]) -> Float[np.ndarray, "nodes k"]:
    """π with π P = π and Σ π = 1, from the linear system."""
    k = chains.shape[-1]
    system = np.swapaxes(chains, 1, 2) - np.eye(k)
    system[:, -1] = 1.0
    return np.linalg.solve(system, np.broadcast_to(np.eye(k)[-1], chains.shape[:2])[..., None])[..., 0]


# ------------------------------------------------------------------------------------------- exact gradients


def population_gradients(
    chains: Chains, match: Float[np.ndarray, "k k"], lags: Float[np.ndarray, " t"]
) -> tuple[Float[np.ndarray, "k k"], Float[np.ndarray, " t"]]:
    """−∂L/∂W and −∂L/∂v at W = match, v = lags, exact for sequences of length t, averaged over chains (eq. E.13):

        −∂L/∂W_ml = (1/t) E Σ_i (P_mi − 1/k) π_l Σ_{t'} (Q_{t−t'+1})_im (V_t')_li,   Q_n = Σ_{d<n} P^d,
        −∂L/∂v_j = (1/t) E Σ_{m,i,l} (P_mi − 1/k) W_ml π_l (P^{j−1})_li (Q_1 + … + Q_{t−j+1})_im,

    V_n = Σ_{d<n} v_{d+1} P^d.
    """
    k, t = len(match), len(lags)
    for_match, for_lags = np.zeros((k, k)), np.zeros(t)
    pieces = max(1, len(chains[1]) * t * k * k // 4_000_000)
    for rows, weight in zip(*(np.array_split(part, pieces) for part in chains), strict=True):
        power = np.empty((t, len(rows), k, k))
        power[0] = np.eye(k)
        for d in range(1, t):
            power[d] = power[d - 1] @ rows
        reach = np.cumsum(power, axis=0)
        law = stationary_law(rows)
        gain = weight[:, None, None] * (rows - 1 / k)
        looked = np.cumsum(lags[:, None, None, None] * power, axis=0)
        both = np.einsum("tnim,tnli->nmil", reach[::-1], looked, optimize=True)
        for_match += np.einsum("nmi,nl,nmil->ml", gain, law, both)
        seen = np.einsum("nmi,ml,nl,jnim->jnli", gain, match, law, np.cumsum(reach, axis=0)[::-1], optimize=True)
        for_lags += np.einsum("jnli,jnli->j", seen, power)
    return for_match / t, for_lags / t


def leading_constants() -> dict[str, Any]:
    """Coefficients of the leading terms for a, b ~ U(0, 1), by quadrature (003 eqs. E.24, E.33, E.42, E.43).

    B, A   −∂L/∂W ≈ v_init (t + 1)(t + 2)/6 · (B on the diagonal, A off it)
    D      −∂L/∂v_j ≈ w_init (t − j + 1)(t − j + 2)/(2t) · D
    e      the same for W = I: (t − j + 1)(t − j + 2)/(2t) · e_j, j = 1, …, 8

    Most triples of positions are far apart, where powers of P become the stationary law.
    """
    chains, weight = flat_chains()
    law, gain, power, e = stationary_law(chains), chains - 0.5, np.broadcast_to(np.eye(2), chains.shape), []
    for _ in range(8):
        e.append(float(np.einsum("n,nli,nl,nli->", weight, gain, law**2, power)))
        power = power @ chains
    match = np.einsum("n,nmi,nm,ni,nl->ml", weight, gain, law, law, law)
    return {"B": match[0, 0], "A": match[0, 1], "D": weight @ np.sum(law**2, axis=1) - 0.5, "e": np.array(e)}


CLOSED = {"B": (8 * LN2 - 5) / 12, "A": (7 - 10 * LN2) / 6, "D": 1.5 - 2 * LN2, "e_1": (1 - LN2) / 3}
CLOSED["e_2"] = (7 - 10 * LN2) / 2 + (8 * LN2 - 5) / 6
# As (E.43) prints it: the second term has the wrong sign.
PRINTED_E_2 = (7 - 10 * LN2) / 2 + (5 - 8 * LN2) / 6


def pairs(t: int) -> Float[np.ndarray, " {t}"]:
    """(t − j + 1)(t − j + 2)/(2t), j = 1, …, t: how the leading terms fall with the lag."""
    left = t + 1.0 - np.arange(1, t + 1)
    return left * (left + 1) / (2 * t)


def symmetric_lag_gradient(t: int) -> Float[np.ndarray, " {t}"]:
    """−∂L/∂v_j at W = 11ᵀ, a = b ~ U(0, 1): (1/2t) Σ_{L ≤ t−j+1} Σ_{r ≤ L even} 1/(r + 1), of order log t."""
    r = np.arange(1, t + 1)
    return np.cumsum(np.cumsum(np.where(r % 2 == 0, 1 / (r + 1), 0.0)))[::-1] / (2 * t)


def printed_symmetric_lag_gradient(t: int) -> Float[np.ndarray, " {t}"]:
    """The same as printed in (E.49), where λ = 2a − 1 became 2a − 2: −(t − j + 1)/(2t)."""
    return -(t + 1.0 - np.arange(1, t + 1)) / (2 * t)


def population_step(
    chains: Chains, match: Float[np.ndarray, "k k"], lags: Float[np.ndarray, " t"], lr: float, decay: float = 0.0
) -> tuple[Float[np.ndarray, "k k"], Float[np.ndarray, " t"]]:
    """W and v after one step on the population; `decay` = 1 erases what was there before."""
    for_match, for_lags = population_gradients(chains, match, lags)
    return (1 - decay) * match + lr * for_match, (1 - decay) * lags + lr * for_lags


def curriculum_match(t: int, eps: float, v_init: float, lr: float) -> float:
    """Leading diagonal of W after the curriculum: lr v_init (t/8) (atanh(2 eps)/(2 eps) − 1)."""
    return lr * v_init * t / 8 * (math.atanh(2 * eps) / (2 * eps) - 1)


def printed_curriculum_match(t: int, eps: float, v_init: float, lr: float) -> float:
    """The same from (E.53): without density and with the factor −1/8 dropped it is negative."""
    return lr * v_init * t * (2 * eps + 0.5 * math.log((0.5 - eps) / (0.5 + eps)))


# ------------------------------------------------------------------------------------------- the explicit head


def induction_head(k: int, t: int, c: float, readout: float = 1.0) -> Decoder:
    """The two-layer transformer of Prop. 8.2 in dimension 3k: what followed earlier copies of the current symbol.

    Layer 1 writes the previous symbol into block 2, layer 2 averages the symbols whose block 2 is the current symbol
    into block 3; logits are `readout` times block 3. Position 1 looks at itself and so passes for a follower of x_1.
    """
    blocks = np.eye(3 * k).reshape(3, k, 3 * k)
    one, two, three = blocks

    def head(query: np.ndarray, key: np.ndarray, value: np.ndarray, lags: np.ndarray) -> Block:
        parts = (jnp.asarray(part, jnp.float32)[:, None] for part in (query, key, value))
        return Block(Attention(*parts, out=None, lags=jnp.asarray(lags, jnp.float32)[:, None]))

    nothing = np.zeros((3 * k, 3 * k))
    back = np.zeros((t, 3 * k))
    back[1, :k] = 1
    return Decoder(
        tokens=jnp.asarray(one, jnp.float32),
        positions=None,
        blocks=(
            head(c * one.T @ one, nothing, one.T @ two, back),
            head(c * one.T @ one, c * two.T @ one, one.T @ three, np.zeros((t, 3 * k))),
        ),
        norm=None,
        output=readout * jnp.asarray(three.T, jnp.float32),
    )


def followers(x: Int[np.ndarray, " t"], k: int, first: bool) -> Float[np.ndarray, "t {k}"]:
    """At every i the shares of the symbols x_b, b ≤ i, with x_{b−1} = x_i; NaN where there is none.

    `first` counts b = 1 as a follower of x_1, as the construction does.
    """
    before = np.concatenate([x[:1] if first else [-1], x[:-1]])
    same = (before[None] == x[:, None]) & (np.arange(len(x)) <= np.arange(len(x))[:, None])
    counts = same @ np.eye(k)[x]
    total = counts.sum(axis=1, keepdims=True)
    return np.where(total > 0, counts / np.maximum(total, 1), np.nan)
