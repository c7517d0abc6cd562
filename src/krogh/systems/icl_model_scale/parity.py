"""Parities by rectified heads: the construction of Theorem 5.5.1 and how its two sizes behave (000 §5.5, §D.3)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, between, equals, every
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, theory
from krogh.nn.linear_attention import ReluHeads
from krogh.systems.icl_model_scale import system
from krogh.systems.icl_model_scale.sampling import Prompts
from krogh.tasks.parity_prompts import ParityPrompts, ordered_pairs
from krogh.theory.linear_attention import (
    Heads,
    binary_heads,
    digits,
    hinge,
    mixture_threshold,
    projection,
    small_heads,
    unanswered,
)
from krogh.train.seeds import over_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ------------------------------------------------------------------------------------------- the construction


@dataclass(frozen=True)
class Construction:
    largest: int = 6
    gamma: float = 0.1


@system.experiment(
    "thm-5.5.1", "The printed heads compute y times a Hamming distance", presets={"quick": Construction()}
)
def construction(s: Construction) -> xr.Dataset:
    sizes = range(1, s.largest + 1)
    shape = (s.largest, s.largest)
    error, least = np.zeros(s.largest), np.zeros(s.largest)
    on_first, silent, expected, loss_small, loss_large = (np.full(shape, np.nan) for _ in range(5))
    for row, nu in enumerate(sizes):
        d = 2**nu
        codes = digits(d, nu)
        differ = codes[:, :, None] != codes[:, None]
        large = binary_heads(d, nu, s.gamma).margins(s.gamma)
        error[row] = np.nanmax(abs(large - differ.sum(axis=0)[..., None]))
        least[row] = np.nanmin(large)
        for column, nu_1 in enumerate(range(1, nu)):
            small = binary_heads(d, nu_1, s.gamma).margins(s.gamma)
            first, second = (tuple(pairs.T) for pairs in ordered_pairs(d, 2**nu_1))
            error[row] = max(error[row], np.nanmax(abs(small - differ[:nu_1].sum(axis=0)[..., None])))
            on_first[row, column] = hinge(small, s.gamma)[first].max()
            silent[row, column] = (abs(small[second]) < 1e-12).all(axis=-1).sum()
            expected[row, column] = unanswered(d, 2**nu_1)
            quiet = ~differ[:nu_1].any(axis=0)[second]
            loss_small[row, column] = abs(hinge(small, s.gamma)[second][quiet] - 1).max()
            loss_large[row, column] = hinge(large, s.gamma)[second][quiet].max()
    dims = ("nu_2", "nu_1")
    return xr.Dataset(
        {
            "error": ("nu_2", error),
            "least_margin": ("nu_2", least),
            "small_on_first": (dims, on_first),
            "silent": (dims, silent),
            "silent_expected": (dims, expected),
            "small_on_silent": (dims, loss_small),
            "large_on_silent": (dims, loss_large),
            "threshold": ("nu_2", [mixture_threshold(2**nu, s.gamma) for nu in sizes]),
        },
        coords={"nu_2": list(sizes), "nu_1": list(sizes)},
        attrs={"gamma": s.gamma},
    )


@construction.claim(
    "04.10",
    "g_2 = y * Hamming distance for all tasks and signs, nu_2 = 1..6, margin 1 at least; g_1 has no loss on S_1 and "
    "is 0 on exactly d(d/k - 1) ordered pairs of S_2",
    source="Thm 5.5.1",
    finding="The construction does what it should. §5.5.1 says that the further heads serve labels from dimensions "
    "other than the first two; in fact g_1 already answers every pair that differs in its lowest digits.",
)
def hamming(ds: xr.Dataset):
    there = np.isfinite(ds.silent.values)
    return all_of(
        identity=equals(ds.error, 0.0, 1e-12),
        margin=equals(ds.least_margin, 1.0, 1e-12),
        first_tasks=equals(ds.small_on_first.values[there], 0.0, 1e-12),
        silent=equals(ds.silent.values[there], ds.silent_expected.values[there]),
    )


@construction.claim(
    "04.14",
    "On S_2 tasks with equal low digits the hinge loss of g_1 is 1 and that of g_2 is 0",
    source="Thm 5.5.1",
)
def large_needed(ds: xr.Dataset):
    there = np.isfinite(ds.silent.values)
    return all_of(
        small=equals(ds.small_on_silent.values[there], 0.0, 1e-12),
        large=equals(ds.large_on_silent.values[there], 0.0, 1e-12),
    )


@construction.figure
def plot_construction(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = new_figure(2)
    d, k = 2.0**ds.nu_2, 2.0**ds.nu_1
    share = ds.silent / (d * (d - 1) - k * (k - 1))
    for nu_1 in ds.nu_1.values[:-1]:
        left.plot(ds.nu_2, share.sel(nu_1=nu_1), "o-", ms=3, label=f"ν₁ = {nu_1}")
    left.set(xlabel="ν₂ = log₂ d", ylabel="share of S₂ on which g₁ = 0")
    left.legend()
    right.semilogy(ds.nu_2[1:], ds.threshold[1:], "o-")
    right.set(xlabel="ν₂ = log₂ d", ylabel="largest p_T allowed", title=f"γ = {ds.attrs['gamma']:g}")
    return figure


# ------------------------------------------------------------------------------------------- the worked example


@dataclass(frozen=True)
class Example:
    gamma: float = 0.1


PRINTED = np.array(
    [
        [-1, 1, -1, 1, -1, 1, -1, 1],
        [-1, -1, 1, 1, -1, -1, 1, 1],
        [-1, -1, -1, -1, 1, 1, 1, 1],
        [-3, -3, -3, -3, -3, -3, -3, -3],
    ]
)


@system.experiment("example-5.5.1", "The printed heads for eight features", presets={"quick": Example()})
def example(s: Example) -> xr.Dataset:
    large, small = binary_heads(8, 3, s.gamma), binary_heads(8, 1, s.gamma)
    kept = np.array(small_heads(1, 3)) - 1
    literal = Heads(large.a[kept], large.V[kept])
    tasks = [(0, 1), (1, 0), (0, 2)]
    return xr.Dataset(
        {
            "V": (("head", "feature"), 4 * s.gamma * large.V),
            "a": ("head", large.a),
            "printed": (("head", "feature"), np.concatenate([PRINTED, -PRINTED])),
            "kept": ("kept_head", kept + 1),
            "small_V": (("kept_head", "feature"), 4 * s.gamma * small.V),
            "literal_V": (("kept_head", "feature"), 4 * s.gamma * literal.V),
            "margins": (("task", "sign"), [small.margins(s.gamma)[task] for task in tasks]),
            "literal_margins": (("task", "sign"), [literal.margins(s.gamma)[task] for task in tasks]),
            "large_table": (("i", "j"), large.margins(s.gamma).min(axis=-1)),
            "small_table": (("i", "j"), small.margins(s.gamma).min(axis=-1)),
        },
        coords={"task": ["(1, 2)", "(2, 1)", "(1, 3)"]},
    )


@example.claim(
    "04.11",
    "The heads for nu_2 = 3 equal the printed diagonals; heads {1, 4, 5, 8} at the scale 1/(4 gamma) classify (1, 2) "
    "and (2, 1) with margin 1 and output 0 on (1, 3)",
    source="example for Thm 5.5.1",
    finding="g_1 is a subset of g_2's heads only up to the scale of its positive heads, as the appendix says (nu_1 "
    "against nu_2). Taken literally, heads {1, 4, 5, 8} of g_2 classify S_1 too, with margin 3 at y = 1.",
)
def worked_example(ds: xr.Dataset):
    return all_of(
        printed=equals(ds.V, ds.printed, 1e-12),
        signs=equals(ds.a, [-1, -1, -1, 1] * 2),
        kept=equals(ds.kept, [1, 4, 5, 8]),
        classifies=equals(ds.margins.isel(task=slice(0, 2)), 1.0, 1e-12),
        fails=equals(ds.margins.isel(task=2), 0.0, 1e-12),
        literal=at_least(float(ds.literal_margins.isel(task=slice(0, 2)).min(skipna=False)), 1.0),
    )


@example.figure
def plot_example(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(4, 2, size=(8.4, 3.4), sharey=True)
    for ax, head in zip(axes.ravel(), range(ds.sizes["head"]), strict=True):
        colour = COLOURS[1] if head + 1 in ds.kept.values else COLOURS[0]
        ax.bar(ds.feature + 1, ds.V[head], color=colour)
        ax.set(title=f"head {head + 1}, a = {ds.a.values[head]:+.0f}", xlabel="feature")
    axes[0, 0].set_ylabel("4γ V_ii")
    axes[1, 0].set_ylabel("4γ V_ii")
    figure.suptitle("orange: kept by the small model")
    return figure


@example.figure
def plot_tables(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(2, size=(5.6, 2.8))
    for ax, name, title in zip(axes, ("large_table", "small_table"), ("g₂", "g₁"), strict=True):
        ax.imshow(ds[name], cmap="Blues", vmin=0, vmax=3)
        for i in range(8):
            for j in range(8):
                ax.text(j, i, "" if i == j else f"{float(ds[name][i, j]):.0f}", ha="center", va="center", fontsize=6)
        ax.set(xticks=range(8), yticks=range(8), xticklabels=range(1, 9), yticklabels=range(1, 9))
        ax.set(title=f"{title}: least margin on the pair (i, j)")
    return figure


# ------------------------------------------------------------------------------------------- Theorem 5.5.2

GROUPS = 20


@dataclass(frozen=True)
class Behaviour:
    """Cases (ν_1, ν_2, γ); the query's task is drawn from S_1, or from S_2."""

    cases: tuple[tuple[int, int, float], ...] = ((1, 4, 0.2), (2, 4, 0.2))
    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    prompts: int = 8000
    numbers: int = 4_000_000
    noise_draws: int = 200_000


