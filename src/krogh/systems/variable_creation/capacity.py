"""How large the class of attention heads is: Lipschitz bounds, covers and a lower bound (003 §4.4, §A.1)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, equals, every, figures
from krogh.systems.variable_creation import system
from krogh.theory import attention_capacity as theory

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Softmax:
    dims: tuple[int, ...] = (2, 3, 10, 30, 100, 300, 1000)
    pairs: int = 10_000


@system.experiment(
    "cor-A.7",
    "Softmax moves at most twice as far in l1 as its scores in l-infinity",
    presets={"smoke": Softmax(pairs=100), "quick": Softmax()},
)
def softmax(s: Softmax) -> xr.Dataset:
    rng = np.random.default_rng(0)
    per_dim = -(-s.pairs // len(s.dims))
    ratio = np.zeros((len(s.dims), per_dim))
    closed = np.zeros((2, len(s.dims)))
    for row, dim in enumerate(s.dims):
        a = rng.standard_normal((per_dim, dim)) * 10 ** rng.uniform(-1, 1, (per_dim, 1))
        b = a + rng.standard_normal((per_dim, dim)) * 10 ** rng.uniform(-3, 1, (per_dim, 1))
        moved = np.abs(theory.softmax(a) - theory.softmax(b)).sum(axis=1)
        ratio[row] = moved / np.abs(a - b).max(axis=1)
        p = theory.softmax(a[0])
        closed[:, row] = theory.softmax_jacobian_norm(p), np.abs(np.diag(p) - np.outer(p, p)).sum()
    return xr.Dataset(
        {"ratio": (("dim", "pair"), ratio), "closed": ("dim", closed[0]), "summed": ("dim", closed[1])},
        coords={"dim": list(s.dims)},
    )


@softmax.claim(
    "13.1",
    "||softmax(a) - softmax(b)||_1 <= 2 ||a - b||_inf on 10^4 pairs in 2 to 1000 dimensions; the entries of the "
    "Jacobian sum to 2 sum p(1-p) in absolute value",
    source="Cor. A.7",
)
def lipschitz(ds: xr.Dataset):
    return all_of(ratio=at_most(float(ds.ratio.max()), 2.0), jacobian=equals(ds.closed, ds.summed, 1e-12))


@softmax.figure
def plot_softmax(ds: xr.Dataset) -> "Figure":
    figure, ax = figures.new_figure()
    figures.curve_with_spread(ax, ds.ratio, x="dim", over="pair", label="random pairs, median and 10–90 %")
    ax.plot(ds.dim, ds.ratio.max("pair"), "^", label="largest")
    figures.theory(ax, ds.dim, np.full(ds.sizes["dim"], 2.0), "Cor. A.7")
    ax.set(xscale="log", xlabel="dimension", ylabel="‖Δ softmax‖₁ / ‖Δ scores‖∞")
    ax.legend()
    return figure


@dataclass(frozen=True)
class Lipschitz:
    """`rows` of each input's T queries are compared (the bound is for every row); `deep` instances of two blocks."""

    contexts: tuple[int, ...] = (2, 16, 128, 1024)
    instances: int = 1000
    d: int = 8
    k: int = 4
    rows: int = 4
    deep: int = 100


@system.experiment(
    "lemma-4.7",
    "A head's output moves no further than its bound, whatever the context length",
    presets={"smoke": Lipschitz(contexts=(2, 16), instances=50, deep=10), "quick": Lipschitz()},
)
def heads(s: Lipschitz) -> xr.Dataset:
    rng = np.random.default_rng(0)
    lemmas = ("A.13: weights", "A.14: inputs", "A.15: two blocks")
    ratio = np.full((len(lemmas), len(s.contexts), s.instances), np.nan)
    for column, T in enumerate(s.contexts):
        for start in range(0, s.instances, 100):
            part = slice(start, min(start + 100, s.instances))
            size = part.stop - part.start
            z, layer = _tokens(rng, size, T, s.d), _layer(rng, size, s)
            moved = _moved(rng, layer)
            near = theory.project(z + rng.standard_normal(z.shape) * 10 ** rng.uniform(-3, 0, (size, 1, 1)))
            out = theory.attend(z, layer.query_key, layer.value, s.rows)
            by_weights = theory.attend(z, moved.query_key, moved.value, s.rows)
            bound = theory.weight_change_bound(z, layer.query_key, moved.query_key, layer.value, moved.value)
            ratio[0, column, part] = theory.largest_row(out - by_weights) / bound
            # queries change with the inputs here, so that the compared rows must be among the moved tokens
            by_inputs = theory.attend(near, layer.query_key, layer.value, s.rows)
            bound = theory.input_change_bound(z, near, layer.query_key, layer.value)
            ratio[1, column, part] = theory.largest_row(out - by_inputs) / bound
        if T <= 128:
            z, first, second = _tokens(rng, s.deep, T, s.d), _layer(rng, s.deep, s), _layer(rng, s.deep, s)
            others = _moved(rng, first), _moved(rng, second)
            middle, other_middle = theory.block(z, first), theory.block(z, others[0])
            change = theory.largest_row(theory.block(middle, second) - theory.block(other_middle, others[1]))
            bound = theory.block_change_bound(middle, other_middle, second, others[1])
            # a block whose relus are all shut before and after does not move at all
            ratio[2, column, : s.deep] = np.where(bound > 0, change / np.maximum(bound, 1e-300), 0.0)
    return xr.Dataset(
        {"ratio": (("lemma", "T", "instance"), ratio)}, coords={"lemma": list(lemmas), "T": list(s.contexts)}
    )


