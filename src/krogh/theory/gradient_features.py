"""Gradient features: where the first gradient points, how often, and what networks of them can do (000 chapter 3).

The simplified gradient is G(w, b) = E[y x 1[<w, x> > b]]; weight vectors and gradients are columns, (d, width).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int, Key

from krogh.nn.fixed_features import sum_over_chunks
from krogh.nn.mlp import TwoLayer
from krogh.nn.symmetric import neurons, relu_network
from krogh.tasks.block_parity import BlockParity
from krogh.tasks.mixtures import GaussianMixture, LinearMargin
from krogh.theory import majority

AnyArray = Array | np.ndarray

# --- The simplified gradient, sampled and in closed form ---


@partial(jax.jit, static_argnames="chunk")
def sampled_gradient(
    weights: Float[Array, "d width"],
    threshold: Float[Array, " width"],
    x: Float[Array, "n d"],
    y: Float[Array, " n"],
    chunk: int = 5000,
) -> Float[Array, "d width"]:
    """mean of y x 1[<w_i, x> > b_i] over a sample (000 Definition 3.5)."""

    def part(mask, x, y):
        return x.T @ jnp.where(x @ weights > threshold, (mask * y)[:, None], 0.0)

    return sum_over_chunks(part, x, y, chunk=chunk) / len(y)


def mixture_gradient(
    mixture: GaussianMixture, weights: Float[Array, "d width"], threshold: Float[Array, " width"]
) -> Float[Array, "d width"]:
    """G = sum_l p_l y_l [mu_l Phi(t_l) + sigma_l (w/||w||) phi(t_l)], t_l = (<w, mu_l> - b) / (sigma_l ||w||)
    (derived)."""
    length = jnp.linalg.norm(weights, axis=0)
    sigma, signed = mixture.deviations[:, None], (mixture.shares * mixture.labels)[:, None]
    t = (mixture.means @ weights - threshold) / (sigma * length)
    return mixture.means.T @ (signed * norm.cdf(t)) + weights / length * (signed * sigma * norm.pdf(t)).sum(0)


def linear_gradient(
    task: LinearMargin, weights: Float[Array, "d width"], threshold: Float[Array, " width"], nodes: int = 80
) -> Float[Array, "d width"]:
    """G on linear data: <G, w*> = E[s Phi((y s w_1 - b)/|w_r|)], G_r = E[y phi((y s w_1 - b)/|w_r|)] w_r/|w_r| with
    s = beta + |z| integrated numerically and w_r the part of w off w* (derived)."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    u = 4.5 * (node + 1)
    s, weight = (
        jnp.asarray(task.margin + u)[:, None],
        jnp.asarray(weight * 4.5 * 2 * np.exp(-(u**2) / 2) / 2.50662827463),
    )
    rest = weights.at[0].set(0)
    length = jnp.linalg.norm(rest, axis=0)
    plus, minus = ((sign * s * weights[0] - threshold) / length for sign in (1, -1))
    along = weight @ (s * (norm.cdf(plus) + norm.cdf(minus))) / 2
    across = weight @ (norm.pdf(plus) - norm.pdf(minus)) / 2
    return (rest / length * across).at[0].set(along)


def block_parity_gradient(
    task: BlockParity, weights: Float[Array, "d width"], threshold: Float[Array, " width"]
) -> Float[Array, "d width"]:
    """G to leading order: the 2r structured components, the background <w, x> off A as a Gaussian of variance
    2 p_o |w|^2 (derived). The uniform component, whose Fourier coefficients are O(d^{-(k-1)/2}), is left out."""
    inside = task.r * task.k
    background = weights.at[:inside].set(0)
    spread = jnp.sqrt(2 * task.p_o) * jnp.linalg.norm(background, axis=0)
    blocks = math.sqrt(task.k) * task.directions
    plus, minus = ((sign * (blocks @ weights) - threshold) / spread for sign in (1, -1))
    on_block = blocks.T @ (norm.cdf(plus) + norm.cdf(minus))
    off = background / spread * 2 * task.p_o * (norm.pdf(plus) - norm.pdf(minus)).sum(0)
    return task.p_a * (on_block + off)


