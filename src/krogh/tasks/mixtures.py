"""Labelled Gaussians: clusters with a label each, four in an XOR, and linear data with a margin (000 §3.4.1)."""

import math

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key

from krogh.tasks.base import Batch, Task


class GaussianMixture(Task):
    """x ~ N(mu_j, sigma_j^2 I) with probability p_j, y = the label of component j (000 §3.4.1; the printed covariance
    sigma_j I is used as sigma_j^2 I throughout the proofs).

    `latents["component"]` is j.
    """

    means: Float[Array, "r d"]
    labels: Float[Array, " r"]
    shares: Float[Array, " r"]
    deviations: Float[Array, " r"]

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.means.shape[-1],)

    @property
    def directions(self) -> Float[Array, "r d"]:
        """D_j = mu_j / ||mu_j||."""
        return self.means / jnp.linalg.norm(self.means, axis=1, keepdims=True)

    def sample(self, key: Key[Array, ""], size: int) -> Batch:
        which, noise = jr.split(key)
        component = jr.choice(which, len(self.shares), (size,), p=self.shares)
        spread = self.deviations[component][:, None] * jr.normal(noise, (size, *self.in_shape), self.means.dtype)
        return Batch(self.means[component] + spread, self.labels[component], {"component": component})


def orthogonal_mixture(
    labels: tuple[float, ...],
    d: int,
    length: float,
    sigma: float = 1.0,
    shares: tuple[float, ...] | None = None,
) -> GaussianMixture:
    """One cluster per label at `length` along its own axis of R^d; equal shares unless given."""
    r = len(labels)
    return GaussianMixture(
        length * jnp.eye(r, d),
        jnp.array(labels, float),
        jnp.full(r, 1 / r) if shares is None else jnp.array(shares, float),
        jnp.full(r, float(sigma)),
    )


def xor_mixture(d: int, sigma: float, ambient: int | None = None) -> GaussianMixture:
    """Four clusters of share 1/4 at ±sqrt(d) e_1 (label +1) and ±sqrt(d) e_2 (label -1) (000 Assumption B.36).

    `ambient` = 3 keeps what matters for a gradient: the two axes, and the rest of a weight vector as one coordinate.
    """
    axes = math.sqrt(d) * jnp.eye(2, ambient or d)
    return GaussianMixture(
        jnp.stack([axes[0], -axes[0], axes[1], -axes[1]]),
        jnp.array([1.0, 1.0, -1.0, -1.0]),
        jnp.full(4, 0.25),
        jnp.full(4, float(sigma)),
    )


class LinearMargin(Task):
    """x = y (beta + |z|) w* + N(0, I) on the complement of w* = e_1, z ~ N(0,1), y fair: linear data of margin beta
    with E[y P x] = 0 off w* (000 §B.5.1).
    """

    d: int = eqx.field(static=True, default=50)
    margin: float = 0.5

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.d,)

    @property
    def directions(self) -> Float[Array, "1 d"]:
        return jnp.eye(1, self.d)

    @property
    def signal(self) -> float:
        """rho = E[y <w*, x>] = beta + sqrt(2/pi)."""
        return self.margin + math.sqrt(2 / math.pi)

    def sample(self, key: Key[Array, ""], size: int) -> Batch:
        sign, noise = jr.split(key)
        y = jr.rademacher(sign, (size,), float)
        x = jr.normal(noise, (size, self.d))
        return Batch(x.at[:, 0].set(y * (self.margin + jnp.abs(x[:, 0]))), y)
