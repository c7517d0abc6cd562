"""A needle in a haystack: one sentence hidden in a long text, a question about it, and how the answer is scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from krogh.errors import InputError, check_number
from krogh.theory.gemfilter import ANSWER, NEEDLE, QUESTION, needle_score

TEMPLATE = (
    "This is a very long story book: <book> {context} </book>.\n"
    " Based on the content of the book, Question: {question}\nAnswer:"
)

__all__ = ["ANSWER", "NEEDLE", "QUESTION", "TEMPLATE", "Prompt", "compose", "haystack", "needle_score"]


@dataclass(frozen=True)
class Prompt:
    """Tokens (1, n), where the context stands in them, and where the answer does."""

    input_ids: Tensor
    context: range
    answer: range


def compose(tokenizer: Any, context: list[int], question: str, chat: bool = True, template: str = TEMPLATE) -> Prompt:
    """The template around tokens of a context, inside the model's chat template where it has one."""
    text = template.format(context="\x00", question=question)
    if chat and getattr(tokenizer, "chat_template", None):
        message = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    elif tokenizer.bos_token and tokenizer.bos_token_id is not None:
        text = tokenizer.bos_token + text
    before, after = (tokenizer.encode(part, add_special_tokens=False) for part in text.split("\x00"))
    ids = torch.tensor([before + context + after])
    return Prompt(ids, range(len(before), len(before) + len(context)), range(0))


def first_tokens(tokenizer: Any, text: str, count: int) -> list[int]:
    """The first `count` tokens of a text, or all where it has fewer; of a long text no more is encoded than needed."""
    end = 8 * count + 64
    while True:
        ids = tokenizer.encode(text[:end], add_special_tokens=False)
        if len(ids) >= count or end >= len(text):
            return ids[:count]
        end *= 2


def haystack(
    tokenizer: Any,
    text: str,
    length: int,
    depth: float,
    needle: str = NEEDLE,
    question: str = QUESTION,
    chat: bool = True,
) -> Prompt:
    """A prompt of `length` tokens with the needle after the last full stop before the depth, 0 to 1 (000 §9.4.1)."""
    check_number("the depth of the needle", depth, 0, 1)
    hidden = tokenizer.encode(" " + needle, add_special_tokens=False)
    around = compose(tokenizer, [], question, chat).input_ids.shape[1]
    room = length - around - len(hidden)
    if room < 0:
        raise InputError(f"a prompt of {length} tokens is too short for the needle; it takes {around + len(hidden)}.")
    filler = first_tokens(tokenizer, text, room)
    if len(filler) < room:
        raise InputError(f"the text has {len(filler)} tokens, but a haystack of {length} needs {room}.")
    stops = [i + 1 for i, token in enumerate(filler) if "." in tokenizer.decode([token])]
    cut = max((i for i in stops if i <= depth * room), default=0) if depth < 1 else room
    made = compose(tokenizer, filler[:cut] + hidden + filler[cut:], question, chat)
    start = made.context.start + cut
    return Prompt(made.input_ids, made.context, range(start, start + len(hidden)))
