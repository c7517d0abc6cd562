"""Planted retrieval: attention scores written down by hand, at the true length of the worked example (000 Fig 9.1)."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, equals
from krogh.lab.figures import COLOURS, new_figure, reported
from krogh.systems.gemfilter import system

# Tokens: two alphabets of key tokens, values, filler; 0 and 1 begin a text and a question.
BEGIN, QUERY = 0, 1
FIRST, SECOND, VALUES, FILLER = 16, 16, 32, 64
A, B, V, FILL = 2, 2 + FIRST, 2 + FIRST + SECOND, 2 + FIRST + SECOND + VALUES
VOCABULARY = FILL + FILLER


@dataclass(frozen=True)
class Planted:
    """Cases are (prompt length n, kept tokens k, distractors); every case is drawn at `prompts` depths."""

    cases: tuple[tuple[int, int, int], ...] = ((108_172, 100, 2000), (46_530, 100, 1000), (4096, 64, 100))
    prompts: int = 50


def planted_prompts(n: int, distractors: int, depths: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Prompts (depths, n) ending in a key (a, b), and where its needle (a, b, v1, v2, v3) begins in each.

    A distractor shares a or b with the key, never both; needles never overlap.
    """
    rng = np.random.default_rng(seed)
    size, slots = len(depths), (n - 9) // 5  # none among the last 8 tokens, which recency keeps anyway
    x = rng.integers(FILL, VOCABULARY, (size, n))
    x[:, 0] = BEGIN
    a, b = rng.integers(FIRST, size=(size, 1)), rng.integers(SECOND, size=(size, 1))
    own = np.minimum((depths * slots).astype(int), slots - 1)
    order = rng.random((size, slots))
    order[np.arange(size), own] = -1.0  # the needle's slot comes first, the distractors' are random others
    taken = np.argsort(order, axis=1)[:, : distractors + 1]
    shares_a = rng.random((size, distractors)) < 0.5
    other_a = (a + rng.integers(1, FIRST, (size, distractors))) % FIRST
    other_b = (b + rng.integers(1, SECOND, (size, distractors))) % SECOND
    first = np.concatenate([a, np.where(shares_a, a, other_a)], 1)
    second = np.concatenate([b, np.where(shares_a, other_b, b)], 1)
    values = rng.integers(VALUES, size=(size, distractors + 1, 3))
    needles = np.concatenate([(A + first)[..., None], (B + second)[..., None], V + values], -1)
    places = 1 + 5 * taken[..., None] + np.arange(5)
    x[np.arange(size)[:, None, None], places] = needles
    x[:, -2:] = needles[:, 0, :2]
    return x, places[:, 0, 0]


def planted_scores(x: np.ndarray, layer: int) -> np.ndarray:
    """Layer 1: 1[x_j = b]. Layer 2, after heads that copy the previous tokens: 1[x_{j−1} = b] + 1[x_{j−2} = a]."""
    a, b = x[:, -2:-1], x[:, -1:]
    scores = np.zeros(x.shape)
    if layer == 1:
        scores += x == b
    else:
        scores[:, 1:] += x[:, :-1] == b
        scores[:, 2:] += x[:, :-2] == a
    scores[:, -8:] += 5  # a recency term, as trained models have
    return scores


def average_pool(scores: np.ndarray, kernel: int = 5) -> np.ndarray:
    """Mean over `kernel` neighbours with zeros outside, scores (…, n)."""
    half = kernel // 2
    sums = np.cumsum(np.pad(scores, ((0, 0), (half + 1, half))), axis=1)
    return (sums[:, kernel:] - sums[:, :-kernel]) / kernel


def coverage(scores: np.ndarray, start: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Share of the 5 needle tokens among the k best of each row; ties are broken at random."""
    ranked = np.round(scores, 9) + 1e-10 * rng.random(scores.shape)
    worst = np.partition(ranked, -k, axis=1)[:, -k]
    needle = ranked[np.arange(len(start))[:, None], start[:, None] + np.arange(5)]
    return (needle >= worst[:, None]).mean(1)


@system.experiment(
    "fig-9.1",
    "A planted needle among 108,172 tokens is found by 100, if the layer binds a key to its neighbours",
    presets={"smoke": Planted(cases=((4096, 64, 100),), prompts=10), "quick": Planted(), "paper": Planted(prompts=200)},
)
def planted(s: Planted) -> xr.Dataset:
    ways = (("layer 1", 1, True), ("layer 2", 2, True), ("layer 2, no pooling", 2, False))
    found = np.zeros((len(s.cases), len(ways), s.prompts))
    depths = np.linspace(0, 1, s.prompts)
    for row, (n, k, distractors) in enumerate(s.cases):
        x, start = planted_prompts(n, distractors, depths)
        for column, (_, layer, pool) in enumerate(ways):
            scores = planted_scores(x, layer)
            scores = average_pool(scores) if pool else scores
            found[row, column] = coverage(scores, start, k, np.random.default_rng(1))
    return xr.Dataset(
        {"coverage": (("n", "way", "prompt"), found), "k": (("n",), [k for _, k, _ in s.cases])},
        coords={"n": [n for n, _, _ in s.cases], "way": [w for w, _, _ in ways], "depth": (("prompt",), depths)},
    )


@planted.claim(
    "08.10",
    "n = 108,172, k = 100, 2000 distractors: all 5 needle tokens are kept in 100 % of prompts by the scores of layer 2 "
    "with pooling and in <= 10 % by those of layer 1; without pooling mean coverage is <= 20 %; n/k >= 1000",
    source="Fig 9.1",
)
def found_by_a_hundred(ds: xr.Dataset):
    one = ds.sel(n=108_172) if 108_172 in ds.n else ds.isel(n=0)
    whole = (one.coverage == 1).mean("prompt")
    return all_of(
        layer_2=equals(float(whole.sel(way="layer 2")), 1.0),
        layer_1=at_most(float(whole.sel(way="layer 1")), 0.10),
        without_pooling=at_most(float(one.coverage.sel(way="layer 2, no pooling").mean()), 0.20 + 1e-12),
        compression=at_least(float(one.n / one.k), 1000),
    )


@planted.figure
def planted_plot(ds: xr.Dataset):
    fig, axes = new_figure(ds.sizes["n"], size=(2.8 * ds.sizes["n"], 2.4), sharey=True, squeeze=False)
    for ax, n in zip(axes[0], ds.n.values, strict=True):
        for way, colour, marker in zip(ds.way.values, COLOURS, "o^s", strict=False):
            one = ds.coverage.sel(n=n, way=way)
            ax.plot(100 * ds.depth, one, marker, color=colour, label=f"{way}: {float(one.mean()):.0%}", alpha=0.7)
        ax.set(xlabel="depth of the needle (%)", title=f"n = {n:,}, k = {int(ds.k.sel(n=n))}", ylim=(-0.05, 1.3))
        reported(ax, 1.0, label=None)
        ax.legend(loc="upper left", ncols=1)
    axes[0, 0].set_ylabel("share of the needle's tokens kept")
    return fig