def quadratic_gradient(hessian: Float[Array, "d d"], weights: Float[Array, "d width"]) -> Float[Array, "d width"]:
    """G(w, 0) = (H u - (u^T H u) u / 2) / sqrt(2 pi), u = w/||w||, of y = x^T H x / 2 - tr(H)/2 on Gaussian x
    (derived); H u / sqrt(2 pi) is the leading order of every multi-index polynomial with mean Hessian H."""
    u = weights / jnp.linalg.norm(weights, axis=0)
    pushed = hessian @ u
    return (pushed - u * (u * pushed).sum(0) / 2) / math.sqrt(2 * math.pi)


class SignNeuron(NamedTuple):
    """What a sign-initialised neuron sees of a uniform parity of k bits, d odd, |b| < 1 (000 §B.5.5)."""

    norm: float  # ||G||, of every neuron
    cosine: float  # cos(G, D) of a good neuron: w constant on A
    share: float  # of good neurons


def sign_neuron(d: int, k: int) -> SignNeuron:
    """||G|| = sqrt(k xi_{k-1}^2 + (d-k) xi_{k+1}^2) / 2, cos = [1 + (k-1)^2/(k(d-k))]^{-1/2}, share 2^{1-k}
    (derived)."""
    below, above = majority.coefficient(d, k - 1), majority.coefficient(d, k + 1)
    return SignNeuron(
        math.sqrt(k * below**2 + (d - k) * above**2) / 2, (1 + (k - 1) ** 2 / (k * (d - k))) ** -0.5, 2.0 ** (1 - k)
    )


def sampled_cosine(d: int, n: AnyArray | float, gradient_norm: float) -> AnyArray | float:
    """cos(G~, G) from n samples on {±1}^d: [1 + d/(2 n ||G||^2)]^{-1/2}, half the samples firing (derived)."""
    return (1 + d / (2 * n * gradient_norm**2)) ** -0.5


# --- The first step ---


def symmetric_step(network: TwoLayer, x: Float[Array, "n d"], y: Float[Array, " n"]) -> TwoLayer:
    """W^(1) = a_i G~(w_i, b_i) per unit of -lr l'(0), from symmetric copies (a, w, b), (-a, -w, -b), (-a, w, b),
    (a, -w, -b): half of them follow from G~(-w, -b) = mean(y x) - G~(w, b). The head is left at 0 (000 eq. 3.9, B.71).
    """
    w, b, a = neurons(network)
    m = len(b) // 4
    one = sampled_gradient(w[:, :m], b[:m], x, y)
    other = (y @ x / len(y))[:, None] - one
    return relu_network(a * jnp.concatenate([one, other, one, other], axis=1), b)


def spread(weights: Float[Array, "d width"], x: Float[Array, "n d"]) -> Float[Array, " width"]:
    """Standard deviation of <w_i, x> on the sample."""
    mean = x.mean(0)
    return jnp.sqrt(sum_over_chunks(lambda mask, x: mask @ ((x - mean) @ weights) ** 2, x) / len(x))


def rescaled(network: TwoLayer, x: Float[Array, "n d"]) -> TwoLayer:
    """Pre-activations of unit root-mean-square spread against thresholds of at most one: after a wiped step only the
    ratio matters, and one factor for all neurons keeps the knots b~/||w_i|| that a_i spreads out."""
    w, b, a = neurons(network)
    return relu_network(w / jnp.sqrt(jnp.mean(spread(w, x) ** 2)), b / jnp.abs(b).max(), a)


# --- The gradient feature set (000 Definition 3.7) ---


def cosines(directions: Float[AnyArray, "r d"], columns: Float[AnyArray, "d width"]) -> Float[AnyArray, "r width"]:
    """cos(D_j, column i) for unit directions; 0 for an empty column."""
    length = (columns**2).sum(0) ** 0.5
    return directions @ columns / (length + (length == 0))


