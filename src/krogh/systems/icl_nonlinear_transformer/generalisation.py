"""New tasks in and out of domain (004 Theorems 6.3.3 and 6.3.4, Figure 6.3)."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from krogh.lab import Verdict, all_of, at_least, at_most, between
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, reported, theory
from krogh.nn.decoder import CausalTransformer
from krogh.probes.basic import accuracy, hinge_error, outputs_on
from krogh.probes.prompts import errors, outputs_by_length
from krogh.probes.trained import over_networks
from krogh.systems.icl_nonlinear_transformer import system
from krogh.systems.icl_nonlinear_transformer.models import (
    Training,
    out_of_domain,
    prompts_of,
    smallest_length,
    training,
)
from krogh.tasks.pattern_prompts import shifted_patterns
from krogh.theory.prompt_classification import balanced, coefficient_sums, uncovered
from krogh.train import Adam, spec, sweep
from krogh.train.schedules import LinearDecay

# ------------------------------------------------------------------------------------------- Theorem 6.3.3


@dataclass(frozen=True)
class InDomain(Training):
    every: int = 20


@system.experiment(
    "thm-6.3.3",
    "Six tasks teach thirty",
    presets={
        "smoke": InDomain(steps=60, prompts=256, seeds=2),
        "quick": InDomain(),
        "paper": InDomain(prompts=16_384, seeds=64),
    },
)
def in_domain(s: InDomain) -> xr.Dataset:
    probes = (accuracy, hinge_error)
    data = sweep(training(s, probes=probes, every=s.every, validation=s.prompts, networks=False)).data
    data = data[["accuracy", "hinge_error", "loss"]].assign(error=1 - data.accuracy)
    return data.assign_attrs(balanced=int(balanced(prompts_of(s).shares)), M1=s.M1)


@in_domain.claim(
    "22.1",
    "Trained on the M1 = 6 cyclic tasks, which satisfy Condition 6.3.2, the 24 unseen tasks are solved at alpha' = 0.8 "
    "and l_ts = 20 with error <= 0.01 and hinge loss <= 0.05",
    source="Thm 6.3.3",
    presets=("quick", "paper"),
)
def unseen_tasks(ds: xr.Dataset):
    return all_of(
        condition=at_least(float(ds.attrs["balanced"]), 1.0),
        error=at_most(ds.error.isel(step=-1), 0.01, over="seed"),
        hinge=at_most(ds.hinge_error.isel(step=-1), 0.05, over="seed"),
    )


@in_domain.figure
def plot_in_domain(ds: xr.Dataset):
    figure, ax = new_figure(size=(3.6, 2.5))
    for i, (name, label) in enumerate(
        (("error", "error, unseen tasks"), ("hinge_error", "hinge, unseen tasks"), ("loss", "hinge, training"))
    ):
        curve_with_spread(ax, ds[name].isel(step=slice(1, None)), label=label, color=COLOURS[i])
    reported(ax, 0.0, "reported: O(ε)")
    ax.set(xlabel="step t", ylabel="error, loss (median, 10–90 %)", title=f"{ds.attrs['M1']} of 30 tasks are trained")
    ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- Theorem 6.3.4


@dataclass(frozen=True)
class OutOfDomain(Training):
    """`irrelevant` counts the patterns nu' at test: all M2, or the M1' = 3 of the printed index set."""

    deltas: tuple[float, ...] = (0.05, 0.1, 0.2)
    irrelevant: tuple[int, ...] = (24, 3)
    scales: tuple[float, ...] = (0.5, 5.0)


@system.experiment(
    "thm-6.3.4",
    "Patterns never seen: linear combinations of the old ones",
    presets={
        "smoke": OutOfDomain(steps=60, prompts=256, seeds=2),
        "quick": OutOfDomain(),
        "paper": OutOfDomain(prompts=16_384, seeds=64),
    },
)
def new_patterns(s: OutOfDomain) -> xr.Dataset:
    task = prompts_of(s)
    run = sweep(training(s), delta=s.deltas)

    def measure(network, key):
        cases = []
        for count in s.irrelevant:
            for K in s.scales:
                test = replace(out_of_domain(task, K=K), irrelevant=task.irrelevant[:count])
                batch = test.sample(key, s.prompts)
                cases.append(errors(outputs_on(network, batch.x), batch.y))
        return jax.tree.map(lambda *a: jnp.stack(a), *cases)

    found = over_networks(run.networks, measure)
    shape = (len(s.deltas), s.seeds, len(s.irrelevant), len(s.scales))
    return xr.Dataset(
        {name: (("delta", "seed", "irrelevant", "K"), value.reshape(shape)) for name, value in found.items()},
        coords={"delta": list(s.deltas), "irrelevant": list(s.irrelevant), "K": list(s.scales)},
    ).assign(sums=("pattern", coefficient_sums(shifted_patterns(1.28, s.M1))))


@new_patterns.claim(
    "22.2",
    "Out of domain with a = b = 0.64 (S_j >= 1 for all j) and K' = 5 the error is <= 0.02 at delta = 0.1",
    source="Thm 6.3.4",
    presets=("quick", "paper"),
)
def combinations(ds: xr.Dataset):
    return all_of(
        sums=at_least(float(ds.sums.min()), 1.0),
        error=at_most(ds.error.sel(delta=0.1, irrelevant=24, K=5.0), 0.02, over="seed"),
    )


@new_patterns.claim(
    "22.2-slip",
    "With only the M1' = 3 irrelevant patterns of the printed index set and delta = 0.2, the initial attention on "
    "coinciding irrelevant patterns stays: the error at K' = 5 is >= 0.05, and at K' = 0.5 <= 0.02",
    source="§6.5, §6.3.2",
    presets=("quick", "paper"),
)
def coinciding_patterns(ds: xr.Dataset):
    few = ds.error.sel(delta=0.2, irrelevant=3)
    return all_of(wide=at_least(few.sel(K=5.0), 0.05, over="seed"), narrow=at_most(few.sel(K=0.5), 0.02, over="seed"))


@new_patterns.figure
def plot_new_patterns(ds: xr.Dataset):
    figure, axes = new_figure(2, size=(6.2, 2.5))
    for ax, name in zip(axes, ("error", "hinge"), strict=True):
        for i, count in enumerate(ds.irrelevant.values):
            for K, style in zip(ds.K.values, (":", "-"), strict=False):
                label = f"{count} patterns ν', K' = {K:g}"
                values = ds[name].sel(irrelevant=count, K=K)
                curve_with_spread(ax, values, x="delta", label=label, color=COLOURS[i], linestyle=style, marker="o")
        ax.set(xlabel="initial scale δ", ylabel=f"out-of-domain {name}")
    reported(axes[0], 0.02, "bound of claim 22.2")
    axes[0].legend()
    return figure


# ------------------------------------------------------------------------------------------- Figure 6.3a


SUMS = (-1.28, -1.2, -0.8, -0.4, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.1, 1.2, 1.28)


def _errors_by_sum(network, key, task, sums, scales, size):
    """Out-of-domain error and hinge for every K' and S_1."""
    coefficients = jnp.asarray(np.stack([shifted_patterns(total) for total in sums]), jnp.float32)

    def one(K, rows):
        batch = task.shifted(rows, K).sample(key, size)
        return errors(outputs_on(network, batch.x), batch.y)

    return jax.lax.map(lambda K: jax.lax.map(lambda rows: one(K, rows), coefficients), jnp.asarray(scales))


