"""What the theory says exactly: coefficients, gradients, luck, readout and the query bound (003 §6.3, §C.2)."""

import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from krogh.lab import all_of, at_least, at_most, between, every
from krogh.lab.figures import COLOURS, new_figure, reported, theory
from krogh.lab.statistics import power_law
from krogh.nn.mlp import MLP, TwoLayer
from krogh.nn.sparse import hot_rows
from krogh.systems.pareto_frontiers import system
from krogh.tasks.parity import SparseParity
from krogh.theory import majority, tickets
from krogh.theory.boolean import cube, walsh_hadamard
from krogh.theory.fourier_gap import population_gradient, step
from krogh.train import SGD, train

# ------------------------------------------------------------------------------------------- Lemma C.12


@dataclass(frozen=True)
class Coefficients:
    largest_majority: int = 13
    largest_half: int = 12


@system.experiment(
    "lemma-C.12",
    "Fourier coefficients of Majority and Half",
    presets={"smoke": Coefficients(7, 6), "quick": Coefficients()},
)
def coefficients(s: Coefficients) -> xr.Dataset:
    sizes = [*range(1, s.largest_majority + 1, 2), *range(2, s.largest_half + 1, 2)]
    shape = len(sizes), s.largest_majority + 1
    enumerated, closed, printed = (np.full(shape, np.nan) for _ in range(3))
    for row, n in enumerate(sizes):
        total = cube(n).sum(axis=1)
        spectrum = walsh_hadamard(np.sign(total) if n % 2 else (total == 0).astype(float))
        for k in range(n + 1):
            enumerated[row, k] = spectrum[2**k - 1]
            closed[row, k] = majority.coefficient(n, k) if n % 2 else tickets.half(n, k)
            printed[row, k] = tickets.half_printed(n - n % 2, k - n % 2)
    names = ("n", "k")
    return xr.Dataset(
        {"enumerated": (names, enumerated), "closed": (names, closed), "printed": (names, printed)},
        coords={"n": sizes, "k": np.arange(shape[1])},
    )


@coefficients.claim(
    "15.1",
    "The closed forms of Maj (odd n <= 13) and Half (even n <= 12) equal the enumerated coefficients within 1e-12; as "
    "printed, without 2^-2m, Lemma C.12 misses by more than that for every n > 1",
    source="Lemma C.12, trap T2",
    finding="The printed lemma lacks the factor 2^-2m; with it the formula is exact.",
)
def closed_coefficients(ds: xr.Dataset):
    wrong = abs(ds.printed - ds.enumerated).max("k").sel(n=ds.n[ds.n > 1])
    return all_of(
        closed_form=at_most(float(abs(ds.closed - ds.enumerated).max()), 1e-12),
        printed_is_wrong=every(wrong > 1e-12),
    )


@coefficients.figure
def plot_coefficients(ds: xr.Dataset):
    fig, axes = new_figure(2)
    for ax, parity, name in zip(axes, (1, 0), ("Maj", "Half"), strict=True):
        for n in ds.n.values[ds.n.values % 2 == parity][1:]:
            cell = ds.sel(n=n).dropna("k").isel(k=slice(parity, None, 2))
            ax.semilogy(cell.k, abs(cell.enumerated), "o", label=f"n = {n}")
            theory(ax, cell.k, abs(cell.closed), None)
        ax.set(xlabel="size of the subset", ylabel="|coefficient|", title=f"{name}: enumerated, Lemma C.12 dashed")
        ax.legend(fontsize=6)
    return fig


# ------------------------------------------------------------------------------------------- Lemmas C.3, C.4, C.13-C.15


@dataclass(frozen=True)
class Gradients:
    """Cases are (n, s, k); every support is enumerated up to the order of coordinates inside and outside S."""

    over: tuple[tuple[int, int, int], ...] = ((13, 9, 2), (15, 11, 4))
    under: tuple[tuple[int, int, int], ...] = ((13, 2, 4), (15, 2, 6), (15, 4, 6))
    bias: float = -0.25


