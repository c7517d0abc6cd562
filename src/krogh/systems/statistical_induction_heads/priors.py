"""Other priors and depths: unigrams slow learning, one layer fails, more symbols (003 Figures 8.4a, E.4, E.8)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from krogh.errors import InputError
from krogh.lab import all_of, at_least, at_most, every
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, theory
from krogh.lab.times import first_time
from krogh.probes.markov import OnOtherChains, divergences
from krogh.systems.statistical_induction_heads import system
from krogh.systems.statistical_induction_heads.learning import (
    BIGRAM,
    UNIFORM,
    UNIGRAM,
    nearest,
    on_chains,
    transformer,
)
from krogh.systems.statistical_induction_heads.transformer import draw_distances, draw_losses
from krogh.tasks.markov import MarkovChains, Mixture, dirichlet, doubly_stochastic, unigrams
from krogh.theory.markov import STRATEGIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# ------------------------------------------------------------------------------------------- Figure 8.4a


@dataclass(frozen=True)
class Signal:
    """Pure training takes `steps` batches of doubly stochastic chains; the mixture as many of these and the rest."""

    k: int = 4
    t: int = 100
    share: float = 0.5
    dropout: float = 0.1
    lr: float = 5e-4
    steps: int = 4000
    every: int = 40
    validation: int = 2048
    seeds: int = 16


def whole_ratio(share: float) -> int:
    """1/(1 − share): batches of a mixture for every batch of its first part, a whole number."""
    ratio = 1 / (1 - share) if 0 <= share < 1 else 0.0
    if ratio < 1 or abs(ratio - round(ratio)) > 1e-6:
        raise InputError(
            f"share is {share!r}; it must be 0, 1/2, 2/3, 3/4, …, so that 1/(1 - share) is a whole number."
        )
    return round(ratio)


@system.experiment(
    "fig-8.4a",
    "Unigrams that say something slow the learning of bigrams",
    presets={
        "smoke": Signal(t=20, dropout=0.0, steps=20, every=10, validation=64, seeds=2),
        "quick": Signal(dropout=0.0, steps=700, every=70, validation=512, seeds=2),
        "paper": Signal(),
    },
)
def signal(s: Signal) -> xr.Dataset:
    """Curves over the number of doubly stochastic sequences; the mixture's records are 1/(1 − share) steps apart."""
    runs = []
    mixture = Mixture(doubly_stochastic, unigrams, s.share)
    for prior, factor in ((doubly_stochastic, 1), (mixture, whole_ratio(s.share))):
        run = on_chains(
            MarkovChains(s.k, s.t, prior=prior),
            transformer("public", s.dropout),
            s,
            divergences(),
            OnOtherChains(doubly_stochastic, "doubly", s.validation),
            OnOtherChains(dirichlet, "full", s.validation),
            slower=factor,
            networks=False,
        )
        data = run.data[["kl", "kl_to", "level", "kl_doubly", "level_doubly", "kl_full", "level_full"]]
        runs.append(data.assign_coords(step=64 * data.step / factor))
    names = {"trained_on": ["doubly stochastic", "mixture"], "strategy": list(STRATEGIES[:3])}
    return xr.concat(runs, "trained_on").assign_coords(names).assign_attrs(k=s.k, t=s.t)


def _halfway(ds: xr.Dataset) -> xr.DataArray:
    """Doubly stochastic sequences until the KL on such chains is halfway from the uniform to the bigram level."""
    middle = (ds.level_doubly.isel(strategy=UNIFORM) + ds.level_doubly.isel(strategy=BIGRAM)).mean("step") / 2
    return first_time(ds.kl_doubly < middle)


@signal.claim(
    "17.15",
    "k = 4: the mixture with unigrams needs >= 1.2 times as many doubly stochastic sequences to get halfway from the "
    "uniform to the bigram level (median over seeds), and without them unigrams are the nearest strategy at <= 5 % of "
    "the records",
    source="Fig 8.4a",
    presets=("paper",),
)
def unigrams_slow(ds: xr.Dataset):
    needed = _halfway(ds)
    pure, mixed = (needed.sel(trained_on=name) for name in ds.trained_on.values)
    alone = ds.sel(trained_on="doubly stochastic")
    stage = (nearest(alone) == UNIGRAM).mean("step")
    return all_of(
        slower=at_least(
            (mixed.values, pure.values), 1.2, stat=lambda m, p: float(np.median(m) / np.median(p)), over=None
        ),
        no_unigram_stage=at_most(stage, 0.05, over="seed"),
    )


