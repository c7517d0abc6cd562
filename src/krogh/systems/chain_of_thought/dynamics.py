"""Training in two stages and what it leaves behind (004 Figure 7.6, Theorem 3, Lemmas F.3.5–F.3.7)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from krogh.lab import all_of, at_least, at_most, between
from krogh.lab.figures import COLOURS, curve_with_spread, new_figure, theory
from krogh.lab.statistics import power_law
from krogh.lab.times import first_time
from krogh.probes.basic import probe
from krogh.probes.chain_of_thought import KINDS, attention_classes
from krogh.systems.chain_of_thought import system
from krogh.systems.chain_of_thought.learning import SMOKE, Training, error, frame, head_run
from krogh.tasks.chain_of_thought import ChainPrompts
from krogh.theory import reasoning_chains as rc
from krogh.train import log_spaced, sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIFFERENT_STEP, RIGHT = 0.1, 0.85


def blocks(weights: Float[Array, "width width"], task: ChainPrompts) -> tuple[Array, Array]:
    """W between patterns (M, M) and between step vectors (K, K)."""
    upper = weights[: task.d, : task.d]
    return task.patterns @ upper @ task.patterns.T, task.steps @ upper @ task.steps.T


@probe(dims={"forms": ("kind",)})
def forms(network: Any, start: Any, task: ChainPrompts) -> dict[str, Float[Array, " kinds"]]:
    """Mean change of p'ᵀ W p over pairs of columns, by what p' shares with p (Lemma F.3.5).

    All other blocks of W change by nothing on average: their means are conserved.
    """
    parts = blocks(network.weights - start.weights, task)
    same = [jnp.trace(part) / len(part) for part in parts]
    other = [(part.sum() - jnp.trace(part)) / (part.size - len(part)) for part in parts]
    pairs = [(same[0], same[1]), (same[0], other[1]), (other[0], same[1]), (other[0], other[1])]
    return {"forms": jnp.stack([pattern + step for pattern, step in pairs])}


def with_kinds(data: xr.Dataset) -> xr.Dataset:
    return data.assign_coords(kind=list(KINDS))


def slopes(values: xr.DataArray, over: str) -> np.ndarray:
    """Log-log slope of every seed's values along an axis."""
    return np.array([power_law(values[over], row)[0] for row in values.transpose("seed", over).values])


def different_step(attention: xr.DataArray) -> xr.DataArray:
    return attention.isel(kind=1) + attention.isel(kind=3)


# ------------------------------------------------------------------------------------------- Figure 7.6


@dataclass(frozen=True)
class Stages(Training):
    """η = 5: η t = 3000 is step 600."""

    eta: float = 5.0
    steps: int = 1200
    dense: int = 200
    validation: int = 512


