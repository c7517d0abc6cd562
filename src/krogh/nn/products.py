"""Matrix products that lose nothing on the matrix units of a GPU: one factor is split into bfloat16 summands, the other
(signs, one-hot codes) has no more than eight bits."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


def pieces(values: Array, count: int = 3) -> list[Array]:
    """bfloat16 summands of real numbers: one of numbers that have eight bits, three of any."""
    if count == 1:
        return [values.astype(jnp.bfloat16)]
    out = []
    for _ in range(count):
        # Bits are cut off, not rounded, which needs no conversion.
        bits = lax.bitcast_convert_type(values, jnp.uint32)
        out.append(lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16))
        values = values - lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
    return out


@jax.custom_vjp
def picked_sum(
    tables: Float[Array, "inputs elements width"], x: Int[Array, "batch inputs"]
) -> Float[Array, "batch width"]:
    """Σ_j tables[j, x_j] in single precision; the gradient is a product too, where picked rows would be scattered."""
    inputs, elements, width = tables.shape
    summands = jnp.concatenate(pieces(tables.reshape(-1, width)))
    return _product(jnp.tile(_code(x, elements), 3), summands)


def _forward(tables, x):
    return picked_sum(tables, x), (x, tables.shape)


def _backward(saved, slope):
    x, shape = saved
    return _product(jnp.tile(_code(x, shape[1]).T, 3), jnp.concatenate(pieces(slope))).reshape(shape), None


picked_sum.defvjp(_forward, _backward)


def _code(x, elements):
    return jax.nn.one_hot(x, elements, dtype=jnp.bfloat16).reshape(len(x), -1)


def _product(left, right):
    return jnp.matmul(left, right, precision=lax.Precision.DEFAULT, preferred_element_type=jnp.float32)
