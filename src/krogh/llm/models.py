"""Which models Krogh can filter, and loading one from a folder, a GGUF file or the catalogue of data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from krogh.errors import InputError, check_integer

# Their decoder layers take the same arguments and hand rotated queries and keys to the attention function.
FAMILIES = ("llama", "mistral", "phi3", "qwen2", "qwen3")


def check_model(model: Any) -> Any:
    """The model, if its architecture is known."""
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind not in FAMILIES:
        raise InputError(f"unknown architecture {kind!r}; it can be {', '.join(FAMILIES)}.")
    return model


def check_layer(model: Any, layer: int) -> int:
    """The filter layer, counted from 0, if the model has it."""
    return check_integer("the filter layer", layer, 0, len(model.model.layers) - 1)


def check_prompt(model: Any, tokens: int) -> int:
    """The prompt's length, if it fits the model's window."""
    window = model.config.max_position_embeddings
    if tokens > window:
        raise InputError(f"the prompt has {tokens} tokens, but the model's window is {window}; give a shorter one.")
    if tokens < 1:
        raise InputError("the prompt is empty; give it at least one token.")
    return tokens


def check_device(name: str) -> torch.device:
    """The device, if it is here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}; it can be cpu, cuda or cuda:N.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name!r} is wanted, but PyTorch finds no GPU here; use cpu.")
    return device


def load(path: Path | str, device: str = "cpu", dtype: str = "auto") -> tuple[Any, Any]:
    """(model, tokenizer) from a Hugging Face folder, a .gguf file, or `smollm2` (fetched on first use)."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = check_device(device)
    place = Path(path)
    if str(path) == "smollm2" and not place.exists():
        from krogh import data

        place = data.fetch("smollm2")
    files = sorted(place.glob("*.gguf")) if place.is_dir() else [place] if place.suffix == ".gguf" else []
    if not place.exists() or not (files or (place / "config.json").is_file()):
        raise InputError(
            f"no weights at {place}: give a folder with config.json and safetensors, a .gguf file, or smollm2."
        )
    options: dict[str, Any] = {"local_files_only": True}
    if files and not (place / "config.json").is_file():
        place = files[0].parent
        options["gguf_file"] = files[0].name
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        loaded: Any = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, output_loading_info=True, **options)
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"cannot load {place}: {' '.join(str(error).split())[:200].rstrip('.')}.") from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        some = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise InputError(f"the weights at {place} lack {len(missing)} of the model's parameters: {some}.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return check_model(model.to(where).eval()), tokenizer