@system.experiment(
    "fig-7.6",
    "Other steps lose the attention first, then other patterns",
    presets={
        "smoke": Stages(**SMOKE | {"dense": 20}),
        "quick": Stages(),
        "paper": Stages(eta=1.0, steps=6000, dense=600),
    },
)
def stages(s: Stages) -> xr.Dataset:
    record = sorted({*range(1, s.dense + 1), *log_spaced(s.steps, 60), s.steps // 2})
    run = sweep(head_run(s, probes=[attention_classes, error, forms], record=record, validation=s.validation))
    data = with_kinds(run.data[["attention", "error", "forms", "loss"]].isel(head=0))
    times = {
        "stage_1": first_time(different_step(data.attention) <= DIFFERENT_STEP),
        "stage_2": first_time(data.attention.isel(kind=0) >= RIGHT),
    }
    attrs = {"eta": s.eta, "alpha": s.alpha, "K": s.K, "M": s.M}
    return data.assign(times).assign_attrs(**attrs, initial=rc.initial_attention(s.alpha, s.K, s.examples))


@stages.claim(
    "23.2",
    "At t = 0 the attention on columns with the query's pattern and step is alpha/K within .02",
    source="Definition F.3.4, Lemma F.3.5",
)
def starts_uniform(ds: xr.Dataset):
    target = ds.attrs["alpha"] / ds.attrs["K"]
    return between(ds.attention.isel(kind=0, step=0), target - 0.02, target + 0.02, over="seed")


@stages.claim(
    "23.3",
    "At eta t = 3000 the loss is <= .01 and the attention p_n on columns with the query's pattern and step >= .9",
    source="Thm 3",
    presets=("quick", "paper"),
)
def converges(ds: xr.Dataset):
    then = ds.sel(step=round(3000 / ds.attrs["eta"]))
    return all_of(
        loss=at_most(then.error, 0.01, over="seed"), attention=at_least(then.attention.isel(kind=0), 0.9, over="seed")
    )


@stages.claim(
    "23.4",
    "Attention on other steps is < .1 strictly before attention on the right columns exceeds .85, by a factor >= 3 in "
    "steps; at eta t = 6000 the latter is >= .95",
    source="Fig 7.6",
    presets=("quick", "paper"),
)
def two_stages(ds: xr.Dataset):
    return all_of(
        factor=at_least(ds.stage_2 / ds.stage_1, 3.0, over="seed"),
        final=at_least(ds.attention.isel(kind=0, step=-1), 0.95, over="seed"),
    )


@stages.claim(
    "23.D1",
    "From t = 0 to the end of stage 1 the mean of p'^T W p grows for pairs of columns that share the step and falls "
    "for pairs that do not, whether or not they share the pattern",
    source="Lemma F.3.5",
    presets=("quick", "paper"),
    finding="Only signs are checked: the constants of (F.7) and (F.86) differ (alpha^2/K^2 against alpha^2/K).",
)
def first_stage_directions(ds: xr.Dataset):
    end = ds.forms.sel(step=ds.stage_1, method="nearest")
    grows = {KINDS[i]: at_least(end.isel(kind=i), 0.0, over="seed") for i in (0, 2)}
    return all_of(**grows, **{KINDS[i]: at_most(end.isel(kind=i), 0.0, over="seed") for i in (1, 3)})


@stages.claim(
    "23.D2",
    "From the end of stage 1 on, p'^T W p changes most for pairs that share pattern and step: by >= 4 times as much as "
    "for pairs that share the step alone",
    source="Lemma F.3.7",
    presets=("quick", "paper"),
    finding="The order holds, the factor 4 of (F.13) against (F.15) does not: it is about 3.3, because the step block "
    "goes on growing in the second stage.",
)
def second_stage_directions(ds: xr.Dataset):
    change = ds.forms.isel(step=-1) - ds.forms.sel(step=ds.stage_1, method="nearest")
    return at_least(change.isel(kind=0) / abs(change.isel(kind=2)), 4.0, over="seed")


@stages.claim(
    "23.D3",
    "From the end of stage 1 on, p'^T W p changes for pairs of different steps by less than for pairs that share the "
    "step alone, whether they share the pattern or not",
    source="Lemma F.3.7",
    presets=("quick", "paper"),
    finding="Pairs of the same pattern and different steps change more, against (F.14): W has a block for patterns and "
    "one for steps and none that knows both, so that what a pair gains by its pattern it gains at every step.",
)
def other_steps_stand_still(ds: xr.Dataset):
    change = abs(ds.forms.isel(step=-1) - ds.forms.sel(step=ds.stage_1, method="nearest"))
    return all_of(**{KINDS[i]: at_most(change.isel(kind=i) - change.isel(kind=2), 0.0, over="seed") for i in (1, 3)})


@stages.figure
def plot_stages(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = new_figure(2, size=(7.6, 2.8))
    # the document's colours: blue for the right columns, red and yellow for other steps
    for i, colour in zip((0, 1, 2, 3), (COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[4]), strict=True):
        curve_with_spread(left, ds.attention.isel(kind=i), label=KINDS[i], color=colour)
        curve_with_spread(right, ds.forms.isel(kind=i), color=colour)
    for ax in (left, right):
        ax.axvline(float(ds.stage_1.median()), ymax=0.7, color="black", ls="--", lw=1, label="end of stage 1")
        ax.set(xscale="symlog", xlabel=f"step t (η = {ds.attrs['eta']:g})", xlim=(0, None))
    left.plot(0, ds.attrs["initial"], "k*", label="uniform (about α/K)")
    left.set(ylabel="attention", ylim=(-0.02, 1.45), title="reported: red, yellow → 0, then blue → 1")
    left.legend(fontsize=6, ncols=2, loc="upper center")
    right.set(ylabel="mean change of $p'^T W p$", title="Lemmas F.3.5 and F.3.7")
    return figure


# ------------------------------------------------------------------------------------------- Theorem 3, time


@dataclass(frozen=True)
class LongTraining(Training):
    steps: int = 2000
    validation: int = 512
    levels: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003)


@system.experiment(
    "thm-3-time",
    "What is left of the loss falls like 1/t",
    presets={
        "smoke": LongTraining(**SMOKE | {"steps": 200}),
        "quick": LongTraining(),
        "paper": LongTraining(validation=2048, seeds=64),
    },
)
def late(s: LongTraining) -> xr.Dataset:
    record = sorted({*range(1, 61), *log_spaced(s.steps, 80)})
    run = sweep(head_run(s, probes=[attention_classes, error], record=record, validation=s.validation))
    data = run.data[["attention", "error"]].isel(head=0)
    levels = xr.DataArray(list(s.levels), dims="level", coords={"level": list(s.levels)})
    data = with_kinds(data).assign(time=first_time(data.error <= levels))
    return data.assign_attrs(eta=s.eta, K=s.K, M=s.M)


def _late_slopes(values: xr.DataArray) -> np.ndarray:
    return slopes(values.sel(step=slice(200, 2000)), "step")


@late.claim(
    "23.5",
    "Over t in [200, 2000] at eta = 10, the log-log slope of 1 - p_n is in [-.65, -.4] and that of the loss in "
    "[-1.3, -.8]",
    source="(F.24)-(F.31)",
    presets=("quick", "paper"),
)
def late_law(ds: xr.Dataset):
    return all_of(
        miss=between(_late_slopes(1 - ds.attention.isel(kind=0)), -0.65, -0.4),
        loss=between(_late_slopes(ds.error), -1.3, -0.8),
    )


@late.claim(
    "23.7",
    "Steps to loss eps in {.1, .03, .01, .003}: log-log slope in [-1.1, -.7]",
    source="(7.15), T_3",
    presets=("quick", "paper"),
)
def eps_law(ds: xr.Dataset):
    return between(slopes(ds.time, "level"), -1.1, -0.7)


@late.figure
def plot_late(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = new_figure(2, size=(6.8, 2.6))
    shown = ds.isel(step=slice(1, None))
    curve_with_spread(left, 1 - shown.attention.isel(kind=0), label="$1 - p_n$", color=COLOURS[0])
    curve_with_spread(left, shown.error, label="loss", color=COLOURS[1])
    eta, K, M = (ds.attrs[name] for name in ("eta", "K", "M"))
    theory(left, shown.step, rc.late_miss(eta, shown.step, K, M), "$(KM/ηt)^{1/2}$ and its half square")
    theory(left, shown.step, rc.late_miss(eta, shown.step, K, M) ** 2 / 2, None)
    left.set(xscale="log", yscale="log", xlabel=f"step t (η = {eta:g})", ylabel="what is left", ylim=(1e-4, 3))
    left.legend(fontsize=6)
    curve_with_spread(right, ds.time, x="level", marker="o", label="steps to loss ε")
    theory(right, ds.level, K * M / (eta * ds.level), "$T_3 = KM/(ηε)$")
    right.set(xscale="log", yscale="log", xlabel="ε", ylabel="steps")
    right.legend()
    return figure


# ------------------------------------------------------------------------------------------- the learned matrix


@system.experiment(
    "thm-3-matrix",
    "The learned matrix compares patterns and steps",
    presets={"smoke": Training(**SMOKE), "quick": Training(), "paper": Training(seeds=64)},
)
def matrix(s: Training) -> xr.Dataset:
    run = sweep(head_run(s, probes=[frame], record=[s.steps], snapshots=[0]))
    vectors = run.data.frame.isel(step=-1).values.astype(float)
    W, W0 = run.networks.weights.astype(float), run.snapshots[0].weights.astype(float)
    upper = np.concatenate([vectors, np.zeros_like(vectors)], axis=-1)
    lower = np.concatenate([np.zeros_like(vectors), vectors], axis=-1)[:, : s.M]
    # rows and columns in the order: input patterns, steps, output patterns
    basis = np.concatenate([upper, lower], axis=1)
    inside = basis @ W @ basis.transpose(0, 2, 1)
    sums = np.stack([upper[:, : s.M].sum(1), lower.sum(1), upper[:, s.M :].sum(1)], axis=1)
    queries = (upper[:, : s.M, None] + upper[:, None, s.M :]).reshape(s.seeds, -1, 2 * s.d)
    drift = sums @ (W - W0) @ queries.transpose(0, 2, 1)
    return xr.Dataset(
        {"W": (("seed", "row", "column"), inside), "drift": (("seed", "sum", "query"), drift)},
        coords={"sum": ["inputs", "outputs", "steps"]},
        attrs={"M": s.M, "K": s.K},
    )


def _parts(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Diagonal and off-diagonal entries of each seed's block."""
    eye = np.eye(block.shape[-1], dtype=bool)
    return block[:, eye], block[:, ~eye]


@matrix.claim(
    "23.17",
    "Pattern block of W: std/mean of the diagonal <= .02, std off the diagonal <= .1 |diagonal|; W changes by <= 1e-3 "
    "on the sums of input patterns, output patterns and step vectors",
    source="§F.5, derived",
    presets=("quick", "paper"),
)
def learned_matrix(ds: xr.Dataset):
    M = ds.attrs["M"]
    diagonal, off = _parts(ds.W.values[:, :M, :M])
    return all_of(
        diagonal=at_most(diagonal.std(1) / diagonal.mean(1), 0.02),
        off_diagonal=at_most(off.std(1) / abs(diagonal.mean(1)), 0.1),
        conserved=at_most(abs(ds.drift).max(("sum", "query")), 1e-3, over="seed"),
    )


@matrix.claim(
    "23.17b",
    "The blocks are a (I - 11'/M) and b (I - 11'/K): off-diagonal over diagonal means are -1/(M-1) and -1/(K-1) within "
    "10 %",
    source="derived from the conserved sums",
    presets=("quick", "paper"),
)
def centred_blocks(ds: xr.Dataset):
    M, K = ds.attrs["M"], ds.attrs["K"]
    parts = {}
    for name, n, part in (("patterns", M, slice(0, M)), ("steps", K, slice(M, M + K))):
        diagonal, off = _parts(ds.W.values[:, part, part])
        parts[name] = between(-off.mean(1) / diagonal.mean(1) * (n - 1), 0.9, 1.1)
    return all_of(**parts)


@matrix.claim(
    "23.17c",
    "W does not compare an example's answer with the query: the mean diagonal of its block from outputs to inputs is "
    "<= .1 of that of the pattern block in absolute value",
    source="(F.45)-(F.48)",
    presets=("quick", "paper"),
    finding="Small but not zero: about -.065, because training tasks never map a pattern to itself, so that an answer "
    "equal to the query is never helpful. Where test tasks do (f_1 = identity, f_2 = swap as in Example 1) and rho_o = "
    ".1, that is enough to turn the vote: ICL error fell to .08 at l = 640 although Condition 7.3.2 is violated.",
)
def blind_to_answers(ds: xr.Dataset):
    M, K = ds.attrs["M"], ds.attrs["K"]
    patterns, answers = (_parts(ds.W.values[:, part, :M])[0] for part in (slice(0, M), slice(M + K, None)))
    return at_most(abs(answers.mean(1) / patterns.mean(1)), 0.1)


@matrix.figure
def plot_matrix(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = new_figure(2, size=(6.8, 3.0))
    mean = ds.W.mean("seed")
    image = left.imshow(mean, cmap="RdBu_r", vmin=-abs(mean).max(), vmax=abs(mean).max())
    figure.colorbar(image, ax=left, shrink=0.8)
    M, K = ds.attrs["M"], ds.attrs["K"]
    marks = [M / 2, M + K / 2, M + K + M / 2]
    left.set_xticks(marks, ["inputs", "c", "outputs"])
    left.set_yticks(marks, ["inputs", "c", "outputs"])
    left.set(title="W in the basis of patterns and steps, mean over seeds")
    for i, (name, n, part) in enumerate((("patterns", M, slice(0, M)), ("steps", K, slice(M, M + K)))):
        diagonal, off = _parts(ds.W.values[:, part, part])
        right.hist(diagonal.ravel(), bins=30, density=True, color=COLOURS[i], label=f"{name}, diagonal")
        right.hist(off.ravel(), bins=30, density=True, color=COLOURS[i], alpha=0.4, label=f"{name}, off diagonal")
        right.axvline(
            -diagonal.mean() / (n - 1),
            color="black",
            linestyle="--",
            linewidth=1,
            label="−diagonal/(n − 1)" if i == 0 else None,
        )
    right.set(xlabel="entry of W", ylabel="density", yscale="log")
    right.legend(fontsize=6)
    return figure
