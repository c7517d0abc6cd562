"""Addition modulo p: trained networks, their spectra and phases (003 Figures 7.1, 7.4, D.1)."""

from dataclasses import replace

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, between, every
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, reported
from krogh.probes.spectra import frequencies, frequency_power
from krogh.systems.feature_emergence_margin import system
from krogh.systems.feature_emergence_margin.drawing import bars, margin_curve, power_histogram
from krogh.systems.feature_emergence_margin.training import (
    LIVE,
    Training,
    first_neurons,
    neurons_of,
    profile,
    run_on,
)
from krogh.theory.groups import named
from krogh.theory.margins import (
    balanced_weights,
    certificate,
    cyclic_margin,
    cyclic_network,
)
from krogh.train import Run

PAPER = Training("Z_71", width=500, steps=40_000, records=80)
SMOKE = Training("Z_7", width=30, steps=300, records=6, seeds=2)


def _spectrum(run: Run, nu: int) -> xr.DataArray:
    """Power of u by rank, mean over the live neurons of each seed: (seed, rank)."""
    power = np.sort(np.asarray(frequency_power(run.networks.weights[:, 0].swapaxes(1, 2))), axis=-1)[..., ::-1]
    mass = run.data.neuron_norms.isel(step=-1).values ** nu
    live = mass > LIVE * mass.max(axis=1, keepdims=True)
    return xr.DataArray((power * live[..., None]).sum(axis=1) / live.sum(axis=1)[:, None], dims=("seed", "rank"))


