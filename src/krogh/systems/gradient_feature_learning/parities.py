"""Parities of blocks: the constructed network, E[y x], negative thresholds, learning, fixed features (000 §3.4.2)."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, equals
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, theory, ticks_at
from krogh.nn.fixed_features import sum_over_chunks
from krogh.nn.mlp import MLP
from krogh.nn.symmetric import SymmetricReLU, neurons
from krogh.systems.gradient_feature_learning import system
from krogh.systems.gradient_feature_learning.learning import (
    hinge,
    one_step,
    parity_threshold,
    random_features,
    test_accuracy,
)
from krogh.tasks.block_parity import BlockParity
from krogh.theory.dictionary import threshold_ceiling
from krogh.theory.gradient_features import bump_network, cosines, sampled_gradient
from krogh.train import Adam, Stage, train
from krogh.train.seeds import over_seeds

Case = tuple[int, int, int, float, float]
CASES: tuple[Case, ...] = ((60, 1, 5, 0.25, 0.5), (60, 3, 5, 0.1, 0.25), (60, 3, 3, 0.1, 0.1))


def named(case: Case) -> str:
    d, r, k, p_a, p_o = case
    return f"d={d}, r={r}, k={k}, p_A={p_a:g}, p_o={p_o:g}"


# --- Lemma 3.21, Remark B.45 ---


@dataclass(frozen=True)
class Constructed:
    """Cases are (d, r, k, p_A, p_o)."""

    cases: tuple[Case, ...] = CASES
    samples: int = 20_000
    seeds: int = 16


@system.experiment(
    "lemma-3.21",
    "Block parities: the constructed network as printed and reflected, and E[y x]",
    presets={"smoke": Constructed(samples=2000, seeds=2), "quick": Constructed()},
)
def constructed(s: Constructed) -> xr.Dataset:
    loss, label = np.zeros((len(s.cases), 2)), np.zeros((len(s.cases), s.seeds))
    deviation, expected, smallest = (np.zeros(len(s.cases)) for _ in range(3))
    for row, case in enumerate(s.cases):
        task = BlockParity(*case)
        inside = task.r * task.k

        def measure(key, task=task, inside=inside):
            batch = task.sample(key, s.samples)
            networks = [bump_network(task.directions, task.k, reflected) for reflected in (False, True)]
            on_blocks = batch.y * batch.x[:, :inside].mean(1)
            losses = jnp.stack([hinge(network, batch) for network in networks])
            return losses, on_blocks.mean(), on_blocks.std(), neurons(networks[1]).threshold.min()

        losses, label[row], spread, threshold = over_seeds(measure, s.seeds, double=True)
        loss[row] = losses.max(0)
        deviation[row], expected[row] = spread.mean() / math.sqrt(s.samples * s.seeds), 2 * float(task.p_a)
        smallest[row] = threshold.min()
    return xr.Dataset(
        {
            "hinge": (("case", "form"), loss),
            "label": (("case", "seed"), label),
            "error": ("case", deviation),
            "expected": ("case", expected),
            "smallest_threshold": ("case", smallest),
        },
        coords={"case": [named(case) for case in s.cases], "form": ["printed", "reflected"]},
    )


@constructed.claim(
    "02.9",
    "g* of 3r(k+1) neurons has hinge loss < 1e-6 on all three cases, as printed and reflected to thresholds >= 0",
    source="Lemma 3.21",
)
def bumps_are_exact(ds: xr.Dataset):
    return all_of(
        hinge=at_most(float(ds.hinge.max()), 1e-6), thresholds=at_least(float(ds.smallest_threshold.min()), -1e-12)
    )


@constructed.claim(
    "02.10",
    "E[y phi_l] = 2 p_A on A, within 3 standard errors",
    source="Remark B.45, third bullet",
    finding="The source prints E[y x] = 0. The structured components are even under x -> -x (label and input flip "
    "together), so that they add up to 2 p_A on every coordinate of A.",
)
def label_correlates(ds: xr.Dataset):
    parts = {}
    for case in ds.case.values:
        at = ds.sel(case=case)
        parts[case] = equals(float(at.label.mean()), float(at.expected), tol=3 * float(at.error))
        parts[f"{case}: printed 0 is off by"] = at_least(float(at.label.mean() / at.error), 3.0)
    return all_of(**parts)


@constructed.figure
def plot_constructed(ds: xr.Dataset):
    fig, ax = new_figure(size=(4.6, 2.4))
    for place, case in enumerate(ds.case.values):
        at = ds.sel(case=case)
        ax.plot(np.full(at.sizes["seed"], place), at.label, "o", color=COLOURS[place], label=case)
        theory(ax, [place - 0.3, place + 0.3], [float(at.expected)] * 2, None if place else "2 p_A")
    ax.axhline(0, color="0.5", linestyle=":", label="printed: 0")
    ax.set(ylabel="E[y phi] on A", xticks=[])
    ax.legend(bbox_to_anchor=(1, 1), loc="upper left")
    return fig


# --- GF-5 ---


@dataclass(frozen=True)
class Signs:
    """Random neurons for the histograms, and means over planted sure neurons of either sign; b~ = c sqrt(rk log d)."""

    cases: tuple[Case, ...] = CASES
    factor: float = 1.0
    m: int = 500
    planted: int = 16
    samples: int = 200_000
    seeds: int = 16


def planted(task: BlockParity, key, threshold: float, size: int):
    """Columns w with <w, D_1> = 1.5 b/sqrt(k), <w, D_j> = 0 for the other blocks, and Gaussian elsewhere."""
    w = jr.normal(key, (task.d, size))
    w = w - task.directions.T @ (task.directions @ w)
    return w + 1.5 * threshold / math.sqrt(task.k) * task.directions[0][:, None]


@system.experiment(
    "gf-5",
    "Block parities: which neurons find a block, for either sign of the threshold",
    presets={"smoke": Signs(m=50, samples=20_000, seeds=2), "quick": Signs(), "paper": Signs(m=5000)},
)
def signs(s: Signs) -> xr.Dataset:
    best = np.zeros((len(s.cases), 2, s.m))
    sure = np.zeros((len(s.cases), 2, s.seeds))
    for row, case in enumerate(s.cases):
        task = BlockParity(*case)
        b = parity_threshold(task.d, task.r, task.k, s.factor)

        def sharpest(key, task=task, b=b):
            data, start = jr.split(key)
            x, y, _ = task.sample(data, s.samples)
            w = jr.normal(start, (task.d, s.m))
            both = jnp.concatenate([w, -w], axis=1), jnp.concatenate([jnp.full(s.m, b), jnp.full(s.m, -b)])
            angle = jnp.abs(cosines(task.directions, sampled_gradient(*both, x, y))).max(0)
            return angle.reshape(2, s.m)

        def of_planted(key, task=task, b=b):
            data, start = jr.split(key)
            x, y, _ = task.sample(data, s.samples)
            w = planted(task, start, b, s.planted)
            both = jnp.concatenate([w, -w], axis=1), jnp.repeat(jnp.array([b, -b]), s.planted)
            angle = jnp.abs(cosines(task.directions[:1], sampled_gradient(*both, x, y))[0])
            return angle.reshape(2, s.planted).mean(1)

        best[row] = over_seeds(sharpest, 1)[0]
        sure[row] = over_seeds(of_planted, s.seeds).T
    return xr.Dataset(
        {"best": (("case", "sign", "neuron"), best), "planted": (("case", "sign", "seed"), sure)},
        coords={
            "case": [named(case) for case in s.cases],
            "sign": ["b > 0", "b < 0"],
            "r": ("case", [c[1] for c in s.cases]),
        },
    )


@signs.claim(
    "02.11",
    "A planted sure neuron with b < 0 has cos(G, D_j) <= 0.5 for r = 3 and >= 0.95 for r = 1; with b > 0 it is >= "
    "0.97 for both",
    source="Lemma 3.21, (D_j, -1)",
    finding="(D_j, -1) is no gradient feature for r >= 3: G(w, -b) = 2 p_A sum_A M_l - G(-w, b) puts twice the weight "
    "on every other block, cos = 1/sqrt(1 + 4(r-1)) in the limit. The lemma's proof rests on E[y x] = 0. g* can be "
    "reflected to (±D_j, +1) (02.9), so that OPT = 0 stands.",
)
def negative_thresholds(ds: xr.Dataset):
    parts = {}
    for case, r in zip(ds.case.values, ds.r.values, strict=True):
        at = ds.planted.sel(case=case)
        parts[f"{case}, b > 0"] = at_least(at.sel(sign="b > 0"), 0.97, over="seed")
        limit = (
            at_least(at.sel(sign="b < 0"), 0.95, over="seed")
            if r == 1
            else at_most(at.sel(sign="b < 0"), 0.5, over="seed")
        )
        parts[f"{case}, b < 0"] = limit
    return all_of(**parts)


@signs.figure
def plot_signs(ds: xr.Dataset):
    fig, axes = new_figure(ds.sizes["case"], squeeze=False, sharey=True)
    for ax, case, r in zip(axes[0], ds.case.values, ds.r.values, strict=True):
        for sign, colour in zip(ds["sign"].values, COLOURS, strict=False):
            ax.hist(
                ds.best.sel(case=case, sign=sign), bins=np.linspace(0, 1, 41), histtype="step", color=colour, label=sign
            )
            ax.plot(ds.planted.sel(case=case, sign=sign).mean("seed"), 0, "^", color=colour, clip_on=False)
        theory(ax, [1 / math.sqrt(1 + 4 * (r - 1))] * 2, [0, 20], "sure, b < 0")
        ax.set(xlabel="max_j |cos(G, D_j)|", title=case)
        ax.title.set_fontsize(7)
    axes[0, 0].set_ylabel("random neurons (triangles: planted)")
    axes[0, 0].legend()
    return fig


# --- Theorem 3.22 ---


@dataclass(frozen=True)
class Learned:
    """Each case with its values of m (4m neurons; random features get as many).

    double   heads in double precision, which Gram matrices of many thousand features need
    """

    cases: tuple[tuple[Case, tuple[int, ...]], ...] = ((CASES[0], (100,)), (CASES[2], (200,)))
    factor: float = 1.0
    samples: int = 40_000
    test: int = 10_000
    feature_seeds: int = 64
    seeds: int = 8
    double: bool = False


@system.experiment(
    "thm-3.22",
    "Block parities: one step and a ridge head against random features",
    presets={
        "smoke": Learned(
            cases=((CASES[0], (20,)), (CASES[2], (20,))), samples=5000, test=2000, feature_seeds=4, seeds=2
        ),
        "quick": Learned(),
        "paper": Learned(cases=((CASES[0], (25, 100, 400)), (CASES[2], (50, 200, 1000, 4000))), seeds=16, double=True),
    },
)
def learned(s: Learned) -> xr.Dataset:
    parts = []
    for case, widths in s.cases:
        task = BlockParity(*case)
        for m in widths:
            init = SymmetricReLU(m, threshold=parity_threshold(task.d, task.r, task.k, s.factor))

            def measure(key, task=task, init=init, m=m):
                data, test, start, fixed = jr.split(key, 4)
                batch, fresh = task.sample(data, s.samples), task.sample(test, s.test)
                network = one_step(init, task, start, batch)
                return {
                    "one_step": test_accuracy(network, batch, fresh),
                    "random": test_accuracy(random_features(fixed, 4 * m, batch.x), batch, fresh),
                }

            def sharpest(key, task=task, init=init, m=m):
                data, start = jr.split(key)
                w, (x, y, _) = init.build(task, start).weights[:, :m], task.sample(data, s.samples)
                g = sampled_gradient(w, jnp.full(m, init.threshold), x, y)
                return jnp.abs(cosines(task.directions, g)).max(1).min()

            measured = over_seeds(measure, s.seeds, double=s.double)
            found = xr.Dataset({name: ("seed", value) for name, value in measured.items()})
            found["sharpest"] = "draw", over_seeds(sharpest, s.feature_seeds)
            parts.append(found.expand_dims(cell=[f"{named(case)}, m={m}"]).assign_coords(m=("cell", [m])))
    return xr.concat(parts, "cell").assign_attrs(ceiling=threshold_ceiling(5, 0.5))


@learned.claim(
    "02.12",
    "d = 60, k = 5, p_A = 1/4, p_o = 1/2, 4m = 400, n = 40 000: one step and ridge >= 0.99, random features of the "
    "same width <= 0.86 (ceiling of one threshold: .844)",
    source="Thm 3.22",
    presets=("quick", "paper"),
)
def one_block_is_learned(ds: xr.Dataset):
    at = ds.sel(cell=f"{named(CASES[0])}, m=100")
    return all_of(one_step=at_least(at.one_step, 0.99, over="seed"), random=at_most(at.random, 0.86, over="seed"))


@learned.claim(
    "02.13",
    "(60, 3, 3, .1, .1), 4m = 800: one step and ridge exceeds random features by >= 0.06, and for every block the "
    "sharpest neuron with b > 0 has |cos(G, D_j)| >= 0.9 at c = 1",
    source="Thm 3.22",
    presets=("quick", "paper"),
)
def three_blocks_are_learned(ds: xr.Dataset):
    at = ds.sel(cell=f"{named(CASES[2])}, m=200")
    return all_of(
        gain=at_least(at.one_step - at.random, 0.06, over="seed"),
        features=at_least(at.sharpest, 0.9, over="draw"),
    )


@learned.claim(
    "02.13-wide",
    "(60, 3, 3, .1, .1): m = 4000 reaches >= 0.97",
    source="Thm 3.22",
    presets=("paper",),
    finding="At m = 50, 200 and 1000 one step and ridge stay at .90 and at 4000 they reach .92; random features of the "
    "same widths climb .78, .80, .88, .93: the head of so wide a layer learns by itself what the one step adds.",
)
def wider_is_enough(ds: xr.Dataset):
    return at_least(ds.one_step.sel(cell=f"{named(CASES[2])}, m=4000"), 0.97, over="seed")


@learned.figure
def plot_learned(ds: xr.Dataset):
    cases = np.array([str(cell).rpartition(", m=")[0] for cell in ds.cell.values])
    names = list(dict.fromkeys(cases))
    fig, axes = new_figure(len(names), size=(2.8 * len(names), 2.6), sharey=True, squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        part = ds.isel(cell=np.flatnonzero(cases == name)).swap_dims(cell="m")
        for method, label in (("one_step", "one step + ridge"), ("random", "random features + ridge")):
            curve_with_spread(ax, part[method], x="m", label=label, band=(0.0, 1.0), marker="o")
        ax.set(xscale="log", xlabel="m (4m neurons)", title=name.replace(", p_A", "\np_A"), ylim=(0.5, 1.02))
        ticks_at(ax, part.m.values)
    widths = ds.m.values[cases == names[0]]
    theory(axes[0, 0], widths, np.full(len(widths), ds.attrs["ceiling"]), "one threshold")
    axes[0, 0].set_ylabel("test accuracy")
    axes[0, 0].legend()
    return fig


# --- Proposition 3.23 ---


@dataclass(frozen=True)
class Fixed:
    """k = d/16, p_A = 1/4, p_o = 1/2; Adam on the head of random features, hinge loss."""

    d: int = 80
    k: int = 5
    width: int = 400
    lr: float = 0.01
    batch: int = 500
    steps: int = 600
    population: int = 100_000
    seeds: int = 16


@dataclass(frozen=True)
class FixedFeatureHinge:
    """The head's norm B, its hinge loss, and ||E_U[y Psi]|| on the uniform component, unbiased from two halves."""

    size: int
    name: str = "fixed_feature_hinge"

    def __call__(self, network, task, key):
        mixture, first, second = jr.split(key, 3)
        features = jax.vmap(network.hidden)
        uniform = replace(task, p_a=0.0)
        halves = [
            sum_over_chunks(lambda mask, x, y: (mask * y) @ features(x), *uniform.sample(half, self.size)[:2])
            / self.size
            for half in (first, second)
        ]
        x, y, _ = task.sample(mixture, self.size)
        loss = sum_over_chunks(
            lambda mask, x, y: jnp.sum(mask * jax.nn.relu(1 - y * (features(x) @ network.output))), x, y
        )
        return {
            "hinge": loss / self.size,
            "norm": jnp.linalg.norm(network.output),
            "correlation": jnp.sqrt(jnp.maximum(halves[0] @ halves[1], 0)),
        }


