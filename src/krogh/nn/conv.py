"""Convolution and batch normalisation over batches of channel-last images."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.nn.base import Buffer, gaussian


def by_convolution(x: Array, weights: Array, stride: int, precision: Any = None) -> Array:
    """The convolution of (batch, h, w, inputs) with (side, side, inputs, filters), padded by side // 2."""
    pad = weights.shape[0] // 2
    return lax.conv_general_dilated(
        x,
        weights,
        (stride, stride),
        ((pad, pad), (pad, pad)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=precision,
    )


def by_patches(x: Array, weights: Array, stride: int, precision: Any = None) -> Array:
    """The same convolution as one product of the side x side patches with the weights."""
    side, pad = weights.shape[0], weights.shape[0] // 2
    h, w = x.shape[1:3]
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    patches = [padded[:, i : i + h : stride, j : j + w : stride] for i in range(side) for j in range(side)]
    return jnp.dot(jnp.concatenate(patches, -1), weights.reshape(-1, weights.shape[-1]), precision=precision)


class Conv(eqx.Module):
    """A square convolution without bias, padded to keep the side (halved at stride 2); weights N(0, 2/fan_in)."""

    weights: Float[Array, "side side inputs filters"]
    stride: int = eqx.field(static=True)
    precision: Any = eqx.field(static=True)

    def __init__(
        self, inputs: int, filters: int, side: int = 3, stride: int = 1, precision: Any = None, *, key: PRNGKeyArray
    ):
        fan_in = side * side * inputs
        self.weights = gaussian(key, (side, side, inputs, filters), fan_in, filters)
        self.stride = stride
        self.precision = precision

    def __call__(self, x: Float[Array, "batch h w inputs"]) -> Float[Array, "batch h2 w2 filters"]:
        # XLA's convolutions are 10 to 90 times slower inside a compiled loop on CPU, matrix products are not.
        convolve = by_patches if jax.default_backend() == "cpu" else by_convolution
        return convolve(x, self.weights, self.stride, self.precision)

    @property
    def filters(self) -> Float[Array, "filters size"]:
        """One row per filter: its side x side x inputs weights."""
        return self.weights.reshape(-1, self.weights.shape[-1]).T


class BatchNorm(eqx.Module):
    """y = scale (x - mean)/√(var + 1e-5) + shift, per channel.

    In training, mean and var are the batch's, over examples and places, and the running ones move a tenth of the
    way towards them (var unbiased); otherwise the running ones are used.
    """

    scale: Float[Array, " channels"]
    shift: Float[Array, " channels"]
    running: Buffer

    def __init__(self, channels: int):
        self.scale = jnp.ones(channels)
        self.shift = jnp.zeros(channels)
        self.running = Buffer((jnp.zeros(channels), jnp.ones(channels)))

    def __call__(self, x: Float[Array, "batch h w channels"], train: bool) -> tuple[Array, "BatchNorm"]:
        mean, var = self.running.value
        updated = self
        if train:
            axes = (0, 1, 2)
            count = math.prod(x.shape[axis] for axis in axes)
            old, (mean, var) = (mean, var), (x.mean(axes), x.var(axes))
            new = (mean, var * count / max(count - 1, 1))
            running = Buffer(jax.tree.map(lambda a, b: lax.stop_gradient(0.9 * a + 0.1 * b), old, new))
            updated = eqx.tree_at(lambda norm: norm.running, self, running)
        return (x - mean) * (self.scale * lax.rsqrt(var + 1e-5)) + self.shift, updated
