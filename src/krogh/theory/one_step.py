"""One large step finds the features: the algorithm and the constructions behind Theorem 5.5 (003 §B.2.1).

The target is y = chi_[k](x), k even, n odd. A ReLU network f = sum_i u_i relu(w_i.x + b_i) starts from sign weights in
pairs of opposite output, so that f = 0; one step on W replaces it by its gradient; then only u is trained (hinge loss).
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.theory import majority


def bias_grid(k: int) -> Float[np.ndarray, " values"]:
    """{-1 + 1/k, ..., 1 - 1/k}, with 1 added for k = 2, whose head needs it (it still acts as majority for odd n)."""
    grid = np.arange(1 - k, k) / k
    return np.append(grid, 1.0) if k == 2 else grid


def initial(
    key: PRNGKeyArray, n: int, k: int, width: int
) -> tuple[Float[Array, "width n"], Float[Array, " width"], Float[Array, " width"]]:
    """W, b, u: sign weights, biases from the grid, and every neuron twice with opposite u, so that f = 0."""
    keys = jax.random.split(key, 3)
    w = jax.random.rademacher(keys[0], (width // 2, n), jnp.float32)
    b = jax.random.choice(keys[1], jnp.asarray(bias_grid(k), jnp.float32), (width // 2,))
    u = jax.random.rademacher(keys[2], (width // 2,), jnp.float32)
    return jnp.tile(w, (2, 1)), jnp.tile(b, 2), jnp.concatenate([u, -u])


def sample_parity(key: PRNGKeyArray, size: int, n: int, k: int) -> tuple[Float[Array, "size n"], Float[Array, " size"]]:
    """Uniform x on {±1}^n with y = chi_[k](x)."""
    x = jax.random.rademacher(key, (size, n), jnp.float32)
    return x, jnp.prod(x[:, :k], axis=1)


@partial(jax.jit, static_argnames=("k", "batch", "chunk"))
def sampled_gradient(
    key: PRNGKeyArray,
    w: Float[Array, "width n"],
    b: Float[Array, " width"],
    u: Float[Array, " width"],
    k: int,
    batch: int,
    chunk: int = 4000,
) -> tuple[Float[Array, "width n"], Float[Array, " width"]]:
    """Hinge gradients at f = 0 over `batch` fresh examples (a multiple of `chunk`):

    dL/dw_i = -u_i mean(y x 1[w_i.x + b_i > 0]) and dL/db_i = -u_i mean(y 1[w_i.x + b_i > 0]).
    """
    half, n = w.shape[0] // 2, w.shape[1]

    def add(sums: tuple[Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array], None]:
        x, y = sample_parity(key, chunk, n, k)
        fires = jnp.where(x @ w[:half].T + b[:half] > 0, y[:, None], 0.0)
        return (sums[0] + fires.T @ x, sums[1] + fires.sum(0)), None

    start = jnp.zeros((half, n)), jnp.zeros(half)
    (by_weight, by_bias), _ = jax.lax.scan(add, start, jax.random.split(key, batch // chunk))
    drawn = batch // chunk * chunk
    return -u[:, None] * jnp.tile(by_weight, (2, 1)) / drawn, -u * jnp.tile(by_bias, 2) / drawn


def first_step(
    g: Float[Array, "width n"], gamma: Float[Array, " width"], b: Float[Array, " width"], k: int
) -> tuple[Float[Array, "width n"], Float[Array, " width"]]:
    """W <- -eta_0 g (weight decay 1), b <- b - eta_0 gamma, with eta_0 = 1/(k |xi_{k-1}|); u restarts at 0."""
    eta = 1 / (k * abs(majority.coefficient(g.shape[1], k - 1)))
    return -eta * g, b - eta * gamma


@partial(jax.jit, static_argnames=("k", "steps", "batch", "records"))
def train_head(
    key: PRNGKeyArray,
    w: Float[Array, "width n"],
    b: Float[Array, " width"],
    k: int,
    steps: int,
    batch: int,
    lr: float,
    records: int = 50,
) -> tuple[Float[Array, " width"], Float[Array, " records"]]:
    """Hinge SGD on u alone from u = 0; the trained head and its accuracy on 8192 inputs, `records` times on the way."""
    test_key, key = jax.random.split(key)
    x_test, y_test = sample_parity(test_key, 8192, w.shape[1], k)
    h_test = jax.nn.relu(x_test @ w.T + b)

    def step(u: Array, key: PRNGKeyArray) -> tuple[Array, None]:
        x, y = sample_parity(key, batch, w.shape[1], k)
        h = jax.nn.relu(x @ w.T + b)
        inside = jnp.where(y * (h @ u) < 1, y, 0.0)
        return u + lr * (inside @ h) / batch, None

    def stretch(u: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        u, _ = jax.lax.scan(step, u, jax.random.split(key, steps // records))
        return u, jnp.mean(y_test * (h_test @ u) > 0)

    return jax.lax.scan(stretch, jnp.zeros(w.shape[0]), jax.random.split(key, records))


@dataclass(frozen=True)
class Head:
    """Neurons relu(1/(2k) sum_{i in [k]} x_i + b_j) with output weights u_j; exact when f = 2 chi_[k]."""

    k: int
    b: Float[np.ndarray, " neurons"]
    u: Float[np.ndarray, " neurons"]

    def __call__(self, x: Float[np.ndarray, "batch n"]) -> Float[np.ndarray, " batch"]:
        drive = x[:, : self.k].sum(axis=1, keepdims=True) / (2 * self.k)
        return np.maximum(drive + self.b, 0) @ self.u


def constructed_head(k: int) -> Head:
    """k + 1 neurons with sum_j u_j h_j(x) = 2 chi_[k](x) on every input, any k >= 1:

    b_j = -1/2 + (k-j+1)/k for j = 0..k, u_0 = 2k, u_1 = -6k, u_j = 8k (-1)^j for j >= 2, all times (-1)^k.
    """
    j = np.arange(k + 1)
    u = 8.0 * k * (-1.0) ** j
    u[:2] = 2 * k, -6 * k
    return Head(k, -0.5 + (k - j + 1) / k, (-1) ** k * u)


def printed_head(k: int) -> Head:
    """The k neurons of Claim 5 as printed (003 Lemma B.4): b_i = -1/2 + (i+1)/k, i = 1..k, u_i = 8k (-1)^(i+1) for
    i <= k-2, u_{k-1} = 6k, u_k = -2k. It is not exact: y f = -2 on all values of sum x but the last, where it is 6."""
    i = np.arange(1, k + 1)
    u = 8.0 * k * (-1.0) ** (i + 1)
    u[-2:] = 6 * k, -2 * k
    return Head(k, -0.5 + (i + 1) / k, u)


@dataclass(frozen=True)
class Thresholds:
    """What Theorem 5.5 asks for at accuracy eps (003 §B.2.1), from the exact xi_{k-1} where the source uses bounds.

    The universal constants c_1, c_2 enter `n_needed` as their ratio; 1, the most favourable value, by default.
    """

    n: int
    k: int
    eps: float
    constants_ratio: float = 1.0

    @property
    def feature_eps(self) -> float:
        """eps' = eps/(64 k^2 n): the head's loss 16 eps' k^2 n is then eps/4."""
        return self.eps / (64 * self.k**2 * self.n)

    @property
    def log_term(self) -> float:
        """ln(2k/eps')."""
        return math.log(2 * self.k / self.feature_eps)

    @property
    def tau(self) -> float:
        """Allowed sup-norm error of the gradient: |xi_{k-1}| / (16 k sqrt(2n ln(2k/eps')))."""
        xi = abs(majority.coefficient(self.n, self.k - 1))
        return xi / (16 * self.k * math.sqrt(2 * self.n * self.log_term))

    @property
    def width(self) -> float:
        """r >= k 2^k ln(k/delta'), delta' = eps/8."""
        return self.k * 2**self.k * math.log(8 * self.k / self.eps)

    @property
    def batch(self) -> float:
        """B >= 2/tau^2 ln(4nr/delta')."""
        return 2 / self.tau**2 * math.log(32 * self.n * self.width / self.eps)

    @property
    def steps_appendix(self) -> float:
        """T >= 2^9 k^3 r n^2 / eps^2, as printed in the appendix."""
        return 2**9 * self.k**3 * self.width * self.n**2 / self.eps**2

    @property
    def steps(self) -> float:
        """T - 1 >= 2^12 k^3 r n^2 / eps^2, which brings 16 k^1.5 sqrt(r) n / sqrt(T-1) to eps/4 as the proof needs."""
        return 8 * self.steps_appendix

    @property
    def steps_main_text(self) -> float:
        """k^3 r^2 n / eps^2, the order printed in the main text."""
        return self.k**3 * self.width**2 * self.n / self.eps**2

    def head_lr(self, width: int, steps: int) -> float:
        """4 k^1.5 / (n sqrt(r (T-1))), the step size of the head, T - 1 = `steps` of its own."""
        return 4 * self.k**1.5 / (self.n * math.sqrt(width * steps))

    @property
    def n_needed(self) -> float:
        """n >= 2^11 k^4 (c_2/c_1)^2 ln(2k/eps')."""
        return 2**11 * self.k**4 * self.constants_ratio**2 * self.log_term

    def irrelevant_bound(self, tau: float) -> float:
        """|w_ij| <= (|xi_{k+1}| + 2 tau) / (2k |xi_{k-1}|) after the step, for irrelevant j (003 Claim 2)."""
        below, above = (abs(majority.coefficient(self.n, self.k + d)) for d in (-1, 1))
        return (above + 2 * tau) / (2 * self.k * below)

    def conditions(self, width: int, batch: float, steps: int) -> dict[str, tuple[float, float, bool]]:
        """For every quantity: its value, what the theorem asks for, and whether it is inside the proven regime."""
        asked = {
            "n": (self.n, self.n_needed),
            "width": (width, self.width),
            "batch": (batch, self.batch),
            "steps": (steps, self.steps),
        }
        return {name: (value, needed, value >= needed) for name, (value, needed) in asked.items()}

    def report(self, width: int, batch: float, steps: int) -> str:
        """The conditions in words, one line each; outside the proven regime is said, not an error."""
        return "\n".join(
            f"{name} = {value:.3g}, theorem asks {needed:.3g}: {'inside' if inside else 'outside'} the proven regime"
            for name, (value, needed, inside) in self.conditions(width, batch, steps).items()
        )
