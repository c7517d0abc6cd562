"""Two-layer truncated-ReLU network with a paired initialisation, so that it starts as the zero function."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Key

from krogh.nn.base import Architecture


def truncated_relu(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """sigma(z) = min(1, max(z, 0))."""
    return jnp.clip(z, 0, 1)


def smoothed_relu(z: Float[Array, "*shape"], sigma_xi: float | Array) -> Float[Array, "*shape"]:
    """E sigma(z + xi) = R(z) - R(z-1), xi ~ N(0, sigma_xi^2), R(z) = z Phi(z/sigma_xi) + sigma_xi phi(z/sigma_xi)."""

    def ramp(u):
        return u * norm.cdf(u / sigma_xi) + sigma_xi * norm.pdf(u / sigma_xi)

    return ramp(z) - ramp(z - 1)


def smoothed_gate(z: Float[Array, "*shape"], sigma_xi: float | Array) -> Float[Array, "*shape"]:
    """E 1[z + xi in (0,1)] = Phi((1-z)/sigma_xi) - Phi(-z/sigma_xi), the derivative of `smoothed_relu`."""
    return norm.cdf((1 - z) / sigma_xi) - norm.cdf(-z / sigma_xi)


class TruncatedNetwork(eqx.Module):
    """g(x) = sum_i a_i sigma(<w_i, x> + b_i), no output bias (000 §2.3)."""

    weights: Float[Array, "d width"]
    bias: Float[Array, " width"]
    output: Float[Array, " width"]

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return self.hidden(x) @ self.output

    def hidden(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch width"]:
        return truncated_relu(x @ self.weights + self.bias)

    def smoothed(self, x: Float[Array, "*batch d"], sigma_xi: float | Array) -> Float[Array, "*batch"]:
        """E_xi g(x; xi), the noise injected into every pre-activation averaged analytically."""
        return smoothed_relu(x @ self.weights + self.bias, sigma_xi) @ self.output


class PairedTruncated(Architecture):
    """Width 2m: w ~ N(0, sigma_w^2 I), b ~ N(0, sigma_b^2), a ~ N(0, sigma_a^2), and a copy with a negated (000 §2.3).

    Unset scales are the source's: sigma_w = 1/k, sigma_b = 1/k^2, sigma_a = sigma~^2/(gamma k^2), with k, gamma and
    sigma~^2 read from the task. `output_scale` multiplies sigma_a.
    """

    m: int = eqx.field(static=True, default=300)
    sigma_w: float | None = None
    sigma_b: float | None = None
    sigma_a: float | None = None
    output_scale: float | Array = 1.0

    def build(self, task: Any, key: Key[Array, ""]) -> TruncatedNetwork:
        sigma_w = 1 / task.k if self.sigma_w is None else self.sigma_w
        sigma_b = 1 / task.k**2 if self.sigma_b is None else self.sigma_b
        sigma_a = task.variance / (task.gamma * task.k**2) if self.sigma_a is None else self.sigma_a
        w, b, a = jr.split(key, 3)
        weights = sigma_w * jr.normal(w, (*task.in_shape, self.m))
        bias = sigma_b * jr.normal(b, (self.m,))
        output = self.output_scale * sigma_a * jr.normal(a, (self.m,))
        return TruncatedNetwork(
            jnp.concatenate([weights, weights], axis=1),
            jnp.concatenate([bias, bias]),
            jnp.concatenate([output, -output]),
        )
