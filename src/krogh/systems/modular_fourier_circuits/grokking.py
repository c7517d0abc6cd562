"""Figure 4.4: grokking of two-layer Transformers for k = 2, …, 5 inputs (000 §4.5)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from krogh.errors import check_choice
from krogh.lab import all_of, at_least, at_most, share_at_least
from krogh.lab.figures import curve_with_spread, new_figure, theory
from krogh.lab.times import first_time
from krogh.nn.decoder import Decoder, SymbolTransformer
from krogh.probes.basic import correct, outputs_on, probe
from krogh.systems.modular_fourier_circuits import system
from krogh.tasks.base import Batch
from krogh.tasks.modular import ModularAddition
from krogh.train import Adam, Reach, train
from krogh.train.schedules import WarmUp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVALUATED = 2048


@dataclass(frozen=True)
class Grokking:
    """`cases`: k, p and steps of each panel. A narrower Transformer takes a larger learning rate. A replica ends once
    the seen part, the held-out part or both are learned (`ends`); its curves stay where they are from there on. A part
    is learned from the first of `sustained` records in a row on."""

    cases: tuple[tuple[int, int, int], ...] = ((2, 31, 1000), (3, 11, 1500), (4, 7, 2000), (5, 5, 2500))
    layers: int = 2
    heads: int = 4
    emb: int = 32
    attn: int = 8
    lr: float = 3e-3
    weight_decay: float = 1e-3
    batch: int = 256
    every: int = 20
    seeds: int = 8
    ends: str = "both"
    sustained: int = 1
    precision: str = "highest"


SMOKE = Grokking(cases=((2, 7, 40), (3, 5, 40)), heads=2, emb=16, attn=8, seeds=2)
ORIGINAL = Grokking(
    cases=((2, 97, 20_000), (3, 31, 20_000), (4, 11, 20_000), (5, 5, 20_000)),
    heads=160,
    emb=128,
    attn=32,
    lr=1e-3,
    batch=1024,
    every=50,
    seeds=4,
    precision="tensorfloat32",
)

# Accuracies on the seen and on the held-out part of the table that count as having learned it.
SEEN, HELD_OUT = 0.99, 0.95
ENDS = {"both": Reach("grokked"), "seen": Reach("seen_accuracy", SEEN), "held out": Reach("accuracy", HELD_OUT)}


@probe(dims={"accuracy": (), "seen_accuracy": (), "grokked": ()})
def accuracies(network: Decoder, task: ModularAddition, validation: Batch) -> dict[str, Float[Array, ""]]:
    """Accuracy on the held-out part of the table, and on the seen part or 2048 rows of it, in one pass."""
    seen = task.sample(jax.random.key(0), min(task.seen, EVALUATED))
    outputs = outputs_on(network, jnp.concatenate([validation.x, seen.x]))
    right = correct(outputs, jnp.concatenate([validation.y, seen.y]))
    held_out = len(validation.y)
    accuracy, seen_accuracy = jnp.mean(right[:held_out]), jnp.mean(right[held_out:])
    grokked = (accuracy >= HELD_OUT) & (seen_accuracy >= SEEN)
    return {"accuracy": accuracy, "seen_accuracy": seen_accuracy, "grokked": grokked.astype(float)}


def curves(s: Grokking) -> xr.Dataset:
    parts = []
    for k, p, steps in s.cases:
        task = ModularAddition(p, k)
        learner = Adam(
            lr=s.lr,
            batch=min(s.batch, task.seen),
            loss="cross_entropy",
            weight_decay=s.weight_decay,
            decay="decoupled",
            b2=0.98,
            schedule=WarmUp(steps, decay=False),
        )
        run = train(
            task,
            SymbolTransformer(s.layers, s.heads, s.emb, s.attn),
            learner,
            steps,
            seeds=s.seeds,
            probes=[accuracies],
            every=s.every,
            until=replace(ENDS[check_choice("ends", s.ends, ENDS)], consecutive=s.sustained),
            validation=EVALUATED,
            precision=s.precision,
            networks=False,
        )
        ds = run.data[["accuracy", "seen_accuracy"]]
        seen = first_time(ds.seen_accuracy >= SEEN, s.sustained)
        held_out = first_time(ds.accuracy >= HELD_OUT, s.sustained)
        finite = np.isfinite(seen)
        at = ds.accuracy.sel(step=seen.where(finite, 0)).drop_vars("step").where(finite)
        ds = ds.assign(seen_time=seen, held_out_time=held_out, gap=1 - at, gap_by_order=task.unseen_in_any_order)
        # curves of different lengths share one numbering of their records
        parts.append(ds.assign(time=ds.step.astype(float)).assign_coords(step=np.arange(ds.sizes["step"])))
    names = xr.DataArray([f"k = {k}, p = {p}" for k, p, _ in s.cases], dims="case", name="case")
    return xr.concat(parts, names, join="outer").assign_coords(k=("case", [k for k, *_ in s.cases]))


def draw_curves(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(ds.sizes["case"], size=(2.6 * ds.sizes["case"], 2.5), sharey=True)
    for ax, case in zip(axes, ds.case.values, strict=True):
        here = ds.sel(case=case).dropna("step", subset=["time"])
        here = here.isel(step=slice(1, None)).assign_coords(step=here.time.values[1:])
        curve_with_spread(ax, here.seen_accuracy, label="training", color="C0", band=(0.0, 1.0))
        curve_with_spread(ax, here.accuracy, label="validation", color="C1", band=(0.0, 1.0))
        theory(ax, here.step[[0, -1]], [1 - float(here.gap_by_order)] * 2, "memory, any order")
        gap, ratio = float(here.gap.median()), float((here.held_out_time / here.seen_time).median())
        told = "validation first" if ratio == 0 else f"ratio {ratio:.1f}" if np.isfinite(ratio) else "validation < 95 %"
        told = f"G = {gap:.2f}, {told}" if np.isfinite(gap) else told
        ax.set(xscale="log", xlabel="step", title=f"{case}\n{told}")
    axes[0].set(ylabel="accuracy", ylim=(0, 1.02))
    axes[0].legend()
    figure.suptitle(
        f"reported: grokking in all panels, weaker as k grows ({ds.sizes['seed']} seeds: median and range)", fontsize=8
    )
    return figure


def gap_closes(ds: xr.Dataset):
    gap = ds.gap.swap_dims(case="k")
    falls = {
        f"k = {k} above k = {k + 1}": at_least(gap.sel(k=k) - gap.sel(k=k + 1), 0, over="seed")
        for k in ds.k.values[:-1].tolist()
    }
    return all_of(
        **falls, at_two=at_least(gap.sel(k=2), 0.3, over="seed"), at_five=at_most(gap.sel(k=5), 0.05, over="seed")
    )


grokking = system.experiment(
    "fig-4.4",
    "Figure 4.4: grokking weakens as k grows",
    presets={
        "smoke": SMOKE,
        "quick": Grokking(),
        "paper": ORIGINAL,
    },
)(curves)


grokking.claim(
    "03.20",
    "Scaled to p = 31, 11, 7, 5, weight decay 1e-3: G = 1 - validation accuracy when training accuracy first reaches "
    "0.99 decreases in k, is >= 0.3 at k = 2 and <= 0.05 at k = 5",
    source="Fig 4.4",
    presets=("quick",),
)(gap_closes)


grokking.figure(draw_curves)


gap_only = system.experiment(
    "fig-4.4-gap",
    "Figure 4.4 up to where the seen part is learned, which is all that the gap needs",
    presets={
        "smoke": replace(SMOKE, ends="seen"),
        "paper": replace(ORIGINAL, ends="seen", every=10, seeds=80),
    },
)(curves)


gap_only.claim(
    "03.21",
    "160 heads, p = 97, 31, 11, 5, weight decay 1e-3: G decreases in k, is >= 0.3 at k = 2 and <= 0.05 at k = 5",
    source="Fig 4.4",
    presets=("paper",),
    finding="That G falls can be counted: .505, .053, .0054, .0037 of the held-out rows (k = 2 to 5) are seen in no "
    "other order either. Measured: .514, .035, .024, .017: k = 2 as counted, k = 3 better, k = 4 and 5 above. A first "
    "run of 8 networks with a record every 50 steps left k = 4 above k = 5 undecided (.0020, -.0031 to .0070); then 96 "
    "were asked for, and when time was up the first 80 had been trained in every case.",
)(gap_closes)


@grokking.claim(
    "03.21b",
    "160 heads, p = 97, 31, 11, 5, weight decay 1e-3: in every panel at least half of the networks come to generalise: "
    "validation accuracy 0.95 within 20,000 steps",
    source="Fig 4.4",
    presets=("paper",),
    finding="k = 3, 4 and 5 reach 0.95 by step 150 to 250, mostly before training accuracy 0.99. At k = 2 the seen "
    "part is learned by step 100 and validation stays at .49 to .52 up to step 20,000: what is learned is that order "
    "does not matter, which answers .495 of the held-out pairs. (One such network, looked into at step 150, is right "
    "on all held-out pairs whose mirror image was seen and wrong on all others.)",
)
def generalises_in_every_panel(ds: xr.Dataset):
    generalised = np.isfinite(ds.held_out_time).swap_dims(case="k")
    return all_of(**{f"k = {k}": share_at_least(generalised.sel(k=k), 0.5, over="seed") for k in ds.k.values.tolist()})


@gap_only.figure
@grokking.figure
def plot_gap(ds: xr.Dataset) -> "Figure":
    figure, ax = new_figure(size=(3.2, 2.4))
    curve_with_spread(ax, ds.gap.swap_dims(case="k"), x="k", marker="o", label="trained")
    theory(ax, ds.k, ds.gap_by_order, "memory, any order")
    ax.legend()
    ax.set(xlabel="inputs k", ylabel="G = 1 − validation accuracy\nat training accuracy 0.99", xticks=ds.k.values)
    return figure


# ------------------------------------------------------------------------------------------- the complete jump

# So much decay throws networks back now and then: a single record above a threshold is not yet learning. A replica that
# has learned the held-out part needs no more steps: if it has not yet learned the seen part, there is no delay at all.
DECAYING = {"weight_decay": 1.0, "ends": "held out", "sustained": 3}


grokking_decay = system.experiment(
    "fig-4.4-decay",
    "The complete jump, with weight decay 1",
    presets={
        "smoke": replace(SMOKE, **DECAYING),
        "quick": Grokking(cases=((2, 31, 4000), (3, 11, 2000), (4, 7, 5000), (5, 5, 2500)), **DECAYING),
        "paper": replace(ORIGINAL, **DECAYING),
    },
)(curves)


grokking_decay.figure(draw_curves)


@grokking_decay.claim(
    "03.20",
    "With weight decay 1: the median time to validation accuracy 0.95 over that to training accuracy 0.99, each kept "
    "for three records, is >= 5 at k = 2 and <= 2 at k = 4 and 5",
    source="Fig 4.4",
    presets=("quick",),
    finding="At k = 4 and 5 most networks reach validation accuracy 0.95 before training accuracy 0.99, which so much "
    "decay hardly allows: nothing is delayed.",
)
def delay_shrinks(ds: xr.Dataset):
    ratio = (ds.held_out_time / ds.seen_time).swap_dims(case="k")
    # Where neither part is learned, nothing speaks for a short delay.
    longest = ratio.fillna(np.inf)
    return all_of(
        at_two=at_least(ratio.sel(k=2), 5, stat="median", over="seed"),
        at_four=at_most(longest.sel(k=4), 2, stat="median", over="seed"),
        at_five=at_most(longest.sel(k=5), 2, stat="median", over="seed"),
    )


# ------------------------------------------------------------------------------------------- p held fixed


fixed_p = system.experiment(
    "fixed-p",
    "The same comparison at one p: in Figure 4.4 p falls as k grows",
    presets={
        "smoke": replace(SMOKE, cases=((2, 5, 40), (3, 5, 40))),
        "quick": Grokking(cases=((2, 7, 400), (3, 7, 400), (4, 7, 600), (5, 7, 600)), seeds=8),
        "paper": replace(ORIGINAL, cases=((2, 7, 5000), (3, 7, 5000), (4, 7, 5000), (5, 7, 5000))),
    },
)(curves)

fixed_p.figure(draw_curves)
