"""Beyond bigrams: 3-grams in context (003 §8.3.3, Figure 8.5)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, every
from krogh.lab.figures import new_figure
from krogh.lab.times import first_time
from krogh.probes.markov import divergences
from krogh.systems.statistical_induction_heads import system
from krogh.systems.statistical_induction_heads.learning import (
    BIGRAM,
    TRIGRAM,
    UNIGRAM,
    nearest,
    on_chains,
    transformer,
)
from krogh.systems.statistical_induction_heads.transformer import draw_distances, draw_losses
from krogh.tasks.markov import MarkovChains
from krogh.theory.markov import STRATEGIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Grams:
    """The document's lr is 3e-2, which conflicts with Adam at this size; every head has dimension 16."""

    k: int = 2
    t: int = 200
    n: int = 3
    heads: tuple[int, ...] = (3, 1)
    dropout: float = 0.0
    lr: float = 2e-3
    steps: int = 12_000
    every: int = 100
    validation: int = 1024
    seeds: int = 8


@system.experiment(
    "fig-8.5",
    "3-grams: four stages with three heads, three with one",
    presets={
        "smoke": Grams(t=20, steps=20, every=10, validation=64, seeds=2),
        "quick": Grams(t=60, heads=(3,), steps=400, every=40, validation=512, seeds=2),
        "paper": Grams(),
    },
)
def grams(s: Grams) -> xr.Dataset:
    runs = []
    for heads in s.heads:
        network = transformer("public", s.dropout, heads=heads, attn=16)
        run = on_chains(MarkovChains(s.k, s.t, s.n), network, s, divergences(s.n), networks=False)
        runs.append(run.data[["kl", "kl_to", "level"]].expand_dims(heads=[heads]))
    return xr.concat(runs, "heads").assign_coords(strategy=list(STRATEGIES[: s.n + 1])).assign_attrs(k=s.k, t=s.t)


@grams.claim(
    "17.17",
    "k = 2, t = 200: with three heads a layer unigrams, bigrams and trigrams become the nearest strategy in this order "
    "and the last test KL is <= 0.03; with one head it is >= 0.8 of the bigram level",
    source="Fig 8.5, §8.3.3",
    presets=("paper",),
    finding="With three heads all is as published, in every seed. One head does not stop at bigrams: 6 of 8 seeds "
    "leave that plateau after 500 to 4500 steps and end nearest to trigrams, at three times their level (0.03 against "
    "0.009); two stay at bigrams (0.077) for all 12 000 steps.",
)
def four_stages(ds: xr.Dataset):
    many, one = ds.sel(heads=3), ds.sel(heads=1)
    times = [first_time(nearest(many) == strategy) for strategy in (UNIGRAM, BIGRAM, TRIGRAM)]
    ordered = (times[0] < times[1]) & (times[1] < times[2]) & np.isfinite(times[2])
    last = one.kl.isel(step=-1) / one.level.isel(strategy=BIGRAM, step=0)
    return all_of(
        order=every(ordered, over="seed"),
        near_bayes=at_most(many.kl.isel(step=-1), 0.03, stat="median", over="seed"),
        one_head=at_least(last, 0.8, over="seed"),
    )


@grams.figure
def plot_grams(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(2, ds.sizes["heads"], squeeze=False)
    for row, heads in zip(axes, ds.heads.values, strict=True):
        draw_losses(row[0], ds.sel(heads=heads))
        draw_distances(row[1], ds.sel(heads=heads))
        row[0].set_title(f"{heads} head{'s' if heads > 1 else ''} a layer, t = {ds.attrs['t']}")
    return figure
