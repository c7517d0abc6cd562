"""ResNet-18 for small images, its stage widths scaled together (000 §A.7.4, A.7.5)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.nn.base import Architecture, uniform, width_of
from krogh.nn.conv import BatchNorm, Conv
from krogh.tasks.base import Task


class Block(eqx.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)); where shapes change the shortcut is norm(1 x 1 conv)."""

    convs: tuple[Conv, Conv]
    norms: tuple[BatchNorm, BatchNorm]
    shortcut: tuple[Conv, BatchNorm] | None

    def __init__(self, inputs: int, filters: int, stride: int, precision: Any, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.convs = (
            Conv(inputs, filters, 3, stride, precision, key=keys[0]),
            Conv(filters, filters, 3, 1, precision, key=keys[1]),
        )
        self.norms = (BatchNorm(filters), BatchNorm(filters))
        same = stride == 1 and inputs == filters
        self.shortcut = None if same else (Conv(inputs, filters, 1, stride, precision, key=keys[2]), BatchNorm(filters))

    def __call__(self, x: Float[Array, "batch h w c"], train: bool) -> tuple[Array, "Block"]:
        h, first = self.norms[0](self.convs[0](x), train)
        h, second = self.norms[1](self.convs[1](jax.nn.relu(h)), train)
        shortcut = self.shortcut
        if shortcut is not None:
            x, norm = shortcut[1](shortcut[0](x), train)
            shortcut = (shortcut[0], norm)
        updated = eqx.tree_at(
            lambda b: (b.norms, b.shortcut), self, ((first, second), shortcut), is_leaf=lambda node: node is None
        )
        return jax.nn.relu(h + x), updated


class ResidualNetwork(eqx.Module):
    """3 x 3 stem, four stages of two blocks (strides 1, 2, 2, 2), mean over places, affine output."""

    stem: Conv
    stem_norm: BatchNorm
    stages: tuple[tuple[Block, ...], ...]
    output: Array
    output_bias: Array

    def __call__(self, x: Float[Array, "*image"]) -> Array:
        """One image, normalised with the running statistics."""
        return self._forward(x[None], train=False)[0][0]

    def batch(
        self, x: Float[Array, "batch *image"], key: PRNGKeyArray | None = None
    ) -> tuple[Array, "ResidualNetwork"]:
        """A batch normalised with its own statistics, and the network with its running statistics moved on."""
        return self._forward(x, train=True)

    def filters(self, stage: int) -> Float[Array, "filters size"]:
        """The filters of a stage's last convolution, one per row (1 = first stage)."""
        return self.stages[stage - 1][-1].convs[1].filters

    def _forward(self, x: Array, train: bool) -> tuple[Array, "ResidualNetwork"]:
        x = x[..., None] if x.ndim == 3 else x
        h, stem_norm = self.stem_norm(self.stem(x), train)
        h = jax.nn.relu(h)
        stages = []
        for stage in self.stages:
            blocks = []
            for block in stage:
                h, block = block(h, train)
                blocks.append(block)
            stages.append(tuple(blocks))
        out = h.mean((1, 2)) @ self.output + self.output_bias
        return out, eqx.tree_at(lambda n: (n.stem_norm, n.stages), self, (stem_norm, tuple(stages)))


class ResNet(Architecture):
    """ResNet(m): stage widths m, 2m, 4m, 8m; ResNet(64) is ResNet-18 (11,173,962 parameters for ten classes).

    `precision` is that of the convolutions: None follows the run, "default" is the device's fastest float32 mode.
    """

    width: int = eqx.field(static=True, default=64)
    precision: str | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        width_of(width=self.width)

    @property
    def at_once(self) -> int | None:
        # The convolutions of several replicas become a grouped one, which GPUs do slowly.
        return None if jax.default_backend() == "cpu" else 1

    def build(self, task: Task, key: PRNGKeyArray) -> ResidualNetwork:
        channels = task.in_shape[2] if len(task.in_shape) == 3 else 1
        stem_key, out_key, *keys = jax.random.split(key, 10)
        widths = [self.width * 2**i for i in range(4)]
        inputs, stages = self.width, []
        for i, width in enumerate(widths):
            stages.append(
                (
                    Block(inputs, width, 1 if i == 0 else 2, self.precision, key=keys[2 * i]),
                    Block(width, width, 1, self.precision, key=keys[2 * i + 1]),
                )
            )
            inputs = width
        out = () if task.outputs == 1 else (task.outputs,)
        return ResidualNetwork(
            stem=Conv(channels, self.width, precision=self.precision, key=stem_key),
            stem_norm=BatchNorm(self.width),
            stages=tuple(stages),
            output=uniform(out_key, (inputs, *out), inputs, task.outputs),
            output_bias=jnp.zeros(out),
        )
