"""The theorems as exact checks: margin, construction, single neurons, identities (000 §4.4, §C.5–C.9)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, equals, figures
from krogh.systems.modular_fourier_circuits import system
from krogh.theory import modular_margin as theory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Case = tuple[int, int]


def _label(k: int, p: int) -> str:
    return f"k = {k}, p = {p}"


def _phase_error(u: np.ndarray, w: np.ndarray, at: np.ndarray) -> np.ndarray:
    """|Σ_j arg û_j(f) − arg ŵ(f)| of each neuron at its frequency, wrapped to [0, π]."""
    u_hat = np.take_along_axis(np.fft.fft(u), at[:, None, None], axis=2)[..., 0]
    w_hat = np.take_along_axis(np.fft.fft(w), at[:, None], axis=1)[:, 0]
    return np.abs(np.angle(np.prod(u_hat / np.abs(u_hat), axis=1) * np.conj(w_hat)))


# ------------------------------------------------------------------------------------------- the construction


@dataclass(frozen=True)
class Construction:
    cases: tuple[Case, ...] = ((2, 7), (2, 13), (3, 5), (3, 7), (4, 5), (5, 3))


@system.experiment(
    "lemma-4.11",
    "The constructed network reaches the maximum margin with every frequency",
    presets={"smoke": Construction(cases=((2, 7), (3, 5))), "quick": Construction()},
)
def construction(s: Construction) -> xr.Dataset:
    rows = []
    for k, p in s.cases:
        u, w = theory.construction(k, p)
        margins = theory.margins(u, w)
        norms = np.sqrt(np.concatenate([np.sum(u**2, axis=2), np.sum(w**2, axis=1)[:, None]], axis=1))
        at = np.argmax(np.abs(np.fft.rfft(w)), axis=1)
        x = theory.table(k, p)
        f = theory.outputs(u, w, x)
        right = np.arange(p) == (x.sum(axis=1) % p)[:, None]
        # one and the same constant must explain both values of the sum of cosines
        const = f[right].mean() / ((p - 1) / 2)
        wrong = f[~right] / const
        spectrum = theory.spectrum(u, w)
        j = np.arange(1, p)
        diagonal = spectrum[(*[j] * k, -j % p)]
        spectrum[(*[j] * k, -j % p)] = 0
        rows.append(
            {
                "gamma": theory.max_margin(k, p),
                "lowest": margins.min(),
                "highest": margins.max(),
                "neurons": len(w),
                "width": theory.sufficient_width(k, p),
                "per_frequency_low": np.bincount(at)[1:].min(),
                "per_frequency_high": np.bincount(at)[1:].max(),
                "phase_error": _phase_error(u, w, at).max(),
                "norm_spread": np.ptp(norms) / norms.mean(),
                "right_class": (f[right] / const).mean(),
                "right_error": np.abs(f[right] / const - (p - 1) / 2).max(),
                "wrong_class": wrong.mean(),
                "wrong_error": np.abs(wrong + 0.5).max(),
                "diagonal": diagonal.real.min(),
                "diagonal_error": np.abs(diagonal - margins.min() * p**k).max(),
                "elsewhere": np.abs(spectrum[..., 1:]).max(),
            }
        )
    names = [_label(*case) for case in s.cases]
    ds = xr.Dataset({name: ("case", [float(row[name]) for row in rows]) for name in rows[0]}, coords={"case": names})
    return ds.assign_coords(k=("case", [k for k, _ in s.cases]), p=("case", [p for _, p in s.cases]))


@construction.claim(
    "03.1",
    "The closed form of gamma* is the normalised margin of the constructed network to 1e-10, at every data point",
    source="Thm 4.9, Lemma 4.11",
)
def margin_is_gamma(ds: xr.Dataset):
    return all_of(
        lowest=equals(ds.lowest / ds.gamma, 1.0, 1e-10),
        same_everywhere=equals((ds.highest - ds.lowest) / ds.gamma, 0.0, 1e-10),
    )


@construction.claim(
    "03.2",
    "The construction has 2^(2k-2) (p-1) neurons, 2^(2k-1) of each frequency, with equal norms of u_1, ..., u_k, w and "
    "phases that add up; the network is a constant times (p-1)/2 at the right class and -1/2 at the others (to 1e-9)",
    source="Lemma 4.11, §C.7",
    finding="Printed: 56 neurons per frequency for k = 3 (§C.7.2); the lemma's own count is 2^(2k-1) = 32.",
)
def construction_is_as_said(ds: xr.Dataset):
    per_frequency = [theory.neurons_per_frequency(int(k)) for k in ds.k]
    return all_of(
        neurons=equals(ds.neurons, ds.width),
        fewest_per_frequency=equals(ds.per_frequency_low, per_frequency),
        most_per_frequency=equals(ds.per_frequency_high, per_frequency),
        norms=at_most(float(ds.norm_spread.max()), 1e-9),
        phases=at_most(float(ds.phase_error.max()), 1e-9),
        right_class=at_most(float(ds.right_error.max()), 1e-9),
        wrong_class=at_most(float(ds.wrong_error.max()), 1e-9),
    )


@construction.claim(
    "03.2-printed",
    "As printed, the network is 0 at every wrong class (1e-9) and k = 3 takes 56 neurons per frequency",
    source="§C.7.2",
    finding="The sum over zeta = 1..(p-1)/2 of cos is -1/2 at a wrong class, so the margin before scaling is p/2 and "
    "not (p-1)/2; the count for k = 3 is 8 products of 4 neurons, 32. Neither changes the theorem.",
)
def printed_values(ds: xr.Dataset):
    three = ds.isel(case=ds.k.values == 3)
    return all_of(
        wrong_class=equals(ds.wrong_class, theory.PRINTED_WRONG_CLASS, 1e-9),
        neurons=equals(three.per_frequency_low, theory.PRINTED_NEURONS_PER_FREQUENCY_3),
    )


@construction.claim(
    "03.5",
    "The (k+1)-dimensional DFT of the constructed f is positive and equal at all (j, ..., j, -j), j != 0, where it is "
    "the margin times p^k, and below 1e-9 at all other entries with j_{k+1} != 0",
    source="Lemma C.20",
)
def only_the_diagonal(ds: xr.Dataset):
    return all_of(
        positive=at_least(float(ds.diagonal.min()), 1e-6),
        equal_to_margin=at_most(float(ds.diagonal_error.max()), 1e-9),
        elsewhere=at_most(float(ds.elsewhere.max()), 1e-9),
    )


@construction.figure
def plot_construction(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = figures.new_figure(2)
    place = np.arange(ds.sizes["case"])
    left.semilogy(place, ds.lowest, "o", label="constructed network")
    figures.theory(left, place, ds.gamma, r"$\gamma^*$ (Thm 4.9)")
    left.set(ylabel="normalised margin", xticks=place, title="The construction has the largest margin")
    left.set_xticklabels([f"({k}, {p})" for k, p in zip(ds.k.values, ds.p.values, strict=True)])
    left.set_xlabel("(k, p)")
    left.legend()
    right.semilogy(place, ds.neurons, "o", label="neurons built")
    figures.theory(right, place, ds.width, r"$2^{2k-2}(p-1)$")
    right.set(ylabel="neurons", xlabel="(k, p)", xticks=place, xticklabels=left.get_xticklabels())
    right.legend()
    return figure


# ------------------------------------------------------------------------------------------- single neurons


@dataclass(frozen=True)
class Neurons:
    enumerated: tuple[Case, ...] = ((3, 7), (4, 5))
    neurons: int = 100
    cases: tuple[Case, ...] = ((2, 13), (3, 11), (4, 7), (5, 7))
    starts: int = 50


@system.experiment(
    "lemma-4.10",
    "The best single neurons are cosines of one frequency",
    presets={
        "smoke": Neurons(enumerated=((3, 5),), neurons=5, cases=((2, 7), (3, 5)), starts=5),
        "quick": Neurons(),
    },
)
def single_neurons(s: Neurons) -> xr.Dataset:
    rng = np.random.default_rng(0)
    error = np.zeros((len(s.enumerated), s.neurons))
    for row, (k, p) in enumerate(s.enumerated):
        u, w = rng.normal(size=(s.neurons, k, p)), rng.normal(size=(s.neurons, p)) + rng.normal(size=(s.neurons, 1))
        exact = np.array([theory.class_margin_enumerated(u[i], w[i]) for i in range(s.neurons)])
        error[row] = np.abs(theory.class_margin(u, w) - exact) / np.abs(exact)
    best, power = np.zeros((2, len(s.cases), s.starts))
    for row, (k, p) in enumerate(s.cases):
        for start in range(s.starts):
            value, u, w = theory.ascend(k, p, rng)
            share = np.abs(np.fft.rfft(np.vstack([u, w]))) ** 2
            best[row, start] = value / theory.max_margin(k, p)
            power[row, start] = (share.max(axis=1) / share.sum(axis=1)).min()
    return xr.Dataset(
        {
            "formula_error": (("enumerated", "neuron"), error),
            "relative_value": (("case", "start"), best),
            "one_frequency": (("case", "start"), power),
        },
        coords={"enumerated": [_label(*c) for c in s.enumerated], "case": [_label(*c) for c in s.cases]},
    )


@single_neurons.claim(
    "03.3",
    "The Fourier formula of the class-weighted margin equals enumeration to 1e-10 (relative) for 100 random neurons, "
    "means of w not zero",
    source="Lemma C.14, eq. C.10",
    finding="The proof drops the other terms 'by the definition of w', as if w had mean zero; they are the same for "
    "all classes and cancel, so no such condition is needed. It also prints 1 - 1/(p-1) = p/(p-1): the sign is a plus.",
)
def formula_is_exact(ds: xr.Dataset):
    return at_most(float(ds.formula_error.max()), 1e-10)


@single_neurons.claim(
    "03.4",
    "L-BFGS on the class-weighted margin of a unit neuron, 50 random starts: never above gamma* (1e-9), best at least "
    "0.999 gamma*, and there all k+1 vectors have a share >= 0.999 of their power at one frequency",
    source="Lemma 4.10",
)
def best_neuron(ds: xr.Dataset):
    top = ds.relative_value.argmax("start")
    return all_of(
        never_above=at_most(float(ds.relative_value.max()), 1 + 1e-9),
        best=at_least(float(ds.relative_value.max("start").min()), 0.999),
        one_frequency=at_least(float(ds.one_frequency.isel(start=top).min()), 0.999),
    )


@single_neurons.figure
def plot_single_neurons(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = figures.new_figure(2)
    for case in ds.case.values:
        left.plot(np.sort(1 - ds.relative_value.sel(case=case)), ".", label=case)
        right.plot(np.sort(1 - ds.one_frequency.sel(case=case)), ".", label=case)
    left.set(xlabel="start, sorted", ylabel=r"$1 - $ margin$/\gamma^*$", title="Every start ends at γ*")
    right.set(xlabel="start, sorted", ylabel="1 − share at one frequency", title="and is one cosine per vector")
    for ax in (left, right):
        ax.set_yscale("symlog", linthresh=1e-15)
    left.legend()
    return figure


# ------------------------------------------------------------------------------------------- combinations


@dataclass(frozen=True)
class Combinations:
    cases: tuple[Case, ...] = ((2, 7), (3, 7), (4, 5))
    neurons: int = 40
    draws: int = 50


@system.experiment(
    "lemma-C.5",
    "Combinations of the best neurons keep the class-weighted margin, not the margin",
    presets={"smoke": Combinations(cases=((2, 7),), draws=3), "quick": Combinations()},
)
def combinations(s: Combinations) -> xr.Dataset:
    rng = np.random.default_rng(0)
    weighted, true = np.zeros((2, len(s.cases), s.draws))
    for row, (k, p) in enumerate(s.cases):
        for draw in range(s.draws):
            alpha = rng.exponential(size=s.neurons) ** (1 / (k + 1))
            alpha /= np.sum(alpha ** (k + 1)) ** (1 / (k + 1))
            parts = [
                theory.optimal_neuron(p, zeta, rng.uniform(0, 2 * np.pi, k))
                for zeta in rng.integers(1, (p - 1) // 2 + 1, s.neurons)
            ]
            u, w = (alpha.reshape(-1, *[1] * part[0].ndim) * np.array(part) for part in zip(*parts, strict=True))
            weighted[row, draw] = theory.class_margin(u, w).sum() / theory.max_margin(k, p)
            true[row, draw] = theory.margins(u, w).min() / theory.max_margin(k, p)
    names = [_label(*case) for case in s.cases]
    return xr.Dataset(
        {"class_weighted": (("case", "draw"), weighted), "margin": (("case", "draw"), true)}, coords={"case": names}
    )


@combinations.claim(
    "03.6",
    "40 random best neurons with random alpha, sum alpha^(k+1) = 1, have class-weighted margin gamma* (1e-9), while "
    "the margin is below gamma* in at least 90 % of the draws",
    source="Lemmas C.5, C.6",
    finding="The lemma calls the exponent gamma; it is the degree k+1, and the norm's exponent must equal it.",
)
def combinations_keep_the_mean(ds: xr.Dataset):
    below = (ds.margin < 1 - 1e-6).mean()
    return all_of(weighted=equals(ds.class_weighted, 1.0, 1e-9), margin_below=at_least(float(below), 0.9))


@combinations.figure
def plot_combinations(ds: xr.Dataset) -> "Figure":
    figure, ax = figures.new_figure(size=(3.8, 2.6))
    for place, case in enumerate(ds.case.values):
        jitter = place + np.linspace(-0.2, 0.2, ds.sizes["draw"])
        ax.plot(jitter, ds.margin.sel(case=case), ".", color="C0", label="margin" if place == 0 else None)
        ax.plot(
            jitter, ds.class_weighted.sel(case=case), ".", color="C1", label=None if place else "class-weighted margin"
        )
    figures.theory(ax, [-0.5, ds.sizes["case"] - 0.5], [1, 1], r"$\gamma^*$")
    ax.set(xticks=range(ds.sizes["case"]), xticklabels=ds.case.values, ylabel=r"relative to $\gamma^*$")
    ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- identities


@dataclass(frozen=True)
class Identities:
    largest_k: int = 8
    draws: int = 200
    p: int = 11


@system.experiment(
    "lemma-C.16",
    "Products as sums of powers, sums of angles as products, parity as p = 2",
    presets={"smoke": Identities(largest_k=4, draws=20), "quick": Identities()},
)
def identities(s: Identities) -> xr.Dataset:
    rng = np.random.default_rng(0)
    sizes = list(range(2, s.largest_k + 1))
    product, angle, parity, neurons = np.zeros((4, len(sizes)))
    for row, k in enumerate(sizes):
        d = rng.normal(size=(s.draws, k))
        expected = 2.0**k * np.prod(np.arange(1, k + 1)) * np.prod(d, axis=1)
        # relative to the terms that are added, not to their sum, which may all but cancel
        product[row] = np.max(np.abs(theory.polarised(d) - expected) / (2.0**k * np.sum(np.abs(d), axis=1) ** k))
        x = rng.uniform(0, 2 * np.pi, (s.draws, k + 1))
        terms = [
            sign * np.prod(np.where(np.array(b, bool), np.sin(x), np.cos(x)), axis=1)
            for b, sign in theory.even_products(k)
        ]
        angle[row] = np.max(np.abs(np.sum(terms, axis=0) - np.cos(x.sum(axis=1))))
        signs = 1.0 - 2.0 * theory.table(k, 2)
        parity[row] = np.max(np.abs(theory.polarised(signs) / (2.0**k * np.prod(np.arange(1, k + 1))) - signs.prod(1)))
        neurons[row] = 2 ** (k - 1)
    turn = 2 * np.pi * np.arange(s.p) / s.p
    right = [np.argmax(np.cos(zeta * (turn[a] - turn))) == a for zeta in range(1, s.p) for a in range(s.p)]
    u = np.cos(theory.PRINTED_SINE_PHASES[:, :3, None] + turn)
    w = np.cos(theory.PRINTED_SINE_PHASES[:, 3:] + turn)
    x = theory.table(3, s.p)
    sines = np.prod([np.sin(turn[x[:, 0]]), np.sin(turn[x[:, 1]]), np.cos(turn[x[:, 2]])], axis=0)
    expected = -24 * sines[:, None] * np.cos(turn)
    first = -((np.sin(turn[x[:, 0]]) + np.sin(turn[x[:, 1]]) + np.cos(turn[x[:, 2]])) ** 3)[:, None] * np.cos(turn)
    return xr.Dataset(
        {
            "polarisation_error": ("k", product),
            "angle_error": ("k", angle),
            "parity_error": ("k", parity),
            "parity_neurons": ("k", neurons),
            "argmax_right": float(np.mean(right)),
            "printed_sum_error": np.abs(theory.outputs(u, w, x) - expected).max(),
            "printed_neuron_error": np.abs(theory.outputs(u[:1], w[:1], x) - first).max(),
        },
        coords={"k": sizes},
    )


@identities.claim(
    "03.7",
    "2^k k! prod d_j is the signed sum of 2^k powers for k = 2, ..., 8 and random reals, to 1e-9 relative; cos of a "
    "sum is the sum of the 2^k even products; argmax_c cos(2 pi zeta (sum a - c)/p) is the answer for every zeta",
    source="Lemma C.16, eq. C.21, §4.2",
    finding="The expansion in §4.4.1 has k angles and leaves out c; the one needed is eq. C.21, with k+1.",
)
def identities_hold(ds: xr.Dataset):
    return all_of(
        polarisation=at_most(float(ds.polarisation_error.max()), 1e-9),
        cosine_of_sum=at_most(float(ds.angle_error.max()), 1e-9),
        argmax=equals(ds.argmax_right, 1.0),
    )


@identities.claim(
    "03.7-printed",
    "The four neurons with the printed phases (pi/2 for a sine) add up to -24 sin a_1 sin a_2 cos a_3 cos c, each as "
    "printed (to 1e-9)",
    source="§C.7.2, eq. C.20",
    finding="cos(x + pi/2) = -sin x, so the single neurons have the mirrored signs; the sum is right, since the two "
    "sines change sign together. A sine is a cosine of phase -pi/2.",
)
def printed_phases(ds: xr.Dataset):
    return all_of(
        their_sum=at_most(float(ds.printed_sum_error), 1e-9),
        first_neuron=at_most(float(ds.printed_neuron_error), 1e-9),
    )


@identities.claim(
    "03.22",
    "At p = 2 the task is the parity of k bits: 2^(k-1) neurons of Lemma C.16 compute it exactly (1e-9), exponentially "
    "many in k (a remark: the theorem needs p > 2)",
    source="§4.6",
)
def parity_at_two(ds: xr.Dataset):
    return at_most(float(ds.parity_error.max()), 1e-9)


@identities.figure
def plot_identities(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = figures.new_figure(2)
    left.semilogy(ds.k, ds.polarisation_error, "o-", label="product as powers")
    left.semilogy(ds.k, ds.angle_error, "o-", label="cosine of a sum")
    left.axhline(1e-9, color="0.5", linestyle=":")
    left.set(xlabel="k", ylabel="largest error")
    left.legend()
    right.semilogy(ds.k, ds.parity_neurons, "o-")
    right.set(xlabel="k", ylabel="neurons for the parity of k bits", title="p = 2 is parity")
    return figure