@system.experiment(
    "thm-5.5.2",
    "Small and large models on prompts of finite length",
    presets={
        "smoke": Behaviour(cases=((1, 4, 0.2),), lengths=(16, 64), prompts=400, noise_draws=2000),
        "quick": Behaviour(),
        "paper": Behaviour(
            cases=((1, 3, 0.1), (1, 4, 0.2), (2, 4, 0.2), (1, 6, 0.2)), prompts=100_000, numbers=50_000_000
        ),
    },
)
def behaviour(s: Behaviour) -> xr.Dataset:
    parts = []
    for nu_1, nu_2, gamma in s.cases:
        heads = binary_heads(2**nu_2, nu_1, gamma), binary_heads(2**nu_2, nu_2, gamma)
        parts.append(_energies(heads, s).merge(_sampled(heads, 2**nu_1, gamma, s)))
        parts[-1]["ratio_closed"] = (nu_1 + 1) / (nu_2 + 1)
    names = [f"ν₁ = {nu_1}, ν₂ = {nu_2}, γ = {gamma:g}" for nu_1, nu_2, gamma in s.cases]
    return xr.concat(parts, "case").assign_coords(case=names)


def _groupable(split: tuple[int, int]) -> tuple[int, int]:
    """So many batches that groups of them can be averaged: sizes that need more of them then have as many means."""
    batches, size = split
    return -(-batches // GROUPS) * GROUPS, size


def _energies(heads: tuple[Heads, Heads], s: Behaviour) -> xr.Dataset:
    """tr P_D of both models, and sampled means of ‖P_D Ξ‖² with Ξ the mean of M uniform sign vectors."""
    P = [projection(h) for h in heads]
    d, M = len(P[0]), min(s.lengths)
    batches, size = _groupable(Prompts(s.noise_draws).split(M * d))

    def measure(key):
        Xi = jax.random.rademacher(key, (size, M, d), jnp.float32).mean(axis=1)
        return jnp.stack([jnp.mean(jnp.sum((Xi @ jnp.asarray(p, jnp.float32)) ** 2, axis=1)) for p in P])

    energy = over_seeds(measure, batches).reshape(GROUPS, -1, 2).mean(axis=1)
    return xr.Dataset(
        {"trace": ("model", [np.trace(p) for p in P]), "energy": (("noise_batch", "model"), energy)},
        coords={"model": ["small", "large"]},
    )


def _sampled(heads: tuple[Heads, Heads], k: int, gamma: float, s: Behaviour) -> xr.Dataset:
    """Accuracy, hinge loss and distance from the limit M → ∞ of both models on prompts from S_1 and S_2."""
    d = heads[0].V.shape[1]
    base = ParityPrompts(d, k, 1, gamma, 0.0, rotated=True).instance(jax.random.key(0))
    assert base.dictionary is not None
    G = base.dictionary
    networks = [
        ReluHeads(jnp.einsum("ij,hj,kj->hik", G, jnp.asarray(h.V, jnp.float32), G), jnp.asarray(h.a)) for h in heads
    ]
    limits = [jnp.asarray(np.nan_to_num(h.outputs(gamma)), jnp.float32) for h in heads]
    rows = []
    for M in s.lengths:
        batches, size = _groupable(Prompts(s.prompts, s.numbers).split((M + 1) * d))

        def measure(key, M=M, size=size):
            def one(others):
                batch = ParityPrompts(d, k, M, gamma, others, dictionary=G).sample(key, size)
                i, j = (batch.latents or {})["pair"].T
                phi = batch.x[:, -1, :d] @ G
                signs = jnp.stack([jnp.take_along_axis(phi, p[:, None], 1)[:, 0] for p in (i, j)])
                pattern = (2 * (signs[0] < 0) + (signs[1] < 0)).astype(int)
                g = jnp.stack([jax.vmap(network)(batch.x) for network in networks])
                limit = jnp.stack([table[i, j, pattern] for table in limits])
                margin = g * batch.y
                return (
                    jnp.mean(margin > 0, axis=1),
                    jnp.mean(jax.nn.relu(1 - margin), axis=1),
                    jnp.mean(jnp.abs(g - limit), axis=1),
                )

            return jax.vmap(one)(jnp.array([0.0, 1.0]))

        found = over_seeds(measure, batches)
        rows.append([a.reshape(GROUPS, -1, 2, 2).mean(axis=1) for a in found])
    dims = ("M", "batch", "tasks", "model")
    names = ("accuracy", "hinge", "distance")
    return xr.Dataset(
        {name: (dims, np.stack([row[i] for row in rows])) for i, name in enumerate(names)},
        coords={"M": list(s.lengths), "tasks": ["S₁", "S₂"], "model": ["small", "large"]},
    )


@behaviour.claim(
    "04.12",
    "tr P_{D_1}/tr P_{D_2} = (nu_1 + 1)/(nu_2 + 1); sampled noise energies have that ratio within 2 %",
    source="Thm 5.5.2",
    finding="P_Z = Z (Z^T Z)^{-1} Z^T as printed does not exist, since heads come in opposite pairs; with the "
    "pseudo-inverse the ratio is exact.",
)
def noise_energy(ds: xr.Dataset):
    ratio = ds.energy.sel(model="small") / ds.energy.sel(model="large") / ds.ratio_closed
    sampled = {case: between(ratio.sel(case=case), 0.98, 1.02, over="noise_batch") for case in ds.case.values}
    return all_of(
        exact=equals(ds.trace.sel(model="small") / ds.trace.sel(model="large"), ds.ratio_closed, 1e-9), **sampled
    )


@behaviour.claim(
    "04.12a",
    "On S_1 the output's mean distance from its limit falls as M^(-1/2): exponent in [-.6, -.4] from M = 64 on, for "
    "both sizes, and is larger for the large model at every M",
    source="Thm 5.5.2",
    finding="Main text and appendix print different log factors of eps_j; only the power of M is judged.",
    presets=("quick", "paper"),
)
def deviation(ds: xr.Dataset):
    tail = ds.distance.sel(tasks="S₁", M=slice(64, None))

    def exponent(table: np.ndarray) -> float:
        return float(np.polyfit(np.log(tail.M.values), np.log(table.mean(axis=0)), 1)[0])

    parts = {}
    for case in ds.case.values:
        for model in ds.model.values:
            cell = tail.sel(case=case, model=model).transpose("batch", "M")
            parts[f"{case}, {model}"] = between(cell, -0.6, -0.4, exponent, over="batch")
        means = ds.distance.sel(case=case, tasks="S₁").mean("batch")
        parts[f"{case}, larger"] = every(means.sel(model="large") > means.sel(model="small"))
    return all_of(**parts)


@behaviour.claim(
    "04.13",
    "(nu_1, nu_2, gamma) = (1, 4, .2) on S_1: g_1 is more accurate than g_2 by >= .15 at M = 256 and >= .05 at M = "
    "1024; the hinge loss of g_2 is >= 1.5 times that of g_1 at every M in {16, ..., 1024}",
    source="Thm 5.5.2",
    presets=("quick", "paper"),
)
def small_is_robust(ds: xr.Dataset):
    cell = ds.sel(case="ν₁ = 1, ν₂ = 4, γ = 0.2", tasks="S₁")
    ahead = cell.accuracy.sel(model="small") - cell.accuracy.sel(model="large")
    more = {
        f"hinge_M{M}": at_least(
            (cell.hinge.sel(M=M, model="large").values, cell.hinge.sel(M=M, model="small").values),
            1.5,
            lambda large, small: large.mean() / small.mean(),
        )
        for M in ds.M.values
    }
    return all_of(
        M256=at_least(ahead.sel(M=256), 0.15, over="batch"),
        M1024=at_least(ahead.sel(M=1024), 0.05, over="batch"),
        **more,
    )


@behaviour.figure
def plot_behaviour(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(ds.sizes["case"], 3, squeeze=False, sharex=True)
    for column, case in enumerate(ds.case.values):
        for row, (name, label) in enumerate(
            (("accuracy", "accuracy"), ("hinge", "hinge loss"), ("distance", "|g − limit|"))
        ):
            ax = axes[row, column]
            for model, colour in zip(ds.model.values, COLOURS, strict=False):
                for tasks, style in zip(ds.tasks.values, ("-", ":"), strict=True):
                    cell = ds[name].sel(case=case, model=model, tasks=tasks)
                    curve_with_spread(ax, cell, "M", "batch", f"{model}, {tasks}", color=colour, linestyle=style)
            if name == "distance":
                cell = ds.distance.sel(case=case, model="large", tasks="S₁").mean("batch")
                theory(ax, ds.M, float(cell[-1]) * np.sqrt(float(ds.M[-1]) / ds.M), "M^(−1/2)")
                ax.set(yscale="log", xlabel="examples in the prompt M")
            ax.set(xscale="log", ylabel=label)
        axes[0, column].set_title(case)
    axes[2, 0].legend(fontsize=6)
    return figure
