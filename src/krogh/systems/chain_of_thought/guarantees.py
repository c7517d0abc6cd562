"""When chain of thought is guaranteed: span, examples, noise; the vote behind it and a control (004 Theorem 4)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.lab import all_of, at_least, at_most, between
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, theory
from krogh.systems.chain_of_thought import system
from krogh.systems.chain_of_thought.inference import equal_steps, last_step
from krogh.systems.chain_of_thought.learning import SMOKE_TEST, Heads, Testing, ask, trained
from krogh.tasks.chain_of_thought import rotated
from krogh.tasks.prompts import orthonormalised
from krogh.theory import reasoning_chains as rc

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def default_task(s: Testing, tau: float = 0.5, rho: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
    """The document's test task (§7.5) with errors spread evenly over the steps, one per seed."""
    maps = rc.shifts(s.test_patterns, s.K)
    return maps, rc.erroneous(np.random.default_rng(0), maps, equal_steps(tau, s.K), rho, s.seeds, exact=False)


# ------------------------------------------------------------------------------------------- the span


@dataclass(frozen=True)
class Span(Testing):
    """d = 40 leaves room for M' test patterns orthogonal to the training patterns and to the c_k."""

    d: int = 40
    lengths: tuple[int, ...] = (40, 80)
    alphas: tuple[float, ...] = (0.1, 0.8)


@system.experiment(
    "thm-4-span",
    "Test patterns must lie in the span of the training patterns",
    presets={
        "smoke": Span(**SMOKE_TEST | {"d": 14}),
        "quick": Span(),
        "paper": Span(lengths=(10, 20, 40, 80, 160), queries=1024, at_once=256, seeds=64),
    },
)
def span(s: Span) -> xr.Dataset:
    heads = trained(s)
    maps, A = default_task(s)
    inside = rotated(jax.random.split(jax.random.key(2), s.seeds), s.test_patterns, heads.patterns)
    outside = outside_span(jax.random.key(3), s.test_patterns, heads)
    cases = [(where, alpha) for where in ("in the span", "orthogonal to it") for alpha in s.alphas]
    given = [inside if where == "in the span" else outside for where, _ in cases]
    data = ask(heads, s, maps, [A] * len(cases), [alpha for _, alpha in cases], patterns=given)
    shape = (2, len(s.alphas))
    where = [cases[0][0], cases[-1][0]]
    stacked = {
        name: (("where", "alpha", *v.dims[1:]), v.values.reshape(*shape, *v.shape[1:])) for name, v in data.items()
    }
    return xr.Dataset(stacked, coords={"where": where, "alpha": list(s.alphas), **data.coords})


def outside_span(key: PRNGKeyArray, count: int, heads: Heads) -> Float[Array, "seeds {count} d"]:
    """Random orthonormal vectors orthogonal to every training pattern and step vector, for each seed."""
    frame = jnp.concatenate([heads.patterns, heads.steps], axis=1)
    free = jax.random.normal(key, (len(frame), count, frame.shape[2]))
    return jax.vmap(orthonormalised)(jnp.concatenate([frame, free], axis=1))[:, -count:]


@span.claim(
    "23.10",
    "alpha' = .1, l = 80: CoT error <= .08 in the span of the training patterns, >= .6 orthogonal to it",
    source="(7.19)",
    presets=("quick", "paper"),
)
def span_matters(ds: xr.Dataset):
    cot = ds.cot.sel(alpha=0.1, length=80)
    return all_of(
        inside=at_most(cot.isel(where=0), 0.08, over="seed"), outside=at_least(cot.isel(where=1), 0.6, over="seed")
    )


@span.claim(
    "23.10b",
    "At the document's alpha' = .8 the span condition is not needed: orthogonal to the training patterns CoT error is "
    "<= .05 at l = 40, by attention to the step alone",
    source="§7.5",
    presets=("quick", "paper"),
    finding="Where most examples start from the query's pattern, the majority of a step's answers is right; only "
    "alpha' <= .2 tests the matching of patterns.",
)
def large_share_hides_it(ds: xr.Dataset):
    return at_most(ds.cot.isel(where=1).sel(alpha=0.8, length=40), 0.05, over="seed")