def supports(n: int, s: int, k: int) -> Float[np.ndarray, "overlaps n"]:
    """One 0/1 vector with s ones for every possible number of them inside S = [k], most first."""
    rows = []
    for inside in range(min(k, s), max(0, s - (n - k)) - 1, -1):
        row = np.zeros(n)
        row[:inside] = row[k : k + s - inside] = 1
        rows.append(row)
    return np.array(rows)


def _compared(case: tuple[int, int, int], background: float, bias: float, closed) -> xr.Dataset:
    n, s, k = case
    support = supports(n, s, k)
    dims = "overlap", "coordinate"
    return xr.Dataset(
        {
            "enumerated": (dims, population_gradient(step, support + background * (1 - support), k, bias)),
            "closed": (dims, closed(support, k)),
            "support": (dims, support),
        },
        coords={"overlap": support[:, :k].sum(axis=1).astype(int), "coordinate": np.arange(n)},
    ).expand_dims(case=[f"n={n}, s={s}, k={k}"])


@system.experiment(
    "lemma-C.3",
    "The over-sparse neuron's population gradient",
    presets={"smoke": Gradients(over=((9, 5, 2),)), "quick": Gradients()},
)
def over_sparse(s: Gradients) -> xr.Dataset:
    ds = xr.concat([_compared(c, 0.0, s.bias, tickets.over_sparse_gradient) for c in s.over], "case", join="outer")
    exact = [(tickets.relevant(t, k), tickets.irrelevant(t, k), tickets.relevant_bound(t, k)) for _, t, k in s.over]
    return ds.assign(
        relevant=("case", [e[0] for e in exact]),
        irrelevant=("case", [e[1] for e in exact]),
        relevant_bound=("case", [e[2] for e in exact]),
        ratio=("case", [(k - 1) / (t - k) for _, t, k in s.over]),
        ratio_bound=("case", [4 * k / t for _, t, k in s.over]),
    )


@over_sparse.claim(
    "15.2",
    "(n,s,k) = (13,9,2), (15,11,4): the enumerated gradient is C on S, c on the rest of the support, 0 elsewhere for a "
    "neuron that contains S, one entry C for one that misses one coordinate, 0 for others (1e-10); "
    "|c/C| = (k-1)/(s-k) <= 4k/s; |C| >= sqrt(rho(k-1) / C(s,k-1)) / 2 with the corrected rho",
    source="Lemmas C.3, C.4, traps T3, T6",
    finding="rho(v) is 4/(pi v 2^v) C(v-1, (v-1)/2); printed, v 2^v has become v^(2v).",
)
def over_sparse_closed(ds: xr.Dataset):
    ratio = abs(ds.irrelevant / ds.relevant)
    return all_of(
        closed_form=at_most(float(abs(ds.enumerated - ds.closed).max()), 1e-10),
        ratio=at_most(float(abs(ratio - ds.ratio).max()), 1e-12),
        ratio_bound=every(ratio <= ds.ratio_bound),
        size_bound=every(abs(ds.relevant) >= ds.relevant_bound),
    )


@system.experiment(
    "lemma-C.13",
    "The under-sparse neuron's population gradient",
    presets={"smoke": Gradients(under=((9, 2, 4),)), "quick": Gradients()},
)
def under_sparse(s: Gradients) -> xr.Dataset:
    parts, measured = [], []
    for n, t, k in s.under:
        eps = 0.5 / (n - t)
        part = _compared((n, t, k), eps, eps * s.bias, tickets.under_sparse_gradient)
        good = abs(part.enumerated.isel(case=0).sel(overlap=t).values)
        parts.append(part)
        measured.append(good[t:k].min() / good[k:].max())
    return xr.concat(parts, "case", join="outer").assign(
        ratio=("case", measured),
        corrected=("case", [tickets.gap_ratio(*case) for case in s.under]),
        printed=("case", [tickets.gap_ratio_printed(*case) for case in s.under]),
    )


