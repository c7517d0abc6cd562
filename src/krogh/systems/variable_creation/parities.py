"""Sparse parities by transformers: a plateau and a sudden transition (003 Figure 4.4)."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, share_at_least
from krogh.lab.figures import COLOURS, new_figure, reported
from krogh.lab.times import first_time
from krogh.nn.bit_transformer import OneLayerTransformer
from krogh.probes.basic import accuracy
from krogh.systems.variable_creation import system
from krogh.tasks.sparse_boolean import SparseBoolean
from krogh.train import Adam, Reach, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEARNED = 0.05


@dataclass(frozen=True)
class Parities:
    """Online batches until the loss, that of the training with its dropout averaged over `every` steps, is <= .05.

    Away from `paper` batches have 512 examples instead of 2048 and embeddings are not dropped out.
    """

    n: int = 10
    batch: int = 512
    lr: float = 1e-3
    steps: int = 1000
    every: int = 10
    dropout: float = 0.1
    embedding_dropout: float = 0.0
    seeds: int = 16


def curves(s: Parities) -> xr.Dataset:
    run = train(
        SparseBoolean(s.n, gate="xor"),
        OneLayerTransformer(dropout=s.dropout, embedding_dropout=s.embedding_dropout),
        Adam(lr=s.lr, batch=s.batch, loss="cross_entropy", weight_decay=1e-4, decay="decoupled"),
        s.steps,
        seeds=s.seeds,
        probes=[accuracy],
        every=s.every,
        until=Reach("loss", LEARNED, below=True),
        networks=False,
    )
    return run.data[["loss", "accuracy"]].assign_attrs(T=s.n)


ORIGINAL = Parities(batch=2048, steps=3000, embedding_dropout=0.1, seeds=32)

parities = system.experiment(
    "fig-4.4",
    "3-sparse parities of 10 bits are learned all at once",
    presets={"smoke": Parities(batch=64, steps=50, seeds=2), "quick": Parities(), "paper": ORIGINAL},
)(curves)

longer_parities = system.experiment(
    "fig-4.4-longer",
    "3-sparse parities of 15 bits",
    presets={"paper": replace(ORIGINAL, n=15, steps=20_000)},
)(curves)


def _plateau(loss: xr.DataArray) -> xr.DataArray:
    """Share of the time before the first loss < .1 that it is within .01 of ln 2, for the seeds that get there."""
    ends = first_time(loss < 0.1)
    flat = (abs(loss - math.log(2)) <= 0.01).where(loss.step < ends).mean("step")
    return flat.where(np.isfinite(ends)).dropna("seed")


@parities.claim(
    "13.16",
    "T = 10, s = 3, batch 2048, Adam at 1e-3: >= 80 % of the seeds reach a loss < .05 within 3000 iterations, and "
    "before its first value < .1 the loss is within .01 of ln 2 for >= 60 % of the time",
    source="Fig 4.4",
    presets=("paper",),
)
def sudden(ds: xr.Dataset):
    loss = ds.loss.isel(step=slice(1, None))
    return all_of(
        learned=share_at_least(first_time(loss < LEARNED) <= 3000, 0.8, over="seed"),
        plateau=at_least(_plateau(loss), 0.6, over="seed"),
    )


@parities.claim(
    "13.16a",
    "T = 10, s = 3, smaller batches: the seeds that learn within the budget are within .01 of ln 2 for >= 60 % of the "
    "time before their first loss < .1",
    source="Fig 4.4",
    presets=("quick",),
    finding="Without dropout of embeddings and with batches of 512, two of four seeds run for 3000 iterations learned "
    "(at 440) and two did not: the share that learns is judged at the document's settings only.",
)
def plateau_first(ds: xr.Dataset):
    return at_least(_plateau(ds.loss.isel(step=slice(1, None))), 0.6, over="seed")


@longer_parities.claim(
    "13.16b",
    "T = 15: >= 80 % of the seeds reach a loss < .05 within 2e4 iterations",
    source="Fig 4.4",
)
def longer(ds: xr.Dataset):
    return share_at_least(np.isfinite(first_time(ds.loss < LEARNED)), 0.8, over="seed")


@longer_parities.figure
@parities.figure
def plot_parities(ds: xr.Dataset) -> "Figure":
    figure, ax = new_figure()
    ax.plot(ds.step, ds.loss.transpose("step", "seed"), color=COLOURS[0], alpha=0.5, linewidth=0.7)
    reported(ax, math.log(2), "chance")
    learned = np.isfinite(first_time(ds.loss < LEARNED)).mean()
    title = f"T = {ds.attrs['T']}: {float(learned):.0%} of {ds.sizes['seed']} seeds learn"
    ax.set(xlabel="iteration", ylabel="training loss", title=title)
    ax.legend()
    return figure
