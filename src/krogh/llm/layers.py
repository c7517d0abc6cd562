"""Scores of tokens, and a sweep over layers that finds a good filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from krogh.errors import InputError, check_choice, check_integer
from krogh.llm.models import check_model, check_prompt
from krogh.llm.prefill import own_attention, walk

POOLS = ("mean", "max", "none")
DEFAULT_LAYER = 13  # that of LLaMA 3.1 8B (000 §9.4)


def check_kernel(kernel: int) -> int:
    """The number of neighbours pooled, if it is odd."""
    if check_integer("the pooling kernel", kernel, least=1) % 2 == 0:
        raise InputError(f"the pooling kernel is {kernel}; it must be odd, as many on either side of a token.")
    return kernel


def pooled(scores: Tensor, pool: str = "mean", kernel: int = 5) -> Tensor:
    """Scores (…, n) averaged (the listing; zeros outside) or maximised (the text) over `kernel` neighbours (000 §G)."""
    check_choice("pooling", pool, POOLS)
    check_kernel(kernel)
    if pool == "none":
        return scores
    rows = scores.reshape(1, -1, scores.shape[-1])
    function = F.avg_pool1d if pool == "mean" else F.max_pool1d
    return function(rows, kernel, stride=1, padding=kernel // 2).reshape(scores.shape)


def row_scores(query: Tensor, keys: Tensor) -> Tensor:
    """s[i, j] = Σ_heads q_i · k_j, raw: query (heads, rows, d), keys (kv heads, n, d) → (rows, n) (000 Algorithm 2).

    Query heads that share a key head are summed first, so keys are never repeated, and one head's keys at a time are
    made float32: all of them would be twice what a layer holds.
    """
    groups = query.reshape(keys.shape[0], -1, *query.shape[1:]).sum(1)
    scores = groups.new_zeros(groups.shape[1], keys.shape[1], dtype=torch.float32)
    for group, key in zip(groups, keys, strict=True):
        scores += group.float() @ key.float().T
    return scores


def top(scores: Tensor, keep: int, keep_last: int = 0) -> Tensor:
    """The `keep` best positions of scores (…, n), in order; the last `keep_last` of the text are among them."""
    n = scores.shape[-1]
    if keep_last:
        scores = scores.clone()
        scores[..., n - min(keep_last, n) :] = torch.inf
    return scores.topk(min(keep, n), dim=-1).indices.sort(dim=-1).values


@torch.no_grad()
def layer_scores(model: Any, input_ids: Tensor, chunk: int = 1024, pool: str = "mean", kernel: int = 5) -> Tensor:
    """The last query's pooled scores in every layer, (layers, n), from one pass over a prompt (n,) or (1, n)."""
    ids = input_ids.reshape(1, -1).to(model.device)
    check_model(model)
    n = check_prompt(model, ids.shape[1])
    found = []

    def observe(_: int, query: Tensor, key: Tensor, __: float) -> None:
        if key.shape[-2] == n:
            found.append(pooled(row_scores(query[0, :, -1:], key[0])[0], pool, kernel))

    with own_attention(model):
        for _ in walk(model, ids, chunk, observe, stop=len(model.model.layers) - 1):
            pass
    return torch.stack(found)


@dataclass(frozen=True)
class LayerSweep:
    """`distance` (prompts, layers): min |kept − answer| in tokens; `coverage`: share of the answer's tokens kept."""

    distance: np.ndarray
    coverage: np.ndarray
    layer: int

    @property
    def found(self) -> bool:
        """Whether any layer keeps anything of an answer."""
        return bool(self.coverage.any())


def find_layer(
    model: Any,
    prompts: Sequence[tuple[Tensor, Sequence[int]]],
    keep: int = 1024,
    chunk: int = 1024,
    tolerance: float = 0.02,
) -> LayerSweep:
    """The first layer whose kept tokens cover the answers as well as any layer's, to a tolerance (000 §9.4.3).

    A prompt is its tokens and the positions of what answers it; one pass over it judges all layers. Where none keeps
    anything of an answer (`found` is false) it is 13, or the last of fewer.
    """
    if not prompts:
        raise InputError("a sweep over layers needs at least one prompt with the positions of its answer.")
    distance, coverage = [], []
    for ids, answer in prompts:
        kept = top(layer_scores(model, ids, chunk), keep)  # (layers, k)
        gap = (kept[:, None] - torch.as_tensor(list(answer), device=kept.device)[:, None]).abs().amin(-1)
        distance.append(gap.amin(1).cpu().numpy())
        coverage.append((gap == 0).float().mean(1).cpu().numpy())
    mean = np.mean(coverage, axis=0)
    if mean.max() == 0:
        best = min(DEFAULT_LAYER, len(mean) - 1)
    else:
        best = int(np.flatnonzero(mean >= mean.max() - tolerance)[0])
    return LayerSweep(np.array(distance), np.array(coverage), best)