@under_sparse.claim(
    "15.3",
    "(n,s,k) = (13,2,4), (15,2,6), (15,4,6): the enumerated gradient equals 1/2 Half_s Maj_{n-s} (1e-10) for every "
    "support; for good neurons the ratio on S minus S' to off S is (n-k)/(k-s-1), not the printed (n-s)/(k-s-1)",
    source="Lemmas C.13-C.15, proof of Thm C.16, trap T4",
    finding="The printed ratio (n-s)/(k-s-1) has s for k: enumerated 9, 3, 9; printed 11, 4.33, 11.",
)
def under_sparse_closed(ds: xr.Dataset):
    return all_of(
        closed_form=at_most(float(abs(ds.enumerated - ds.closed).max()), 1e-10),
        ratio=at_most(float(abs(ds.ratio - ds.corrected).max()), 1e-9),
        printed_is_wrong=every(abs(ds.ratio - ds.printed) > 0.5),
    )


def _bars(ds: xr.Dataset, good: str):
    fig, axes = new_figure(ds.sizes["case"], 2, squeeze=False, sharex="col")
    for column, case in zip(axes.T, ds.case.values, strict=True):
        cell = ds.sel(case=case).dropna("coordinate", how="all").dropna("overlap", how="all")
        k = int(str(case).rpartition("=")[2])
        best = int(cell.overlap.max())
        for ax, overlap in zip(column, (best, best - 1), strict=True):
            one = cell.sel(overlap=overlap)
            colours = np.where(one.coordinate < k, COLOURS[1], COLOURS[0])
            ax.bar(one.coordinate + 1, one.enumerated, color=colours)
            ax.plot(one.coordinate + 1, one.closed, "_", color="black", markersize=6)
            kind = good if overlap == best else "one coordinate short"
            ax.set(title=f"{case}: {kind}", ylabel="$G_i$")
        column[-1].set_xlabel("coordinate (orange: S; black: closed form)")
    return fig


@over_sparse.figure
def plot_over_sparse(ds: xr.Dataset):
    return _bars(ds, "contains S")


@under_sparse.figure
def plot_under_sparse(ds: xr.Dataset):
    return _bars(ds, "inside S")


# ------------------------------------------------------------------------------------------- Lemma C.2, exponents


@dataclass(frozen=True)
class Luck:
    """Cases are (n, s, k): s > k counts supports that contain S, s < k supports inside S."""

    cases: tuple[tuple[int, int, int], ...] = ((50, 17, 4), (30, 9, 2), (60, 15, 3), (15, 2, 4), (30, 2, 6), (20, 3, 5))
    neurons: int = 100_000


@system.experiment(
    "lemma-C.2",
    "How often a random sparse neuron is a good one",
    presets={"smoke": Luck(neurons=2000), "quick": Luck()},
)
def luck(s: Luck) -> xr.Dataset:
    exact, bound, measured = [], [], []
    for row, (n, t, k) in enumerate(s.cases):
        support = hot_rows(jax.random.key(row), n, s.neurons, t)
        overlap = np.asarray(support[:k].sum(axis=0))
        measured.append(np.mean(overlap == min(k, t)))
        exact.append(tickets.luck_over(n, t, k) if t > k else tickets.luck_under(n, t, k))
        bound.append(tickets.luck_over_bound(n, t, k) if t > k else np.nan)
    return xr.Dataset(
        {"exact": ("case", exact), "bound": ("case", bound), "measured": ("case", measured)},
        coords={"case": [f"n={n}, s={t}, k={k}" for n, t, k in s.cases]},
        attrs={"neurons": s.neurons},
    )