@signal.figure
def plot_signal(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(2, size=(6.8, 2.5))
    for ax, name, title in zip(
        axes, ("full", "doubly"), ("on the full prior", "on doubly stochastic chains"), strict=True
    ):
        for trained in ds.trained_on.values:
            curve_with_spread(ax, ds[f"kl_{name}"].sel(trained_on=trained), label=f"trained on {trained}")
        for i in (UNIGRAM, BIGRAM):
            level = float(ds[f"level_{name}"].isel(strategy=i).mean())
            theory(ax, ds.step[[0, -1]], [level] * 2, f"{STRATEGIES[i]}s").set_color(COLOURS[i + 1])
        ax.set(xlabel="doubly stochastic sequences seen", ylabel="KL(true ‖ model), nats", title=title, ylim=(0, None))
    axes[0].legend()
    return figure


# ------------------------------------------------------------------------------------------- Figure E.8


@dataclass(frozen=True)
class OneLayer:
    """Cases are (width of the feed-forward part or 0, positions); two layers need some 3000 steps."""

    cases: tuple[tuple[int, str], ...] = ((0, "relative"), (64, "relative"), (0, "learned"), (64, "learned"))
    k: int = 2
    t: int = 100
    dropout: float = 0.1
    lr: float = 5e-4
    steps: int = 24_000
    every: int = 800
    validation: int = 2048
    seeds: int = 16


@system.experiment(
    "fig-E.8",
    "One layer stays at unigrams",
    presets={
        "smoke": OneLayer(cases=((0, "relative"),), t=20, dropout=0.0, steps=20, every=10, validation=64, seeds=2),
        "quick": OneLayer(cases=((0, "relative"),), dropout=0.0, every=2400, validation=1024, seeds=8),
        "paper": OneLayer(),
    },
)
def one_layer(s: OneLayer) -> xr.Dataset:
    runs = []
    for mlp, positions in s.cases:
        network = transformer("public", s.dropout, layers=1, mlp=mlp or None, positions=positions)
        run = on_chains(MarkovChains(s.k, s.t), network, s, divergences(), networks=False)
        name = f"{positions} positions, {'MLP' if mlp else 'attention only'}"
        runs.append(run.data[["kl", "kl_to", "level"]].expand_dims(case=[name]))
    return xr.concat(runs, "case").assign_coords(strategy=list(STRATEGIES[:3])).assign_attrs(k=s.k, t=s.t)


@one_layer.claim(
    "17.14",
    "One layer, trained 8 times longer than two layers need: the test KL stays >= 0.8 of the unigram level and > 3 "
    "times the bigram level",
    source="Fig E.8",
    presets=("quick", "paper"),
    finding="The scaled run has attention alone. At full size one case is open, relative positions with a feed-forward "
    "part: .812 of the unigram level (16 seeds between .778 and .867), too near the bound for so few. The other three "
    "keep .824, .867 and .833, and all stay at more than 6 times the bigram level.",
)
def stays(ds: xr.Dataset):
    parts = {}
    for case in ds.case.values:
        at = ds.sel(case=case)
        level = at.level.isel(step=0)
        parts[f"unigrams, {case}"] = at_least(at.kl.min("step") / level.isel(strategy=UNIGRAM), 0.8, over="seed")
        parts[f"bigrams, {case}"] = at_least(at.kl.min("step") / level.isel(strategy=BIGRAM), 3.0, over="seed")
    return all_of(**parts)


@one_layer.figure
def plot_one_layer(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(ds.sizes["case"], squeeze=False, sharey=True)
    for ax, case in zip(axes[0], ds.case.values, strict=True):
        draw_losses(ax, ds.sel(case=case))
        ax.set_title(case, fontsize=7)
    return figure


# ------------------------------------------------------------------------------------------- Figure E.4


@dataclass(frozen=True)
class Symbols:
    k: int = 8
    t: int = 200
    dropout: float = 0.1
    lr: float = 5e-4
    steps: int = 8000
    every: int = 100
    validation: int = 1024
    seeds: int = 16


@system.experiment(
    "fig-E.4",
    "The stages with more symbols",
    presets={
        "smoke": Symbols(k=5, t=20, dropout=0.0, steps=20, every=10, validation=64, seeds=2),
        "quick": Symbols(dropout=0.0, steps=3000, validation=512, seeds=8),
        "paper": Symbols(),
    },
)
def more_symbols(s: Symbols) -> xr.Dataset:
    run = on_chains(MarkovChains(s.k, s.t), transformer("public", s.dropout), s, divergences(), networks=False)
    return run.data[["kl", "kl_to", "level"]].assign_coords(strategy=list(STRATEGIES[:3])).assign_attrs(k=s.k, t=s.t)


@more_symbols.claim(
    "17.E4",
    "k = 8, t = 200: in every seed unigrams are the nearest strategy at some record, bigrams at the end",
    source="Fig E.4",
    presets=("quick", "paper"),
)
def stages_with_more_symbols(ds: xr.Dataset):
    closest = nearest(ds)
    return all_of(
        unigrams=every((closest == UNIGRAM).any("step"), over="seed"),
        bigrams=every(closest.isel(step=-1) == BIGRAM, over="seed"),
    )


@more_symbols.figure
def plot_more_symbols(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = new_figure(2)
    draw_losses(left, ds)
    draw_distances(right, ds)
    left.set_title(f"k = {ds.attrs['k']}, t = {ds.attrs['t']}")
    return figure
