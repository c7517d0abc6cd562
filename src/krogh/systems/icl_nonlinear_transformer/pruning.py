"""Deleting neurons after training (004 Theorem 6.3.7, Figure 6.5)."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, reported, theory
from krogh.probes.prompts import PRUNING_ORDERS, errors, kept_neurons, neuron_alignment, pruned_outputs
from krogh.probes.trained import over_networks
from krogh.systems.icl_nonlinear_transformer import system
from krogh.systems.icl_nonlinear_transformer.models import Training, out_of_domain, prompts_of, training
from krogh.theory.prompt_classification import pruned_large_bound, pruned_small_bound
from krogh.train import sweep


@dataclass(frozen=True)
class Pruning(Training):
    """Neurons are ranked by the norm of their row of W_O W_V; `alphas` are the tests' alpha'."""

    alpha: float = 0.6
    alphas: tuple[float, ...] = (0.6, 0.8, 1.0)
    fractions: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    test_K: float = 5.0


@system.experiment(
    "fig-6.5",
    "Small neurons can go, large ones cannot",
    presets={
        "smoke": Pruning(steps=60, prompts=256, seeds=2),
        "quick": Pruning(),
        "paper": Pruning(prompts=16_384, seeds=64),
    },
)
def pruning(s: Pruning) -> xr.Dataset:
    task = prompts_of(s)
    run = sweep(training(s))

    def measure(network, key):
        order_key, data_key = jax.random.split(key)
        sizes = neuron_alignment(network, task)["norm"]
        kept = kept_neurons(sizes, s.fractions, order_key)

        def at(alpha):
            batch = replace(out_of_domain(task, K=s.test_K), alpha=alpha).sample(data_key, s.prompts)
            return errors(pruned_outputs(network, batch.x, kept), batch.y)

        positive = jnp.sum(kept & (network.output.value > 0), axis=-1) / jnp.sum(kept, axis=-1)
        return jax.lax.map(at, jnp.asarray(s.alphas)) | {"norm": jnp.sort(sizes), "positive": positive}

    found = over_networks(run.networks, measure)
    dims = ("seed", "alpha", "order", "R")
    return xr.Dataset(
        {
            "error": (dims, found["error"]),
            "hinge": (dims, found["hinge"]),
            "norm": (("seed", "neuron"), found["norm"]),
            "positive": (("seed", "order", "R"), found["positive"]),
        },
        coords={"alpha": list(s.alphas), "order": list(PRUNING_ORDERS), "R": list(s.fractions)},
        attrs={"alpha": s.alpha, "M1": s.M1},
    )


@pruning.claim(
    "22.11",
    "alpha = alpha' = 0.6: deleting the smallest 15 % or 20 % of the neurons changes the out-of-domain hinge loss by "
    "<= 0.03 and the error by <= 0.01",
    source="(6.15)",
    presets=("quick", "paper"),
)
def small_neurons_can_go(ds: xr.Dataset):
    cell = ds.sel(alpha=0.6, order="smallest")
    parts = {}
    for R in (0.15, 0.2):
        for name, bound in (("hinge", 0.03), ("error", 0.01)):
            change = abs(cell[name].sel(R=R) - cell[name].sel(R=0.0))
            parts[f"{name}_{R:g}"] = at_most(change, bound, over="seed")
    return all_of(**parts)


@pruning.claim(
    "22.12",
    "alpha = alpha' = 0.6: without a share R = 0.1, 0.3, 0.5 of the largest neurons the hinge loss is >= R, and it is "
    "ordered smallest < random < largest first",
    source="(6.16), (E.109)",
    presets=("quick", "paper"),
)
def large_neurons_cannot(ds: xr.Dataset):
    hinge = ds.hinge.sel(alpha=0.6)
    parts = {}
    for R in (0.1, 0.3, 0.5):
        one = {order: hinge.sel(R=R, order=order) for order in PRUNING_ORDERS}
        parts[f"at_least_{R:g}"] = at_least(one["largest"], R, over="seed")
        parts[f"random_above_{R:g}"] = at_least(one["random"] - one["smallest"], 0.0, over="seed")
        parts[f"largest_above_{R:g}"] = at_least(one["largest"] - one["random"], 0.0, over="seed")
    return all_of(**parts)


@pruning.claim(
    "22.13",
    "For the same deleted neurons, smallest or largest first, the hinge loss at alpha' = 0.8 is at most that at "
    "alpha' = 0.6 plus 0.02 at every R",
    source="Fig 6.5b",
    presets=("quick", "paper"),
)
def more_examples_help(ds: xr.Dataset):
    change = ds.hinge.sel(alpha=0.8) - ds.hinge.sel(alpha=0.6)
    return all_of(
        **{
            f"{order}_{R:g}": at_most(change.sel(order=order, R=R), 0.02, over="seed")
            for order in ("smallest", "largest")
            for R in ds.R.values
        }
    )


@pruning.claim(
    "22.14",
    "alpha = alpha' = 0.6: at every R the classification error is ordered smallest first <= random <= largest first + "
    "0.02",
    source="Fig 6.5a",
    presets=("quick", "paper"),
    finding="Up to R = 0.3 it is. In many replicas the largest neurons have mostly one sign of a_i: with few of them "
    "left the model gives one answer or none, while random deletion keeps both signs. Where all neurons left are "
    "silent, F = 0 counts as half an error, so that the error tends to 1/2 as everything is deleted. The hinge loss is "
    "ordered as claimed (22.12).",
)
def error_is_ordered(ds: xr.Dataset):
    error = ds.error.sel(alpha=0.6)
    parts = {}
    for R in ds.R.values[ds.R > 0]:
        one = {order: error.sel(R=R, order=order) for order in PRUNING_ORDERS}
        parts[f"smallest_{R:g}"] = at_most(one["smallest"] - one["random"], 0.0, over="seed")
        parts[f"random_{R:g}"] = at_most(one["random"] - one["largest"], 0.02, over="seed")
    return all_of(**parts)


@pruning.figure
def plot_pruning(ds: xr.Dataset):
    figure, axes = new_figure(2, 3, size=(7.0, 7.4))
    for ax, name in zip(axes[0], ("error", "hinge"), strict=True):
        for i, order in enumerate(ds.order.values):
            curve_with_spread(
                ax, ds[name].sel(alpha=0.6, order=order), x="R", label=f"{order} first" if i != 1 else order, marker="o"
            )
        ax.axhline(float(ds[name].sel(alpha=0.6, order="random", R=0.0).mean()), color="0.3", linewidth=0.8)
        reported(ax, 0.15, "reported share of small neurons", axis="x")
        ax.set(xlabel="share R of deleted neurons", ylabel=f"out-of-domain {name}", title=f"a: α = α' = 0.6, {name}")
    theory(axes[0, 1], ds.R, pruned_large_bound(ds.R, 0.6, ds.attrs["alpha"], ds.attrs["M1"]), "(E.109), ε = 0: R")
    reported(axes[0, 1], pruned_small_bound(0.6, ds.attrs["alpha"], ds.attrs["M1"]), "(E.107), ε = 0, above small")
    bars = axes[0, 0].twinx()
    ranked = ds.norm.median("seed").values
    bars.bar(np.linspace(0, 1, len(ranked)), ranked, 1 / len(ranked), color=COLOURS[5], alpha=0.3)
    bars.set_ylabel("neuron magnitude")
    for row, name in zip(axes[1:], ("error", "hinge"), strict=True):
        for ax, order in zip(row, ("smallest", "largest"), strict=True):
            for i, alpha in enumerate(ds.alpha.values):
                values = ds[name].sel(alpha=alpha, order=order)
                curve_with_spread(ax, values, x="R", label=f"α' = {alpha:g}", marker="o", color=COLOURS[i])
                if (name, order) == ("hinge", "largest"):
                    bound = pruned_large_bound(ds.R, alpha, ds.attrs["alpha"], ds.attrs["M1"])
                    theory(ax, ds.R, bound, "(E.109)" if i == 0 else None)
            ax.set(
                xlabel="share R of deleted neurons", ylabel=f"out-of-domain {name}", title=f"b: {order} first, {name}"
            )
    for ax in axes.ravel():
        ax.legend(fontsize=6)
    return figure