def _tokens(rng: np.random.Generator, size: int, T: int, d: int) -> np.ndarray:
    """Tokens in the unit ball, some instances with all of them on the sphere."""
    return theory.project(rng.standard_normal((size, T, d)) * 10 ** rng.uniform(-1, 1, (size, 1, 1)))


def _layer(rng: np.random.Generator, size: int, s: Lipschitz) -> theory.Layer:
    shapes = (s.d, s.d), (s.d, s.k), (s.k, s.d)
    return theory.Layer(*(rng.standard_normal((size, *m)) * 10 ** rng.uniform(-1, 1, (size, 1, 1)) for m in shapes))


def _moved(rng: np.random.Generator, layer: theory.Layer) -> theory.Layer:
    return theory.Layer(*(w + rng.standard_normal(w.shape) * 10 ** rng.uniform(-3, 0, (len(w), 1, 1)) for w in layer))


@heads.claim(
    "13.2",
    "1000 random heads per T in {2, 16, 128, 1024}: measured over bound never exceeds 1 for a change of weights "
    "(A.13) or of inputs (A.14), nor for two blocks (A.15), and its maximum is nowhere above that at the smallest T",
    source="Lemmas 4.7, A.13-A.15",
)
def never_exceeded(ds: xr.Dataset):
    largest = ds.ratio.max("instance")
    grows = largest.isel(lemma=slice(0, 2)) > largest.isel(lemma=slice(0, 2), T=0)
    return all_of(bound=at_most(float(largest.max()), 1.0), no_growth=every(~grows))


@heads.figure
def plot_heads(ds: xr.Dataset) -> "Figure":
    figure, axes = figures.new_figure(ds.sizes["lemma"], sharey=True)
    for ax, lemma in zip(axes, ds.lemma.values, strict=True):
        cell = ds.ratio.sel(lemma=lemma).dropna("T", how="all").dropna("instance")
        figures.curve_with_spread(ax, cell, x="T", over="instance", label="median, 10–90 %")
        ax.plot(cell["T"], cell.max("instance"), "^", label="largest")
        figures.theory(ax, cell["T"], np.ones(cell.sizes["T"]), "bound")
        ax.set(xscale="log", yscale="log", xlabel="context length T", title=lemma)
    axes[0].set_ylabel("measured / bound")
    axes[0].legend()
    return figure


@dataclass(frozen=True)
class Split:
    problems: int = 20
    terms: int = 5


@system.experiment("lemma-A.8", "Splitting an error over several covers", presets={"quick": Split()})
def split(s: Split) -> xr.Dataset:
    from scipy.optimize import minimize

    rng = np.random.default_rng(0)
    closed, found, place = np.zeros((3, s.problems))
    for row in range(s.problems):
        alpha, beta, total = rng.uniform(0.1, 5, s.terms), rng.uniform(0.1, 5, s.terms), rng.uniform(0.5, 2)
        closed[row], at = theory.best_split(alpha, beta, total)
        place[row] = beta @ at / total

        def size(free: np.ndarray, alpha=alpha, beta=beta, total=total) -> float:
            share = np.exp(free - free.max())
            return float(np.sum(alpha * (beta * share.sum() / (share * total)) ** 2))

        options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000, "maxfev": 20_000}
        start = minimize(size, np.zeros(s.terms), method="BFGS", options={"gtol": 1e-10}).x
        found[row] = minimize(size, start, method="Nelder-Mead", options=options).fun
    return xr.Dataset({"closed": ("problem", closed), "minimised": ("problem", found), "used": ("problem", place)})


@split.claim(
    "13.3",
    "min sum alpha/x^2 subject to sum beta x = C is gamma^3/C^2: equal to numerical minimisation within 1e-6",
    source="Lemma A.8",
)
def optimum(ds: xr.Dataset):
    return all_of(value=equals(ds.minimised / ds.closed, 1.0, 1e-6), constraint=equals(ds.used, 1.0, 1e-12))


