"""One instance of every classification family: task, threshold, features, theory's parameters (000 §3.4, B.5)."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from krogh.nn.symmetric import SymmetricReLU
from krogh.systems.gradient_feature_learning.learning import parity_threshold, xor_threshold
from krogh.tasks.base import Task
from krogh.tasks.block_parity import BlockParity
from krogh.tasks.mixtures import LinearMargin, orthogonal_mixture, xor_mixture
from krogh.tasks.parity import SparseParity
from krogh.theory.feature_guarantees import (
    FeatureFamily,
    block_parity_family,
    linear_family,
    mixture_family,
    uniform_parity_family,
    xor_family,
)


class Problem(NamedTuple):
    """`directions` are the features D_j; `theory` holds the lemmas' formulas at the same d, r and k, with constants one
    and their tau = 8 (XOR: 1); `threshold` is what is run, mostly smaller than theirs."""

    task: Task
    threshold: float
    directions: Float[Array, "r d"]
    theory: FeatureFamily
    signs: bool = False

    def network(self, m: int) -> SymmetricReLU:
        return SymmetricReLU(m, threshold=self.threshold, signs=self.signs)


def problems() -> dict[str, Problem]:
    linear = LinearMargin(50, 0.5)
    second = 49 + 0.25 + math.sqrt(2 / math.pi) + 1
    mixture, size = orthogonal_mixture((1.0, -1.0) * 3, 60, 6.0), 6 / math.sqrt(60)
    xor, block, uniform = xor_mixture(100, 2.0), BlockParity(60, 1, 5, 0.25, 0.5), SparseParity(31, 2)
    return {
        "linear": Problem(
            linear, math.sqrt(50 * second), linear.directions, linear_family(50, 0.5, linear.signal, second)
        ),
        "6 Gaussians": Problem(mixture, 6.0, mixture.directions, mixture_family(60, 6, size, size, 1.0, 1 / 6)),
        "XOR mixture": Problem(xor, xor_threshold(100, 2.0, 0.3), xor.directions[::2], xor_family(100, 2.0)),
        "block parity": Problem(
            block, parity_threshold(60, 1, 5), block.directions, block_parity_family(60, 1, 5, 0.25, 0.5)
        ),
        "uniform parity": Problem(
            uniform,
            0.5,
            jnp.zeros((2, 31)).at[:, :2].set(jnp.array([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(2)),
            uniform_parity_family(31, 2),
            signs=True,
        ),
    }