def hits(
    directions: Float[Array, "r d"], gradient: Float[Array, "d width"], gamma: float | Array, least: float | Array
) -> Array:
    """(r, width): |<G, D>| > (1 - gamma) ||G|| and ||G|| >= B_G. The mean over draws of w and b of one sign estimates
    p: (D, s) is in S_{p,gamma,B_G} for every smaller p (000 eq. 3.6)."""
    return (jnp.abs(cosines(directions, gradient)) > 1 - gamma) & (jnp.linalg.norm(gradient, axis=0) >= least)


def nice_neurons(
    directions: Float[Array, "r d"],
    output: Float[Array, " width"],
    gradient: Float[Array, "d width"],
    gamma: float,
    least: float,
) -> Array:
    """(r, width): a_i G_i lies in the one-sided cone of D_j and ||G_i|| >= B_G (000 eq. 3.14); Lemma 3.13 promises mp/4
    of them for every feature."""
    inside = cosines(directions, jnp.sign(output) * gradient) > 1 - gamma
    return inside & (jnp.linalg.norm(gradient, axis=0) >= least)


class Found(NamedTuple):
    """Directions found among gradients, and the share of draws in each one's cone."""

    directions: Float[np.ndarray, "found d"]
    probability: Float[np.ndarray, " found"]


def find_features(gradient: Float[AnyArray, "d width"], gamma: float, least: float, most: int = 16) -> Found:
    """The feature set without knowing the answer: the direction with the most gradients in its cone, refined to their
    mean, then the same among the gradients left, `most` times or until none has two."""
    gradient = np.asarray(gradient, float)
    length = np.linalg.norm(gradient, axis=0)
    units = (gradient[:, length >= least] / length[length >= least]).T
    left, found, probability = np.ones(len(units), bool), [], []
    near = np.abs(units @ units.T) > 1 - gamma
    for _ in range(most):
        count = (near & left).sum(1) * left
        if not count.size or count.max() < 2:
            break
        centre = units[count.argmax()]
        cone = near[count.argmax()] & left
        mean = (np.sign(units[cone] @ centre)[:, None] * units[cone]).mean(0)
        direction = mean / np.linalg.norm(mean)
        inside = np.abs(units @ direction) > 1 - gamma
        found.append(direction)
        probability.append(inside.sum() / gradient.shape[1])
        left &= ~(inside | cone)
    return Found(np.array(found).reshape(-1, gradient.shape[0]), np.array(probability))


def projected_normal(key: Key[Array, ""], d: int, kept: int, size: int) -> Float[Array, "coordinates size"]:
    """`size` columns w ~ N(0, I_d) as kept coordinates and the length of the rest, (kept + 1, size): all that a mixture
    with means in the kept coordinates lets the gradient depend on."""
    first, second = jr.split(key)
    rest = jnp.sqrt(2 * jr.gamma(second, (d - kept) / 2, (1, size)))
    return jnp.concatenate([jr.normal(first, (kept, size)), rest])


# --- Constructed networks g* and the head that finds them among trained neurons ---


def linear_network(direction: Float[Array, " d"], margin: float) -> TwoLayer:
    """g* = (relu(<w*, x>) - relu(-<w*, x>)) / beta: hinge loss 0 (000 Lemma B.26)."""
    return relu_network(jnp.stack([direction, -direction], axis=1), jnp.zeros(2), jnp.array([1.0, -1.0]) / margin)


def mixture_network(
    directions: Float[Array, "r d"], labels: Float[Array, " r"], half_threshold: float | Array
) -> TwoLayer:
    """g* = sum_j y_j / h relu(<D_j, x> - 2h), h = sqrt(tau log d) sigma_B+ (000 Lemma 3.17)."""
    return relu_network(directions.T, jnp.full(len(labels), 2.0 * half_threshold), labels / half_threshold)


