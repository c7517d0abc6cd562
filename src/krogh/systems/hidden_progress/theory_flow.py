"""The disjoint-PolyNet under gradient flow: exact weights, exact error, and the plateau (003 §5.4.2, B.2.3)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, every, figures
from krogh.systems.hidden_progress import system
from krogh.theory import disjoint_polynet as polynet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Flow:
    ks: tuple[int, ...] = (2, 3, 4, 5, 6)
    points: int = 200
    reach: float = 0.99
    draws: int = 50


@system.experiment(
    "lemma-B.8",
    "Gradient flow of the relevant weights",
    presets={"smoke": Flow(ks=(2, 3), points=20, draws=3), "quick": Flow()},
)
def flow(s: Flow) -> xr.Dataset:
    share = np.linspace(0, s.reach, s.points)
    integrated, closed, times = np.zeros((3, len(s.ks), s.points))
    exact, lower, rest, upper = np.full((4, len(s.ks), s.draws), np.nan)
    rng = np.random.default_rng(0)
    for row, k in enumerate(s.ks):
        times[row] = share * (3.0 if k == 2 else 1 / (k - 2))
        integrated[row] = polynet.flow(np.ones(k), times[row])[:, 0]
        closed[row] = polynet.relevant_weight(times[row], k)
        for draw in range(s.draws if k > 2 else 0):
            v0 = rng.normal(size=k)
            b = 2 * abs(v0).max()
            exact[row, draw] = polynet.flow_time(b**2 - v0[0] ** 2, v0)
            rest[row, draw] = polynet.flow_time(math.inf, v0) - exact[row, draw]
            lower[row, draw] = polynet.reach_time_bound(b, v0)[0]
            upper[row, draw] = polynet.remaining_time_bound(b, v0)[0]
    return xr.Dataset(
        {
            "time": (("k", "point"), times),
            "integrated": (("k", "point"), integrated),
            "closed": (("k", "point"), closed),
            "reach_time": (("k", "draw"), exact),
            "reach_time_bound": (("k", "draw"), lower),
            "remaining_time": (("k", "draw"), rest),
            "remaining_time_bound": (("k", "draw"), upper),
        },
        coords={"k": list(s.ks)},
    )


@flow.claim(
    "14.11",
    "The integrated flow from v = 1 equals (1 - (k-2)t)^(-1/(k-2)) (e^t for k = 2) within a relative error of 1e-6, up "
    "to 99 % of the blow-up time",
    source="§5.4.2",
)
def closed_flow(ds: xr.Dataset):
    return at_most(float((abs(ds.integrated - ds.closed) / ds.closed).max()), 1e-6)


@flow.claim(
    "14.B8",
    "From Gaussian weights the exact times respect both bounds of Lemma B.8",
    source="Lemma B.8",
)
def flow_bounds(ds: xr.Dataset):
    drawn = ds.sel(k=ds.k[ds.k > 2]).stack(replica=("k", "draw"))
    return all_of(
        reach=every(drawn.reach_time >= drawn.reach_time_bound * (1 - 1e-9), over="replica"),
        remaining=every(drawn.remaining_time <= drawn.remaining_time_bound * (1 + 1e-9), over="replica"),
    )


@flow.figure
def plot_flow(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = figures.new_figure(2)
    for k in ds.k.values:
        cell = ds.sel(k=k)
        left.semilogy(cell.time, cell.integrated, label=f"k = {k}")
        figures.theory(left, cell.time, cell.closed, None)
        if k > 2:
            low, high = cell.reach_time_bound / cell.reach_time, cell.remaining_time_bound / cell.remaining_time
            right.semilogx(low, high, "o", markersize=2.5, label=f"k = {k}")
    left.set(xlabel="time", ylabel="relevant weight v(t)", title="Integrated flow, closed form dashed")
    left.legend()
    right.axvline(1, color="black", linestyle="--", linewidth=1)
    right.axhline(1, color="black", linestyle="--", linewidth=1)
    right.set(
        xlabel="lower bound / time to reach b",
        ylabel="upper bound / time from b on",
        title="Lemma B.8, Gaussian weights",
    )
    right.legend()
    return figure


@dataclass(frozen=True)
class Errors:
    ks: tuple[int, ...] = (2, 3, 4)
    block: int = 9
    relevant: tuple[float, ...] = (1.0, 2.0, 4.5)
    samples: int = 2_000_000
    tail_weights: int = 100
    lattice_block: int = 257


@system.experiment(
    "lemma-B.9",
    "The exact error of a disjoint-PolyNet, and the bounds on it as printed and corrected",
    presets={"smoke": Errors(samples=20_000), "quick": Errors()},
)
def errors(s: Errors) -> xr.Dataset:
    rng = np.random.default_rng(0)
    shape = len(s.ks), 2, len(s.relevant)
    exact, printed, sampled = np.zeros((3, *shape))
    for row, k in enumerate(s.ks):
        drawn = {"signs": rng.choice([-1.0, 1.0], (k, s.block)), "gaussian": rng.normal(size=(k, s.block))}
        for column, w in enumerate(drawn.values()):
            for place, v in enumerate(s.relevant):
                w[:, 0] = v
                p, t = np.array([polynet.overturned(block[1:], v) for block in w]).T
                exact[row, column, place], printed[row, column, place] = (
                    polynet.error(p, t),
                    polynet.printed_error(p, t),
                )
                sampled[row, column, place] = _sampled_error(rng, w, s.samples)

    v = np.arange(2.0, s.tail_weights // 2 + 1, 2.0)
    norm = math.sqrt(s.tail_weights)
    tail = [sum(polynet.overturned_signs(s.tail_weights, value)) for value in v]

    k, m = 3, s.lattice_block - 1
    # just past the points of the lattice: no ties, and the error has jumped below its Gaussian approximation
    between = np.arange(0, 4 * math.isqrt(m), 2) + 0.1
    u = np.ones((k, m))
    lattice = [polynet.error(np.full(k, polynet.overturned_signs(m, b)[0]), np.zeros(k)) for b in between]
    return xr.Dataset(
        {
            "exact": (("k", "init", "v"), exact),
            "printed": (("k", "init", "v"), printed),
            "sampled": (("k", "init", "v"), sampled),
            "sigma": (("k", "init", "v"), np.sqrt(exact * (1 - exact) / s.samples)),
            "tail_share": ("tail_v", tail),
            "tail_bound": ("tail_v", [polynet.tail_bound(value, norm) for value in v]),
            "tail_bound_printed": ("tail_v", [polynet.tail_bound(value, norm, printed=True) for value in v]),
            "error": ("between", lattice),
            "error_bound": ("between", [polynet.error_lower_bound(np.full(k, b), u) for b in between]),
            "error_bound_printed": (
                "between",
                [polynet.error_lower_bound(np.full(k, b), u, printed=True) for b in between],
            ),
        },
        coords={
            "k": list(s.ks),
            "init": ["signs", "gaussian"],
            "v": list(s.relevant),
            "tail_v": v,
            "between": between,
        },
        attrs={"tail_weights": s.tail_weights, "lattice_block": s.lattice_block},
    )


def _sampled_error(rng: np.random.Generator, w: np.ndarray, samples: int, chunk: int = 20_000) -> float:
    """Monte Carlo share of inputs on which sign f != chi_S, ties included."""
    right = 0
    for _ in range(samples // chunk):
        x = 1.0 - 2.0 * rng.integers(0, 2, (chunk, *w.shape), dtype=np.int8)
        right += np.count_nonzero(np.prod(np.einsum("mkb,kb->mk", x, w), axis=1) * np.prod(x[:, :, 0], axis=1) > 0)
    return 1 - right / (samples // chunk * chunk)


@errors.claim("14.11", "The exact error formula agrees with Monte Carlo within 3 sigma", source="Lemma B.9")
def error_formula(ds: xr.Dataset):
    return at_most(float((abs(ds.sampled - ds.exact) / ds.sigma).max()), 3.0)


@errors.claim(
    "14.B9",
    "Lemma B.9 as printed is violated (tail exp(-v^2/||u||^2), slack c max|u|/||u||^3, ties counted twice); with "
    "exp(-v^2/(2||u||^2)), slack 2c max|u|/||u|| and ties counted once it holds",
    source="Lemma B.9",
    finding="Hoeffding's exponent lacks its 2 in print, the Berry–Esseen term has the wrong power and one of two ends, "
    "and a tie beside an odd number of errors is counted twice.",
)
def printed_bounds_fail(ds: xr.Dataset):
    tied = ds.sel(init="signs", v=2.0)
    return all_of(
        tail=every(ds.tail_share <= ds.tail_bound),
        lower=every(ds.error >= ds.error_bound - 1e-12),
        printed_tail_violated=at_least(float((ds.tail_share / ds.tail_bound_printed).max()), 1.0),
        printed_lower_violated=at_least(float((ds.error_bound_printed - ds.error).max()), 0.0),
        printed_ties_violated=at_least(float((abs(tied.sampled - tied.printed) / tied.sigma).max()), 3.0),
    )


@errors.figure
def plot_errors(ds: xr.Dataset) -> "Figure":
    figure, (left, middle, right) = figures.new_figure(3)
    for place, init in enumerate(ds.init.values):
        cell = ds.sel(init=init)
        left.plot(cell.exact.values.ravel(), cell.sampled.values.ravel(), "os"[place], label=f"exact, {init}")
    signs = ds.sel(init="signs")
    left.plot(signs.printed.values.ravel(), signs.sampled.values.ravel(), "x", color="0.5", label="eq. B.11, signs")
    figures.theory(left, [0, 0.75], [0, 0.75], None)
    left.set(xlabel="error by formula", ylabel="error by Monte Carlo", title="Ties counted once and twice")
    left.legend()
    middle.semilogy(ds.tail_v, ds.tail_share, "o", label="exact")
    figures.theory(middle, ds.tail_v, ds.tail_bound, "exp(−v²/2‖u‖²)")
    middle.semilogy(ds.tail_v, ds.tail_bound_printed, ":", color="0.5", label="printed: exp(−v²/‖u‖²)")
    middle.set(xlabel="v", ylabel="P[u·z ≥ v]", title=f"{ds.attrs['tail_weights']} weights of ±1")
    middle.legend()
    right.plot(ds.between, ds.error, "o", markersize=2.5, label="exact")
    figures.theory(right, ds.between, ds.error_bound, "corrected lower bound")
    right.plot(ds.between, ds.error_bound_printed, ":", color="0.5", label="printed lower bound")
    right.set(xlabel="v", ylabel="error", title=f"k = 3, n' = {ds.attrs['lattice_block']}")
    right.legend()
    return figure


@dataclass(frozen=True)
class Plateau:
    ks: tuple[int, ...] = (3, 4, 5, 6)
    blocks: tuple[int, ...] = tuple(2**j + 1 for j in range(8, 17))
    target: float = 0.49
    curve_k: int = 3


@system.experiment(
    "thm-5.7",
    "The share of gradient flow spent at 49 % error",
    presets={"smoke": Plateau(ks=(3, 4), blocks=(257, 513, 1025)), "quick": Plateau()},
)
def plateau(s: Plateau) -> xr.Dataset:
    share = [[polynet.plateau_share(block, k, s.target) for block in s.blocks] for k in s.ks]
    k, shown = s.curve_k, s.blocks[:: max(1, len(s.blocks) // 3)][:3]
    time = np.linspace(0.0, 1.0, 400)
    curves = []
    for block in shown:
        v = polynet.relevant_weight(time * polynet.reach_time(block - 1, k), k)
        wrong = [polynet.overturned_signs(block - 1, value)[0] for value in v]
        curves.append([polynet.error(np.full(k, p), np.zeros(k)) for p in wrong])
    return xr.Dataset(
        {"share": (("k", "block"), share), "error": (("shown", "time"), curves)},
        coords={"k": list(s.ks), "block": list(s.blocks), "shown": list(shown), "time": time},
        attrs={"target": s.target, "curve_k": k},
    )


@plateau.claim(
    "14.12",
    "1 - T(0.49)/T(0) falls as n' to a power within 0.05 of 1 - k/2, for k = 3..6",
    source="Thm 5.7, Cor. B.10",
)
def plateau_slope(ds: xr.Dataset):
    slopes = np.polyfit(np.log(ds.block), np.log(1 - ds.share).T, 1)[0]
    parts = {
        f"k{k}": at_most(abs(float(slope) - (1 - k / 2)), 0.05) for k, slope in zip(ds.k.values, slopes, strict=True)
    }
    return all_of(**parts)


@plateau.figure
def plot_plateau(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = figures.new_figure(2)
    for place, block in enumerate(ds.shown.values):
        left.plot(ds.time, ds.error.sel(shown=block), label=f"n' = {block}")
        share = ds.share.sel(k=ds.attrs["curve_k"], block=block)
        left.axvline(float(share), color=figures.COLOURS[place], linestyle="--", linewidth=0.8)
    left.set(xlabel="t / T(0)", ylabel="error", title=f"k = {ds.attrs['curve_k']}; dashed: error falls to 0.49")
    left.legend()
    for k in ds.k.values:
        rest = 1 - ds.share.sel(k=k)
        right.loglog(ds.block, rest, "o", label=f"k = {k}")
        figures.theory(right, ds.block, rest[-1] * (ds.block / ds.block[-1]) ** (1 - k / 2), None)
    right.set(xlabel="n'", ylabel="1 − T(0.49)/T(0)", title="Off the plateau: n'^(1−k/2) (dashed)")
    right.legend()
    return figure