@dataclass(frozen=True)
class Sums(Training):
    sums: tuple[float, ...] = SUMS
    test_K: float = 5.0


@system.experiment(
    "fig-6.3a-one-layer",
    "Coefficients must sum to one: the one-layer Transformer",
    presets={
        "smoke": Sums(steps=60, prompts=256, seeds=2),
        "quick": Sums(seeds=64),
        "paper": Sums(seeds=1024),
    },
)
def sums(s: Sums) -> xr.Dataset:
    task = prompts_of(s)
    run = sweep(training(s))
    found = over_networks(run.networks, lambda n, key: _errors_by_sum(n, key, task, s.sums, (s.test_K,), s.prompts))
    variables = {name: (("seed", "S_1"), value[:, 0]) for name, value in found.items()}
    return xr.Dataset(variables, coords={"S_1": list(s.sums)})


@sums.claim(
    "22.3",
    "One layer: error <= 0.01 at S_1 = 1, 1.2, 1.28; at S_1 = 0 >= 0.02 and at least 3 times that at S_1 = 1; Spearman "
    "correlation of error and S_1 <= -0.8",
    source="Fig 6.3a, (6.12)",
    presets=("quick", "paper"),
)
def necessary_sum(ds: xr.Dataset):
    from scipy.stats import spearmanr

    error = {total: ds.error.sel(S_1=total) for total in (0.0, 1.0, 1.2, 1.28)}
    return all_of(
        **{f"at_{total:g}": at_most(error[total], 0.01, over="seed") for total in (1.0, 1.2, 1.28)},
        at_0=at_least(error[0.0], 0.02, over="seed"),
        ratio=at_least((error[0.0], error[1.0]), 0.0, stat=lambda a, b: a.mean() - 3 * b.mean(), over="seed"),
        trend=at_most((ds.error,), -0.8, stat=lambda e: spearmanr(ds.S_1, e.mean(axis=0)).statistic, over="seed"),
    )