@span.figure
def plot_span(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(ds.sizes["alpha"], size=(6.4, 2.5), sharey=True)
    for ax, alpha in zip(axes, ds.alpha.values, strict=True):
        for i, where in enumerate(ds["where"].values):
            one = ds.isel(where=i).sel(alpha=alpha)
            curve_with_spread(ax, one.cot, x="length", label=where, color=COLOURS[i], marker="o")
            if i == 0:
                theory(ax, ds.length, one.cot_vote.mean("seed"), "vote with perfect attention")
        ax.set(xlabel="test examples $l_{ts}$", title=f"α' = {alpha:g}", ylim=(-0.02, 1.02))
    axes[0].set_ylabel("CoT error")
    axes[-1].legend(loc="upper right")
    return figure


# ------------------------------------------------------------------------------------------- the number of examples


# Each about a quarter longer than the one before.
LONGER = (32, 40, 50, 64, 80, 100, 128, 160, 200, 256, 320, 400, 512, 640, 800, 1024)


@dataclass(frozen=True)
class Bound(Testing):
    """Errors in the last step alone, so that ρ is free; `level` is the error that counts as none."""

    lengths: tuple[int, ...] = (*range(2, 12, 2), *range(14, 28, 4), *LONGER)
    queries: int = 64
    alphas: tuple[float, ...] = (0.4, 0.8)
    taus: tuple[float, ...] = (0.3, 0.5)
    rhos: tuple[float, ...] = (0.3, 0.5, 0.7)
    level: float = 0.01


@system.experiment(
    "thm-4-bound",
    "The number of examples needed, against its bound",
    presets={
        "smoke": Bound(**SMOKE_TEST, alphas=(0.8,), rhos=(0.2,)),
        "quick": Bound(seeds=24),
        "paper": Bound(
            lengths=(*range(2, 64, 2), *range(64, 512, 16), *range(512, 832, 32)),
            alphas=(0.2, 0.4, 0.8),
            taus=(0.3, 0.5, 0.6),
            rhos=(0.45, 0.5, 0.6, 0.7),
            queries=256,
            seeds=32,
        ),
    },
)
def bound(s: Bound) -> xr.Dataset:
    maps = rc.shifts(s.test_patterns, s.K)
    rng = np.random.default_rng(0)
    cases = [(alpha, tau, rho) for alpha in s.alphas for tau in s.taus for rho in s.rhos]
    A = [rc.erroneous(rng, maps, last_step(tau, s.K), rho, s.seeds) for _, tau, rho in cases]
    data = ask(trained(s), s, maps, A, [alpha for alpha, *_ in cases])[["cot", "cot_vote"]]
    alpha = np.array([alpha for alpha, *_ in cases])
    tau, rho = (np.array([quantity(maps, a).mean() for a in A]) for quantity in (rc.tau, rc.primacy))
    needed = rc.examples_needed(alpha, tau, rho, s.M)
    data = data.assign(alpha=("case", alpha), tau=("case", tau), rho=("case", rho), bound=("case", needed))
    return data.assign_attrs(level=s.level)


def shortest(errors: np.ndarray, lengths: np.ndarray, level: float) -> np.ndarray:
    """The first length from which on the seeds' mean error (seed, case, length) stays at most `level`; inf if none."""
    low = errors.mean(0) <= level
    stays = np.flip(np.logical_and.accumulate(np.flip(low, -1), axis=-1), -1)
    return np.where(stays.any(-1), lengths[stays.argmax(-1)], np.inf)


@bound.claim(
    "23.12",
    "Over combinations of alpha', tau, rho the shortest prompt with CoT error <= .01 is <= C (alpha' tau rho)^-2 log M "
    "with C <= 2, and its rank correlation with that bound is >= .8",
    source="(7.20)",
    presets=("quick", "paper"),
)
def bound_form(ds: xr.Dataset):
    from scipy.stats import spearmanr

    errors = ds.cot.transpose("seed", "case", "length")

    def lengths(errors: np.ndarray) -> np.ndarray:
        return shortest(errors, ds.length.values, ds.attrs["level"])

    return all_of(
        constant=at_most(errors, 2.0, stat=lambda e: (lengths(e) / ds.bound.values).max(), over="seed"),
        ranks=at_least(errors, 0.8, stat=lambda e: spearmanr(lengths(e), ds.bound.values)[0], over="seed"),
    )


@bound.figure
def plot_bound(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = new_figure(2, size=(7.2, 2.8))
    level = ds.attrs["level"]
    for i in range(ds.sizes["case"]):
        one = ds.isel(case=i)
        curve_with_spread(left, one.cot, x="length", color=COLOURS[i % 8], linewidth=0.8)
    left.axhline(level, color="0.5", linestyle=":", linewidth=1, label=f"error {level:g}")
    left.set(xscale="log", xlabel="test examples $l_{ts}$", ylabel="CoT error", ylim=(0, None))
    left.set_title("one curve for each α', τ, ρ (median, 10–90 %)")
    left.legend()
    ours = shortest(ds.cot.transpose("seed", "case", "length").values, ds.length.values, level)
    vote = shortest(ds.cot_vote.transpose("seed", "case", "length").values, ds.length.values, level)
    for alpha, marker in zip(np.unique(ds.alpha), "os^", strict=False):
        mine = ds.alpha.values == alpha
        right.plot(ds.bound[mine], ours[mine], marker, color=COLOURS[0], label=f"head, α' = {alpha:g}")
    right.plot(ds.bound, vote, "k+", label="vote with perfect attention")
    finite = np.isfinite(ours)
    grid = np.array([float(ds.bound.min()), float(ds.bound.max())])
    if finite.any():
        constant = (ours / ds.bound.values)[finite].max()
        theory(right, grid, constant * grid, f"C (α'τρ)$^{{-2}}$ log M, C = {constant:.2g}")
    right.set(xscale="log", yscale="log", xlabel="(α'τρ)$^{-2}$ log M", ylabel=f"$l_{{ts}}$ for error ≤ {level:g}")
    right.set_ylim(1, 2 * float(ds.length.max()))
    right.legend(fontsize=6)
    return figure


# ------------------------------------------------------------------------------------------- noise, and no training


@dataclass(frozen=True)
class Noise(Testing):
    lengths: tuple[int, ...] = (40,)
    queries: int = 512
    noises: tuple[float, ...] = (0.0, 0.2, 0.5, 0.7071)
    test_alpha: float = 0.8


@system.experiment(
    "thm-4-noise",
    "Noise orthogonal to the patterns does no harm",
    presets={
        "smoke": Noise(**SMOKE_TEST),
        "quick": Noise(),
        "paper": Noise(queries=4096, at_once=512, seeds=64),
    },
)
def noise(s: Noise) -> xr.Dataset:
    maps, A = default_task(s)
    cases = len(s.noises)
    data = ask(trained(s), s, maps, [A] * cases, [s.test_alpha] * cases, s.noises)
    return data[["cot", "cot_vote", "icl"]].rename(case="noise").assign_coords(noise=list(s.noises))


@noise.claim(
    "23.16",
    "CoT error at l = 40 differs by <= .01 between ||delta|| = 0 and .2, .5, .707",
    source="(7.11)",
    presets=("quick", "paper"),
)
def noise_is_harmless(ds: xr.Dataset):
    change = ds.cot.isel(length=-1) - ds.cot.isel(length=-1, noise=0)
    return all_of(
        **{f"{size:.3g}": between(change.sel(noise=size), -0.01, 0.01, over="seed") for size in ds.noise.values[1:]}
    )


@noise.figure
def plot_noise(ds: xr.Dataset) -> "Figure":
    figure, ax = new_figure(size=(3.6, 2.4))
    last = ds.isel(length=-1)
    for name, colour in (("cot", COLOURS[0]), ("icl", COLOURS[1])):
        curve_with_spread(
            ax, last[name], x="noise", label=name.replace("cot", "CoT").replace("icl", "ICL"), color=colour
        )
    theory(ax, ds.noise, last.cot_vote.mean("seed"), "vote")
    ax.set(xlabel="‖δ‖", ylabel=f"error at l = {int(last.length)}", ylim=(-0.002, 0.05))
    ax.legend()
    return figure


@dataclass(frozen=True)
class Control(Testing):
    lengths: tuple[int, ...] = (40,)
    alphas: tuple[float, ...] = (0.1, 0.2, 0.8)
    xi: float = 0.0
    eta: float = 0.0
    steps: int = 1


@system.experiment(
    "control-uniform",
    "Without training, attention is uniform and chain of thought fails",
    presets={
        "smoke": Control(**{k: v for k, v in SMOKE_TEST.items() if k != "steps"}),
        "quick": Control(),
        "paper": Control(queries=4096, at_once=512, seeds=64),
    },
)
def control(s: Control) -> xr.Dataset:
    maps, A = default_task(s)
    data = ask(trained(s), s, maps, [A] * len(s.alphas), s.alphas)
    return data[["cot", "cot_vote", "icl"]].rename(case="alpha").assign_coords(alpha=list(s.alphas))


@control.claim(
    "23.20",
    "With W = 0 CoT error is >= .6 at l = 40 for alpha' = .1, .2, .8",
    source="control",
    presets=("quick", "paper"),
)
def uniform_fails(ds: xr.Dataset):
    last = ds.cot.isel(length=-1)
    return all_of(**{f"alpha {a:g}": at_least(last.sel(alpha=a), 0.6, over="seed") for a in ds.alpha.values})


@control.figure
def plot_control(ds: xr.Dataset) -> "Figure":
    figure, ax = new_figure(size=(3.6, 2.4))
    last = ds.isel(length=-1)
    curve_with_spread(ax, last.cot, x="alpha", label="CoT, W = 0", marker="o")
    theory(ax, ds.alpha, last.cot_vote.mean("seed"), "vote with perfect attention")
    ax.set(xlabel="α'", ylabel=f"error at l = {int(last.length)}", ylim=(-0.02, 1))
    ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- the vote (F.63)


@dataclass(frozen=True)
class Oracle(Testing):
    lengths: tuple[int, ...] = (10, 20, 40)
    queries: int = 512
    alphas: tuple[float, ...] = (0.2, 0.4, 0.8)


@system.experiment(
    "eq-F.63",
    "The trained head is a vote among the examples in the query's state",
    presets={
        "smoke": Oracle(**SMOKE_TEST),
        "quick": Oracle(),
        "paper": Oracle(lengths=(5, 10, 20, 40, 80), queries=4096, at_once=512, seeds=64),
    },
)
def oracle(s: Oracle) -> xr.Dataset:
    maps, A = default_task(s)
    data = ask(trained(s), s, maps, [A] * len(s.alphas), s.alphas)
    kept = data[["cot", "cot_vote", "icl", "icl_vote", "cot_steps", "cot_vote_steps"]]
    return kept.rename(case="alpha").assign_coords(alpha=list(s.alphas))


@oracle.claim(
    "23.15",
    "|network - vote| <= .04 in CoT and ICL error, for alpha' = .2, .4, .8 and l = 10, 20, 40",
    source="(F.63)",
    presets=("quick", "paper"),
)
def head_is_a_vote(ds: xr.Dataset):
    parts: dict[str, Any] = {}
    for name in ("cot", "icl"):
        gap = ds[name] - ds[f"{name}_vote"]
        for alpha in ds.alpha.values:
            for length in (10, 20, 40):
                here = gap.sel(alpha=alpha, length=length)
                parts[f"{name}, alpha {alpha:g}, l = {length}"] = between(here, -0.04, 0.04, over="seed")
    return all_of(**parts)


@oracle.figure
def plot_oracle(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(2, size=(6.6, 2.6), sharey=True)
    for ax, name in zip(axes, ("cot", "icl"), strict=True):
        for i, alpha in enumerate(ds.alpha.values):
            one = ds.sel(alpha=alpha)
            curve_with_spread(ax, one[name], x="length", label=f"head, α' = {alpha:g}", color=COLOURS[i], marker="o")
            theory(ax, ds.length, one[f"{name}_vote"].mean("seed"), "vote" if i == 0 else None)
        ax.set(xlabel="test examples $l_{ts}$", title="CoT" if name == "cot" else "ICL", ylim=(-0.02, None))
    axes[0].set_ylabel("error")
    axes[0].legend()
    return figure


@oracle.figure
def plot_steps(ds: xr.Dataset) -> "Figure":
    """CoT error of every step; the document's error (7.7) is their mean."""
    figure, axes = new_figure(ds.sizes["alpha"], size=(2.8 * ds.sizes["alpha"], 2.5), sharey=True)
    for ax, alpha in zip(axes, ds.alpha.values, strict=True):
        for i, k in enumerate(ds.k.values):
            one = ds.sel(alpha=alpha, k=k)
            curve_with_spread(ax, one.cot_steps, x="length", label=f"step {k}", color=COLOURS[i], marker="o")
            theory(ax, ds.length, one.cot_vote_steps.mean("seed"), "vote" if i == 0 else None)
        ax.set(xlabel="test examples $l_{ts}$", title=f"α' = {alpha:g}", ylim=(-0.02, None))
    axes[0].set_ylabel("Pr[$v_k ≠ z_k$]")
    axes[0].legend()
    return figure
