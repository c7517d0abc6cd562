"""Flipped labels and irrelevant sentences in the prompts of a real language model and its shallow copies (000 §5.6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from krogh.data.sentences import LABELS, sentences
from krogh.errors import InputError, check_choice
from krogh.lab import Verdict, all_of, at_least, at_most
from krogh.lab.figures import COLOURS, new_figure, reported
from krogh.systems.icl_model_scale import system
from krogh.train.cells import Cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = "SmolLM2-135M-Instruct and its first 15, 20 and 25 layers for Llama models of 3B to 70B"
TEXTS = "five sets of sentences out of packages for GLUE and Subj"
NO_FAMILY = "one model is no family: give the folders of two or more sizes by --set models=FOLDER,FOLDER --set depths="


@dataclass(frozen=True)
class Language:
    """`models`: folders, .gguf files or smollm2; `depths`: copies of each with so many layers, fitted on `tokens`.

    A seed draws the examples and the sentences asked after them. `longest`: words of a sentence. `noises`: shares of
    the examples' letters that are wrong. Sizes are put in order by their parameters.
    """

    models: tuple[str, ...] = ("smollm2",)
    depths: tuple[int, ...] = (15, 20, 25)
    tasks: tuple[str, ...] = tuple(LABELS)
    examples: int = 16
    asked: int = 12
    longest: int = 12
    flips: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0)
    noises: tuple[float, ...] = (0.0,)
    tokens: int = 8192
    seeds: int = 8
    batch: int = 32
    device: str = "cpu"
    dtype: str = "bfloat16"


def _load(s: Any, number: int) -> tuple[str, Any, Any]:
    """(name, model, tokenizer) of one of the models; the name is that of its file where this tells them apart."""
    from krogh import llm

    llm.require()
    import torch

    check_choice("dtype", s.dtype, ("bfloat16", "float16", "float32"))
    names = [Path(path).name.removesuffix(".gguf") for path in s.models]
    model, tokenizer = llm.load(s.models[number], s.device)
    name = names[number] if len(set(names)) == len(names) else s.models[number]
    return name, model.to(getattr(torch, s.dtype)), tokenizer


def _each(s: Any, measure: Callable[[int], xr.Dataset]) -> xr.Dataset:
    """One model after the other, so that one at a time is in memory; sizes in order."""
    if not s.models:
        raise InputError("no models are given: set models to folders, .gguf files or smollm2.")
    return xr.concat([measure(number) for number in range(len(s.models))], "size").sortby("parameters")


def novels() -> str:
    from krogh import data

    files = sorted(data.fetch("gutenberg").glob("*.txt"))
    return " ".join(" ".join(file.read_text(errors="replace").split()) for file in files)


def _texts(task: str, longest: int) -> tuple[np.ndarray, np.ndarray]:
    held = sentences(task)
    short = np.array([len(text.split()) <= longest for text in held["text"]])
    return held["text"][short], held["y"][short]


def _sizes(name: str, model: Any, depths: tuple[int, ...]) -> dict[str, Any]:
    """Coordinates of the copies and the model: their names, parameters and kinds."""
    layers = model.model.layers
    each = sum(p.numel() for p in layers.parameters()) // len(layers)
    parameters = [model.model.embed_tokens.weight.numel() + each * depth for depth in (*depths, len(layers))]
    return {
        "size": [*(f"{name}, {depth} layers" for depth in depths), name],
        "parameters": ("size", parameters),
        "copy": ("size", [True] * len(depths) + [False]),
    }


def label_accuracy(s: Language) -> xr.Dataset:
    """Per size, task, seed, flip share and noise: `accuracy` of the likelier word, `says` how often it is the second.

    `calibrated`: accuracy with the label bias removed, that is with the median of log p(word 1) - log p(word 0) over
    the sentences asked (half of each class) as the threshold.
    """
    if not (s.tasks and s.flips and s.noises):
        raise InputError("tasks, flips and noises must each hold at least one value.")
    texts = {task: _texts(task, s.longest) for task in s.tasks}
    cells = Cells(len(s.models) * len(s.tasks) * s.seeds)
    return _each(s, lambda number: _accuracy(s, number, texts, cells))


def _accuracy(s: Language, number: int, texts: dict[str, Any], cells: Cells) -> xr.Dataset:
    from krogh import data, llm

    name, model, tokenizer = _load(s, number)
    copies = llm.shallow_copies(model, tokenizer, s.depths, novels(), s.tokens, keep=data.folder() / "copies")

    def cell(task: str, seed: int) -> np.ndarray:
        """(flip, noise, 3, size)"""
        prompts = llm.LabelledPrompts(*texts[task], LABELS[task], s.examples, s.asked, seed)

        def judged(flip: float, noise: float) -> np.ndarray:
            context, asked = prompts.context(flip, noise), prompts.queries()
            found = llm.label_scores(model, tokenizer, context, asked, prompts.words, copies, s.batch)
            return _judged(found, prompts.truth)

        return np.array([[judged(flip, noise) for noise in s.noises] for flip in s.flips])

    found = [[cells((name, task, seed), partial(cell, task, seed)) for seed in range(s.seeds)] for task in s.tasks]
    table = np.moveaxis(np.array(found), (-2, -1), (0, 1))
    dims = ("size", "task", "seed", "flip", "noise")
    return xr.Dataset(
        {name: (dims, part) for name, part in zip(("accuracy", "calibrated", "says"), table, strict=True)}
        | {"agreement": ("size", [copy.agreement for copy in copies] + [1.0])},
        coords={"task": list(s.tasks), "flip": list(s.flips), "noise": list(s.noises)} | _sizes(name, model, s.depths),
    )


def _judged(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(accuracy, calibrated, says) of scores (sizes, asked, 2), or of one size: (3, sizes)."""
    gap = np.atleast_2d(scores[..., 1] - scores[..., 0])
    fair = gap > np.median(gap, axis=-1, keepdims=True)
    return np.stack([((gap > 0) == truth).mean(-1), (fair == truth).mean(-1), (gap > 0).mean(-1)])


