"""Linear models on frozen maps: tangent features, and the exact least-squares head of any features.

Random features need no class of their own: train the network with `Stage(..., trains=("output",))`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from krogh.nn.base import Architecture, Buffer, trainable


class TangentNetwork(eqx.Module):
    """f(x) = <grad_theta g(x; theta_0), tangent>, linear in `tangent`, which starts at zero and has theta_0's shape."""

    origin: Buffer
    tangent: Any

    def __call__(self, x: Array) -> Array:
        parameters, rest = eqx.partition(self.origin.value, trainable(self.origin.value))
        return jax.jvp(lambda p: eqx.combine(p, rest)(x), (parameters,), (self.tangent,))[1]


class Tangent(Architecture):
    """The tangent-kernel learner of an architecture, on its features at initialisation (000 A.7.1, NTK)."""

    architecture: Any

    def build(self, task: Any, key: Key[Array, ""]) -> TangentNetwork:
        origin = self.architecture.build(task, key)
        return TangentNetwork(Buffer(origin), jax.tree.map(jnp.zeros_like, eqx.filter(origin, trainable(origin))))


class Head(eqx.Module):
    """An affine classifier x -> features(x) @ output + intercept."""

    output: Float[Array, " width"]
    intercept: Float[Array, ""]

    def __call__(self, features: Float[Array, "*batch width"]) -> Float[Array, "*batch"]:
        return features @ self.output + self.intercept


def sum_over_chunks(f: Callable[..., Any], *arrays: Float[Array, "n ..."], chunk: int = 5000) -> Any:
    """sum of f(weight, *rows) over blocks of at most `chunk` rows; weight is 1, or 0 on the padding of the last."""
    n = arrays[0].shape[0]
    blocks = -(-n // chunk)
    size = -(-n // blocks)

    def fold(array):
        padded = jnp.pad(array, [(0, blocks * size - n)] + [(0, 0)] * (array.ndim - 1))
        return padded.reshape(blocks, size, *array.shape[1:])

    folded = tuple(fold(a) for a in (jnp.ones(n, arrays[0].dtype), *arrays))
    total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(f, *(a[0] for a in folded)))
    return jax.lax.scan(lambda carry, rows: (jax.tree.map(jnp.add, carry, f(*rows)), None), total, folded)[0]


def ridge_head(
    features: Callable[[Float[Array, "chunk d"]], Float[Array, "chunk width"]],
    x: Float[Array, "n d"],
    y: Float[Array, " n"],
    relative: float = 1e-5,
    chunk: int = 5000,
) -> Head:
    """argmin_{a,c} ||features(x) a + c - y||^2 + lambda ||a||^2 from the Gram matrix G of the centred features,
    lambda = relative * tr(G) / width, memory bounded by `chunk` rows.

    Give float64 inputs under `jax.enable_x64(True)`: nearly constant features lose everything in float32.
    """
    n = x.shape[0]
    # The mean comes in a pass of its own: G - n mean mean^T would cancel when features hardly vary.
    mean, level = sum_over_chunks(lambda w, x, y: (w @ features(x) / n, w @ y / n), x, y, chunk=chunk)

    def moments(w, x, y):
        centred = (features(x) - mean) * w[:, None]
        return centred.T @ centred, (y - level) @ centred

    gram, cross = sum_over_chunks(moments, x, y, chunk=chunk)
    width = gram.shape[0]
    scale = jnp.trace(gram) / width
    # Scaled to unit mean eigenvalue; a map without any variation gets the zero head.
    safe = jnp.where(scale > 0, scale, 1.0)
    output = jax.scipy.linalg.solve(gram / safe + relative * jnp.eye(width), cross / safe, assume_a="pos")
    return Head(output, level - mean @ output)
