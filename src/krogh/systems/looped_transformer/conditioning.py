"""How many examples make the prompt well conditioned, and what earlier bounds asked for (000 §8.1, Theorem 8.17)."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, between, equals, every
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, theory
from krogh.lab.statistics import power_law
from krogh.systems.looped_transformer import system
from krogh.tasks.vector_generation import gram
from krogh.theory.looped import limiting_kappa, log_prediction_bound, older_bound
from krogh.train.seeds import over_seeds

# --- κ of Gaussian prompts


@dataclass(frozen=True)
class Conditioning:
    """kappa against n at fixed d, and against d at fixed n/d."""

    ns: tuple[int, ...] = tuple(2**k for k in range(4, 17))
    d: int = 4
    ds: tuple[int, ...] = (8, 16, 32, 64)
    ratio: int = 16
    seeds: int = 4000


def kappas(ns: tuple[int, ...], d: int, seeds: int) -> np.ndarray:
    """Condition numbers of XᵀX for n Gaussian rows in R^d, (n, seed)."""

    def measure(key, n):
        values = jnp.linalg.eigvalsh(gram(key, n, d))
        return values[-1] / values[0]

    return over_seeds(measure, seeds, np.array(ns, float), double=True)


@system.experiment(
    "thm-8.1",
    "n = O(d) examples make the condition number a constant",
    presets={"smoke": Conditioning(ns=(16, 64, 1024, 65536), ds=(8, 64), seeds=50), "quick": Conditioning()},
)
def conditioning(s: Conditioning) -> xr.Dataset:
    wide = [kappas((s.ratio * d,), d, s.seeds // 4)[0] for d in s.ds]
    return xr.Dataset(
        {"kappa": (("n", "seed"), kappas(s.ns, s.d, s.seeds)), "wide": (("d", "draw"), np.array(wide))},
        coords={"n": list(s.ns), "d": list(s.ds)},
        attrs={"dimension": s.d, "ratio": s.ratio},
    )


def _exponent(n):
    return lambda kappa: power_law(n, kappa.mean(axis=0) - 1)[0]


@conditioning.claim(
    "07.10",
    "log(E kappa - 1) falls with log n with a slope of -0.5 +/- 0.05 for n = 1024..65536, d = 4, and at n/d = 16 E "
    "kappa varies by less than 25 % between d = 8 and d = 64",
    source="§8.1 after Thm 8.1",
)
def enough_examples(ds: xr.Dataset):
    large = ds.kappa.sel(n=slice(1024, None))
    means = ds.wide.sel(d=[8, 64])
    return all_of(
        exponent=between(large, -0.55, -0.45, stat=_exponent(large.n.values), over="seed"),
        constant=at_most(means, 1.25, stat=lambda k: k[:, 1].mean() / k[:, 0].mean(), over="draw"),
    )


@conditioning.figure
def plot_conditioning(ds: xr.Dataset):
    figure, (left, right) = new_figure(2)
    d, ratio = ds.attrs["dimension"], ds.attrs["ratio"]
    curve_with_spread(left, ds.kappa - 1, x="n", label=f"d = {d}, 10–90 % of prompts", marker="o", markersize=2)
    left.plot(ds.n, ds.kappa.mean("seed") - 1, "x", color=COLOURS[1], label="mean")
    large = ds.sel(n=slice(1024, None))
    exponent, scale = power_law(large.n, large.kappa.mean("seed") - 1)
    theory(left, large.n, scale * large.n**exponent, f"fit: n^{exponent:.2f} (theory −1/2)")
    left.set(xlabel="examples n", ylabel="κ − 1", xscale="log", yscale="log")
    left.legend(fontsize=6)
    curve_with_spread(right, ds.wide, x="d", over="draw", label=f"n = {ratio} d", marker="o", markersize=2)
    theory(right, ds.d, np.full(ds.sizes["d"], limiting_kappa(1 / ratio)), "limit of large d")
    right.set(xlabel="dimension d", ylabel="κ", xscale="log")
    right.set_xticks(ds.d.values, labels=[str(d) for d in ds.d.values])
    right.minorticks_off()
    right.legend(fontsize=6)
    return figure


# --- Theorem 8.17


@dataclass(frozen=True)
class Bounds:
    d: int = 4
    loops: int = 10
    ns: tuple[int, ...] = tuple(2**k for k in range(7, 41, 3))


@system.experiment(
    "thm-8.17",
    "The bound of earlier work grows with the loops, the new one falls",
    presets={"quick": Bounds()},
)
def bounds(s: Bounds) -> xr.Dataset:
    t, n = np.arange(1, s.loops + 1), np.array(s.ns, float)[:, None]
    return xr.Dataset(
        {
            "older": (("n", "loop"), older_bound(t, s.d, n)),
            "new": (("n", "loop"), np.exp(log_prediction_bound(limiting_kappa(s.d / n), t))),
            "needed": ("loop", older_bound(t, s.d, 1.0) ** 2),
        },
        coords={"n": list(s.ns), "loop": t},
        attrs={"d": s.d},
    )


@bounds.claim(
    "07.11",
    "At d = 4, n = 128 the older bound exceeds 1 for every T >= 1 and grows with T, the new one falls and is below 1; "
    "the older one needs n >= 262144, 4096^2, 4.3e11 for T = 1, 2, 5 to be at most 1",
    source="Thm 8.17, 8.16",
)
def bounds_compared(ds: xr.Dataset):
    at = ds.sel(n=128)
    return all_of(
        older_above_one=at_least(float(at.older.min()), 1.0),
        older_grows=every(at.older.diff("loop") > 0),
        new_falls=every(at.new.diff("loop") < 0),
        new_below_one=at_most(float(at.new.max()), 1.0),
        needed_1=equals(float(ds.needed.sel(loop=1)), 262_144),
        needed_2=equals(float(ds.needed.sel(loop=2)), 4096**2),
        needed_5=equals(float(ds.needed.sel(loop=5)), 4.3e11, 0.05e11),
    )


@bounds.figure
def plot_bounds(ds: xr.Dataset):
    figure, (left, right) = new_figure(2)
    for n, colour in zip(ds.n.values[np.linspace(0, len(ds.n) - 1, 4).astype(int)], COLOURS, strict=False):
        left.semilogy(ds.loop, ds.older.sel(n=n), color=colour, label=f"n = 2^{np.log2(n):.0f}: 8Td²4ᵀ/√n")
        left.semilogy(ds.loop, ds.new.sel(n=n), "--", color=colour)
    left.axhline(1, color="0.7", linewidth=0.7)
    left.set(
        xlabel="loops T",
        ylabel="bound on the error",
        title=f"d = {ds.attrs['d']}; dashed: exp(−T/2κ) at the limiting κ(n)",
    )
    left.legend(fontsize=6)
    right.semilogy(ds.loop, ds.needed, "o-", label="for Thm 8.17 to be ≤ 1")
    right.axhline(128, color=COLOURS[1], linewidth=1, label="used here: n ≤ 128")
    right.set(xlabel="loops T", ylabel="examples n")
    right.legend(fontsize=6)
    return figure
