"""How the networks on tables are trained (000 Def. 4.1, §C.10.1), and what is read off all their neurons."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.nn.activations import OfDegree, power
from krogh.nn.products import few_columns, picked_sum
from krogh.nn.tables import Lookup
from krogh.probes.basic import accuracy, probe
from krogh.probes.embeddings import TableMargin
from krogh.probes.margins import neuron_norms
from krogh.probes.spectra import frequencies, tables
from krogh.tasks.base import Batch
from krogh.tasks.modular import ModularAddition
from krogh.theory import modular_margin as theory
from krogh.train import Adam, Run, Spec, spec, sweep
from krogh.train.losses import mean_cross_entropy
from krogh.train.schedules import WarmUp

# On a CPU, below so many one-hot columns a matrix product is faster than picking rows, and its gradient than a scatter.
SHORT_TABLES = 48

# L_{2,k+1} norm below which the penalty has won and the network is zero.
COLLAPSED = 1e-2


class MarginAdam(Adam):
    """Adam on mean cross-entropy + penalty · ‖θ‖, the norm itself and not its power (000 Def. 4.1).

    The norm is L_{2,k+1} over neurons, or L_2 of all weights with `plain`.
    """

    penalty: float = 5e-3
    plain: bool = eqx.field(static=True, default=False)

    def objective_of(self, network: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Float[Array, ""], Any]:
        inputs, elements, width = network.weights.shape
        answer = jnp.matmul
        if jax.default_backend() != "cpu":
            hidden, answer = picked_sum(network.weights, batch.x), few_columns
        elif inputs * elements <= SHORT_TABLES:
            hidden = jax.nn.one_hot(batch.x, elements).reshape(len(batch.y), -1) @ network.weights.reshape(-1, width)
        else:
            # table by table: all picked rows at once would be k times the batch
            hidden = jax.tree.reduce(jnp.add, [network.weights[j][batch.x[:, j]] for j in range(inputs)])
        loss = mean_cross_entropy(answer(network.activation(hidden), network.output), batch.y)
        degree = 2 if self.plain else inputs + 1
        squares = jnp.sum(network.weights**2, axis=(0, 1)) + jnp.sum(network.output**2, axis=1)
        return loss + self.penalty * jnp.sum(squares ** (degree / 2)) ** (1 / degree), network


@probe(dims=("part", "element", "shown"))
def shown_weights(network: Any) -> Array:
    """u_1, …, u_k and w of the first six neurons: before training neurons are exchangeable, so any six are random."""
    return jnp.concatenate([network.weights[..., :6], network.output.T[None, :, :6]])


@probe(dims=("neuron",))
def amplitude_spread(network: Any) -> Array:
    """Deviation of ‖u_1‖, …, ‖u_k‖ and ‖w‖ of every neuron over their mean: 0 in the construction (000 Lemma 4.11)."""
    sizes = jnp.linalg.norm(tables(network), axis=-1)
    return jnp.std(sizes, axis=0) / jnp.mean(sizes, axis=0)


@dataclass(frozen=True)
class Case:
    """One training: the table, the width (by default the theorem's), the learner."""

    k: int
    p: int
    width: int | None = None
    share: float = 0.5
    penalty: float = 5e-3
    lr: float = 5e-3
    batch: int = 1024
    steps: int = 2500
    scale: float | None = None
    decay: bool = True
    plain: bool = False
    relu: bool = False
    records: int = 10
    seeds: int = 8
    rows: int = 2**17

    @property
    def neurons(self) -> int:
        return self.width or theory.sufficient_width(self.k, self.p)

    def spec(self) -> Spec:
        std = self.scale or theory.unit_logit_scale(self.k, self.neurons)
        return spec(
            ModularAddition(self.p, self.k, self.share),
            Lookup(self.neurons, "relu" if self.relu else OfDegree(power), scale=std * self.p**0.5),
            MarginAdam(
                lr=self.lr,
                batch=self.batch,
                b2=0.98,
                penalty=self.penalty,
                plain=self.plain,
                schedule=WarmUp(self.steps, decay=self.decay),
            ),
            self.steps,
            seeds=self.seeds,
            probes=[accuracy, TableMargin(self.rows), frequencies, neuron_norms, amplitude_spread, shown_weights],
            every=max(1, self.steps // self.records),
            validation=4096,
            networks=False,
        )


def trained(case: Case, **axes: Any) -> xr.Dataset:
    """A training and the statistics of all its neurons; `axes` are swept."""
    run: Run = sweep(case.spec(), **axes)
    return with_statistics(run.data, case)


def with_statistics(ds: xr.Dataset, case: Case) -> xr.Dataset:
    """Statistics over all neurons, per replica and record.

    mean_power       largest share at one frequency, mean over the k·m embedding vectors
    alive_power      the same over neurons with at least half the largest norm
    weighted_power   the same weighted by ‖θ_i‖^{k+1}, the neuron's part in the network's norm
    shared           share of alive neurons whose u_1, …, u_k and w have one and the same frequency
    counts           neurons per frequency (that of w); alive_counts: alive ones
    unequal          mean spread of alive neurons' ‖u_1‖, …, ‖u_k‖, ‖w‖
    phase_error      mean |Σ θ_u − θ_w| at the frequency of u_1; alive_phase_error over alive neurons

    A network whose norm has collapsed has no margin to speak of: its relative one is NaN, and no claim holds with it.
    """
    norm = ds.neuron_norms
    size = (norm ** (case.k + 1)).sum("neuron") ** (1 / (case.k + 1))
    alive = norm > 0.5 * norm.max("neuron")
    largest = ds.power.isel(part=slice(None, -1)).mean("part")
    weight = (norm / norm.max("neuron")) ** (case.k + 1)
    one = (ds.frequency == ds.frequency.isel(part=-1)).all("part")
    own = ds.frequency.isel(part=-1)
    nonzero = xr.DataArray(np.arange(1, case.p // 2 + 1), dims="zeta", coords={"zeta": np.arange(1, case.p // 2 + 1)})
    counts = xr.concat([(own == z).sum("neuron") for z in nonzero.values], nonzero)
    alive_counts = xr.concat([((own == z) & alive).sum("neuron") for z in nonzero.values], nonzero)
    error = abs(ds.phase)
    ds = ds.assign(
        relative_margin=(ds.margin / theory.max_margin(case.k, case.p)).where(size >= COLLAPSED),
        alive_share=alive.mean("neuron"),
        mean_power=largest.mean("neuron"),
        alive_power=largest.where(alive).mean("neuron"),
        weighted_power=(weight * largest).sum("neuron") / weight.sum("neuron"),
        shared=one.where(alive).mean("neuron"),
        counts=counts,
        alive_counts=alive_counts,
        unequal=ds.amplitude_spread.where(alive).mean("neuron"),
        phase_error=error.mean("neuron"),
        alive_phase_error=error.where(alive).mean("neuron"),
    )
    ends = ds[["power", "frequency", "phase", "neuron_norms", "shown_weights"]].isel(step=[0, -1]).rename(step="end")
    ds = ds.drop_vars([*ends.data_vars, "amplitude_spread"]).merge(
        ends.assign_coords(end=["start", "trained"]), compat="no_conflicts"
    )
    return ds.assign_attrs(
        k=case.k,
        p=case.p,
        width=case.neurons,
        share=case.share,
        penalty=case.penalty,
        gamma=theory.max_margin(case.k, case.p),
        sampled=case.p**case.k > case.rows,
    )