@luck.claim(
    "15.4",
    "The share of good neurons among s-hot ones is within 3 standard errors of C(n-k,s-k)/C(n,s) (s > k) and of "
    "C(k,s)/C(n,s) (s < k), and the former exceeds (s/2n)^k",
    source="Lemma C.2, proof of Thm C.16",
)
def lucky(ds: xr.Dataset):
    error = np.sqrt(ds.exact * (1 - ds.exact) / ds.attrs["neurons"])
    known = ds.bound.notnull()
    return all_of(
        frequency=every(abs(ds.measured - ds.exact) <= 3 * error),
        bound=every(ds.exact[known] >= ds.bound[known]),
    )


@luck.figure
def plot_luck(ds: xr.Dataset):
    fig, ax = new_figure(size=(4.2, 2.6))
    place = np.arange(ds.sizes["case"])
    error = 3 * np.sqrt(ds.exact * (1 - ds.exact) / ds.attrs["neurons"])
    ax.errorbar(place, ds.measured, yerr=error, fmt="o", capsize=2, label="measured ± 3 standard errors")
    ax.plot(place, ds.exact, "_", color="black", markersize=14, label="exact")
    ax.plot(place, ds.bound, "v", color="0.6", label="bound $(s/2n)^k$")
    ax.set_xticks(place, ds.case.values, rotation=30, ha="right")
    ax.set(yscale="log", ylabel="P(good neuron)", title="Luck of one ticket")
    ax.legend()
    return fig


@dataclass(frozen=True)
class Tickets:
    """The law (n/s)^k is that of n far above s: near n = s almost every neuron is good, and a width of two or three is
    mostly rounding. Here n/s > 2 throughout."""

    k: int = 2
    sizes: tuple[int, ...] = (30, 60, 120)
    sparsities: tuple[int, ...] = (9, 11, 13)
    confidence: float = 0.95
    inits: int = 20_000


@system.experiment(
    "thm-6.4-width",
    "Width needed for one good ticket against sparsity",
    presets={"smoke": Tickets(inits=500), "quick": Tickets()},
)
def width_for_luck(s: Tickets) -> xr.Dataset:
    rng = np.random.default_rng(0)
    needed, exact, proven = np.zeros((3, len(s.sizes), len(s.sparsities)))
    for cell in np.ndindex(needed.shape):
        n, t = s.sizes[cell[0]], s.sparsities[cell[1]]
        exact[cell] = tickets.width_needed(tickets.luck_over(n, t, s.k), s.confidence)
        proven[cell] = tickets.width_proven(n, t, s.k, 1 - s.confidence)
        # place of the first good neuron of every initialisation, drawn a block of neurons at a time
        first = np.full(s.inits, np.inf)
        block, start = max(16, int(exact[cell] / 2)), 0
        while (open_ := np.isinf(first)).any():
            overlap = rng.hypergeometric(s.k, n - s.k, t, (int(open_.sum()), block))
            good = overlap == s.k
            first[open_] = np.where(good.any(axis=1), start + good.argmax(axis=1) + 1, np.inf)
            start += block
        # the smallest width that bisection over r would find
        needed[cell] = np.quantile(first, s.confidence, method="inverted_cdf")
    dims = "n", "s"
    return xr.Dataset(
        {"needed": (dims, needed), "exact": (dims, exact), "proven": (dims, proven)},
        coords={"n": list(s.sizes), "s": list(s.sparsities)},
        attrs={"k": s.k, "confidence": s.confidence},
    )


def _exponent(ds: xr.Dataset) -> float:
    ratio = (ds.n / ds.s).transpose("n", "s")
    return power_law(ratio.values.ravel(), ds.needed.transpose("n", "s").values.ravel())[0]


@width_for_luck.claim(
    "15.8",
    "k = 2, n = 30, 60, 120, s = 9, 11, 13: the smallest width with a good neuron in 95 % of initialisations grows as "
    "(n/s)^a with a within 0.2 of k",
    source="Thm 6.4, Lemma C.10",
)
def width_exponent(ds: xr.Dataset):
    return between(_exponent(ds), ds.attrs["k"] - 0.2, ds.attrs["k"] + 0.2)