@sums.claim(
    "22.3-negative",
    "One layer: error >= 0.2 at S_1 = -1.2",
    source="Fig 6.3a",
    presets=("paper",),
    finding="Replicas differ from 0.03 to 0.35; 64 of them have the mean 0.209 (0.187 to 0.231), so that only "
    "a thousand can decide.",
)
def negative_sum(ds: xr.Dataset):
    return at_least(ds.error.sel(S_1=-1.2), 0.2, over="seed")


@sums.figure
def plot_sums(ds: xr.Dataset):
    figure, axes = new_figure(2, size=(6.2, 2.5))
    for ax, name in zip(axes, ("error", "hinge"), strict=True):
        curve_with_spread(ax, ds[name], x="S_1", marker="o", label="one layer (median, 10–90 %)")
        reported(ax, 1.0, "sufficient: $S_1$ ≥ 1", axis="x")
        ax.set(xlabel="sum of coefficients $S_1$", ylabel=f"out-of-domain {name}")
    reported(axes[0], 0.01, "reported: < 0.01 for $S_1$ ≥ 1")
    axes[0].set_yscale("symlog", linthresh=0.01)
    axes[0].set_ylim(0, None)
    axes[0].legend()
    return figure


# ------------------------------------------------------------------------------------------- Figure 6.3 on three layers


@dataclass(frozen=True)
class ThreeLayers(Training):
    """A GPT-2-like decoder from scratch; width, optimizer and steps are not stated in the document.

    shifts   U: training tasks (j, j + k), k = 1, …, U
    scale    deviation of all initial weights; with 0.02 a twelfth of the unseen prompts is still wrong after 400 steps

    The learning rate falls linearly to zero: at a constant one the loss of a few networks is on a spike whenever the
    training is stopped.
    """

    shifts: int = 4
    layers: int = 3
    heads: int = 2
    emb: int = 64
    scale: float = 0.1
    lr: float = 1e-3
    batch: int = 64
    sums: tuple[float, ...] = SUMS
    scales: tuple[float, ...] = (0.5, 5.0)
    alphas: tuple[float, ...] = (0.3, 0.5, 0.8)
    lengths: tuple[int, ...] = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
    prompts: int = 1024
    seeds: int = 16


