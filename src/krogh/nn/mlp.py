"""Two-layer and deep fully connected networks."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.nn.activations import Activation, OfDegree, activation
from krogh.nn.base import Architecture, initialiser, width_of
from krogh.tasks.base import Task


class TwoLayer(eqx.Module):
    """f(x) = uᵀσ(Wᵀx + b) + c, or Σ_j σ(…)_j where `output` is None; W is stored (n, width).

    With several outputs u is (width, outputs) and c is (outputs,).
    """

    weights: Float[Array, "n width"]
    bias: Float[Array, " width"] | None
    output: Array | None
    output_bias: Array | None
    activation: Activation = eqx.field(static=True)

    def hidden(self, x: Float[Array, " n"]) -> Float[Array, " width"]:
        """Activations of the hidden layer."""
        if self.bias is None:
            return self.activation(x @ self.weights)
        # Without the barrier a GPU compiler copies the bias to every example in order to add it inside the product.
        return self.activation(lax.optimization_barrier(x @ self.weights) + self.bias)

    def __call__(self, x: Float[Array, "*shape"]) -> Array:
        h = self.hidden(x.reshape(-1))
        out = jnp.sum(h) if self.output is None else h @ self.output
        return out if self.output_bias is None else out + self.output_bias


class MLP(Architecture):
    """A two-layer network of the given width on flattened inputs.

    `head=False` fixes the second layer to ones and drops its bias. `scale` multiplies every initial
    parameter; `init` is one of uniform, xavier, gaussian, bernoulli or a function.
    """

    width: int = eqx.field(static=True)
    activation: str | Activation | OfDegree = eqx.field(static=True, default="relu")
    init: str | Callable[..., Array] = eqx.field(static=True, default="uniform")
    bias: bool = eqx.field(static=True, default=True)
    head: bool = eqx.field(static=True, default=True)
    output_bias: bool = eqx.field(static=True, default=True)
    scale: float = 1.0

    def __check_init__(self):
        width_of(width=self.width)
        initialiser(self.init)

    def build(self, task: Task, key: PRNGKeyArray) -> TwoLayer:
        draw = initialiser(self.init)
        n, width, outputs = _size(task), self.width, task.outputs
        keys = jax.random.split(key, 4)
        out_shape = () if outputs == 1 else (outputs,)

        def part(wanted: bool, key, shape, fan_in, fan_out):
            return self.scale * draw(key, shape, fan_in, fan_out) if wanted else None

        return TwoLayer(
            weights=self.scale * draw(keys[0], (n, width), n, width),
            bias=part(self.bias, keys[1], (width,), n, width),
            output=part(self.head, keys[2], (width, *out_shape), width, outputs),
            output_bias=part(self.head and self.output_bias, keys[3], out_shape, width, outputs),
            activation=activation(self.activation, task),
        )


class Layered(eqx.Module):
    """f = affine ∘ (σ ∘ affine)^{L−1}; every matrix is stored (in, out)."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    activation: Activation = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*shape"]) -> Array:
        h = x.reshape(-1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            h = self.activation(h @ weight + bias)
        return h @ self.weights[-1] + self.biases[-1]


class DeepMLP(Architecture):
    """A fully connected network with hidden layers of the given widths and an affine output."""

    widths: tuple[int, ...] = eqx.field(static=True)
    activation: str | Activation | OfDegree = eqx.field(static=True, default="relu")
    init: str | Callable[..., Array] = eqx.field(static=True, default="uniform")

    def __check_init__(self):
        width_of(**{f"widths[{i}]": width for i, width in enumerate(self.widths)})

    def build(self, task: Task, key: PRNGKeyArray) -> Layered:
        draw = initialiser(self.init)
        sizes = [_size(task), *self.widths]
        weights, biases = [], []
        for i, (fan_in, fan_out) in enumerate(zip(sizes, [*self.widths, task.outputs], strict=True)):
            weight_key, bias_key = jax.random.split(jax.random.fold_in(key, i))
            out = () if i == len(self.widths) and task.outputs == 1 else (fan_out,)
            weights.append(draw(weight_key, (fan_in, *out), fan_in, fan_out))
            biases.append(draw(bias_key, out, fan_in, fan_out))
        return Layered(tuple(weights), tuple(biases), activation(self.activation, task))


def _size(task: Task) -> int:
    size = 1
    for side in task.in_shape:
        size *= side
    return size