@system.experiment(
    "fig-7.1",
    "Addition modulo p: margins, spectra and phases of quadratic and ReLU networks (Figures 7.1, 7.4, D.1)",
    presets={"smoke": SMOKE, "quick": Training(), "paper": PAPER},
)
def addition(s: Training) -> xr.Dataset:
    group = named(s.group)
    p = group.order
    found = []
    for activation, nu in (("square", 3), ("relu", 2)):
        run = run_on(group, s, frequencies, activation, nu)
        data = neurons_of(run, "frequency", (p + 1) // 2, nu)
        found.append(
            data.assign(
                phase=run.data.phase.isel(step=-1), weights=first_neurons(run), spectrum=_spectrum(run, nu)
            ).merge(profile(run, group, nu))
        )
    bounds = certificate(group, cyclic_network(p), balanced_weights(group))
    attrs = {"p": p, "theory": cyclic_margin(p), "construction": bounds.lower, "upper bound": bounds.upper}
    return xr.concat(found, "network").assign_coords(network=["quadratic", "relu"]).assign_attrs(attrs)


def _end(ds: xr.Dataset, network: str = "quadratic") -> xr.Dataset:
    return ds.sel(network=network, moment="end")


def _share(flags: xr.DataArray, live: xr.DataArray) -> xr.DataArray:
    """Share of each seed's live neurons."""
    return (flags & live).sum("neuron") / live.sum("neuron")


@addition.claim(
    "16.9",
    "Quadratic network with L_{2,3} and the printed schedule: normalised margin >= 0.99 gamma* at 2e4 steps for p = "
    "23, m = 150; >= 0.95 gamma* at 4e4 steps for p = 71, m = 500",
    source="Fig 7.1c",
    presets=("quick", "paper"),
)
def reaches_margin(ds: xr.Dataset):
    ratio = ds.margin.sel(network="quadratic").isel(step=-1) / ds.attrs["theory"]
    return at_least(ratio, 0.99 if ds.attrs["p"] < 71 else 0.95, over="seed")


@addition.claim(
    "16.10",
    "Of the live neurons >= 99 % have largest power > 0.98 in each of u, v, w; u, v, w share the frequency in all; "
    "|theta_u + theta_v - theta_w| < 0.05 rad in 99 %",
    source="Fig 7.4c, Thm 7.7",
    presets=("quick", "paper"),
)
def one_frequency(ds: xr.Dataset):
    end = _end(ds)
    same = (end.label == end.label.isel(part=0)).all("part")
    return all_of(
        one_frequency=at_least(_share(end.power.min("part") > 0.98, end.live), 0.99, over="seed"),
        shared_frequency=every(_share(same, end.live) == 1, over="seed"),
        equal_phases=at_least(_share(abs(end.phase) < 0.05, end.live), 0.99, over="seed"),
    )


@addition.claim(
    "16.11",
    "Every frequency 1..(p-1)/2 has a live neuron, and its share of sum ||omega||^3 is within 10 % of 2/(p-1)",
    source="Fig D.1, Thm 7.7 (2)",
    presets=("quick", "paper"),
)
def all_frequencies(ds: xr.Dataset):
    end = _end(ds).isel(feature=slice(1, None))
    off = abs(end.share * (ds.attrs["p"] - 1) / 2 - 1).max("feature")
    return all_of(
        every_frequency=every((end.neurons >= 1).all("feature"), over="seed"),
        largest_deviation=at_most(off, 0.1, over="seed"),
    )


@addition.claim(
    "16.12",
    "ReLU with L_2: the live neurons' median largest power of u lies in [0.8, 0.97], >= 0.3 above that at the start "
    "and below the quadratic network's",
    source="Fig 7.4b (p = 71: paper; p = 23 is scaled)",
    presets=("quick", "paper"),
)
def relu_control(ds: xr.Dataset):
    median = ds.power.isel(part=0).where(ds.live).median("neuron")
    relu = median.sel(network="relu")
    above = relu.sel(moment="end") - relu.sel(moment="start")
    below = median.sel(network="quadratic", moment="end") - relu.sel(moment="end")
    return all_of(
        around_0_9=between(relu.sel(moment="end"), 0.8, 0.97, over="seed"),
        above_start=at_least(above, 0.3, over="seed"),
        below_quadratic=at_least(below, 0.0, over="seed"),
    )


@addition.claim(
    "16.L7.6",
    "All points are on the margin: at the end the largest g is within 5 % of the smallest, and the wrong logits' "
    "standard deviation is below 5 % of g",
    source="Lemma 7.6; the thresholds are ours",
    presets=("quick", "paper"),
)
def on_the_margin(ds: xr.Dataset):
    one = ds.sel(network="quadratic")
    return all_of(
        points=at_most(one.point_margin.max("point") / one.point_margin.min("point"), 1.05, over="seed"),
        wrong_logits=at_most(one.wrong_spread, 0.05, over="seed"),
    )


@addition.figure
def fig_7_1ab(ds: xr.Dataset):
    """The first three live neurons of the first seed, and the mean spectrum of all live neurons of all seeds."""
    p = ds.attrs["p"]
    figure, axes = new_figure(4, 4, size=(9, 7.2))
    fine = np.linspace(0, p, 400)
    for half, network in enumerate(("relu", "quadratic")):
        one = ds.sel(network=network)
        chosen = np.flatnonzero(one.live.isel(seed=0).sel(moment="end"))[:3]
        for row, neuron in enumerate(chosen):
            u = one.weights.isel(part=0, neuron=neuron).values
            left, right = axes[row, 2 * half], axes[row, 2 * half + 1]
            coefficients = np.fft.rfft(u) / p
            waves = np.exp(2j * np.pi * np.outer(fine, np.arange(len(coefficients))) / p)
            twice = np.where(np.arange(len(coefficients)) == 0, 1, 2)
            left.plot(fine, (waves * (twice * coefficients)).sum(axis=1).real, color=COLOURS[5], linewidth=0.8)
            left.plot(np.arange(p), u, "o", color="red", markersize=1.8)
            left.set_ylabel(f"u, neuron {neuron}")
            right.bar(np.arange(len(coefficients)), np.asarray(frequency_power(u)), color=COLOURS[0])
            right.set(ylim=(0, 1.05))
        axes[0, 2 * half].set_title(f"({'ab'[half]}) {network}, seed 0: weights")
        axes[0, 2 * half + 1].set_title("normalised power")
        axes[2, 2 * half].set_xlabel("element a")
        axes[2, 2 * half + 1].set_xlabel("frequency")
        low, middle, high = (one.spectrum.quantile(q, "seed") for q in (0.1, 0.5, 0.9))
        shown = slice(0, 8)
        left, right = axes[3, 2 * half], axes[3, 2 * half + 1]
        left.bar(np.arange(1, 9)[: len(middle[shown])], middle[shown], color=COLOURS[0])
        left.vlines(np.arange(1, 9)[: len(middle[shown])], low[shown], high[shown], color="black", linewidth=1)
        left.set(xlabel="rank of the frequency", ylabel="power", title=f"all live neurons, {ds.sizes['seed']} seeds")
        phase = one.phase.values[one.live.sel(moment="end").values]
        right.hist(phase, np.linspace(-np.pi, np.pi, 61), color=COLOURS[2])
        right.set(xlabel=r"$\theta_u + \theta_v - \theta_w$", ylabel="live neurons", title="phase residual (theory: 0)")
    return figure


@addition.figure
def fig_7_1c(ds: xr.Dataset):
    figure, (left, middle, right) = new_figure(3, size=(9.5, 2.7))
    margin_curve(left, ds.sel(network="quadratic"))
    left.set_title(f"quadratic, $L_{{2,3}}$, $Z_{{{ds.attrs['p']}}}$")
    for network, colour in zip(ds.network.values, COLOURS, strict=False):
        curve_with_spread(middle, ds.purity.sel(network=network), label=network, color=colour)
    middle.set(xlabel="step t", ylabel="median largest power", ylim=(0, 1.03), title="min over u, v, w; live neurons")
    middle.legend()
    g = ds.point_margin.sel(network="quadratic").values.ravel() / ds.attrs["theory"]
    right.hist(g, 60, color=COLOURS[0])
    right.axvline(1, color="black", linestyle="--", linewidth=1, label=r"$\gamma^*$")
    right.set(xlabel=r"$g/(\|\theta\|^3\gamma^*)$", ylabel="points", title="margins of all points, all seeds")
    right.locator_params(axis="x", nbins=3)
    right.legend()
    return figure


@addition.figure
def fig_7_4(ds: xr.Dataset):
    figure, axes = new_figure(3, size=(9, 2.7))
    power = ds.power.isel(part=0)
    panels = (
        ("quadratic", "start", "(a) start", "spread"),
        ("relu", "end", "(b) ReLU, $L_2$", "around 0.9"),
        ("quadratic", "end", "(c) quadratic, $L_{2,3}$", "almost exactly 1"),
    )
    for ax, (network, moment, title, told) in zip(axes, panels, strict=True):
        one = {"network": network, "moment": moment}
        power_histogram(ax, power.sel(one), ds.live.sel(one), title, told)
    reported(axes[1], 0.9, axis="x")
    reported(axes[2], 1.0, axis="x")
    return figure


@addition.figure
def fig_d_1(ds: xr.Dataset):
    figure, axes = new_figure(2, 2, size=(9, 4.6))
    count = ds.sizes["feature"] - 1
    for row, network in zip(axes, ds.network.values, strict=True):
        end = _end(ds, network).isel(feature=slice(1, None))
        names = [str(i + 1) if count < 20 or i % 5 == 4 else "" for i in range(count)]
        mean = float(end.neurons.sum("feature").mean()) / count
        bars(row[0], end.neurons, np.full(count, mean), names, "live neurons", "uniform")
        told = "theory" if network == "quadratic" else "uniform"
        bars(row[1], end.share, np.full(count, 1 / count), names, r"share of $\sum\|\omega\|^\nu$", told)
        row[0].set_title(f"{network}; reported: close to uniform")
    for ax in axes[1]:
        ax.set_xlabel("frequency")
    return figure


# ------------------------------------------------------------------------------------------- the norm matters


@system.experiment(
    "norm-control",
    "The same quadratic networks with plain L2 in place of L_{2,3}",
    presets={"smoke": SMOKE, "quick": Training(seeds=8), "paper": replace(PAPER, seeds=8)},
)
def norm_control(s: Training) -> xr.Dataset:
    group = named(s.group)
    parts = []
    for exponent in (3, 2):
        run = run_on(group, s, frequencies, "square", exponent=exponent)
        data = neurons_of(run, "frequency", (group.order + 1) // 2)
        parts.append(data[["margin", "purity", "neurons", "share", "live", "power"]])
    joined = xr.concat(parts, "norm").assign_coords(norm=["L_{2,3}", "L_2"])
    return joined.assign_attrs(theory=cyclic_margin(group.order), p=group.order)


@norm_control.claim(
    "16.17",
    "Trained with plain L2 at the same lambda, the L_{2,3} margin is lower or the live neurons are fewer",
    source="control, §7.2 (report)",
    presets=("quick", "paper"),
)
def norm_matters(ds: xr.Dataset):
    margin = ds.margin.isel(step=-1)
    live = ds.live.sel(moment="end").sum("neuron")
    lower = margin.sel(norm="L_2") < margin.sel(norm="L_{2,3}")
    fewer = live.sel(norm="L_2") < live.sel(norm="L_{2,3}")
    return every(lower | fewer, over="seed")


@norm_control.figure
def norm_plot(ds: xr.Dataset):
    figure, (left, middle, right) = new_figure(3, size=(8.5, 2.6))
    live = ds.live.sel(moment="end").sum("neuron")
    for i, norm in enumerate(ds.norm.values):
        colour = COLOURS[i]
        curve_with_spread(left, ds.margin.sel(norm=norm), label=f"${norm}$", color=colour)
        middle.scatter(np.full(ds.sizes["seed"], i), live.sel(norm=norm), color=colour, s=9)
        curve_with_spread(right, ds.purity.sel(norm=norm), label=f"${norm}$", color=colour)
    left.axhline(ds.attrs["theory"], color="black", linestyle="--", linewidth=1, label=r"$\gamma^*$")
    left.set(xlabel="step t", ylabel="normalised $L_{2,3}$ margin", ylim=(0, 1.1 * ds.attrs["theory"]))
    left.legend()
    middle.set(ylabel="live neurons at the end", ylim=(0, None))
    right.set(xlabel="step t", ylabel="median largest power", ylim=(0, 1.03))
    right.legend()
    middle.set_xticks(range(ds.sizes["norm"]), [f"${n}$" for n in ds.norm.values])
    middle.set_xlim(-0.5, ds.sizes["norm"] - 0.5)
    return figure