@width_for_luck.figure
def plot_width(ds: xr.Dataset):
    fig, ax = new_figure(size=(3.8, 2.8))
    label = f"ln {1 / (1 - ds.attrs['confidence']):.3g} / −ln(1 − P(good))"
    for n in ds.n.values:
        ax.loglog(n / ds.s, ds.needed.sel(n=n), "o", label=f"n = {n}")
        theory(ax, n / ds.s, ds.exact.sel(n=n), label if n == ds.n.values[-1] else None)
    proven = ds.proven.stack(cell=("n", "s"))
    ax.loglog(proven.n / proven.s, proven, "v", color="0.7", markersize=3, label="Lemma C.10")
    title = f"slope {_exponent(ds):.2f} (k = {ds.attrs['k']})"
    ax.set(xlabel="n / s", ylabel=f"width, {ds.attrs['confidence']:.0%} lucky", title=title)
    ax.legend()
    return fig


# ------------------------------------------------------------------------------------------- Lemma C.6


@dataclass(frozen=True)
class Readout:
    ks: tuple[int, ...] = (2, 4, 6, 8)


@system.experiment(
    "lemma-C.6", "The readout of good neurons, with k/2 biases and as printed", presets={"quick": Readout()}
)
def readout(s: Readout) -> xr.Dataset:
    rank, residual, norm = np.zeros((3, len(s.ks), 2))
    for row, k in enumerate(s.ks):
        for column, printed in enumerate((False, True)):
            features, target = tickets.readout(k, tickets.over_biases(k, printed=printed))
            head = np.linalg.lstsq(features, target, rcond=1e-14)[0]
            rank[row, column] = np.linalg.matrix_rank(features)
            residual[row, column] = abs(features @ head - target).max()
            norm[row, column] = np.linalg.norm(head)
    dims = "k", "biases"
    return xr.Dataset(
        {"rank": (dims, rank), "residual": (dims, residual), "norm": (dims, norm)},
        coords={"k": list(s.ks), "biases": ["k/2", "printed"]},
    )


@readout.claim(
    "15.5",
    "With the k/2 biases j = 0..k/2-1 the features of k = 2, 4, 6 have rank k+1 and give parity within 1e-6; with the "
    "printed k/2-1 biases the best readout misses by >= 1",
    source="Lemma C.6, trap T1",
    finding="sum_{i in S} x_i takes k+1 values, so k+1 features are needed; the printed k cannot represent parity "
    "(largest error 1.33 to 1.35).",
)
def readout_exact(ds: xr.Dataset):
    full, printed = (ds.sel(biases=b, k=[2, 4, 6]) for b in ("k/2", "printed"))
    return all_of(
        rank=every(full["rank"] == full.k + 1),
        parity=at_most(float(full.residual.max()), 1e-6),
        printed_fails=at_least(float(printed.residual.min()), 1),
    )


@readout.figure
def plot_readout(ds: xr.Dataset):
    fig, (left, right) = new_figure(2)
    for biases, style in zip(ds.biases.values, ("o-", "s--"), strict=True):
        left.semilogy(ds.k, ds.residual.sel(biases=biases), style, label=f"{biases} biases")
        right.semilogy(ds.k, ds.norm.sel(biases=biases), style, label=f"{biases} biases")
    reported(left, 1, "parity's scale")
    left.set(xlabel="k", ylabel="largest error of the readout", title="Parity from ReLUs of $\\sum_S x_i$")
    right.set(xlabel="k", ylabel="norm of the readout", title="Exact, but ill-conditioned")
    left.legend()
    return fig


# ------------------------------------------------------------------------------------------- Proposition 6.3


