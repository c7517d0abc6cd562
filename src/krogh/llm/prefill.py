"""The prompt, layer by layer and each layer over chunks: no more than one layer's keys and one chunk's MLP are held.

A decoder layer is called as the model calls it. What Krogh adds goes through Transformers' own doors: an attention
function (`AttentionInterface`) that also tells an observer its rotated queries and keys, and a cache layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface
from transformers.cache_utils import DynamicLayer

Observe = Callable[[int, Tensor, Tensor, float], None]


class Enough(Exception):
    """The queries and keys of this layer are known; nothing after them is needed."""


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    observe: Observe | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention whose last query is that of the last key: query (batch, heads, rows, d), key (…, columns, d)."""
    if observe is not None:
        observe(module.layer_idx, query, key, scaling or query.shape[-1] ** -0.5)
    rows, columns = query.shape[-2], key.shape[-2]
    reach = columns if sliding_window is None else min(sliding_window, columns)
    mask = None
    if reach < columns or (1 < rows < columns and query.device.type != "cuda"):
        distance = torch.arange(columns - rows, columns, device=query.device)[:, None]
        distance = distance - torch.arange(columns, device=query.device)
        mask = (distance >= 0) & (distance < reach)
    elif 1 < rows < columns:
        mask = causal_lower_right(rows, columns)  # the flash kernel has this form built in; the CPU's has not
    seen = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,  # type: ignore[arg-type]
        is_causal=mask is None and rows > 1,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return seen.transpose(1, 2).contiguous(), None


# Without a mask function of this name Transformers builds no mask, which for 120,000 tokens would not fit anywhere.
AttentionInterface.register("krogh", attend)


@contextmanager
def own_attention(model: Any) -> Iterator[None]:
    """The model attends with `attend` inside, and as before afterwards."""
    before = model.config._attn_implementation
    model.set_attn_implementation("krogh")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


class Held(DynamicLayer):
    """Keys and values (batch, heads, room, d) of one layer; `seen` counts every token that passed, kept or not.

    The cache hands positions out by `seen`, so what follows an eviction keeps its place in the text.
    """

    keys: Tensor  # pyright: ignore
    values: Tensor  # pyright: ignore

    def __init__(self, room: int):
        super().__init__()
        self.room, self.length, self.seen, self.replays = room, 0, 0, 0

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        new = key_states.shape[-2]
        self.seen += new
        if self.replays:
            self.replays -= new
            return self.held()
        if not self.is_initialized:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self.keys, self.values = (_room(states, self.room) for states in (key_states, value_states))
        more = self.keys.shape[1] // key_states.shape[1]
        if more > 1:  # a set of tokens per query head, so a copy per query head
            key_states, value_states = (s.repeat_interleave(more, 1) for s in (key_states, value_states))
        if self.length + new > self.keys.shape[-2]:
            room = self.length + new + 128
            self.keys, self.values = (_room(old, room, self.length) for old in (self.keys, self.values))
        self.keys[:, :, self.length : self.length + new] = key_states
        self.values[:, :, self.length : self.length + new] = value_states
        self.length += new
        return self.held()

    def held(self) -> tuple[Tensor, Tensor]:
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def keep(self, indices: Tensor, spare: int = 0) -> None:
        """Only these tokens per head, indices (sets, k); with a set per query head the keys are copied to each."""
        sets, kept = indices.shape
        group = torch.arange(sets, device=self.keys.device)[:, None] * self.keys.shape[1] // sets
        self.keys, self.values = (_room(s[:, group, indices], kept + spare, kept) for s in (self.keys, self.values))
        self.length = kept

    def replay(self) -> None:
        """The next query is that of the last token again, whose keys are already here (or are evicted)."""
        self.seen, self.replays = self.seen - 1, 1

    def get_seq_length(self) -> int:
        return self.seen

    @property
    def nbytes(self) -> int:
        return self.keys.untyped_storage().nbytes() + self.values.untyped_storage().nbytes()


def _room(states: Tensor, room: int, keep: int = 0) -> Tensor:
    """A buffer of this many tokens for states (batch, heads, tokens, d), with the first `keep` of them."""
    buffer = states.new_empty(*states.shape[:2], room, states.shape[3])
    buffer[:, :, :keep] = states[:, :, :keep]
    return buffer


def walk(
    model: Any, ids: Tensor, chunk: int, observe: Observe | None = None, stop: int | None = None, spare: int = 0
) -> Iterator[tuple[int, Held, Tensor]]:
    """Yields (layer, its keys and values, hidden states) for ids (1, n), each layer over chunks of the prompt.

    A layer's chunk needs this layer's keys of the earlier chunks and nothing else of them, so the hidden states are
    overwritten in place. Of layer `stop` only queries and keys are computed, and it is the last. Use inside
    `own_attention` and without gradients.
    """
    base, n = model.model, ids.shape[1]
    positions = torch.arange(n, device=ids.device)[None]
    hidden = base.embed_tokens(ids)
    cos, sin = base.rotary_emb(hidden, position_ids=positions)
    last = len(base.layers) - 1 if stop is None else stop

    def end(index: int, query: Tensor, key: Tensor, scaling: float) -> None:
        if observe is not None:
            observe(index, query, key, scaling)
        raise Enough

    for index in range(last + 1):
        held = Held(n + spare)
        for start in range(0, n, chunk):
            part = slice(start, min(start + chunk, n))
            try:
                hidden[:, part] = base.layers[index](
                    hidden[:, part],
                    position_ids=positions[:, part],
                    position_embeddings=(cos[:, part], sin[:, part]),
                    past_key_values=held,
                    use_cache=True,
                    observe=end if index == stop else observe,
                )
            except Enough:
                continue
        yield index, held, hidden
