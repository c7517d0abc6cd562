"""Composition in finite groups: networks trained on S_3, S_4, S_5 (003 Figures 7.6, D.2, D.3)."""

from dataclasses import replace

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, every
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure
from krogh.probes.spectra import IrrepPower
from krogh.systems.feature_emergence_margin import system
from krogh.systems.feature_emergence_margin.drawing import bars, margin_curve, power_histogram
from krogh.systems.feature_emergence_margin.training import (
    TWO_HUNDREDS,
    Training,
    neurons_of,
    profile,
    run_on,
)
from krogh.theory.groups import Group, isotypic_basis, named, told_apart
from krogh.theory.margins import certificate, group_network, margin_programme

S_3 = Training("S_3", width=30, steps=50_000, doublings=TWO_HUNDREDS, strength=1e-7)
S_4 = Training("S_4", width=200, steps=50_000, doublings=TWO_HUNDREDS, strength=1e-7, seeds=8)
S_5 = Training(
    "S_5", width=2000, steps=75_000, doublings=tuple(range(3000, 24_001, 3000)), strength=1e-5, batch=1000, seeds=8
)
SMOKE = replace(S_3, steps=300, records=6, seeds=2)


def irrep_names(group: Group) -> list[str]:
    """Dimension, with a letter where several have it and * or ** where the type is complex or quaternionic."""
    names = told_apart([str(irrep.dim) for irrep in group.irreps])
    return [name + "*" * (irrep.kind // 2) for name, irrep in zip(names, group.irreps, strict=True)]


def trained(s: Training) -> xr.Dataset:
    """Margins, irreps of all neurons, and the shares that theory and training give them."""
    group = named(s.group)
    best = margin_programme(group)
    run = run_on(group, s, IrrepPower(*isotypic_basis(group)))
    data = neurons_of(run, "irrep", len(group.irreps)).merge(profile(run, group))
    data = data.assign_coords(feature=irrep_names(group), dim=("feature", [r.dim for r in group.irreps]))
    bounds = certificate(group, group_network(group, best.shares), best.weights)
    attrs = {"group": s.group, "theory": best.margin, "construction": bounds.lower, "upper bound": bounds.upper}
    return data.assign(theory_share=("feature", best.shares)).assign_attrs(attrs)


def _ratio(ds: xr.Dataset) -> xr.DataArray:
    return ds.margin.isel(step=-1) / ds.attrs["theory"]


def _off(ds: xr.Dataset) -> xr.DataArray:
    """Largest difference over irreps between a seed's share of Σ‖ω‖³ and theory's."""
    return abs(ds.share - ds.theory_share).max("feature")


def _present(ds: xr.Dataset) -> xr.DataArray:
    return (ds.neurons.isel(feature=slice(1, None)) >= 1).all("feature")


@system.experiment(
    "fig-D.2",
    "S_3: margin, irreps of all neurons, before and after",
    presets={"smoke": SMOKE, "quick": S_3, "paper": replace(S_3, seeds=64)},
)
def on_s3(s: Training) -> xr.Dataset:
    return trained(s)


@on_s3.claim(
    "16.14",
    "S_3, m = 30: margin >= 0.95 gamma*; every live neuron has >= 0.95 of its power in one irrep; shares of "
    "sum ||omega||^3 within 0.03 of 0.850 and 0.150; no live neuron in the trivial irrep",
    source="Fig D.2",
    presets=("quick", "paper"),
)
def s3_agrees(ds: xr.Dataset):
    end = ds.sel(moment="end")
    pure = (end.power.min("part") >= 0.95) | ~end.live
    return all_of(
        margin=at_least(_ratio(ds), 0.95, over="seed"),
        one_irrep=every(pure.all("neuron"), over="seed"),
        shares=at_most(_off(ds), 0.03, over="seed"),
        no_trivial=every(ds.neurons.isel(feature=0) == 0, over="seed"),
    )


@system.experiment(
    "fig-D.3",
    "S_4: margin, irreps of all neurons, before and after",
    presets={"smoke": SMOKE, "quick": S_4, "paper": replace(S_4, seeds=32)},
)
def on_s4(s: Training) -> xr.Dataset:
    return trained(s)


@on_s4.claim(
    "16.15",
    "S_4, m = 200: margin >= 0.9 gamma* at 5e4 steps; all four nontrivial irreps present; shares within 0.05 of "
    "theory; more neurons in each irrep of dimension 3 than in that of dimension 2, and more there than in the sign",
    source="Fig D.3",
    presets=("quick", "paper"),
)
def s4_agrees(ds: xr.Dataset):
    sign, two = ds.neurons.isel(feature=1), ds.neurons.isel(feature=2)
    threes = ds.neurons.isel(feature=slice(3, 5)).min("feature")
    return all_of(
        margin=at_least(_ratio(ds), 0.9, over="seed"),
        all_irreps=every(_present(ds), over="seed"),
        shares=at_most(_off(ds), 0.05, over="seed"),
        three_over_two=at_least(threes - two, 0, over="seed"),
        two_over_sign=at_least(two - sign, 0, over="seed"),
    )


@system.experiment(
    "fig-7.6",
    "S_5: margin, irreps of all neurons, before and after",
    presets={"smoke": SMOKE, "paper": S_5},
)
def on_s5(s: Training) -> xr.Dataset:
    return trained(s)


@on_s5.claim(
    "16.16",
    "S_5, m = 2000, SGD with batches of 1000: margin >= 0.85 gamma*; six nontrivial irreps present; shares within 0.05 "
    "of d^2.5/264.985",
    source="Fig 7.6",
    finding="After the document's 75 000 steps all 8 seeds are at 0.83 of gamma*; none has all six irreps, and one "
    "share is off by 0.33 in every seed. Without any one irrep the largest margin is at most 2.5 % smaller (linear "
    "programme), so that the margin hardly asks for all six; that does not explain the other 15 %.",
    presets=("paper",),
)
def s5_agrees(ds: xr.Dataset):
    return all_of(
        margin=at_least(_ratio(ds), 0.85, over="seed"),
        all_irreps=every(_present(ds), over="seed"),
        shares=at_most(_off(ds), 0.05, over="seed"),
    )


@on_s3.figure
@on_s4.figure
@on_s5.figure
def plot_group(ds: xr.Dataset):
    figure, axes = new_figure(3, 2, size=(9.5, 5))
    margin_curve(axes[0, 0], ds)
    axes[0, 0].set_title(f"(a) ${ds.attrs['group']}$")
    bars(axes[0, 1], ds.neurons, None, list(ds.feature.values), "live neurons")
    axes[0, 1].set(title="(b) reported: more in higher dimensions", xlabel="irrep, by dimension")
    bars(axes[0, 2], ds.share, ds.theory_share, list(ds.feature.values), r"share of $\sum\|\omega\|^3$")
    axes[0, 2].set(xlabel="irrep, by dimension")
    for ax, moment, told in ((axes[1, 0], "start", "spread"), (axes[1, 1], "end", "1")):
        one = ds.sel(moment=moment)
        power_histogram(ax, one.power.isel(part=0), one.live, f"({'cd'[moment == 'end']}) {moment}", told)
    curve_with_spread(axes[1, 2], ds.purity, color=COLOURS[2])
    axes[1, 2].set(xlabel="step t", ylabel="median largest power", ylim=(0, 1.03), title="min over u, v, w")
    # margins of all points: one value where the network is on the margin everywhere
    spread = np.asarray(ds.point_margin.max("point") / ds.point_margin.min("point"))
    figure.suptitle(f"largest over smallest point margin: median {np.median(spread):.3f} over seeds", fontsize=7)
    return figure