@dataclass(frozen=True)
class Queries:
    """One neuron: with more of them the bound rT/C(n,k) is above 1, which no squared correlation exceeds."""

    n: int = 12
    k: int = 4
    width: int = 1
    steps: int = 20
    lr: float = 0.1
    seeds: int = 16


@system.experiment(
    "prop-6.3",
    "How little any gradient of a target-free run says about a parity",
    presets={"smoke": Queries(n=8, k=3, steps=4, seeds=2), "quick": Queries()},
)
def queries(s: Queries) -> xr.Dataset:
    run = train(
        SparseParity(s.n, s.k),
        MLP(s.width),
        # half the square of the output: the loss against the constant target 0
        SGD(lr=s.lr, batch=None, samples="all", loss=lambda output, y: output**2 / 2),
        s.steps,
        seeds=s.seeds,
        snapshots=range(s.steps),
    )
    largest, mean_square = np.zeros(s.seeds), np.zeros((s.seeds, s.steps))
    slope = np.zeros((s.seeds, s.steps))
    x = jnp.asarray(cube(s.n), jnp.float32)
    for seed in range(s.seeds):
        best = np.zeros(math.comb(s.n, s.k))
        for t in range(s.steps):
            gradients = np.asarray(_gradients(run.network(seed=seed, step=t), x), float)
            slope[seed, t] = abs(gradients).max()
            # Prop. 6.3 asks for |dh/dtheta_i| <= 1
            squares = tickets.query_correlations(gradients / max(1.0, slope[seed, t]), s.k)
            mean_square[seed, t] = squares.mean(axis=0).max()
            best = np.maximum(best, squares.max(axis=1))
        largest[seed] = best.mean()
    parameters = gradients.shape[1]
    return xr.Dataset(
        {
            "mean_square": (("seed", "step"), mean_square),
            "largest": ("seed", largest),
            "slope": (("seed", "step"), slope),
        },
        coords={"step": np.arange(s.steps)},
        attrs={"subsets": math.comb(s.n, s.k), "cost": tickets.query_cost(parameters, s.steps, 1.0, 1.0)},
    )


@eqx.filter_jit
def _gradients(network: TwoLayer, x: Float[Array, "points n"]) -> Float[Array, "points parameters"]:
    return jax.vmap(lambda point: ravel_pytree(eqx.filter_grad(lambda net: net(point))(network))[0])(x)


@queries.claim(
    "15.6",
    "n = 12, k = 4, one neuron, 20 target-free steps: averaged over all S, every parameter's squared correlation with "
    "chi_S is at most 1/C(n,k), and the largest over parameters and steps at most rT/C(n,k); r counts parameters",
    source="Prop. 6.3, Lemma C.1, trap T12",
    finding="The union bound is loose: rT/C(n,k) is .61 for these 15 parameters, the mean largest square 8.7e-5.",
)
def queries_bounded(ds: xr.Dataset):
    one = 1 / ds.attrs["subsets"]
    return all_of(
        per_parameter=every(ds.mean_square <= one),
        along_the_run=every(ds.largest <= one * ds.attrs["cost"], over="seed"),
    )


@queries.figure
def plot_queries(ds: xr.Dataset):
    from krogh.lab.figures import curve_with_spread

    fig, ax = new_figure(size=(3.8, 2.6))
    curve_with_spread(ax, ds.mean_square, label="largest mean square of a parameter")
    theory(ax, ds.step, np.full(ds.sizes["step"], 1 / ds.attrs["subsets"]), "Lemma C.1: 1/C(n,k)")
    bound = ds.attrs["cost"] / ds.attrs["subsets"]
    ax.plot([], [], " ", label=f"mean of the largest: {float(ds.largest.mean()):.2g} (bound {bound:.3g})")
    ax.set(
        yscale="log", xlabel="target-free step", ylabel="squared correlation", title="What a gradient says of $\\chi_S$"
    )
    ax.legend()
    return fig