def _drop(accuracy: xr.DataArray) -> xr.DataArray:
    """Accuracy lost from no flips to all labels flipped, mean over the tasks."""
    accuracy = accuracy.isel(noise=0).mean("task")
    return accuracy.sel(flip=0.0) - accuracy.sel(flip=1.0)


def _family(ds: xr.Dataset, judge: Any) -> Verdict:
    """A verdict on whole models alone, from the smallest to the largest; undecided with fewer than two."""
    models = ds.isel(size=~ds["copy"].values.astype(bool))
    return judge(models) if models.sizes["size"] > 1 else Verdict("undecided", None, "two models", detail=NO_FAMILY)


def _larger_follow(ds: xr.Dataset) -> Verdict:
    clean, drop = ds.calibrated.sel(flip=0.0).isel(noise=0).mean("task"), _drop(ds.calibrated)
    return all_of(
        better=at_least(clean.isel(size=-1) - clean.isel(size=0), 0, over="seed"),
        drop=at_least(drop.isel(size=-1) - drop.isel(size=0), 0.2, over="seed"),
    )


def _means(ax: Axes, values: xr.DataArray, x: str, number: int, label: str | None = None) -> None:
    """Mean over seeds with the 95 % interval of the mean, in percent of x; sizes stand a little apart."""
    error = 1.96 * values.std("seed", ddof=1) / np.sqrt(values.sizes["seed"])
    place = 100 * values[x] + 0.01 * number * float(100 * values[x].max())
    ax.errorbar(place, values.mean("seed"), error, fmt=".-", color=COLOURS[number], elinewidth=0.8, label=label)


SMOKE = Language(depths=(10,), tasks=("questions",), examples=2, asked=2, flips=(0.0, 1.0), tokens=320, seeds=2)
TENTHS = tuple(i / 10 for i in range(11))
PAPER = Language(asked=1000, longest=60, flips=TENTHS, tokens=65_536, batch=64, device="cuda")


# ------------------------------------------------------------------------------------------- Figure 5.1


@system.experiment(
    "fig-5.1",
    "Accuracy against the share of flipped labels: a language model and its shallow copies",
    presets={"smoke": SMOKE, "quick": Language(), "paper": PAPER},
    stand_in=f"{MODELS}; {TEXTS}",
)
def flipped_sentences(s: Language) -> xr.Dataset:
    return label_accuracy(s)


