"""GemFilter and in-context label flipping on Hugging Face models (extra `llm`); PyTorch is imported on first use."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from krogh.errors import MissingExtra

if TYPE_CHECKING:
    from krogh.llm.depths import ShallowCopy, shallow_copies
    from krogh.llm.labels import label_scores, last_row
    from krogh.llm.layers import LayerSweep, find_layer, layer_scores
    from krogh.llm.methods import H2O, FullAttention, GemFilter, Generated, KVPress, OneRun, SnapKV, Truncated
    from krogh.llm.models import load
    from krogh.llm.needle import Prompt, haystack, needle_score
    from krogh.llm.prompts import LabelledPrompts

_WHERE = {
    "methods": ("FullAttention", "GemFilter", "Generated", "H2O", "KVPress", "OneRun", "SnapKV", "Truncated"),
    "depths": ("ShallowCopy", "shallow_copies"),
    "labels": ("label_scores", "last_row"),
    "layers": ("LayerSweep", "find_layer", "layer_scores"),
    "models": ("load",),
    "needle": ("Prompt", "haystack", "needle_score"),
    "prompts": ("LabelledPrompts",),
}
_MODULE = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "FullAttention",
    "GemFilter",
    "Generated",
    "H2O",
    "KVPress",
    "LabelledPrompts",
    "LayerSweep",
    "OneRun",
    "Prompt",
    "ShallowCopy",
    "SnapKV",
    "Truncated",
    "find_layer",
    "haystack",
    "label_scores",
    "last_row",
    "layer_scores",
    "load",
    "needle_score",
    "shallow_copies",
]


def require() -> None:
    """One sentence where PyTorch or Transformers is missing."""
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"language models need the package {package}: pip install 'krogh[llm]'.")


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'krogh.llm' has no attribute {name!r}")
    require()
    return getattr(importlib.import_module(f"krogh.llm.{_MODULE[name]}"), name)
