"""One question to one text: the answer, which tokens it was read from, and what it cost against full attention."""

from __future__ import annotations

import html
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from krogh.errors import InputError
from krogh.files import whole
from krogh.llm.layers import LayerSweep, find_layer
from krogh.llm.measure import Usage, measured
from krogh.llm.methods import FullAttention, GemFilter
from krogh.llm.models import check_layer, check_prompt
from krogh.llm.needle import compose, first_tokens, haystack

PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;color:#888}}h1,h2,p,td,th{{color:#000}}
mark{{background:#ffe08a;color:#000}}td,th{{padding:0 1em 0 0;text-align:left}}pre{{white-space:pre-wrap}}</style>
<h1>{question}</h1><p>{answer}</p>
<table><tr><th></th><th>seconds</th><th>peak memory</th><th>tokens used</th></tr>{rows}</table>
<h2>{kept} of {tokens} tokens kept by layer {layer}</h2><pre>{text}</pre>
"""


@dataclass(frozen=True)
class Answer:
    """`pieces`: every token of the prompt as text and whether it was kept; `notes`: what the reader should be told."""

    question: str
    text: str
    full_text: str | None
    pieces: list[tuple[str, bool]]
    layer: int
    usage: Usage
    full_usage: Usage | None
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> int:
        return sum(kept for _, kept in self.pieces)

    def summary(self) -> dict[str, Any]:
        """In plain types, for JSON."""
        both = {"gemfilter": (self.text, self.usage, self.kept)}
        if self.full_usage is not None:
            both["full"] = (self.full_text or "", self.full_usage, len(self.pieces))
        rows = {
            name: {"answer": text, "seconds": round(used.seconds, 3), "peak_bytes": used.peak, "tokens": tokens}
            for name, (text, used, tokens) in both.items()
        }
        return {"question": self.question, "layer": self.layer, "prompt_tokens": len(self.pieces)} | rows

    def write_html(self, path: Path) -> None:
        """The prompt with the kept tokens marked, as one page."""
        runs = []
        for piece, kept in self.pieces:
            if runs and runs[-1][1] == kept:
                runs[-1] = (runs[-1][0] + piece, kept)
            else:
                runs.append((piece, kept))
        text = "".join(f"<mark>{html.escape(t)}</mark>" if kept else html.escape(t) for t, kept in runs)
        lines = [(n, r) for n, r in self.summary().items() if isinstance(r, dict)]
        rows = "".join(
            f"<tr><td>{name}</td><td>{r['seconds']:.2f}</td><td>{r['peak_bytes'] / 2**30:.2f} GiB</td>"
            f"<td>{r['tokens']}</td></tr>"
            for name, r in lines
        )
        page = PAGE.format(
            title=html.escape(self.question),
            question=html.escape(self.question),
            answer=html.escape(self.text),
            rows=rows,
            kept=self.kept,
            tokens=len(self.pieces),
            layer=self.layer,
            text=text,
        )
        with whole(path) as temporary:
            temporary.write_text(page)

    def terminal(self) -> Any:
        """The prompt as rich text: kept tokens highlighted, the rest dim."""
        from rich.text import Text

        text = Text()
        for piece, kept in self.pieces:
            text.append(piece, style="bold black on yellow" if kept else "dim")
        return text


def own_layer(model: Any, tokenizer: Any, text: str, keep: int, length: int = 1024) -> LayerSweep:
    """The layers of this model on a needle planted at three depths in the user's own text, repeated where too short."""
    length = min(length, model.config.max_position_embeddings)
    if not first_tokens(tokenizer, text, 1):
        raise InputError("the context has no tokens: this tokenizer knows none of its characters.")
    while len(first_tokens(tokenizer, text, length)) < length:
        text += text
    prompts = [haystack(tokenizer, text, length, depth) for depth in (0.2, 0.5, 0.8)]
    return find_layer(model, [(p.input_ids, p.answer) for p in prompts], min(keep, length // 8))


def token_texts(tokenizer: Any, ids: list[int], kept: list[bool]) -> list[str]:
    """The text of every token; a character of several stands at the first of them that was kept, or at the last.

    A token is decoded after the ones before it, without which a tokenizer may drop the space between them.
    """
    texts = [""] * len(ids)
    before, start = 0, 0
    for end in range(1, len(ids) + 1):
        known, text = (tokenizer.decode(ids[before:stop], clean_up_tokenization_spaces=False) for stop in (start, end))
        if text.endswith("\ufffd") and end < len(ids):
            continue
        at = next((i for i in range(start, end) if kept[i]), end - 1)
        texts[at] = text[len(known) :]
        before, start = start, end
    return texts


def ask(
    model: Any,
    tokenizer: Any,
    context: str,
    question: str,
    layer: int | None = None,
    keep: int = 1024,
    tokens: int = 50,
    compare: bool = True,
) -> Answer:
    """Answers a question about a text with GemFilter, and with full attention beside it."""
    if not context.strip() or not question.strip():
        raise InputError("the context and the question must hold some text.")
    prompt = compose(tokenizer, tokenizer.encode(context, add_special_tokens=False), question)
    ids = prompt.input_ids.to(model.device)
    check_prompt(model, ids.shape[1])
    if layer is not None:
        check_layer(model, layer)
    options: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False}

    def run(method: Any) -> tuple[Any, str, Usage]:
        with measured(model.device) as used, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = method.generate(ids, **options)
        return made, tokenizer.decode(made.new_tokens[0], skip_special_tokens=True).strip(), used

    notes = []
    if layer is None:
        sweep = own_layer(model, tokenizer, context, keep)
        layer = sweep.layer
        if not sweep.found:
            notes.append(f"no layer keeps anything of a needle planted in the text: layer {layer} is used.")
    if keep > ids.shape[1]:
        notes.append(f"keep={keep} is more than the prompt's {ids.shape[1]} tokens: all of it is used.")
    made, text, used = run(GemFilter(model, layer, keep))
    _, full_text, full_used = run(FullAttention(model)) if compare else (None, None, None)
    kept = torch.zeros(ids.shape[1], dtype=torch.bool)
    kept[made.kept[0].cpu()] = True
    pieces = list(zip(token_texts(tokenizer, ids[0].tolist(), kept.tolist()), kept.tolist(), strict=True))
    return Answer(question, text, full_text, pieces, layer, used, full_used, tuple(notes))
