"""Smaller models out of a large one: its first layers, with a linear map to its head fitted on plain text."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from krogh.errors import InputError, check_integer
from krogh.files import whole
from krogh.llm.models import check_model

SINK = 4  # the first states of a text are unlike all others and would spoil the fit


@dataclass(frozen=True)
class ShallowCopy:
    """The first `layers` layers of a model; its head reads weight · h/rms(h) + bias instead of the last state.

    `agreement`: share of the next tokens of a held-out text on which the copy names the same as the whole model.
    """

    layers: int
    weight: Tensor
    bias: Tensor
    agreement: float

    def states(self, hidden: Sequence[Tensor]) -> Tensor:
        """What the head reads, from the hidden states (…, d) of all layers."""
        return F.linear(_unit(hidden[self.layers]), self.weight, self.bias)


def head_logits(model: Any, states: Tensor) -> Tensor:
    """The model's head in float32: in bfloat16 two label words would often tie."""
    return F.linear(states.float(), model.lm_head.weight.float())


def shallow_copies(
    model: Any,
    tokenizer: Any,
    depths: Sequence[int],
    text: str,
    tokens: int = 8192,
    window: int = 512,
    ridge: float = 1e-3,
    keep: Path | None = None,
) -> list[ShallowCopy]:
    """Copies of these depths, fitted by ridge regression to the last states on `tokens` tokens spread over a text.

    Every fifth window is held out for `agreement`. With a folder `keep` the fit is done once: it is found there again
    by the model's weights and these settings.
    """
    most = len(check_model(model).model.layers) - 1
    depths = [check_integer("the depth of a copy", depth, 1, most) for depth in depths]
    if not depths:
        return []
    what = (fingerprint(model), depths, hashlib.sha256(text.encode()).hexdigest(), tokens, window, ridge)
    path = keep / f"{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.npz" if keep else None
    arrays = _found(path) if path else None
    if arrays is None:
        arrays = _fit(model, tokenizer, depths, text, tokens, window, ridge)
        if path:
            with whole(path) as temporary, temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
    weight, bias = (torch.from_numpy(arrays[name]).to(model.device) for name in ("weight", "bias"))
    return [ShallowCopy(d, weight[i], bias[i], float(arrays["agreement"][i])) for i, d in enumerate(depths)]


def fingerprint(model: Any) -> str:
    """A hash of the configuration and of the first numbers of every parameter."""
    content = [model.config.to_json_string(use_diff=False).encode()]
    content += [p.detach().flatten()[:64].float().cpu().numpy().tobytes() for p in model.parameters()]
    return hashlib.sha256(b"".join(content)).hexdigest()


def _found(path: Path) -> dict[str, np.ndarray] | None:
    """A kept fit; a damaged one counts as none and is written anew."""
    try:
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in ("weight", "bias", "agreement")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


@torch.inference_mode()
def _fit(
    model: Any, tokenizer: Any, depths: list[int], text: str, tokens: int, window: int, ridge: float
) -> dict[str, np.ndarray]:
    window = min(window, tokens // 5)
    count = tokens // max(window, 1)
    rows = []
    for start in np.linspace(0, max(0, len(text) - 10 * window), count).astype(int):
        rows.append(tokenizer.encode(text[start : start + 10 * window], add_special_tokens=False)[:window])
    if min(map(len, rows), default=0) <= SINK:
        raise InputError(f"{tokens} tokens of a text of {len(text)} characters are too few to fit a copy on.")
    seen: list[list[Tensor]] = []
    for row in rows:
        ids = torch.tensor([row], device=model.device)
        hidden = model.model(ids, use_cache=False, output_hidden_states=True).hidden_states
        seen.append([_unit(hidden[d][0, SINK:]) for d in depths] + [hidden[-1][0, SINK:].float()])
    fitted, held = [s for i, s in enumerate(seen) if i % 5 != 4], seen[4::5]
    y = torch.cat([s[-1] for s in fitted]).double()
    truth = torch.cat([head_logits(model, s[-1]).argmax(-1) for s in held])
    weights, biases, agreement = [], [], []
    for i in range(len(depths)):
        x = torch.cat([s[i] for s in fitted]).double()
        centre, mean = x.mean(0), y.mean(0)
        second = (x - centre).T @ (x - centre)
        second.diagonal().add_(ridge * second.diagonal().mean())
        weight = torch.linalg.solve(second, (x - centre).T @ (y - mean)).T.float()
        bias = (mean - weight.double() @ centre).float()
        named = [head_logits(model, F.linear(s[i], weight, bias)).argmax(-1) for s in held]
        weights.append(weight)
        biases.append(bias)
        agreement.append(float((torch.cat(named) == truth).double().mean()))
    return {
        "weight": torch.stack(weights).cpu().numpy(),
        "bias": torch.stack(biases).cpu().numpy(),
        "agreement": np.array(agreement),
    }


def _unit(states: Tensor) -> Tensor:
    """h / rms(h) in float32."""
    return F.rms_norm(states.float(), states.shape[-1:])