@flipped_sentences.claim(
    "04.19b",
    "From no flips to all labels flipped the whole model loses more accuracy than its copy of half the depth, by >= .2 "
    "(mean over the tasks, label bias removed)",
    source="Fig 5.1",
    finding="The whole model falls from .84 to .47, its first 15 layers stay (.72 and .71), 20 and 25 layers lie "
    "between: what overrides the prior sits in the upper half. By the likelier word as it comes (the source does not "
    "state its rule) the model falls from .71 to .52 and the copy stays at .60: on three tasks it says one of the two "
    "words always. The copies are cut out of one model; that models trained apart differ so by size needs a family "
    "(04.F1).",
)
def deeper_override(ds: xr.Dataset):
    drop = _drop(ds.calibrated)
    return at_least(drop.isel(size=-1) - drop.isel(size=0), 0.2, over="seed")


@flipped_sentences.claim(
    "04.19c",
    "Without flips the whole model is better than its copy of half the depth (mean over the tasks, label bias removed)",
    source="Fig 5.1",
)
def deeper_is_better(ds: xr.Dataset):
    clean = ds.calibrated.sel(flip=0.0).isel(noise=0).mean("task")
    return at_least(clean.isel(size=-1) - clean.isel(size=0), 0, over="seed")


@flipped_sentences.claim(
    "04.19d",
    "The copy of half the depth knows the tasks (accuracy >= .6 without flips), stays flat (it loses <= .1 when all "
    "labels are flipped) and is not worse than guessing (>= .45 then)",
    source="Fig 5.1",
)
def shallow_keeps_its_prior(ds: xr.Dataset):
    small = ds.isel(size=0)
    clean, flipped = (small.calibrated.sel(flip=f).isel(noise=0).mean("task") for f in (0.0, 1.0))
    return all_of(
        knows=at_least(clean, 0.6, over="seed"),
        flat=at_most(clean - flipped, 0.1, over="seed"),
        no_worse_than_guessing=at_least(flipped, 0.45, over="seed"),
    )


@flipped_sentences.claim(
    "04.F1",
    "Instruction-tuned models of one family, 3B to 70B: without flips the largest is better than the smallest, and it "
    "loses more by >= .2 when all labels are flipped",
    source="Fig 5.1",
    presets=("paper",),
    finding="No package carries a second causal language model, so this needs a family of one's own: "
    "krogh run icl-model-scale/fig-5.1 --preset paper --set models=FOLDER,FOLDER --set depths=",
)
def instructed_family(ds: xr.Dataset):
    return _family(ds, _larger_follow)