def empty_head(network, task, key):
    return replace(network, output=jnp.zeros_like(network.output))


@system.experiment(
    "prop-3.23",
    "Block parities, r = 1: the hinge loss that fixed features cannot avoid",
    presets={
        "smoke": Fixed(d=48, k=3, width=60, steps=60, population=5000, seeds=4),
        "quick": Fixed(),
        "paper": Fixed(d=144, k=9, width=2000, steps=3000, population=400_000),
    },
)
def fixed_features(s: Fixed) -> xr.Dataset:
    task = BlockParity(s.d, 1, s.k, 0.25, 0.5)
    run = train(
        task,
        MLP(s.width, init="gaussian", output_bias=False),
        [Stage(Adam(lr=s.lr, batch=s.batch, loss="hinge"), s.steps, trains=("output",), before=empty_head)],
        seeds=s.seeds,
        probes=[FixedFeatureHinge(s.population)],
        record=[s.steps],
        networks=False,
    )
    ds = run.data[["hinge", "norm", "correlation"]].isel(step=-1, drop=True)
    printed = 0.5 - np.sqrt(s.width * ds.norm) / (2**s.k * math.sqrt(2))
    return ds.assign(bound=0.5 * (1 - ds.norm * ds.correlation), printed=printed)


@fixed_features.claim(
    "02.22",
    "The trained head of random features keeps a hinge loss >= (1 - B ||E_U[y Psi]||)/2 - 0.01, U the uniform "
    "component",
    source="Prop. 3.23 (derived form)",
)
def cannot_do_better(ds: xr.Dataset):
    return at_least(ds.hinge - ds.bound, -0.01, over="seed")


@fixed_features.figure
def plot_fixed(ds: xr.Dataset):
    fig, ax = new_figure(size=(3.8, 2.5))
    ax.plot(ds.norm, ds.hinge, "o", label="trained random features")
    ax.plot(ds.norm, ds.bound, "k_", markersize=8, label="(1 - B ||E_U[y Psi]||)/2")
    ax.plot(ds.norm, ds.printed, "x", color="0.5", label="1/2 - sqrt(NB)/(2^k sqrt 2), printed")
    ax.set(xlabel="norm B of the head", ylabel="hinge loss")
    ax.legend()
    return fig
