"""GemFilter and its baselines on Hugging Face models (extra `llm`); PyTorch is imported on first use."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from krogh.errors import InputError

if TYPE_CHECKING:
    from krogh.llm.layers import LayerSweep, find_layer, layer_scores
    from krogh.llm.methods import H2O, FullAttention, GemFilter, Generated, KVPress, OneRun, SnapKV, Truncated
    from krogh.llm.models import load
    from krogh.llm.needle import Prompt, haystack, needle_score

_WHERE = {
    "methods": ("FullAttention", "GemFilter", "Generated", "H2O", "KVPress", "OneRun", "SnapKV", "Truncated"),
    "layers": ("LayerSweep", "find_layer", "layer_scores"),
    "models": ("load",),
    "needle": ("Prompt", "haystack", "needle_score"),
}
_MODULE = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "FullAttention",
    "GemFilter",
    "Generated",
    "H2O",
    "KVPress",
    "LayerSweep",
    "OneRun",
    "Prompt",
    "SnapKV",
    "Truncated",
    "find_layer",
    "haystack",
    "layer_scores",
    "load",
    "needle_score",
]


def require() -> None:
    """One sentence where PyTorch or Transformers is missing."""
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"language models need the package {package}: pip install 'krogh[llm]'.")


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'krogh.llm' has no attribute {name!r}")
    require()
    return getattr(importlib.import_module(f"krogh.llm.{_MODULE[name]}"), name)
