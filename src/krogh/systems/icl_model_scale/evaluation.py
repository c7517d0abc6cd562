"""Evaluation of the optimal models by rank: what more directions bring and what they cost (000 §5.4.2, §5.7)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_most, between, equals, every
from krogh.lab.figures import COLOURS, new_figure, theory
from krogh.systems.icl_model_scale import system
from krogh.systems.icl_model_scale.sampling import SPECTRUM, Prompts, sampled_losses
from krogh.theory.linear_attention import (
    Evaluation,
    evaluation_loss,
    long_pretraining_loss,
    noise_slope,
    rank_gap,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _on_top(d: int, count: int) -> np.ndarray:
    """The vector of ones on the first `count` directions."""
    return (np.arange(d) < count).astype(float)


# ------------------------------------------------------------------------------------------- Theorem 5.4.2


@dataclass(frozen=True)
class Grid:
    """w is 1 along every eigenvector."""

    spectrum: tuple[float, ...] = SPECTRUM
    N: int = 200
    ranks: tuple[int, ...] = (1, 3, 8)
    lengths: tuple[int, ...] = (8, 16, 64)
    sigmas: tuple[float, ...] = (0.0, 0.5, 1.0)
    prompts: int = 1_000_000
    numbers: int = 2_000_000


@system.experiment(
    "thm-5.4.2",
    "The evaluation loss by rank, label noise and length of the prompt",
    presets={
        "smoke": Grid(prompts=2000),
        "quick": Grid(),
        "paper": Grid(prompts=10_000_000, numbers=50_000_000),
    },
)
def grid(s: Grid) -> xr.Dataset:
    w = np.ones(len(s.spectrum))
    sampled = [
        sampled_losses(s.spectrum, s.N, s.ranks, w, M, Prompts(s.prompts, s.numbers), s.sigmas).error.isel(flip=0)
        for M in s.lengths
    ]
    closed = [
        [[evaluation_loss(s.spectrum, s.N, r, Evaluation(w, M, sigma)) for r in s.ranks] for sigma in s.sigmas]
        for M in s.lengths
    ]
    # batches differ in size between lengths: their means are kept in equal numbers
    count = min(part.sizes["batch"] for part in sampled)
    sampled = [_grouped(part, count) for part in sampled]
    ds = xr.Dataset({"sampled": xr.concat(sampled, "M")}).assign_coords(M=list(s.lengths))
    return ds.assign(closed=(("M", "sigma", "rank"), closed))


def _grouped(values: xr.DataArray, count: int) -> xr.DataArray:
    """`count` groups of neighbouring batches, averaged; what is left over is dropped."""
    per_group = values.sizes["batch"] // count
    kept = values.isel(batch=slice(0, count * per_group))
    return kept.coarsen(batch=per_group).mean()


@grid.claim(
    "04.5",
    "The sampled evaluation loss is within 1.5 % of Theorem 5.4.2 for r in {1, 3, 8}, sigma in {0, .5, 1} and "
    "M in {8, 16, 64}",
    source="Thm 5.4.2",
)
def closed_form(ds: xr.Dataset):
    ratio = ds.sampled / ds.closed
    cells = [(M, sigma, r) for M in ds.M.values for sigma in ds.sigma.values for r in ds["rank"].values]
    return all_of(
        **{
            f"M{M}_sigma{sigma:g}_r{r}": between(ratio.sel(M=M, sigma=sigma, rank=r), 0.985, 1.015, over="batch")
            for M, sigma, r in cells
        }
    )


@grid.figure
def plot_grid(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(ds.sizes["M"], sharey=True)
    for ax, M in zip(axes, ds.M.values, strict=True):
        for sigma in ds.sigma.values:
            cell = ds.sel(M=M, sigma=sigma)
            spread = 1.96 * cell.sampled.std("batch") / np.sqrt(ds.sizes["batch"])
            ax.errorbar(ds["rank"], cell.sampled.mean("batch"), spread, fmt="o", label=f"σ = {sigma:g}")
            theory(ax, ds["rank"], cell.closed, "Thm 5.4.2" if sigma == ds.sigma[-1] else None)
        ax.set(xlabel="rank r", title=f"M = {M}")
    axes[0].set_ylabel("evaluation loss")
    axes[0].legend()
    return figure


# ------------------------------------------------------------------------------------------- Theorem 5.4.3


@dataclass(frozen=True)
class Gap:
    """w is 1 along the first r eigenvectors."""

    spectrum: tuple[float, ...] = SPECTRUM
    N: int = 200
    M: int = 16
    r: int = 2
    larger: tuple[int, ...] = (3, 4, 6, 8)
    sigmas: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    prompts: int = 2_000_000
    numbers: int = 2_000_000


@system.experiment(
    "thm-5.4.3",
    "What directions beyond the needed ones cost",
    presets={
        "smoke": Gap(prompts=4000),
        "quick": Gap(),
        "paper": Gap(prompts=20_000_000, numbers=50_000_000),
    },
)
def gap(s: Gap) -> xr.Dataset:
    d, w = len(s.spectrum), _on_top(len(s.spectrum), s.r)
    ranks = (s.r, *s.larger)
    errors = sampled_losses(s.spectrum, s.N, ranks, w, s.M, Prompts(s.prompts, s.numbers), s.sigmas).error.isel(flip=0)
    worst = 0.0
    for r in range(d + 1):
        for larger in range(r, d + 1):
            for sigma in s.sigmas:
                e = Evaluation(_on_top(d, r), s.M, sigma)
                difference = evaluation_loss(s.spectrum, s.N, larger, e) - evaluation_loss(s.spectrum, s.N, r, e)
                worst = max(worst, abs(difference - rank_gap(s.spectrum, s.N, r, larger, e)))
    closed = [[rank_gap(s.spectrum, s.N, s.r, q, Evaluation(w, s.M, sigma)) for q in s.larger] for sigma in s.sigmas]
    return xr.Dataset(
        {
            "sampled": errors.sel(rank=list(s.larger)) - errors.sel(rank=s.r, drop=True),
            "closed": (("sigma", "rank"), closed),
            "slope": ("rank", [noise_slope(s.spectrum, s.N, s.M, s.r, q) for q in s.larger]),
            "identity_error": worst,
        },
        attrs={"r": s.r, "M": s.M},
    )


@gap.claim(
    "04.6",
    "L(r') - L(r) of Theorem 5.4.2 equals Theorem 5.4.3 within 1e-10 for all r <= r'; sampled on the same prompts "
    "within 5 %",
    source="Thm 5.4.3",
)
def gap_formula(ds: xr.Dataset):
    ratio = ds.sampled / ds.closed
    cells = [(sigma, r) for sigma in ds.sigma.values for r in ds["rank"].values]
    return all_of(
        identity=at_most(float(ds.identity_error), 1e-10),
        **{f"sigma{g:g}_r{r}": between(ratio.sel(sigma=g, rank=r), 0.95, 1.05, over="batch") for g, r in cells},
    )


@gap.claim(
    "04.9",
    "The slope of L(d) - L(r) in sigma^2 is (1/M) sum_{i>r} (N lambda_i/((N+1) lambda_i + tr D))^2 within 3 %",
    source="Thm 5.4.3, implications",
)
def noise_amplification(ds: xr.Dataset):
    largest = ds.sampled.sel(rank=ds["rank"].max())
    centred = ds.sigma**2 - (ds.sigma**2).mean()
    slope = (largest * centred).sum("sigma") / (centred**2).sum()
    return between(slope / ds.slope.sel(rank=ds["rank"].max()), 0.97, 1.03, over="batch")


@gap.figure
def plot_gap(ds: xr.Dataset) -> "Figure":
    figure, ax = new_figure(size=(3.6, 2.6))
    for r in ds["rank"].values:
        cell = ds.sampled.sel(rank=r)
        spread = 1.96 * cell.std("batch") / np.sqrt(ds.sizes["batch"])
        ax.errorbar(ds.sigma**2, cell.mean("batch"), spread, fmt="o", label=f"r' = {r}")
        theory(ax, ds.sigma**2, ds.closed.sel(rank=r), "Thm 5.4.3" if r == ds["rank"][-1] else None)
    ax.set(xlabel="label noise σ²", ylabel=f"L(r') − L({ds.attrs['r']})", title=f"w on the top {ds.attrs['r']}")
    ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- the approximation


@dataclass(frozen=True)
class LongPretraining:
    spectrum: tuple[float, ...] = SPECTRUM
    factors: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)
    M: int = 16
    sigma: float = 1.0


@system.experiment(
    "large-N", "Many pretraining examples make the loss a sum of three counts", presets={"quick": LongPretraining()}
)
def long_pretraining(s: LongPretraining) -> xr.Dataset:
    d = len(s.spectrum)
    lengths = [int(np.ceil(f * sum(s.spectrum) / s.spectrum[-1])) for f in s.factors]
    e = Evaluation(np.ones(d), s.M, s.sigma)
    ranks = range(1, d + 1)
    exact = [[evaluation_loss(s.spectrum, N, r, e) for r in ranks] for N in lengths]
    return xr.Dataset(
        {
            "exact": (("factor", "rank"), exact),
            "limit": ("rank", [long_pretraining_loss(s.spectrum, r, e) for r in ranks]),
        },
        coords={"factor": list(s.factors), "N": ("factor", lengths), "rank": list(ranks)},
    )


@long_pretraining.claim(
    "04.7",
    "With N lambda_d >= 100 tr(D) the approximation is within 2 % of Theorem 5.4.2 for every rank",
    source="§5.4.2, implications",
)
def approximation(ds: xr.Dataset):
    return equals((ds.exact / ds.limit).sel(factor=slice(100, None)), 1.0, 0.02)


@long_pretraining.figure
def plot_long_pretraining(ds: xr.Dataset) -> "Figure":
    figure, ax = new_figure()
    for factor in ds.factor.values:
        ax.plot(ds["rank"], ds.exact.sel(factor=factor), "o-", label=f"N = {int(ds.N.sel(factor=factor))}", ms=3)
    theory(ax, ds["rank"], ds.limit, "N λ ≫ tr D")
    ax.set(xlabel="rank r", ylabel="evaluation loss", title="w = 1, σ = 1, M = 16")
    ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- the trade-off


@dataclass(frozen=True)
class TradeOff:
    """Cases (w, M, σ): w is 1 on so many top directions."""

    spectrum: tuple[float, ...] = SPECTRUM
    N: int = 200
    cases: tuple[tuple[int, int, float], ...] = (
        (2, 16, 0.0),
        (2, 16, 0.5),
        (2, 16, 1.0),
        (8, 512, 0.0),
        (8, 16, 1.0),
        (8, 16, 2.0),
    )
    prompts: int = 500_000
    long_prompts: int = 60_000
    numbers: int = 2_000_000


@system.experiment(
    "trade-off",
    "A larger rank helps while it brings signal and hurts afterwards",
    presets={
        "smoke": TradeOff(prompts=2000, long_prompts=200),
        "quick": TradeOff(),
        "paper": TradeOff(prompts=10_000_000, long_prompts=1_000_000, numbers=50_000_000),
    },
)
def trade_off(s: TradeOff) -> xr.Dataset:
    d = len(s.spectrum)
    ranks = tuple(range(1, d + 1))
    sampled, closed = [], []
    for top, M, sigma in s.cases:
        w = _on_top(d, top)
        p = Prompts(s.long_prompts if M > 100 else s.prompts, s.numbers)
        found = sampled_losses(s.spectrum, s.N, ranks, w, M, p, (sigma,)).error.isel(sigma=0, flip=0, drop=True)
        sampled.append(_grouped(found, p.batches))
        closed.append([evaluation_loss(s.spectrum, s.N, r, Evaluation(w, M, sigma)) for r in ranks])
    names = [f"top {top}, M = {M}, σ = {sigma:g}" for top, M, sigma in s.cases]
    ds = xr.Dataset({"sampled": xr.concat(sampled, "case"), "closed": (("case", "rank"), closed)})
    return ds.assign_coords(case=names)


@trade_off.claim(
    "04.8",
    "w on the top 2, M = 16, sigma in {0, .5, 1}: least at r = 2, rising beyond; w = 1: falling in r at M = 512, "
    "sigma = 0, least at r = 4 for M = 16, sigma = 1 and at r = 3 for sigma = 2; sampled within 3 %",
    source="§5.4.2, implications",
)
def u_shape(ds: xr.Dataset):
    steps = ds.closed.diff("rank")
    least = ds["rank"][ds.closed.argmin("rank")]
    narrow = [case for case in ds.case.values if case.startswith("top 2")]
    ratio = ds.sampled / ds.closed
    return all_of(
        top_2_least=equals(least.sel(case=narrow), 2),
        top_2_rises=every(steps.sel(case=narrow, rank=slice(3, None)) > 0),
        long_prompts_fall=every(steps.sel(case="top 8, M = 512, σ = 0") < 0),
        sigma_1_least=equals(least.sel(case="top 8, M = 16, σ = 1"), 4),
        sigma_2_least=equals(least.sel(case="top 8, M = 16, σ = 2"), 3),
        **{
            f"{case}, r = {r}": between(ratio.sel(case=case, rank=r), 0.97, 1.03, over="batch")
            for case in ds.case.values
            for r in ds["rank"].values
        },
    )


@trade_off.figure
def plot_trade_off(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(3, ds.sizes["case"] // 3, size=(8.4, 2.2 * (ds.sizes["case"] // 3)))
    for ax, case in zip(np.ravel(axes), ds.case.values, strict=False):
        cell = ds.sel(case=case)
        spread = 1.96 * cell.sampled.std("batch") / np.sqrt(ds.sizes["batch"])
        ax.errorbar(ds["rank"], cell.sampled.mean("batch"), spread, fmt="o", label="sampled")
        theory(ax, ds["rank"], cell.closed, "Thm 5.4.2")
        best = int(ds["rank"][int(np.argmin(cell.closed.values))])
        ax.axvline(best, color=COLOURS[1], linewidth=0.8, label=f"least: r = {best}")
        ax.set(xlabel="rank r", ylabel="evaluation loss", title=case)
        ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- which noise it takes


@dataclass(frozen=True)
class Noises:
    """Without pretraining noise all eigenvalues beyond r are 0; without inference noise the prompt is `long`."""

    spectrum: tuple[float, ...] = SPECTRUM
    N: int = 200
    r: int = 2
    lengths: tuple[int, ...] = (16, 256, 4096, 100_000)
    sigma: float = 1.0
    prompts: tuple[int, ...] = (400_000, 40_000, 4000, 400)
    numbers: int = 4_000_000


@system.experiment(
    "noises",
    "The gap between ranks needs noise in pretraining and in the prompt",
    presets={
        "smoke": Noises(lengths=(16, 256), prompts=(400, 100)),
        "quick": Noises(),
        "paper": Noises(prompts=(10_000_000, 1_000_000, 100_000, 20_000), numbers=100_000_000),
    },
)
def noises(s: Noises) -> xr.Dataset:
    d, w = len(s.spectrum), _on_top(len(s.spectrum), s.r)
    clean = tuple(value if i < s.r else 0.0 for i, value in enumerate(s.spectrum))
    sampled, closed = [], []
    for spectrum in (s.spectrum, clean):
        row = []
        for M, prompts in zip(s.lengths, s.prompts, strict=True):
            p = Prompts(prompts, s.numbers)
            error = sampled_losses(spectrum, s.N, (s.r, d), w, M, p, (s.sigma,)).error.isel(sigma=0, flip=0, drop=True)
            row.append(_grouped(error.sel(rank=d) - error.sel(rank=s.r), p.batches))
        sampled.append(xr.concat(row, "M"))
        closed.append([rank_gap(spectrum, s.N, s.r, d, Evaluation(w, M, s.sigma)) for M in s.lengths])
    ds = xr.Dataset({"sampled": xr.concat(sampled, "pretraining"), "closed": (("pretraining", "M"), closed)})
    return ds.assign_coords(pretraining=["noise", "no noise"], M=list(s.lengths)).assign_attrs(r=s.r)


@noises.claim(
    "04.16",
    "L(d) - L(r) is below 1e-3 without pretraining noise (no variance beyond r) at every M, and at M = 1e5 with it",
    source="§5.7",
)
def both_needed(ds: xr.Dataset):
    clean, noisy = ds.sel(pretraining="no noise"), ds.sel(pretraining="noise", M=ds.M.max())
    return all_of(
        no_pretraining_noise=equals(clean.closed, 0.0, 1e-12),
        no_pretraining_noise_sampled=at_most(float(abs(clean.sampled).max(skipna=False)), 1e-3),
        no_inference_noise=at_most(float(noisy.closed), 1e-3),
        no_inference_noise_sampled=at_most(noisy.sampled, 1e-3, over="batch"),
        otherwise=at_most(1e-3, float(ds.closed.sel(pretraining="noise", M=ds.M.min()))),
    )


@noises.figure
def plot_noises(ds: xr.Dataset) -> "Figure":
    figure, ax = new_figure()
    for pretraining, mark in zip(ds.pretraining.values, "os", strict=True):
        cell = ds.sel(pretraining=pretraining)
        spread = 1.96 * cell.sampled.std("batch") / np.sqrt(ds.sizes["batch"])
        ax.errorbar(ds.M, cell.sampled.mean("batch"), spread, fmt=mark, label=f"pretraining: {pretraining}")
        theory(ax, ds.M, cell.closed, "Thm 5.4.3" if pretraining == "noise" else None)
    ax.set(xscale="log", xlabel="examples in the prompt M", ylabel=f"L(d) − L({ds.attrs['r']})")
    ax.set_yscale("symlog", linthresh=1e-3)
    ax.legend()
    return figure
