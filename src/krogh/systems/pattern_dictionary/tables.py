"""Tables A.1 to A.5 with the accuracy curves beside them, Figs 2.1 = A.1, A.3, A.5, A.7, A.9 (000 A.7.1, A.7.2)."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, between, every
from krogh.systems.pattern_dictionary import published, system
from krogh.systems.pattern_dictionary.recipe import Setting, bias_updates, least_squares, six_methods
from krogh.theory.dictionary import blind_ceiling, threshold_ceiling

LABEL = {"network": "network", "tangent": "tangent kernel", "random": "random features"}


def show_curves(ds: xr.Dataset, variation: str | None = None):
    """Test accuracy against steps for the three learners, with and without structure, one row per variation."""
    from krogh.lab.figures import curve_with_spread, new_figure

    parts = [ds] if variation is None else [ds.sel({variation: value}) for value in ds[variation].values]
    fig, axes = new_figure(ncols=2, nrows=len(parts), sharey=True, squeeze=False)
    for row, part in zip(axes, parts, strict=True):
        for ax, structure in zip(row, ("with", "without"), strict=True):
            for name, label in LABEL.items():
                curve_with_spread(ax, part.test.sel(structure=structure, learner=name), label=label)
            value = "" if variation is None else f"\n{_varied(part, variation)}"
            ax.set(xlabel="step", title=f"{structure} input structure{value}", ylim=(0.4, 1.02))
        row[0].set_ylabel("test accuracy")
    axes[0, 0].legend()
    return fig


def _varied(part: xr.Dataset, variation: str) -> str:
    """What is varied and its value, marked where d stands for reduced coordinates."""
    reduced = " (reduced)" if variation == "d" and part.attrs["reduced"] else ""
    return f"{variation} {part[variation].item()}{reduced}"


def show_table(ds: xr.Dataset, variation: str | None = None):
    """Measured mean and spread over seeds, and below it what the document prints."""
    from krogh.lab.figures import new_figure

    parts = [ds] if variation is None else [ds.sel({variation: value}) for value in ds[variation].values]
    text, rows = [], []
    for part in parts:
        value = "" if variation is None else f"{_varied(part, variation)} "
        for row in part.row.values:
            digits = 3 if row == "cos" else 1
            cells = part.sel(row=row)
            ours = zip(cells.measured.values, cells.spread.values, strict=True)
            text.append([f"{a:.{digits}f} ± {b:.{digits}f}" if np.isfinite(a) else "NA" for a, b in ours])
            text.append([f"{a:.{digits}f}" if np.isfinite(a) else "NA" for a in cells.published.values])
            rows += [f"{value}{row}, measured", f"{value}{row}, published"]
    fig, ax = new_figure(size=(9, 0.35 + 0.22 * len(rows)))
    ax.axis("off")
    table = ax.table(text, rowLabels=rows, colLabels=list(published.COLUMNS), loc="center", cellLoc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(7)
    return fig


def final(ds: xr.Dataset, method: str, structure: str = "with", what: str = "test") -> xr.DataArray:
    """Accuracy at the last step, per seed."""
    return ds[what].sel(learner=method, structure=structure).isel(step=-1)


def learns(ds: xr.Dataset, **where: Any):
    """Claim 01.3: network and two-step test accuracy >= 0.99 in every seed."""
    return all_of(
        two_steps=every(final(ds, "two steps").sel(where) >= 0.99, over="seed"),
        network=every(final(ds, "network").sel(where) >= 0.99, over="seed"),
    )


def fixed_features_fail(ds: xr.Dataset, **where: Any):
    """Claim 01.4: random features in [0.70, 0.83], tangent kernel <= 0.90, the network ahead of both by >= 0.09."""
    network, tangent, random = (final(ds, name).sel(where) for name in ("network", "tangent", "random"))
    return all_of(
        random=between(random, 0.70, 0.83, over="seed"),
        tangent=at_most(tangent, 0.90, over="seed"),
        gap=at_least(network - np.maximum(tangent, random), 0.09, over="seed"),
    )


# --- Parity ---

SMOKE = Setting(D=40, m=40, n=4000, steps=60, batch=500, test=1000, records=3, seeds=2)
QUICK = Setting(m=150)
PAPER = Setting(d=500)


@system.experiment(
    "table-A.1",
    "Parity labels: six methods (quick: in the D = 100 pattern coordinates, M = I, m = 150)",
    presets={"smoke": SMOKE, "quick": QUICK, "paper": PAPER},
)
def parity_table(s: Setting) -> xr.Dataset:
    return published.beside(six_methods(s), published.PARITY)


parity_table.figure(show_table)


@parity_table.claim(
    "01.3",
    "Two Step and Network reach a test accuracy of at least 0.99 in every seed",
    source="Table A.1, Thm 2.1",
)
def parity_learned(ds: xr.Dataset):
    return learns(ds)


@parity_table.claim(
    "01.4",
    "At the same width and steps random features stay in [0.70, 0.83], the tangent kernel at most 0.90, and the "
    "network is at least 0.09 ahead of both",
    source="Table A.1, Thm 2.2",
)
def fixed_features_lose(ds: xr.Dataset):
    return fixed_features_fail(ds)


@parity_table.claim(
    "01.5",
    "Without structure network, tangent kernel and random features all test in [0.46, 0.56]",
    source="Table A.1, Fig 2.1, Thm 2.4",
)
def structure_is_needed(ds: xr.Dataset):
    return all_of(
        **{name: between(final(ds, name, "without"), 0.46, 0.56, over="seed") for name in LABEL},
    )


@parity_table.claim(
    "01.8",
    "Under the theorem's schedule (eta1 = 9e-8 at m = 150, 1e-8 at m = 300, in float32; larger eta1 are not judged) a "
    "trained head on One Step features tests at most 0.56, and Two Step is at least 0.4 better",
    source="Table A.1, Fig 2.2",
)
def one_step_is_not_enough(ds: xr.Dataset):
    one, two = final(ds, "one step"), final(ds, "two steps")
    return all_of(one=at_most(one, 0.56, over="seed"), gain=at_least(two - one, 0.4, over="seed"))


@system.experiment(
    "fig-2.1",
    "Test accuracy while training, with and without input structure (= Fig A.1; quick: m = 150)",
    presets={"smoke": SMOKE, "quick": QUICK, "paper": PAPER},
)
def parity_curves(s: Setting) -> xr.Dataset:
    return six_methods(s)


@parity_curves.figure
def plot_parity_curves(ds: xr.Dataset):
    from krogh.lab.figures import reported, theory

    fig = show_curves(ds)
    ax, without = fig.axes
    steps = ds.step.values[[0, -1]]
    theory(ax, steps, [threshold_ceiling(5, 0.5)] * 2, "best threshold")
    theory(ax, steps, [blind_ceiling(0.5)] * 2, "blind on D0")
    for value in published.PARITY["test"][:3]:
        reported(ax, value / 100, None)
    reported(without, published.PARITY["test"][-1] / 100)
    ax.legend()
    return fig


@parity_curves.claim(
    "01.4",
    "Random features end in [0.70, 0.83], the tangent kernel at most at 0.90, and the network is at least 0.09 ahead "
    "of both",
    source="Fig 2.1",
)
def curves_ordered(ds: xr.Dataset):
    return fixed_features_fail(ds)


@parity_curves.claim("01.5", "Without structure all three end in [0.46, 0.56]", source="Fig 2.1, Thm 2.4")
def curves_at_chance(ds: xr.Dataset):
    return structure_is_needed.predicate(ds)


# --- Interval ---

INTERVAL_SMOKE = replace(SMOKE, labels="interval", k=30)
# 58.5 / 41.5 is unequal enough that unweighted steps shift every bias and a trained head finds only a constant.
INTERVAL = Setting(labels="interval", k=30, m=100, steps=200, weighted=True, tangent_lr=1e-2)


@system.experiment(
    "table-A.2",
    "Interval labels (20 to 30 of k = 30 patterns): six methods, classes as they fall (58.5 / 41.5), weighted steps",
    presets={"smoke": INTERVAL_SMOKE, "quick": INTERVAL, "paper": replace(INTERVAL, d=500)},
)
def interval_table(s: Setting) -> xr.Dataset:
    without = least_squares(s, structure=0.0).test
    return published.beside(six_methods(s), published.INTERVAL).assign(ridge_without=without)


interval_table.figure(show_table)


@interval_table.claim(
    "01.13",
    "Two Step with a least-squares head tests at least 0.985, random features in [0.68, 0.80], and One Step is within "
    "0.02 of a constant predictor (0.585 or 0.415); without structure Two Step with that head tests at least 0.951, "
    "the share of the larger class",
    source="Table A.2",
)
def interval_learned(ds: xr.Dataset):
    one = final(ds, "one step").mean()
    constant = 0.585 if abs(one - 0.585) < abs(one - 0.415) else 0.415
    return all_of(
        two_steps=at_least(ds.ridge.sel(learner="two steps"), 0.985, over="seed"),
        random=between(final(ds, "random"), 0.68, 0.80, over="seed"),
        one_step=between(final(ds, "one step"), constant - 0.02, constant + 0.02, over="seed"),
        without_structure=at_least(ds.ridge_without.sel(learner="two steps"), 0.951, over="seed"),
    )


@system.experiment(
    "fig-A.3",
    "Interval labels: test accuracy while training, with and without input structure",
    presets={"smoke": INTERVAL_SMOKE, "quick": INTERVAL, "paper": replace(INTERVAL, d=500)},
)
def interval_curves(s: Setting) -> xr.Dataset:
    return six_methods(s)


@interval_curves.figure
def plot_interval_curves(ds: xr.Dataset):
    from krogh.lab.figures import theory

    fig = show_curves(ds)
    theory(fig.axes[1], ds.step.values[[0, -1]], [1 - ds.positive_without] * 2, "majority class")
    fig.axes[1].legend()
    return fig


# --- Variations ---


@dataclass(frozen=True)
class Dimensions(Setting):
    dimensions: tuple[int, ...] = (100, 2000)
    reduced: bool = True


def by_dimension(s: Dimensions) -> xr.Dataset:
    """In reduced coordinates only the cosines depend on d: the same accuracies serve every d. For Two Step and random
    features they are those of that d; for the network and the tangent kernel, whose first layer Adam trains, of M = I.
    """
    parts = []
    for d in s.dimensions:
        part = six_methods(s.plain(ambient=d, d=None if s.reduced else d))
        parts.append(published.beside(part, published.DIMENSION[d]))
    joined = xr.concat(parts, xr.Variable("d", list(s.dimensions)))
    return joined.assign_attrs(D=s.D, reduced=int(s.reduced))


DIMENSIONS_SMOKE = Dimensions(D=40, m=40, n=4000, steps=60, batch=500, test=1000, records=3, seeds=2)


@system.experiment(
    "table-A.3",
    "Input dimension 100 and 2000: six methods (quick: in the pattern coordinates, M = I, m = 75)",
    presets={
        "smoke": DIMENSIONS_SMOKE,
        "quick": Dimensions(m=75),
        "paper": Dimensions(reduced=False),
    },
)
def dimension_table(s: Dimensions) -> xr.Dataset:
    return by_dimension(s)


@dimension_table.figure
def show_dimension_table(ds: xr.Dataset):
    return show_table(ds, "d")


@dimension_table.claim(
    "01.14",
    "Claims 01.3 and 01.4 hold for d = 100 and d = 2000 (quick, in reduced coordinates: nothing is claimed of the "
    "network and the tangent kernel at d = 2000, where Adam on the first layer depends on the basis)",
    source="Table A.3, Fig A.5",
)
def robust_in_dimension(ds: xr.Dataset):
    parts = {}
    for d in ds.d.values:
        if ds.attrs["reduced"] and d > ds.attrs["D"]:
            at = ds.sel(d=d)
            parts[f"d_{d}_two_steps"] = every(final(at, "two steps") >= 0.99, over="seed")
            parts[f"d_{d}_random"] = between(final(at, "random"), 0.70, 0.83, over="seed")
        else:
            parts[f"d_{d}_learns"] = learns(ds, d=d)
            parts[f"d_{d}_fixed"] = fixed_features_fail(ds, d=d)
    return all_of(**parts)


@system.experiment(
    "fig-A.5",
    "Test accuracy while training at input dimension 100 and 2000",
    presets={
        "smoke": DIMENSIONS_SMOKE,
        "quick": Dimensions(m=75),
        "paper": Dimensions(reduced=False),
    },
)
def dimension_curves(s: Dimensions) -> xr.Dataset:
    return by_dimension(s)


@dimension_curves.figure
def plot_dimension_curves(ds: xr.Dataset):
    return show_curves(ds, "d")


@dataclass(frozen=True)
class Shares(Setting):
    """`heads`: seeds of the least-squares head after unweighted steps, which differ more than all else."""

    shares: tuple[float, ...] = (0.8, 0.9)
    weighted: bool = True
    heads: int = 24


def by_share(s: Shares) -> xr.Dataset:
    """Six methods with class-weighted steps, the least-squares head after unweighted steps (`unweighted`), and the
    bias update of the second step after either."""
    parts = []
    for share in s.shares:
        setting = s.plain(negative=share)
        part = published.beside(six_methods(setting), published.NEGATIVE[share])
        settings = {"weighted": setting, "unweighted": replace(setting, weighted=False)}
        updates = xr.concat([bias_updates(each) for each in settings.values()], xr.Variable("steps", list(settings)))
        plain = least_squares(replace(settings["unweighted"], seeds=s.heads)).rename(seed="head_seed")
        parts.append(
            part.assign(
                unweighted=plain.test.sel(learner="two steps", drop=True),
                bias_update_median=updates["median"],
                bias_update_largest=updates["largest"],
            )
        )
    return xr.concat(parts, xr.Variable("negative share", list(s.shares)))


SHARES_SMOKE = Shares(D=40, m=40, n=4000, steps=60, batch=500, test=1000, records=3, seeds=2)
SHARES = Shares(m=75)


@system.experiment(
    "table-A.4",
    "Unequal classes: six methods with class-weighted first steps (quick: m = 75)",
    presets={"smoke": SHARES_SMOKE, "quick": SHARES, "paper": Shares(d=500)},
)
def share_table(s: Shares) -> xr.Dataset:
    return by_share(s)


@share_table.figure
def show_share_table(ds: xr.Dataset):
    return show_table(ds, "negative share")


@share_table.claim(
    "01.15",
    "At negative share 0.8 and 0.9 Two Step (least-squares head) tests at least 0.99 after class-weighted steps and "
    "at most 0.95 after unweighted ones, whose largest bias update exceeds 1",
    source="Table A.4, A.8",
    finding=(
        "With m = 300 (paper, five seeds) unweighted steps reach 0.964 (0.932 to 0.992) at share 0.8 and 0.953 (0.951 "
        "to 0.956) at share 0.9; with m = 75 they stay below 0.95."
    ),
)
def weighting_is_needed(ds: xr.Dataset):
    parts = {}
    for share in ds["negative share"].values:
        at = ds.sel({"negative share": share})
        parts[f"weighted_{share}"] = at_least(at.ridge.sel(learner="two steps"), 0.99, over="seed")
        parts[f"unweighted_{share}"] = at_most(at.unweighted, 0.95, over="head_seed")
        parts[f"bias_{share}"] = at_least(at.bias_update_largest.sel(steps="unweighted"), 1.0, over="seed")
    return all_of(**parts)


@system.experiment(
    "fig-A.7",
    "Test accuracy while training on unequal classes",
    presets={"smoke": SHARES_SMOKE, "quick": SHARES, "paper": Shares(d=500)},
)
def share_curves(s: Shares) -> xr.Dataset:
    return by_share(s)


@share_curves.figure
def plot_share_curves(ds: xr.Dataset):
    return show_curves(ds, "negative share")


@dataclass(frozen=True)
class Samples(Setting):
    samples: tuple[int, ...] = (25_000, 10_000)
    widths: tuple[int, ...] = (300, 50)


def by_samples(s: Samples) -> xr.Dataset:
    parts = []
    for n, m in zip(s.samples, s.widths, strict=True):
        parts.append(published.beside(six_methods(s.plain(n=n, m=m)), published.SAMPLES[n]))
    return xr.concat(parts, xr.Variable("n", list(s.samples)))


SAMPLES_SMOKE = Samples(D=40, widths=(40, 20), steps=60, batch=500, test=1000, records=3, seeds=2)
SAMPLES = Samples(widths=(150, 50), seeds=3)


@system.experiment(
    "table-A.5",
    "Sample size 25 000 and 10 000: six methods (quick: m = 150 and 50, 3 seeds)",
    presets={"smoke": SAMPLES_SMOKE, "quick": SAMPLES, "paper": Samples(d=500)},
)
def sample_table(s: Samples) -> xr.Dataset:
    return by_samples(s)


@sample_table.figure
def show_sample_table(ds: xr.Dataset):
    return show_table(ds, "n")


@sample_table.claim(
    "01.14",
    "Claims 01.3 and 01.4 hold for n = 25 000 and n = 10 000 (m = 50, there with the least-squares head)",
    source="Table A.5, Fig A.9",
    finding=(
        "At n = 10 000, m = 50 Two Step is exact with either head, but a network whose first layer goes on training "
        "with Adam at 1e-2 leaves those features and overfits (0.76 to 0.86); at 1e-3 it tests 1.0 in every seed."
    ),
)
def robust_in_samples(ds: xr.Dataset):
    small = ds.sel(n=10_000)
    return all_of(
        n_25000_learns=learns(ds, n=25_000),
        n_25000_fixed=fixed_features_fail(ds, n=25_000),
        n_10000_ridge=every(small.ridge.sel(learner="two steps") >= 0.99, over="seed"),
        n_10000_network=every(final(small, "network") >= 0.99, over="seed"),
        n_10000_fixed=fixed_features_fail(small),
    )


@system.experiment(
    "fig-A.9",
    "Test accuracy while training on 25 000 and 10 000 samples",
    presets={"smoke": SAMPLES_SMOKE, "quick": SAMPLES, "paper": Samples(d=500)},
)
def sample_curves(s: Samples) -> xr.Dataset:
    return by_samples(s)


@sample_curves.figure
def plot_sample_curves(ds: xr.Dataset):
    return show_curves(ds, "n")
