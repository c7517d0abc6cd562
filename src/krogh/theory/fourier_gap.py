"""Population gradients of one neuron on a sparse parity, and the Fourier gap they carry (003 §5.4.1, B.2, B.3.1).

The target is y = chi_[k](x), S = the first k coordinates, x uniform on {±1}^n. The correlation gradient of a neuron
sigma(w.x + b) is minus g, g_i = E[y x_i sigma'(w.x + b)]: the Fourier coefficient of sigma' at S minus i for a
relevant coordinate, at S plus i for an irrelevant one.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from krogh.theory import majority
from krogh.theory.boolean import character, cube

AnyArray = Array | np.ndarray


def population_gradient(
    derivative: Callable[[np.ndarray], np.ndarray],
    w: Float[np.ndarray, "neurons n"],
    k: int,
    b: Float[np.ndarray, " neurons"] | float = 0.0,
    flip: float = 0.0,
) -> Float[np.ndarray, "neurons n"]:
    """g_i = E[y x_i sigma'(w.x + b)] over all 2^n inputs and over labels flipped with probability `flip`."""
    x = cube(w.shape[-1])
    label = character(x, range(k))
    mean_label = (1 - flip) * label + flip * -label
    return (derivative(x @ w.T + b) * mean_label[:, None]).T @ x / len(x)


def step(z: np.ndarray) -> np.ndarray:
    """Derivative of the ReLU, 1[z > 0]."""
    return (z > 0).astype(float)


def sign_neuron_gradient(
    w: Float[np.ndarray, "neurons n"], u: Float[np.ndarray, " neurons"], k: int
) -> tuple[Float[np.ndarray, "neurons n"], Float[np.ndarray, " neurons"]]:
    """Population gradients dL/dw, dL/db of ReLU neurons with sign weights, |b| < 1, at f = 0 (003 Lemma B.3).

    dL/dw_j = -u/2 xi_{k-1} chi_{[k] minus j}(w) for j in [k], -u/2 xi_{k+1} chi_{[k] plus j}(w) otherwise, and
    dL/db = -u/2 xi_k chi_[k](w). For even k the bias gradient vanishes, for odd k the weight gradient does.
    """
    n = w.shape[-1]
    # w_j^2 = 1, so that chi_{[k] minus j}(w) = chi_{[k] plus j}(w) = chi_[k](w) w_j
    chi = character(w, range(k))
    xi = np.where(np.arange(n) < k, majority.coefficient(n, k - 1), majority.coefficient(n, k + 1) if k < n else 0.0)
    return -0.5 * u[:, None] * xi * chi[:, None] * w, -0.5 * u * majority.coefficient(n, k) * chi


def relaxed_gap(g: Float[AnyArray, "*batch n"], k: int) -> Float[AnyArray, "*batch"]:
    """Gamma = max_{i in [k]} |g_i| - max_{i not in [k]} |g_i| (003 §B.3.1): positive when one member of S leads."""
    return abs(g[..., :k]).max(-1) - abs(g[..., k:]).max(-1)


def strict_gap(g: Float[AnyArray, "*batch n"], k: int) -> Float[AnyArray, "*batch"]:
    """min_{i in [k]} |g_i| - max_{i not in [k]} |g_i|: positive when all of S leads (003 Def. 5.4)."""
    return abs(g[..., :k]).min(-1) - abs(g[..., k:]).max(-1)


def leads(g: Float[np.ndarray, "*batch n"], k: int) -> np.ndarray:
    """Whether the k largest |g_i| are exactly the coordinates of S (003 Prop. B.7)."""
    return np.asarray(strict_gap(g, k) > 0)


def sine_gradient(
    theta: Float[Array, "*batch n"], phase: Float[Array, "*batch"] | float, k: int
) -> Float[Array, "*batch n"]:
    """E[y x_i sin(theta.x + phase)] for every i and any n, without enumeration. From

    E[chi_A(x) sin(theta.x + c)] = sin(c + |A| pi/2) prod_{i in A} sin theta_i prod_{i not in A} cos theta_i
    with A = [k] minus i for i in [k] and A = [k] plus i otherwise.
    """
    sin, cos = jnp.sin(theta), jnp.cos(theta)
    factor = jnp.concatenate([sin[..., :k], cos[..., k:]], -1)
    swapped = jnp.concatenate([cos[..., :k], sin[..., k:]], -1)
    size = jnp.where(jnp.arange(theta.shape[-1]) < k, k - 1, k + 1)
    return jnp.sin(jnp.asarray(phase)[..., None] + size * (jnp.pi / 2)) * swapped * product_of_others(factor)


def product_of_others(a: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """prod_{j != i} a_j for every i."""
    # prefix times suffix products: dividing the whole product by a_i would fail where a_i = 0
    one = jnp.ones_like(a[..., :1])
    before = jnp.cumprod(jnp.concatenate([one, a[..., :-1]], -1), -1)
    after = jnp.cumprod(jnp.concatenate([one, a[..., :0:-1]], -1), -1)[..., ::-1]
    return before * after


def sinusoid_gradient(
    w: Float[Array, "*batch n"], b: Float[Array, "*batch"] | float, k: int, scale: float = 1.0
) -> Float[Array, "*batch n"]:
    """g_i = E[y x_i sigma'(w.x + b)] for the parity sinusoid sigma(z) = cos(pi (s z - k) / 2), at any n."""
    phase = jnp.pi / 2 * (scale * jnp.asarray(b) - k)
    return -jnp.pi / 2 * scale * sine_gradient(jnp.pi / 2 * scale * w, phase, k)


def fourier_gap_sinusoid(
    w: Float[Array, "*batch n"], b: Float[Array, "*batch"] | float, k: int, scale: float = 1.0
) -> Float[Array, "*batch"]:
    """Exact relaxed gap Gamma of a sinusoidal neuron (003 §B.3.1), cheap enough to follow along training."""
    return jnp.asarray(relaxed_gap(sinusoid_gradient(w, b, k, scale), k))


def recovery_samples(gap: float, n: int, delta: float = 0.05) -> int:
    """B = ceil(8/gamma^2 ln(2n/delta)) samples recover S with probability 1 - delta (003 Prop. B.7 with Hoeffding).

    For gradients |y x_i sigma'| <= 1. A sign-initialised ReLU neuron has half the gap of majority.
    """
    return math.ceil(8 / gap**2 * math.log(2 * n / delta))
