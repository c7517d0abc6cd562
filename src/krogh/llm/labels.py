"""Which of two label words a model would say, and what the label it has said looks at (000 §5.6)."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from krogh.errors import InputError
from krogh.llm.depths import ShallowCopy, head_logits
from krogh.llm.models import check_model, check_prompt


def continuation(tokenizer: Any, text: str, more: str) -> list[int]:
    """The tokens of `more` after the text, as the tokenizer joins them."""
    before = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.encode(text + more, add_special_tokens=False)
    if whole[: len(before)] != before or len(whole) == len(before):
        raise InputError(
            f"this tokenizer joins {more!r} to the text before it, so its likelihood cannot be told apart."
        )
    return whole[len(before) :]


@torch.inference_mode()
def label_scores(
    model: Any,
    tokenizer: Any,
    context: str,
    queries: Sequence[str],
    words: Sequence[str],
    copies: Sequence[ShallowCopy] = (),
    batch: int = 32,
) -> np.ndarray:
    """log p(word | context, query), (queries, words); with copies of the model theirs first, (copies + 1, …).

    What all prompts begin with is read once, and its keys serve every query. Queries are padded on the right: no token
    sees what comes after it, so that padding changes nothing.
    """
    check_model(model)
    if not queries:
        raise InputError("there is nothing to ask: give at least one query.")
    rows: list[list[int]] = tokenizer([context + query for query in queries])["input_ids"]
    labels = [continuation(tokenizer, context + queries[0], f" {word}") for word in words]
    check_prompt(model, max(map(len, rows)) + max(map(len, labels)) - 1)
    # of every prompt at least the last token is left to be read
    prefix = os.path.commonprefix(rows)[: min(map(len, rows)) - 1] if context else []
    rows = [row[len(prefix) :] for row in rows]
    cache = None
    if prefix:
        cache = model.model(torch.tensor([prefix], device=model.device), use_cache=True).past_key_values
    scores = np.zeros((len(copies) + 1, len(rows), len(labels)))
    by_length = np.argsort([len(row) for row in rows], kind="stable")
    # words of one token need one pass; words of several one pass for each different beginning
    for head in dict.fromkeys(tuple(label[:-1]) for label in labels):
        for some in np.split(by_length, range(batch, len(rows), batch)):
            log_p = _next(model, cache, len(prefix), [rows[i] for i in some], list(head), copies)
            for column, label in enumerate(labels):
                if tuple(label[:-1]) == head:
                    scores[:, some, column] = log_p[:, :, range(len(label)), label].sum(-1).cpu()
    return scores if copies else scores[0]


def _next(
    model: Any, cache: Any, start: int, rows: list[list[int]], head: list[int], copies: Sequence[ShallowCopy]
) -> torch.Tensor:
    """log p of what follows each row and each token of the head after it, (copies + 1, rows, 1 + head, vocabulary)."""
    ids, lengths = padded([row + head for row in rows], model.device)
    own = copy.deepcopy(cache)
    if own is not None:
        own.batch_repeat_interleave(len(rows))
    at = start + torch.arange(ids.shape[1], device=ids.device)[None]
    options = {"past_key_values": own, "use_cache": own is not None, "output_hidden_states": bool(copies)}
    out = model.model(ids, position_ids=at, **options)
    ends = lengths[:, None] - 1 + torch.arange(-len(head), 1, device=ids.device)
    each = torch.arange(len(rows), device=ids.device)[:, None]
    states = [out.last_hidden_state[each, ends].float()]
    if copies:
        hidden = [layer[each, ends] for layer in out.hidden_states]
        states = [one.states(hidden) for one in copies] + states
    return head_logits(model, torch.stack(states)).log_softmax(-1)


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of tokens filled up on the right with token 0, (rows, n), and their lengths, (rows,)."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def pieces(tokenizer: Any, parts: Sequence[str]) -> list[list[int]]:
    """The tokens of a text by the part of it in which they begin."""
    made = tokenizer("".join(parts), return_offsets_mapping=True)
    ends = np.cumsum([len(part) for part in parts])
    where = np.searchsorted(ends, [start for start, _ in made["offset_mapping"]], side="right")
    return [[token for token, at in zip(made["input_ids"], where, strict=True) if at == k] for k in range(len(parts))]


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """The model computes its attention matrices openly inside, and as before afterwards."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@torch.inference_mode()
def last_row(model: Any, prompts: Sequence[Sequence[Sequence[int]]], batch: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """The attention of a prompt's last token on the parts of the prompt: (norm, mass), each (prompts, layers, parts).

    A prompt is its parts in order, each a list of tokens (`pieces`). norm = sqrt(Σ_heads Σ_j A[h, n, j]²) over the
    positions j of a part (000 §5.6.2), mass = mean over heads of Σ_j A[h, n, j].
    """
    check_model(model)
    norms, masses = [], []
    with eager(model):
        for some in np.split(np.arange(len(prompts)), range(batch, len(prompts), batch)):
            rows = [[token for part in prompts[i] for token in part] for i in some]
            ids, lengths = padded(rows, model.device)
            maps = model.model(ids, use_cache=False, output_attentions=True).attentions
            each = torch.arange(len(rows), device=ids.device)
            row = torch.stack([a[each, :, lengths - 1] for a in maps], 1).float()
            for one, i in zip(row.cpu(), some, strict=True):  # (layers, heads, n)
                sizes = [len(part) for part in prompts[i]]
                pieces = one[..., : sum(sizes)].split(sizes, dim=-1)
                norms.append(torch.stack([p.square().sum((1, 2)).sqrt() for p in pieces], -1))
                masses.append(torch.stack([p.sum(2).mean(1) for p in pieces], -1))
    return torch.stack(norms).numpy(), torch.stack(masses).numpy()
