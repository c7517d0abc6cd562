"""Probes of what networks on group elements compute with: frequencies and representations (003 §7.4–7.6)."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from krogh.probes.basic import probe


def tables(network: Any) -> Float[Array, "part width elements"]:
    """Every neuron's functions on the group: one per input (u, v, …), the output's (w) last."""
    return jnp.concatenate([network.weights.swapaxes(1, 2), network.output[None]])


def frequency_power(functions: Float[Array | np.ndarray, "... p"]) -> Float[Array, "... frequencies"]:
    """Share of Σ_j |f̂(j)|² at each frequency 0..p/2, j and p−j pooled, so that a sinusoid has one share of 1.

    Printed without pooling (003 Fig 7.4), a sinusoid would reach 1/2 only.
    """
    p = functions.shape[-1]
    power = jnp.abs(jnp.fft.rfft(functions)) ** 2
    twice = np.where((np.arange(power.shape[-1]) * 2) % p == 0, 1.0, 2.0)
    power = power * twice
    return power / jnp.sum(power, axis=-1, keepdims=True)


@probe(dims={"power": ("part", "neuron"), "frequency": ("part", "neuron"), "phase": ("neuron",)})
def frequencies(network: Any) -> dict[str, Array]:
    """For u, v and w of every neuron the largest normalised power and its frequency, and the phase residual.

    phase = θ_u + θ_v − θ_w in (−π, π], each the phase at u's frequency; 0 in a maximum margin network (003 Thm 7.7).
    For k inputs it is the sum of the inputs' phases less the output's.
    """
    functions = tables(network)
    power = frequency_power(functions)
    frequency = jnp.argmax(power, axis=-1)
    spectrum = jnp.fft.rfft(functions)
    at = jnp.take_along_axis(spectrum, jnp.broadcast_to(frequency[0], frequency.shape)[..., None], axis=-1)[..., 0]
    return {
        "power": jnp.max(power, axis=-1),
        "frequency": frequency,
        "phase": jnp.angle(jnp.prod(at[:-1] / jnp.abs(at[:-1]), axis=0) * jnp.conj(at[-1])),
    }


@dataclass(frozen=True, eq=False)
class IrrepPower:
    """For every neuron's functions the largest share of ‖·‖² in one irrep, and which it is (003 Fig 7.6).

    `basis`, `owner` are those of `krogh.theory.groups.isotypic_basis`.
    """

    basis: Float[np.ndarray, "n n"]
    owner: Int[np.ndarray, " n"]
    name: str = "irreps"

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        return {"power": ("part", "neuron"), "irrep": ("part", "neuron")}

    def shares(self, functions: Float[Array | np.ndarray, "... n"]) -> Float[Array, "... irreps"]:
        """Share of ‖f‖² in each irrep."""
        squares = (jnp.asarray(functions) @ jnp.asarray(self.basis, functions.dtype)) ** 2
        pooled = squares @ jnp.asarray(np.eye(self.owner.max() + 1)[self.owner], functions.dtype)
        return pooled / jnp.sum(pooled, axis=-1, keepdims=True)

    def __call__(self, network: Any) -> dict[str, Array]:
        power = self.shares(tables(network))
        return {"power": jnp.max(power, axis=-1), "irrep": jnp.argmax(power, axis=-1)}
