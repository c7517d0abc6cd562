"""Matrix products in full precision, arranged for GPUs.

Where one factor has no more than eight bits (signs, one-hot codes), the other is split into bfloat16 summands, and the
product loses nothing on the matrix units.
"""

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


# So many parts of a product's inner side are computed side by side.
PARTS = 8


@jax.custom_vjp
def few_columns(left: Float[Array, "rows inner"], right: Float[Array, "inner columns"]) -> Float[Array, "rows columns"]:
    """left @ right of few columns, and its gradient: sums over parts of the inner side, because the tiles of the whole
    product are too few for all multiprocessors of a GPU."""
    rows, columns, parts = len(left), right.shape[1], _parts(len(right))
    of_parts = left.reshape(rows, parts, -1), right.reshape(parts, -1, columns)
    return jnp.einsum("rpi,pic->prc", *of_parts).sum(axis=0)


def _few_forward(left, right):
    return few_columns(left, right), (left, right)


def _few_backward(saved, slope):
    left, right = saved
    parts = _parts(len(left))
    rows, slopes = left.reshape(parts, -1, left.shape[1]), slope.reshape(parts, -1, slope.shape[1])
    return slope @ right.T, jnp.einsum("pri,prc->pic", rows, slopes).sum(axis=0)


few_columns.defvjp(_few_forward, _few_backward)


def _parts(length: int) -> int:
    return max(parts for parts in range(1, PARTS + 1) if length % parts == 0)
