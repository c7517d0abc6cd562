"""Convolution and batch normalisation over batches of channel-last images."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.nn.base import Buffer, gaussian


class Conv(eqx.Module):
    """A square convolution without bias, padded to keep the side (halved at stride 2); weights N(0, 2/fan_in)."""

    weights: Float[Array, "side side inputs filters"]
    stride: int = eqx.field(static=True)
    precision: Any = eqx.field(static=True)

    def __init__(self, inputs: int, filters: int, side: int = 3, stride: int = 1, precision: Any = None, *, key: PRNGKeyArray):
        fan_in = side * side * inputs
        self.weights = gaussian(key, (side, side, inputs, filters), fan_in, filters)
        self.stride = stride
        self.precision = precision

    def __call__(self, x: Float[Array, "batch h w inputs"]) -> Float[Array, "batch h2 w2 filters"]:
        pad = self.weights.shape[0] // 2
        return lax.conv_general_dilated(
            x,
            self.weights,
            (self.stride, self.stride),
            ((pad, pad), (pad, pad)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision=self.precision,
        )

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