@dataclass(frozen=True)
class Projection:
    pairs: int = 10_000
    d: int = 16


@system.experiment("lemma-A.9", "Projecting rows onto the unit ball contracts", presets={"quick": Projection()})
def projection(s: Projection) -> xr.Dataset:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, s.pairs, s.d)) * 10 ** rng.uniform(-2, 1, (2, s.pairs, 1))
    b = np.where(rng.random((s.pairs, 1)) < 0.5, b, a + 0.01 * b)
    change = np.linalg.norm(theory.project(a) - theory.project(b), axis=1) / np.linalg.norm(a - b, axis=1)
    return xr.Dataset({"ratio": ("pair", change)})


@projection.claim("13.4", "||Pi(a) - Pi(b)|| <= ||a - b|| on 10^4 random pairs", source="Lemma A.9")
def contracts(ds: xr.Dataset):
    return at_most(float(ds.ratio.max()), 1 + 1e-12)


@dataclass(frozen=True)
class PseudoDimension:
    powers: tuple[int, ...] = (3, 4, 5, 6, 7, 8, 9, 10)


@system.experiment(
    "prop-4.8", "log2 T inputs are shattered by heads of embedding size 3", presets={"quick": PseudoDimension()}
)
def pseudo_dimension(s: PseudoDimension) -> xr.Dataset:
    weight, patterns = np.zeros(len(s.powers)), np.zeros(len(s.powers), int)
    for row, q in enumerate(s.powers):
        construction = theory.shattering(q)
        weight[row] = construction.weights().diagonal().min()
        patterns[row] = len(np.unique(construction.outputs() > 0.5, axis=0))
    return xr.Dataset(
        {"weight": ("q", weight), "patterns": ("q", patterns)},
        coords={"q": list(s.powers), "T": ("q", [2**q for q in s.powers])},
    )


@pseudo_dimension.claim(
    "13.5",
    "T = 2^q, q = 3..10: the heads produce all 2^q sign patterns on q inputs, and each puts >= .615 on its own token",
    source="Prop. 4.8",
    finding="The weight on the own token is above .999999 for every T; 1/(1 + sqrt(pi/8)) = .615 is only the proof's "
    "bound.",
)
def shatters(ds: xr.Dataset):
    return all_of(
        patterns=every(ds.patterns == ds["T"]),
        weight=at_least(float(ds.weight.min()), 1 / (1 + math.sqrt(math.pi / 8))),
    )


@pseudo_dimension.figure
def plot_pseudo_dimension(ds: xr.Dataset) -> "Figure":
    figure, ax = figures.new_figure()
    ax.semilogx(ds["T"], np.log2(ds.patterns), "o", label="inputs shattered")
    figures.theory(ax, ds["T"], np.log2(ds["T"]), "log₂ T")
    ax.set(xlabel="context length T", ylabel="pseudo-dimension at least", title="embedding size 3, norms unbounded")
    ax.legend()
    return figure


# ------------------------------------------------------------------------------------------- calculators


@dataclass(frozen=True)
class Capacity:
    """m is so large because the bound on the gap is the loss's own range at sample sizes that are run."""

    d: int = 64
    k: int = 4
    m: int = 10**9
    contexts: tuple[int, ...] = (100, 300, 1000, 3000, 10_000, 100_000)
    heads: tuple[int, ...] = (1, 2, 4, 8, 16)
    depths: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    query_key: tuple[float, ...] = (0.0, 0.25, 1.0)
    eps: float = 0.1


@system.experiment("thm-4.11", "Capacity bounds against context, heads and depth", presets={"quick": Capacity()})
def capacity(s: Capacity) -> xr.Dataset:
    head = theory.HeadNorms(4.0, 1.0, 4.0)
    over_T = [theory.heads_cover(s.eps, s.d, s.m, T, [head]) for T in s.contexts]
    over_H = [theory.heads_cover(s.eps, s.d, s.m, 300, [head] * H) for H in s.heads]
    gap = [theory.generalisation_gap(c * s.eps**2, s.m) for c in over_T]
    unit = {qk: theory.LayerNorms(1.0, 4.0, 1.0, 4.0, qk, 4.0) for qk in s.query_key}
    over_L = [[theory.layers_cover(s.eps, s.d, s.m, 300, [unit[qk]] * L) for L in s.depths] for qk in s.query_key]
    alpha = [[max(theory.amplification([unit[qk]] * L)) for L in s.depths] for qk in s.query_key]
    uneven = [theory.LayerNorms(1.5, 4.0, 0.5, 3.0, 0.7, 5.0), theory.LayerNorms(0.8, 2.0, 2.0, 6.0, 0.1, 1.0)]
    derived = theory.layers_cover(s.eps, s.d, s.m, 300, uneven, readout=3.0)
    printed = theory.layers_cover(s.eps, s.d, s.m, 300, uneven, readout=3.0, printed=s.k)
    return xr.Dataset(
        {
            "over_T": ("T", over_T),
            "gap": ("T", gap),
            "over_H": ("H", over_H),
            "over_L": (("query_key", "L"), over_L),
            "alpha": (("query_key", "L"), alpha),
            "derived": derived,
            "printed": printed,
            "optimised": _optimised(s, uneven, 3.0),
        },
        coords={"T": list(s.contexts), "H": list(s.heads), "L": list(s.depths), "query_key": list(s.query_key)},
        attrs={"d": s.d, "m": s.m},
    )


