"""What holds exactly: the selection, equality with full attention, the number of index sets (000 Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_most, equals, every
from krogh.lab.figures import new_figure
from krogh.systems.gemfilter import system


@dataclass(frozen=True)
class Exact:
    """Random prompts on randomly initialised models, 8 query heads on 2 key heads."""

    families: tuple[str, ...] = ("llama", "mistral", "phi3", "qwen2", "qwen3")
    layers: int = 3
    n: int = 64
    keep: int = 24
    generated: int = 8
    prompts: int = 4


def tiny_model(family: str, layers: int) -> Any:
    """A randomly initialised model of a family, small enough for any machine."""
    import torch
    import transformers as hf

    configs = {
        "llama": hf.LlamaConfig,
        "mistral": hf.MistralConfig,
        "phi3": hf.Phi3Config,
        "qwen2": hf.Qwen2Config,
        "qwen3": hf.Qwen3Config,
    }
    torch.manual_seed(0)
    config = configs[family](
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=None,
        pad_token_id=0,
    )
    return hf.AutoModelForCausalLM.from_config(config).eval()


def naive_choice(query: np.ndarray, keys: np.ndarray, k: int) -> list[int]:
    """Algorithm 2 in loops: query (heads, d), keys (kv heads, n, d)."""
    n, groups = keys.shape[1], len(query) // len(keys)
    raw = [sum(float(query[h] @ keys[h // groups, j]) for h in range(len(query))) for j in range(n)]
    mean = [sum(raw[i] for i in range(j - 2, j + 3) if 0 <= i < n) / 5 for j in range(n)]
    return sorted(sorted(range(n), key=lambda j: -mean[j])[: min(k, n)])


@system.experiment(
    "algorithm-2", "The selection in loops, and equality where nothing is left out", presets={"quick": Exact()}
)
def exact(s: Exact) -> xr.Dataset:
    from krogh.llm.measure import one_thread

    with one_thread():
        return _exact(s)


def _exact(s: Exact) -> xr.Dataset:
    import torch

    from krogh.llm import H2O, FullAttention, GemFilter, OneRun, SnapKV
    from krogh.llm.layers import pooled, row_scores, top

    rng = np.random.default_rng(0)
    query, keys = rng.standard_normal((s.prompts, 8, 16)), rng.standard_normal((s.prompts, 2, s.n, 16))
    same, listed = [], []
    for q, key in zip(query, keys, strict=True):
        scores = pooled(row_scores(torch.tensor(q)[:, None], torch.tensor(key))[0])
        chosen = top(scores, s.keep)
        same.append(chosen.tolist() == naive_choice(q, key, s.keep))
        listed.append(torch.sort(scores.topk(s.keep).indices).indices.tolist() == chosen.tolist())
    equal, ordered = [], []
    names = ("full", "snapkv", "h2o", "one-run")
    errors = np.zeros((len(s.families), len(names), s.prompts))
    sets = np.zeros((len(s.families), 3))
    expected = np.zeros((len(s.families), 3))
    for row, family in enumerate(s.families):
        model = tiny_model(family, s.layers)
        options = {"max_new_tokens": s.generated, "do_sample": False}
        for i in range(s.prompts):
            ids = torch.randint(1, 96, (1, s.n), generator=torch.Generator().manual_seed(i))
            plain = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
            equal.append(torch.equal(GemFilter(model, 1, s.n).generate(ids, **options).sequences, plain))
            (kept,) = GemFilter(model, 1, s.keep).select(ids)
            ordered.append(len(kept) == s.keep and bool((kept.diff() > 0).all()))
            with torch.no_grad():
                logits = model(ids).logits[0, -1]
            whole = (FullAttention(model, chunk=16), SnapKV(model, s.n, 8), H2O(model, s.n, 8), OneRun(model, 1, s.n))
            errors[row, :, i] = [float((m.prefill(ids[0])[1][0] - logits).abs().max()) for m in whole]
        evicted = [m.prefill(ids[0])[2] for m in (SnapKV(model, s.keep, 8), H2O(model, s.keep, 8))]
        sets[row] = [1, *(e.shape[0] * e.shape[1] for e in evicted)]
        expected[row] = [1, s.layers * 8, s.layers * 2]
    return xr.Dataset(
        {
            "same_as_loops": (("draw",), same),
            "listing_sorted": (("draw",), listed),
            "equal_when_all_kept": (("case",), equal),
            "ordered": (("case",), ordered),
            "logit_error": (("family", "approach", "prompt"), errors),
            "sets": (("family", "kind"), sets),
            "sets_expected": (("family", "kind"), expected),
        },
        coords={"family": list(s.families), "approach": list(names), "kind": ["gemfilter", "snapkv", "h2o"]},
    )


@exact.claim(
    "08.1",
    "the selection equals a loop over heads and tokens (4 query heads per key head), is sorted and of size min(k, n), "
    "and with k >= n generation equals that of the model exactly",
    source="Algorithm 2",
)
def selection(ds: xr.Dataset):
    return all_of(
        loops=every(ds.same_as_loops), ordered=every(ds.ordered), equal_when_all_kept=every(ds.equal_when_all_kept)
    )


@exact.claim(
    "08.1b",
    "as printed in the listing, `torch.sort(top_k_indices).indices` gives the chosen positions in order",
    source="§G.4.1",
    finding="it gives the permutation that sorts them; `.values` is meant",
)
def listing(ds: xr.Dataset):
    return every(ds.listing_sorted)


@exact.claim("08.2", "with k = n SnapKV, H2O and One-Run give the logits of full attention to 1e-4", source="§9.4")
def eviction_identity(ds: xr.Dataset):
    return all_of(**{str(m): at_most(float(ds.logit_error.sel(approach=m).max()), 1e-4) for m in ds.approach.values})


@exact.claim("08.18", "index sets: 1 (GemFilter), m h (SnapKV), m h_kv (H2O)", source="Fig G.5")
def index_sets(ds: xr.Dataset):
    return equals(ds.sets.values, ds.sets_expected.values)


@exact.figure
def exact_plot(ds: xr.Dataset):
    fig, ax = new_figure(size=(4.2, 2.4))
    for method in ds.approach.values:
        ax.plot(ds.family, ds.logit_error.sel(approach=method).max("prompt"), "o", label=str(method))
    ax.axhline(1e-4, color="0.5", linestyle=":", label="claimed")
    ax.set(yscale="log", ylabel="largest error of the logits, k = n")
    ax.legend()
    return fig