@system.experiment(
    "fig-6.3",
    "Three layers with two heads: new patterns, and the length of the context",
    presets={
        "smoke": ThreeLayers(steps=10, emb=16, prompts=64, sums=(0.0, 1.2), lengths=(5, 20), seeds=2),
        "quick": ThreeLayers(),
        "paper": ThreeLayers(steps=4000, seeds=32),
    },
    stand_in="a 3-layer 2-head decoder of width 64 trained from scratch for the document's GPT-2",
)
def three_layers(s: ThreeLayers) -> xr.Dataset:
    task = prompts_of(s, shifts=s.shifts)
    decoder = CausalTransformer(
        s.layers, s.heads, s.emb, mlp=4 * s.emb, positions="learned", reads="last", scale=s.scale
    )
    learner = Adam(lr=s.lr, batch=s.batch, schedule=LinearDecay(s.steps))
    run = sweep(
        spec(
            task,
            decoder,
            learner,
            s.steps,
            seeds=s.seeds,
            probes=(accuracy,),
            every=max(1, s.steps // 10),
            validation=s.prompts,
        )
    )

    def measure(network, key):
        tests = [replace(t, alpha=alpha) for t in (task.unseen, out_of_domain(task, K=s.K)) for alpha in s.alphas]
        batches = [test.sample(key, s.prompts) for test in tests]
        x, z = (jnp.concatenate([getattr(batch, name) for batch in batches]) for name in ("x", "y"))

        def with_examples(length):
            outputs = outputs_on(network, jnp.concatenate([x[:, :length], x[:, -1:]], axis=1))
            return jnp.mean((z * outputs < 0).reshape(2, len(s.alphas), s.prompts), axis=-1)

        shifted = _errors_by_sum(network, key, task, s.sums, s.scales, s.prompts)["error"]
        return {"shifted": shifted, "lengths": jnp.stack([with_examples(length) for length in s.lengths], axis=-1)}

    found = over_networks(run.networks, measure)
    return xr.Dataset(
        {
            "unseen": 1 - run.data.accuracy,
            "error": (("seed", "K", "S_1"), found["shifted"]),
            "by_length": (("seed", "domain", "alpha", "length"), found["lengths"]),
        },
        coords={
            "K": list(s.scales),
            "S_1": list(s.sums),
            "domain": ["in", "out"],
            "length": list(s.lengths),
            "alpha": list(s.alphas),
        },
    )


def _small_where_sufficient(ds: xr.Dataset, K: float) -> dict[str, Verdict]:
    """Error <= 0.01 at every S_1 >= 1."""
    error = ds.error.sel(K=K)
    sufficient = ds.S_1.values[ds.S_1 >= 1]
    return {f"S_1={total:g}": at_most(error.sel(S_1=total), 0.01, over="seed") for total in sufficient}


@three_layers.claim(
    "22.4",
    "Three layers, two heads, trained on 24 tasks: error <= 0.01 on the 6 unseen tasks and, at K' = K = 0.5, out of "
    "domain for every S_1 >= 1",
    source="Fig 6.3a",
    presets=("paper",),
    finding="At a constant rate most of 256 networks make no error after 2000 steps, but the loss of a few is on a "
    "spike when training stops: the mean at S_1 = 1.28 was 0.0071 (0.0042 to 0.0102), which decides nothing. With a "
    "rate that falls to zero and 1000 steps 3 of 16 networks still err in 3 % to 7 % of the prompts (0.011, 0.000 to "
    "0.023): hence 4000.",
)
def three_layers_generalise(ds: xr.Dataset):
    unseen = at_most(ds.unseen.isel(step=-1), 0.01, over="seed")
    return all_of(unseen=unseen, **_small_where_sufficient(ds, 0.5))


@three_layers.claim(
    "22.4-printed",
    "Three layers, two heads, at the printed K' = 5: error < 0.01 for every S_1 >= 1",
    source="Fig 6.3a, §6.5",
    presets=("quick", "paper"),
    finding="Trained at K = 0.5, the decoder is wrong on 28 % of the prompts whose irrelevant parts reach K' = 5 after "
    "400 steps, and on 13 % after 4000.",
)
def three_layers_as_printed(ds: xr.Dataset):
    return all_of(**_small_where_sufficient(ds, 5.0))


@three_layers.figure
def plot_three_layers(ds: xr.Dataset):
    figure, (left, right) = new_figure(2, size=(6.8, 2.7))
    for i, K in enumerate(ds.K.values):
        curve_with_spread(left, ds.error.sel(K=K), x="S_1", label=f"K' = {K:g}", marker="o", color=COLOURS[i])
    reported(left, 0.01, "reported: < 0.01 for $S_1$ ≥ 1")
    reported(left, 1.0, None, axis="x")
    left.set(xlabel="sum of coefficients $S_1$", ylabel="out-of-domain error", title="a")
    left.set_yscale("symlog", linthresh=0.01)
    left.set_ylim(0, None)
    left.legend(loc="center right", bbox_to_anchor=(1.0, 0.62), fontsize=6)
    _draw_lengths(right, ds.by_length)
    right.set(title="b: query at positions it was not trained on")
    return figure


def _draw_lengths(ax, error: xr.DataArray) -> None:
    """Error against the length of the context with the law of the uncovered prompts, P_0 and P_0/2."""
    for i, alpha in enumerate(error.alpha.values):
        for domain, style in zip(error.domain.values, ("-", ":"), strict=True):
            values = error.sel(alpha=alpha, domain=domain)
            curve_with_spread(
                ax, values, x="length", label=f"α' = {alpha:g}, {domain}", color=COLOURS[i], linestyle=style
            )
        P0 = uncovered(alpha, error.length)
        theory(ax, error.length, P0, "$P_0$ and $P_0/2$" if i == 0 else None)
        theory(ax, error.length, P0 / 2, None)
    ax.set(xlabel="examples in the prompt $l_{ts}$", ylabel="error", yscale="log", ylim=(3e-4, 1))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(fontsize=5, ncols=2, loc="upper right")


# ------------------------------------------------------------------------------------------- Figure 6.3b


@dataclass(frozen=True)
class Lengths(Training):
    alphas: tuple[float, ...] = (0.3, 0.5, 0.8)
    lengths: tuple[int, ...] = (*range(1, 21), 22, 24, 26, 28, 30, 35, 40)
    test_K: float = 5.0
    prompts: int = 2048


@system.experiment(
    "fig-6.3b-one-layer",
    "How long a context must be: the law of the uncovered prompts",
    presets={
        "smoke": Lengths(steps=60, prompts=128, lengths=(2, 5, 10, 20, 40), seeds=2),
        "quick": Lengths(),
        "paper": Lengths(prompts=16_384, seeds=64),
    },
)
def lengths(s: Lengths) -> xr.Dataset:
    task = replace(prompts_of(s), length=max(s.lengths))
    run = sweep(training(s))

    def measure(network, key):
        def at(test, alpha):
            batch = replace(test, alpha=alpha).sample(key, s.prompts)
            return errors(outputs_by_length(network, batch.x, s.lengths), batch.y)

        tests = (task.unseen, out_of_domain(task, K=s.test_K))
        return jax.tree.map(
            lambda *a: jnp.stack(a), *(jax.lax.map(lambda a, t=t: at(t, a), jnp.asarray(s.alphas)) for t in tests)
        )

    found = over_networks(run.networks, measure)
    return xr.Dataset(
        {name: (("seed", "domain", "alpha", "length"), value) for name, value in found.items()},
        coords={"domain": ["in", "out"], "alpha": list(s.alphas), "length": list(s.lengths)},
        attrs={"prompts": s.prompts * s.seeds},
    )


@lengths.claim(
    "22.5",
    "The smallest l_ts with error <= 0.05 strictly decreases in alpha' over 0.3, 0.5, 0.8, in and out of domain",
    source="Fig 6.3b, (6.9)",
    presets=("quick", "paper"),
)
def longer_for_fewer(ds: xr.Dataset):
    def shorter(fewer: np.ndarray, more: np.ndarray) -> float:
        return smallest_length(fewer, ds.length.values) - smallest_length(more, ds.length.values)

    parts = {}
    for domain in ("in", "out"):
        error = {alpha: ds.error.sel(domain=domain, alpha=alpha) for alpha in (0.3, 0.5, 0.8)}
        for low, high in ((0.3, 0.5), (0.5, 0.8)):
            parts[f"{domain}_{low:g}_{high:g}"] = at_least((error[low], error[high]), 1.0, stat=shorter, over="seed")
    return all_of(**parts)


@lengths.claim(
    "22.6",
    "In domain the error lies in [P_0/2 - 3 s.e., P_0 + 0.01], P_0 = (1 - alpha'/2)^l, for alpha' in {0.3, 0.5, 0.8} "
    "and l in {2, 5, 10, 20, 40}",
    source="derived from §6.3.2; l_ts of Thm 6.3.3",
    presets=("quick", "paper"),
)
def coverage_law(ds: xr.Dataset):
    parts = {}
    for alpha in (0.3, 0.5, 0.8):
        for length in (2, 5, 10, 20, 40):
            error = ds.error.sel(domain="in", alpha=alpha, length=length)
            P0 = float(uncovered(alpha, length))
            # 3 standard errors of a frequency P_0/2: that of the replicas is 0 where none errs
            slack = 3 * (P0 / 2 * (1 - P0 / 2) / ds.attrs["prompts"]) ** 0.5
            parts[f"{alpha:g}_{length}"] = between(error, P0 / 2 - slack, P0 + 0.01, over="seed")
    return all_of(**parts)


@lengths.figure
def plot_lengths(ds: xr.Dataset):
    figure, ax = new_figure(size=(3.8, 2.9))
    _draw_lengths(ax, ds.error)
    return figure


@lengths.figure
def plot_coverage(ds: xr.Dataset):
    figure, axes = new_figure(2, size=(6.4, 2.3))
    for ax, domain in zip(axes, ds.domain.values, strict=True):
        error = ds.error.sel(domain=domain).mean("seed").transpose("alpha", "length")
        mesh = ax.pcolormesh(
            ds.length, np.arange(ds.sizes["alpha"]), np.log10(np.maximum(error, 1e-4)), shading="nearest"
        )
        law = uncovered(ds.alpha.values[:, None], ds.length.values)
        drawn = ax.contour(ds.length, np.arange(ds.sizes["alpha"]), law, levels=[0.01, 0.05, 0.2], colors="white")
        ax.clabel(drawn, fmt=lambda level: f"$P_0$ = {level:g}", fontsize=6)
        ax.set_yticks(np.arange(ds.sizes["alpha"]), [f"{a:g}" for a in ds.alpha.values])
        ax.set(xlabel="examples $l_{ts}$", ylabel="α'", title=f"{domain} of domain" if domain == "out" else "in domain")
        figure.colorbar(mesh, ax=ax, label="log10 error")
    return figure
