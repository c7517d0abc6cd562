"""What a step costs, read off its program: the same on every device and in every run."""

import math

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, subjaxprs


def operations(jaxpr: Jaxpr) -> float:
    """Floating-point operations of the matrix products and convolutions in a program; a kernel says its own."""
    total = 0.0
    for equation in jaxpr.eqns:
        given = equation.params
        if given.get("cost_estimate") is not None:
            total += given["cost_estimate"].flops
            continue
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            left, right, out = (v.aval.shape for v in (*equation.invars, *equation.outvars))  # type: ignore[attr-defined]
            numbers = given["dimension_numbers"]
            if equation.primitive.name == "dot_general":
                terms = math.prod(left[axis] for axis in numbers[0][0])
            else:
                terms = math.prod(right) / right[numbers.rhs_spec[0]]
            total += 2 * math.prod(out) * terms
        for part in given.values():
            for inner in part if isinstance(part, tuple) else (part,):
                if isinstance(inner, Jaxpr | ClosedJaxpr):
                    body = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
                    total += given.get("length", 1) * operations(body)
    return total


def largest_array(jaxpr: Jaxpr) -> int:
    """Bytes of the largest array of real numbers that a program makes on the way to its result."""
    made = (v.aval for equation in jaxpr.eqns for v in equation.outvars)
    sizes = (a.size * a.dtype.itemsize for a in made if jnp.issubdtype(a.dtype, jnp.inexact))  # type: ignore[attr-defined]
    return max([*sizes, *map(largest_array, subjaxprs(jaxpr))], default=0)