@flipped_sentences.figure
def plot_flipped_sentences(ds: xr.Dataset) -> Figure:
    panels = [*map(str, ds.task.values), "average"]
    figure, axes = new_figure(
        3, -(-len(panels) // 3), size=(7.6, 2.2 * -(-len(panels) // 3)), sharey=True, squeeze=False
    )
    for ax, panel in zip(axes.flat, panels, strict=False):
        for number, size in enumerate(ds["size"].values):
            cell = ds.calibrated.sel(size=size).isel(noise=0)
            _means(ax, cell.mean("task") if panel == "average" else cell.sel(task=panel), "flip", number, str(size))
        reported(ax, 0.5, None)
        ax.set(title=panel, ylim=(-0.02, 1.02))
    for ax in axes[-1]:
        ax.set_xlabel("flipped labels (%)")
    for ax in axes[:, 0]:
        ax.set_ylabel("accuracy")
    axes.flat[len(panels) - 1].legend()
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    figure.suptitle(
        "Fig 5.1 reports: small models flat, large ones fall (label bias removed; dotted: chance)", fontsize=8
    )
    return figure


@flipped_sentences.figure
def plot_label_bias(ds: xr.Dataset) -> Figure:
    figure, (left, right) = new_figure(2, size=(6.4, 2.5))
    for number, size in enumerate(ds["size"].values):
        cell = ds.sel(size=size).isel(noise=0)
        _means(left, cell.accuracy.mean("task"), "flip", number, str(size))
        _means(right, abs(cell.says - 0.5).mean("task") + 0.5, "flip", number, f"{float(cell.agreement):.0%}")
    reported(left, 0.5, "chance")
    left.set(title="the likelier word, no bias removed", ylabel="accuracy, mean of the tasks", ylim=(-0.02, 1.02))
    right.set(title="label bias", ylabel="share of the commoner answer", ylim=(0.48, 1.02))
    left.set_xlabel("flipped labels (%)")
    right.set_xlabel("flipped labels (%)")
    left.legend()
    right.legend(title="next tokens of a novel as the model's", title_fontsize=7)
    return figure


# ------------------------------------------------------------------------------------------- input noise


TWO_PROMPTS = Language(
    depths=(10,),
    tasks=("questions",),
    examples=2,
    asked=2,
    flips=(0.0,),
    noises=(0.0, 0.3),
    tokens=320,
    seeds=2,
)
STANDS_FOR = f"{MODELS}; wrong letters for the input noise of §5.7, which was not measured there"


@system.experiment(
    "input-noise",
    "Accuracy against flipped labels and misspelt examples",
    presets={
        "smoke": TWO_PROMPTS,
        "quick": Language(tasks=("rotten-tomatoes", "questions"), flips=(0.0, 1.0), noises=(0.0, 0.1, 0.3)),
        "paper": Language(
            asked=1000,
            longest=60,
            flips=(0.0, 0.25, 0.5, 0.75, 1.0),
            noises=(0.0, 0.05, 0.1, 0.2, 0.3, 0.5),
            tokens=65_536,
            batch=64,
            device="cuda",
        ),
    },
    stand_in=STANDS_FOR,
)
def misspelt_examples(s: Language) -> xr.Dataset:
    return label_accuracy(s)


def _excess(accuracy: xr.DataArray, before: dict[str, float], after: dict[str, float]) -> xr.DataArray:
    """What the largest size loses from one cell to another beyond what the smallest loses."""
    lost = (accuracy.sel(before) - accuracy.sel(after)).mean("task")
    return lost.isel(size=-1) - lost.isel(size=0)


MISSPELT = (
    "Wrong letters in the examples (three in ten, the labels right, the sentence asked untouched) cost the whole model "
    "more accuracy than its copy of half the depth"
)


def deeper_are_distracted(ds: xr.Dataset):
    return at_least(_excess(ds.calibrated, dict(flip=0.0, noise=0.0), dict(flip=0.0, noise=0.3)), 0, over="seed")


misspelt_examples.claim(
    "04.19e",
    MISSPELT,
    source="§5.7",
    presets=("quick", "paper"),
    finding="With 8 seeds of 12 sentences (quick) the whole model loses .07 and its copy .05, a difference of .02 "
    "(-.06 to .10) that decides nothing.",
)(deeper_are_distracted)


@misspelt_examples.claim(
    "04.19f",
    "Input noise and label noise add up: what the whole model loses by flipped labels beyond its copy of half the "
    "depth is no less where three in ten of the examples' letters are wrong",
    source="Theorem 5.4.3, §5.7",
    finding="The reverse: misspelt examples are believed less. With all labels flipped the whole model is right .44 of "
    "the time, with wrong letters besides .71: it returns to what it knows, and its excess over the copy shrinks from "
    ".49 to .15. In the linear model both noises are variances, and add.",
)
def noises_add_up(ds: xr.Dataset):
    clean, noisy = (
        _excess(ds.calibrated, dict(flip=0.0, noise=noise), dict(flip=1.0, noise=noise)) for noise in (0.0, 0.3)
    )
    return at_least(noisy - clean, 0, over="seed")


@misspelt_examples.figure
def plot_misspelt_examples(ds: xr.Dataset) -> Figure:
    figure, axes = new_figure(ds.sizes["flip"], size=(2.9 * ds.sizes["flip"], 2.5), sharey=True, squeeze=False)
    for ax, flip in zip(axes[0], ds.flip.values, strict=True):
        for number, size in enumerate(ds["size"].values):
            _means(ax, ds.calibrated.sel(size=size, flip=flip).mean("task"), "noise", number, str(size))
        reported(ax, 0.5, "chance")
        ax.set(
            xlabel="wrong letters in the examples (%)", title=f"{flip:.0%} of the labels flipped", ylim=(-0.02, 1.02)
        )
    axes[0, 0].set_ylabel("accuracy, mean of the tasks")
    axes[0, 0].legend()
    return figure


wrong_letters = system.experiment(
    "wrong-letters",
    "Accuracy with and without misspelt examples: many prompts, the whole model and its copy of half the depth",
    presets={
        "smoke": TWO_PROMPTS,
        "paper": Language(
            depths=(15,), tasks=("rotten-tomatoes", "questions"), flips=(0.0,), noises=(0.0, 0.3), asked=60, seeds=256
        ),
    },
    stand_in=STANDS_FOR,
)(label_accuracy)


wrong_letters.claim(
    "04.19e",
    MISSPELT,
    source="§5.7",
    finding="The mean of the two tasks decides, by .013, and they disagree: on questions the whole model loses .073 "
    "and its copy .032, on film reviews .029 and .044. The first 64 of the prompts, looked at before the others were "
    "asked, left it open (.012, -.002 to .027).",
)(deeper_are_distracted)
wrong_letters.figure(plot_misspelt_examples)


# ------------------------------------------------------------------------------------------- Figure 5.3


@dataclass(frozen=True)
class Attention:
    """A sentence of `task` and an irrelevant one as one input, before a right or a wrong label."""

    models: tuple[str, ...] = ("smollm2",)
    depths: tuple[int, ...] = (15, 20, 25)
    task: str = "rotten-tomatoes"
    longest: int = 20
    prompts: int = 100
    batch: int = 25
    device: str = "cpu"
    dtype: str = "bfloat16"


@system.experiment(
    "fig-5.3",
    "What a label looks at: the sentence it belongs to and an irrelevant one beside it",
    presets={
        "smoke": Attention(depths=(10,), prompts=4),
        "quick": Attention(),
        "paper": Attention(longest=60, prompts=1000, batch=100, device="cuda"),
    },
    stand_in="SmolLM2-135M-Instruct and its first 15, 20 and 25 layers for Llama 2-13b and 70b; Rotten Tomatoes for "
    "SST-2; made-up remarks for GSM-IC",
)
def label_attention(s: Attention) -> xr.Dataset:
    """The attention of the label, the prompt's last token, in every layer; that of a copy is in the layer it ends with.

    `place`: where the irrelevant sentence stands, after the relevant one (as in the source) or before it.
    """
    return _each(s, lambda number: _attention(s, number))


def _attention(s: Attention, number: int) -> xr.Dataset:
    from krogh import llm
    from krogh.llm.labels import pieces
    from krogh.llm.prompts import irrelevant_sentence

    words = LABELS[check_choice("set of sentences", s.task, LABELS)]
    name, model, tokenizer = _load(s, number)
    drawn = llm.LabelledPrompts(*_texts(s.task, s.longest), words, examples=0, asked=s.prompts)
    rng = np.random.default_rng(0)
    remarks = [irrelevant_sentence(rng) for _ in range(s.prompts)]
    depths = [*s.depths, len(model.model.layers)]
    norms, masses = np.zeros((2, 2, 2, len(depths), 2, s.prompts))
    for i, wrong in enumerate((False, True)):
        for j, before in enumerate((False, True)):
            prompts = []
            for text, y, remark in zip(drawn.asked_texts(), drawn.truth, remarks, strict=True):
                pair = [f" {remark}", f" {text}"] if before else [f" {text}", f" {remark}"]
                prompts.append(pieces(tokenizer, ["sentence:", *pair, "\nThe answer is", f" {words[y ^ wrong]}"]))
            found = llm.last_row(model, prompts, s.batch)
            own = [2, 1] if before else [1, 2]
            for table, values in zip((norms, masses), found, strict=True):
                table[i, j] = values[:, [d - 1 for d in depths]][:, :, own].transpose(1, 2, 0)
    dims = ("labels", "place", "size", "sentence", "prompt")
    return xr.Dataset(
        {"norm": (dims, norms), "mass": (dims, masses)},
        coords={"labels": ["correct", "wrong"], "place": ["after", "before"], "sentence": ["relevant", "irrelevant"]}
        | _sizes(name, model, s.depths),
    )


def _irrelevant(ds: xr.Dataset) -> xr.DataArray:
    """‖irrelevant‖ / (‖irrelevant‖ + ‖relevant‖) at the right label, the irrelevant sentence after the other."""
    norm = ds.norm.sel(labels="correct", place="after")
    return norm.sel(sentence="irrelevant") / norm.sum("sentence")


def _larger_look_around(ds: xr.Dataset) -> Verdict:
    share = _irrelevant(ds)
    return at_least(share.isel(size=-1) - share.isel(size=0), 0, over="prompt")


@label_attention.claim(
    "04.20b",
    "The irrelevant sentence's share of the label's attention norm is larger in the last layer of the whole model than "
    "in that of its copy of half the depth (mean over 100 prompts)",
    source="Fig 5.3",
    finding="The last layer gives the irrelevant sentence .39 of the norm, the 15th .47. Where the sentence stands "
    "counts for more: put before the relevant one it gets .21 and .30. A copy's last layer is a middle layer of the "
    "whole model, which need not look where the last layer of a small model trained apart does.",
)
def deeper_look_around(ds: xr.Dataset):
    return _larger_look_around(ds)


@label_attention.claim(
    "04.20c",
    "In the last layer of the copy of half the depth the label's attention norm on the relevant sentence exceeds that "
    "on the irrelevant one (mean over 100 prompts)",
    source="Fig 5.3",
)
def shallow_look_at_the_relevant(ds: xr.Dataset):
    return at_most(_irrelevant(ds).isel(size=0), 0.5, over="prompt")


@label_attention.claim(
    "04.F3",
    "Llama 2-13b and 70b: the irrelevant sentence's share of the label's attention norm in the last layer is larger in "
    "the larger model",
    source="Fig 5.3",
    presets=("paper",),
    finding="Neither model is in a package: krogh run icl-model-scale/fig-5.3 --preset paper --set "
    "models=FOLDER,FOLDER --set depths=",
)
def family_looks_around(ds: xr.Dataset):
    return _family(ds, _larger_look_around)


@label_attention.figure
def plot_label_attention(ds: xr.Dataset) -> Figure:
    panels = [(labels, sentence) for labels in ds.labels.values for sentence in ds.sentence.values]
    figure, axes = new_figure(4, size=(9.6, 2.4), sharey=True)
    for ax, (labels, sentence) in zip(axes, panels, strict=True):
        for size, colour in ((ds["size"].values[0], COLOURS[0]), (ds["size"].values[-1], COLOURS[1])):
            cell = ds.norm.sel(labels=labels, sentence=sentence, place="after", size=size)
            ax.plot(np.arange(ds.sizes["prompt"]) + 1, cell, ".", color=colour, ms=3, label=str(size))
        ax.set(xlabel="prompt", title=f"{labels} label, {sentence}")
    axes[0].set_ylabel("norm of the last row of attention")
    axes[0].legend()
    return figure


@label_attention.figure
def plot_attention_shares(ds: xr.Dataset) -> Figure:
    figure, (left, right) = new_figure(2, size=(6.4, 2.5), sharey=True)
    for ax, name, title in ((left, "norm", "norm of the last row"), (right, "mass", "sum of the last row")):
        values = ds[name]
        share = values.sel(sentence="irrelevant") / values.sum("sentence")
        for i, place in enumerate(ds.place.values):
            for labels, mark in zip(ds.labels.values, "os", strict=True):
                cell = share.sel(place=place, labels=labels)
                at = np.arange(ds.sizes["size"]) + 0.15 * (i - 0.5)
                told = f"irrelevant {place}, {labels} label"
                ax.errorbar(at, cell.mean("prompt"), cell.std("prompt"), fmt=mark, color=COLOURS[i], label=told)
        reported(ax, 0.5, None)
        ax.set(title=title, ylim=(0, 1))
        ax.set_xticks(range(ds.sizes["size"]), [str(size).replace(", ", "\n") for size in ds["size"].values])
    left.set_ylabel("share of the irrelevant sentence")
    left.legend()
    return figure


# ------------------------------------------------------------------------------------------- Figure 5.2


@system.experiment(
    "fig-5.2",
    "Accuracy against the share of flipped labels: base models",
    presets={"paper": replace(PAPER, depths=())},
    stand_in="SmolLM2-135M-Instruct alone, which is no base model, until a family is given",
)
def flipped_sentences_of_base_models(s: Language) -> xr.Dataset:
    return label_accuracy(s)


@flipped_sentences_of_base_models.claim(
    "04.F2",
    "Base models of one family, 3B to 70B: without flips the largest is better than the smallest, and it loses more by "
    ">= .2 when all labels are flipped",
    source="Fig 5.2",
    presets=("paper",),
    finding="No package carries a base model: krogh run icl-model-scale/fig-5.2 --preset paper --set "
    "models=FOLDER,FOLDER",
)
def base_family(ds: xr.Dataset):
    return _family(ds, _larger_follow)


flipped_sentences_of_base_models.figure(plot_flipped_sentences)
