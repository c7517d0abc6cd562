"""Needles, filter layers and long tasks on a real model, SmolLM2-135M-Instruct (000 §9.4.1-9.4.3, §G.4)."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from krogh.lab.figures import COLOURS, new_figure, reported
from krogh.systems.gemfilter import system
from krogh.train.cells import Cells

STAND_IN = "SmolLM2-135M-Instruct for the three models, novels of Project Gutenberg for the essays"

# Of SmolLM2's 30 layers the first whose 100 tokens reach the needle in every prompt of fig-9.5 at quick (000 §9.4.3).
FILTER_LAYER = 23


@dataclass(frozen=True)
class Needle:
    """A grid of prompt lengths and depths; `repeats` haystacks per cell."""

    model: str = "smollm2"
    lengths: tuple[int, ...] = (320, 640)
    depths: tuple[float, ...] = (0.1, 0.5, 0.9)
    keep: int = 128
    layer: int = FILTER_LAYER
    tokens: int = 24
    repeats: int = 1
    methods: tuple[str, ...] = ("full", "gemfilter", "snapkv", "h2o")
    chat: bool = True
    device: str = "cpu"


def novel(name: str = "melville-moby_dick") -> str:
    """A novel as one text, without its line breaks."""
    from krogh import data

    return " ".join((data.fetch("gutenberg") / f"{name}.txt").read_text(errors="replace").split())


def method_of(name: str, model: Any, layer: int, keep: int) -> Any:
    from krogh import llm

    window = min(32, keep // 4)
    return {
        "full": lambda: llm.FullAttention(model),
        "gemfilter": lambda: llm.GemFilter(model, layer, keep),
        "snapkv": lambda: llm.SnapKV(model, keep, window),
        "h2o": lambda: llm.H2O(model, keep, window),
        "one-run": lambda: llm.OneRun(model, layer, keep),
    }[name]()


@system.experiment(
    "fig-9.4",
    "Needle in a haystack: length by depth for full attention, GemFilter, SnapKV and H2O",
    presets={
        "smoke": Needle(lengths=(256,), depths=(0.5,), keep=96, tokens=4, methods=("full", "gemfilter")),
        "quick": Needle(),
        "paper": Needle(
            lengths=(1024, 2048, 3072, 4096, 5120, 6144, 7168, 8000),
            depths=tuple(float(d) for d in np.linspace(0, 1, 10)),
            keep=1024,
            tokens=50,
            repeats=2,
            methods=("full", "gemfilter", "one-run", "snapkv", "h2o"),
            device="cuda",
        ),
    },
    stand_in=STAND_IN,
)
def needle(s: Needle) -> xr.Dataset:
    from krogh import llm

    model, tokenizer = llm.load(s.model, s.device)
    text = novel()
    dims = ("n", "depth", "repeat")
    grid = tuple(itertools.product(enumerate(s.lengths), enumerate(s.depths), range(s.repeats)))
    sizes = (len(s.lengths), len(s.depths), s.repeats)
    score, answers = np.zeros((len(s.methods), *sizes)), np.empty((len(s.methods), *sizes), object)
    covered, last = np.full(sizes, np.nan), np.zeros(sizes, bool)
    cells = Cells(len(s.methods) * len(grid))

    def answer(name: str, n: int, depth: float, i: int) -> tuple[str, float, bool]:
        """What the method says, the share of the needle it has kept, and whether it has kept the last token."""
        prompt = llm.haystack(tokenizer, text[40_000 * (i + 1) :], n, depth, chat=s.chat)
        ids = prompt.input_ids.to(model.device)
        made = method_of(name, model, s.layer, s.keep).generate(ids, max_new_tokens=s.tokens, do_sample=False)
        kept = made.kept[0].cpu().numpy()
        said = tokenizer.decode(made.new_tokens[0], skip_special_tokens=True)
        return said, float(np.isin(list(prompt.answer), kept).mean()), ids.shape[1] - 1 in kept

    for (column, n), (row, depth), i in grid:
        for m, name in enumerate(s.methods):
            said, share, has_last = cells((name, n, depth, i), partial(answer, name, n, depth, i))
            answers[m, column, row, i], score[m, column, row, i] = said, llm.needle_score(said)
            if name == "gemfilter":
                covered[column, row, i], last[column, row, i] = share, has_last
    return xr.Dataset(
        {
            "score": (("approach", *dims), score),
            "covered": (dims, covered),
            "last_token_kept": (dims, last),
            "answer": (("approach", *dims), answers),
        },
        coords={"approach": list(s.methods), "n": list(s.lengths), "depth": list(s.depths)},
        attrs={"keep": s.keep, "layer": s.layer},
    )


@needle.figure
def needle_plot(ds: xr.Dataset):
    fig, axes = new_figure(ds.sizes["approach"], size=(2.6 * ds.sizes["approach"], 2.6), sharey=True, squeeze=False)
    image = None
    for ax, method in zip(axes[0], ds.approach.values, strict=True):
        cells = ds.score.sel(approach=method).mean("repeat").transpose("depth", "n")
        image = ax.imshow(cells, vmin=0, vmax=11 / 12, cmap="RdYlGn", aspect="auto")
        if cells.size <= 30:
            for (row, column), value in np.ndenumerate(cells.values):
                ax.text(column, row, f"{value:.2f}", ha="center", va="center", color="w" if value > 0.8 else "k")
        ax.set_xticks(range(ds.sizes["n"]), [f"{n:,}" for n in ds.n.values], rotation=60)
        ax.set_yticks(range(ds.sizes["depth"]), [f"{d:.0%}" for d in ds.depth.values])
        kept = "" if method == "full" else f"-{ds.attrs['keep']}"
        ax.set(title=f"{method}{kept}: {float(cells.mean()):.3f}", xlabel="prompt length")
    axes[0, 0].set_ylabel("depth of the needle")
    fig.colorbar(image, ax=list(axes[0]), label="score (at most 11/12)")
    return fig


# ------------------------------------------------------------------------------------------- Figures 9.5, G.5


@dataclass(frozen=True)
class Distance:
    model: str = "smollm2"
    length: int = 768
    keeps: tuple[int, ...] = (16, 100)
    depth: float = 0.5
    prompts: int = 4
    layer: int = FILTER_LAYER
    device: str = "cpu"


@system.experiment(
    "fig-9.5",
    "Distance between the needle and the nearest selected token, layer by layer, and which tokens are selected",
    presets={
        "smoke": Distance(length=256, prompts=1),
        "quick": Distance(),
        "paper": Distance(length=8000, keeps=(100, 1024), prompts=16, device="cuda"),
    },
    stand_in=STAND_IN,
)
def distance(s: Distance) -> xr.Dataset:
    from krogh import llm
    from krogh.llm.layers import top

    model, tokenizer = llm.load(s.model, s.device)
    text, m, cells = novel(), len(model.model.layers), Cells(s.prompts + 1)
    gap, covered = np.zeros((s.prompts, len(s.keeps), m)), np.zeros((s.prompts, len(s.keeps), m))
    dots, snap = np.zeros((m, s.length), bool), np.zeros((m, s.length))
    most = s.keeps[-1]

    def prompt(i: int) -> Any:
        return llm.haystack(tokenizer, text[40_000 * (i + 1) :], s.length, s.depth)

    def kept(i: int) -> list[np.ndarray]:
        scores = llm.layer_scores(model, prompt(i).input_ids)
        return [top(scores, keep).cpu().numpy() for keep in s.keeps]

    def evicted() -> np.ndarray:
        ids = prompt(0).input_ids[0].to(model.device)
        sets = llm.SnapKV(model, most, min(32, most // 4)).prefill(ids)[2]
        assert sets is not None
        return sets.cpu().numpy()

    for i in range(s.prompts):
        sets = cells(f"prompt {i + 1}", partial(kept, i))
        for j, chosen in enumerate(sets):
            away = np.abs(chosen[:, :, None] - np.array(prompt(i).answer)).min(1)
            gap[i, j], covered[i, j] = away.min(1), (away == 0).mean(1)
        if i == 0:
            np.put_along_axis(dots, sets[-1], True, axis=1)
    for layer, chosen in enumerate(cells("snapkv", evicted)):
        snap[layer] = np.bincount(chosen.ravel(), minlength=s.length)
    answer = prompt(0).answer
    found = covered[:, -1].mean(0)
    union = snap > 0
    overlap = (dots & union).sum(1) / (dots | union).sum(1)
    return xr.Dataset(
        {
            "distance": (("prompt", "keep", "layer"), gap),
            "covered": (("prompt", "keep", "layer"), covered),
            "selected": (("layer", "position"), dots),
            "snapkv_heads": (("layer", "position"), snap),
            "jaccard": (("layer",), overlap),
            "needle": (("end",), [answer.start, answer.stop]),
            "first_good_layer": int(np.flatnonzero(found >= found.max() - 0.02)[0]),
        },
        coords={"keep": list(s.keeps), "layer": np.arange(m)},
        attrs={"layer": s.layer},
    )


@distance.figure
def distance_plot(ds: xr.Dataset):
    fig, (left, middle, right) = new_figure(3, size=(10.5, 2.8))
    for keep, colour in zip(ds.keep.values, COLOURS, strict=False):
        one = ds.distance.sel(keep=keep)
        left.plot(ds.layer, one.median("prompt"), "o-", color=colour, label=f"distance, k = {keep}")
        left.fill_between(ds.layer, one.quantile(0.1, "prompt"), one.quantile(0.9, "prompt"), color=colour, alpha=0.2)
    left.set(yscale="symlog", xlabel="layer", ylabel="min |selected − needle| (tokens)")
    reported(left, int(ds.first_good_layer), f"first good layer: {int(ds.first_good_layer)}", axis="x")
    left.legend()
    for ax, values, title in (
        (middle, ds.selected, "GemFilter, one set per layer"),
        (right, ds.snapkv_heads > 0, "SnapKV, union of heads"),
    ):
        layers, positions = np.nonzero(values.values)
        ax.plot(positions, layers, ".", markersize=1.5)
        ax.axvspan(*ds.needle.values, color=COLOURS[1], alpha=0.4, label="needle")
        ax.set(xlabel="position in the prompt", ylabel="layer", title=title)
        ax.legend()
    return fig


# ------------------------------------------------------------------------------------------- tasks like LongBench's


@dataclass(frozen=True)
class Tasks:
    """Every task is drawn from novels: `examples` prompts of about `length` tokens each."""

    model: str = "smollm2"
    length: int = 400
    keep: int = 128
    layer: int = FILTER_LAYER
    examples: int = 2
    methods: tuple[str, ...] = ("full", "gemfilter", "snapkv", "h2o")
    device: str = "cpu"


def long_tasks(tokenizer: Any, length: int, examples: int) -> list[tuple[str, Any, str, int]]:
    """(task, prompt, right answer, tokens to generate): which book, which paragraph, how many, what comes next."""
    from krogh.llm.needle import compose

    rng = np.random.default_rng(0)
    books = {"Emma": "austen-emma", "Moby Dick": "melville-moby_dick", "Alice": "carroll-alice"}
    words = {title: novel(file).split() for title, file in books.items()}

    def passage(title: str, size: int) -> str:
        start = int(rng.integers(500, len(words[title]) - size))
        return " ".join(words[title][start : start + size])

    def prompt(context: str, question: str) -> Any:
        return compose(
            tokenizer, tokenizer.encode(context, add_special_tokens=False), question, template="{context}\n\n{question}"
        )

    made, size = [], int(0.7 * length)
    for _ in range(examples):
        titles = [str(t) for t in rng.permutation([*words] * 3)]
        shots = [f"Passage: {passage(t, size // 10)}\nBook: {t}" for t in titles[:-1]]
        asked = f"Passage: {passage(titles[-1], size // 10)}\nFrom which book is it: Emma, Moby Dick or Alice?"
        made.append(("which book", prompt("\n\n".join(shots), asked), titles[-1], 6))

        parts = [passage(str(rng.choice([*words])), size // 6) for _ in range(5)]
        right = int(rng.integers(5))
        quote = " ".join(parts[right].split()[10:22])
        numbered = "\n\n".join(f"Paragraph {i + 1}: {part}" for i, part in enumerate(parts))
        made.append(
            (
                "passage retrieval",
                prompt(numbered, f'Which paragraph contains "{quote}"? Answer: Paragraph'),
                str(right + 1),
                4,
            )
        )

        different = int(rng.integers(2, 5))
        chosen = [parts[i] for i in rng.permutation([*range(different), *rng.integers(different, size=5 - different)])]
        numbered = "\n\n".join(f"Paragraph {i + 1}: {part}" for i, part in enumerate(chosen))
        made.append(
            (
                "passage count",
                prompt(numbered, "How many different paragraphs are there? Answer with a number."),
                str(different),
                4,
            )
        )

        text = passage("Moby Dick", size).split()
        at = int(rng.integers(len(text) // 4, len(text) // 2))
        question = f'In the text, which words follow directly after "{" ".join(text[at : at + 10])}"?'
        made.append(("what comes next", prompt(" ".join(text), question), " ".join(text[at + 10 : at + 16]), 12))
    return made


def words_of(text: str) -> set[str]:
    """The words of an answer, right or given, without case and punctuation."""
    return set(re.findall(r"\w+", text.lower()))


@system.experiment(
    "longbench",
    "Tasks like LongBench's, made from novels: few-shot, retrieval, counting, quotation",
    presets={
        "smoke": Tasks(length=300, keep=100, examples=1, methods=("full", "gemfilter")),
        "quick": Tasks(),
        "paper": Tasks(length=6000, keep=1024, examples=50, device="cuda"),
    },
    stand_in=STAND_IN,
)
def longbench(s: Tasks) -> xr.Dataset:
    from krogh import llm

    model, tokenizer = llm.load(s.model, s.device)
    tasks = long_tasks(tokenizer, s.length, s.examples)
    names = list(dict.fromkeys(task for task, *_ in tasks))
    score = np.zeros((len(s.methods), len(names), s.examples))
    cells = Cells(len(tasks) * len(s.methods))

    def answer(name: str, prompt: Any, tokens: int) -> str:
        ids = prompt.input_ids.to(model.device)
        made = method_of(name, model, s.layer, s.keep).generate(ids, max_new_tokens=tokens, do_sample=False)
        return tokenizer.decode(made.new_tokens[0], skip_special_tokens=True)

    for i, (task, prompt, right, tokens) in enumerate(tasks):
        wanted, example = words_of(right), i // len(names)
        for m, name in enumerate(s.methods):
            said = cells((task, example, name), partial(answer, name, prompt, tokens))
            score[m, names.index(task), example] = len(wanted & words_of(said)) / len(wanted)
    return xr.Dataset(
        {"score": (("approach", "task", "example"), score)},
        coords={"approach": list(s.methods), "task": names},
        attrs={"keep": s.keep, "length": s.length},
    )


@longbench.figure
def longbench_plot(ds: xr.Dataset):
    fig, ax = new_figure(size=(5.5, 2.6))
    width = 0.8 / ds.sizes["approach"]
    for i, method in enumerate(ds.approach.values):
        one = 100 * ds.score.sel(approach=method)
        error = one.std("example") / np.sqrt(ds.sizes["example"])
        place = np.arange(ds.sizes["task"]) + i * width
        ax.bar(place, one.mean("example"), width, yerr=error, label=f"{method}: {float(one.mean()):.1f}")
    ax.set_xticks(np.arange(ds.sizes["task"]) + 0.4 - width / 2, list(ds.task.values))
    ax.set(
        ylabel="share of the answer's words (%)", title=f"about {ds.attrs['length']} tokens, {ds.attrs['keep']} kept"
    )
    ax.legend()
    return fig