def _optimised(s: Capacity, layers: list[theory.LayerNorms], readout: float) -> float:
    """Theorem A.17's cover from the error terms of its proof, eps being split over them as best it can."""
    alpha, beta = [readout**2], [1.0]
    stretch = readout
    for layer in reversed(layers):
        alpha += [layer.out_21**2, layer.query_key_21**2, layer.value_21**2]
        beta += [stretch, 2 * stretch * layer.out * layer.value, stretch * layer.out]
        stretch *= layer.growth()
    return theory.best_split(np.array(alpha), np.array(beta), s.eps)[0] * math.log(s.d * s.m * 300)


@capacity.claim(
    "13.11",
    "The head's bound grows with T as log(dmT) and with H equal heads as H^3; with unit spectral norms alpha_i is "
    "exactly (1 + 4 B_QK)^(layers above): constant only for B_QK = 0",
    source="Cor. 4.9, Lemma A.12, Thm 4.11",
    finding="§4.4.3 says that with spectral norms bounded by 1 'the exponential dependence on L can be avoided'. Its "
    "own alpha grows like 5^(L-1) when ||W_K W_Q^T|| = 1; only W_QK -> 0 stops it.",
)
def calculators(ds: xr.Dataset):
    logs = np.log(ds.attrs["d"] * ds.attrs["m"] * ds["T"])
    above = (1 + 4 * ds.query_key) ** (ds.L - 1)
    return all_of(
        context=equals(ds.over_T / ds.over_T[0], logs / logs[0], 1e-12),
        heads=equals(ds.over_H / (ds.over_H[0] * ds.H**3), 1.0, 1e-12),
        alpha=equals(ds.alpha / above, 1.0, 1e-12),
        flat_without_attention=at_most(
            float(ds.over_L.sel(query_key=0).max() / ds.L.max() ** 3), float(ds.over_L[0, 0])
        ),
    )


@capacity.claim(
    "13.A17",
    "Theorem A.17's bound equals the best split of eps over the error terms of its proof",
    source="Thm A.17",
    finding="As derived it does, and as printed it does not: errors of layer i are stretched by the layers after it "
    "(printed: before it), the read-out norm B_w multiplies all of them, and d^(2/3), k^(2/3) do not occur.",
)
def derived_bound(ds: xr.Dataset):
    return all_of(
        derived=equals(float(ds.derived / ds.optimised), 1.0, 1e-12),
        printed_differs=at_least(abs(math.log(float(ds.printed / ds.optimised))), 0.01),
    )


@capacity.figure
def plot_capacity(ds: xr.Dataset) -> "Figure":
    figure, (left, middle, right) = figures.new_figure(3)
    left.semilogx(ds["T"], ds.over_T / ds.over_T[0], "o", label="log N")
    left.semilogx(ds["T"], ds.gap / ds.gap[0], "s", label="generalisation gap")
    logs = np.log(ds.attrs["d"] * ds.attrs["m"] * ds["T"])
    figures.theory(left, ds["T"], logs / logs[0], "log(dmT)")
    figures.theory(left, ds["T"], np.sqrt(logs / logs[0]), "√log(dmT)").set_linestyle(":")
    left.set(xlabel="context length T", ylabel="bound / bound at smallest T")
    left.legend()
    middle.loglog(ds.H, ds.over_H / ds.over_H[0], "o")
    figures.theory(middle, ds.H, ds.H**3, "H³")
    middle.set(xlabel="heads H", ylabel="bound / bound of one head")
    middle.legend()
    for qk in ds.query_key.values:
        right.semilogy(ds.L, ds.over_L.sel(query_key=qk), "o-", label=f"‖W_QK‖ = {qk:g}")
    right.set(xlabel="layers L", ylabel="log N bound", title="all other spectral norms 1")
    right.legend()
    return figure