def bump_network(directions: Float[Array, "r d"], k: int, reflected: bool = False) -> TwoLayer:
    """g* = sum_j sum_{i=0..k} (-1)^{k-i} sqrt(k) [relu(z_j - s_i + h) - 2 relu(z_j - s_i) + relu(z_j - s_i - h)],
    z_j = <D_j, x>, s_i = (2i - k)/sqrt(k), h = 1/sqrt(k): the parity of every block, 0 on an empty one (000 Lemma
    3.21).

    `reflected` writes a bump at s < 0 as the same bump of -z at -s, so that only (±D_j, +1) are used (derived).
    """
    i = np.arange(k + 1)
    centre, sign = (2 * i - k) / math.sqrt(k), (-1.0) ** (k - i)
    side = np.where(centre < 0, -1.0, 1.0) if reflected else np.ones(k + 1)
    bias = (side * centre)[:, None] + np.array([-1, 0, 1]) / math.sqrt(k)
    output = math.sqrt(k) * sign[:, None] * np.array([1, -2, 1])
    columns = directions[:, :, None] * jnp.asarray(np.repeat(side, 3))
    return relu_network(
        jnp.concatenate(list(columns), axis=1),
        jnp.tile(jnp.asarray(bias.ravel()), len(directions)),
        jnp.tile(jnp.asarray(output.ravel()), len(directions)),
    )


class ExplicitHead(NamedTuple):
    """a~ on the neurons after the first step, and how many neurons serve each neuron of g*."""

    output: Float[Array, " width"]
    count: Int[Array, " targets"]


def explicit_head(
    target: TwoLayer, network: TwoLayer, gamma: float, tolerance: float, smallest_bias: float = 0.0
) -> ExplicitHead:
    """a~_i = a*_j c_j / (|L_j| b~), c_j = max(|b*_j|, B_eps), on L_j = {i: sign b_i = sign b*_j, w_i in the one-sided
    cone of D_j, | ||w_i|| c_j / b~ - 1 | <= tolerance}, b~ = |b_i|, B_eps = `smallest_bias` (000 Lemma B.6).

    Where |b*_j| < B_eps the rebuilt neuron has a bias of that size; b*_j = 0 counts as positive.
    """
    (directions, wanted, output), (weights, have, _) = neurons(target), neurons(network)
    size = jnp.maximum(jnp.abs(wanted), smallest_bias)
    ratio = jnp.linalg.norm(weights, axis=0) * size[:, None] / jnp.abs(have)
    serves = cosines(directions.T, weights) > 1 - gamma
    serves &= (jnp.abs(ratio - 1) <= tolerance) & (jnp.sign(have) == jnp.where(wanted < 0, -1, 1)[:, None])
    count = serves.sum(1)
    scale = output * size / jnp.maximum(count, 1)
    return ExplicitHead((scale[:, None] * serves).sum(0) / jnp.abs(have), count)


# --- Auxiliary facts ---


def xor_bayes(d: float | AnyArray, sigma: float | AnyArray) -> AnyArray:
    """Best accuracy on the XOR mixture: Phi(s)^2 + Phi(-s)^2, s = sqrt(d/2)/sigma (derived)."""
    from scipy.special import ndtr

    s = np.sqrt(np.asarray(d) / 2) / np.asarray(sigma)
    return np.asarray(ndtr(s) ** 2 + ndtr(-s) ** 2)


def tail_ratio(z: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
    """|E[g 1[g > z]]| / (2 Pr[g > z]^0.9) = phi(z) / (2 Q(z)^0.9); below 1 says Lemma B.76."""
    from scipy.stats import norm as normal

    return np.exp(normal.logpdf(z) - 0.9 * normal.logsf(z)) / 2


def smoothness(features: Float[Array, "n width"], loss: str) -> Float[Array, ""]:
    """L of the head problem: lambda_max(H^T H / n) / 4 (logistic), twice lambda_max (square) (000 Thm 3.4)."""
    largest = jnp.linalg.eigvalsh(features.T @ features / len(features))[-1]
    return largest * {"logistic": 0.25, "square": 2.0}[loss]


def rademacher_bound(head_norm: float, weights_norm: float, bias_norm: float, radius: float, n: int) -> float:
    """sqrt(B_a2^2 (||W||_F^2 B_x^2 + ||b||^2) / n) (000 Lemma B.78)."""
    return head_norm * math.sqrt((weights_norm**2 * radius**2 + bias_norm**2) / n)
