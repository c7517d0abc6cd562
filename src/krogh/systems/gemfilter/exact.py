"""What holds exactly: the selection, equality with full attention, the number of index sets (000 Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from krogh.lab import all_of, at_most, equals, every
from krogh.lab.figures import new_figure
from krogh.systems.gemfilter import system
from krogh.systems.gemfilter.cost import decode_step


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
    """A randomly initialised model of a family, small enough for any machine.

    Its weights are ten times the usual ones: with those attention is nearly uniform, and all heads choose alike.
    """
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
        initializer_range=0.2,
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


def evicted_logits(model: Any, tokens: Any, n: int, kept: Any) -> Any:
    """Logits (tokens, vocabulary) where those from n on see of the first n only kept (layers, sets, k), by a mask."""
    import torch
    from transformers import AttentionInterface

    def attention(
        module: Any, query: Any, key: Any, value: Any, mask: Any, dropout: float = 0.0, **options: Any
    ) -> Any:
        heads, rows = query.shape[1:3]
        key, value = (states.repeat_interleave(heads // states.shape[1], 1) for states in (key, value))
        hidden = torch.ones(heads, rows, rows, dtype=torch.bool).triu(1)
        sets = kept[module.layer_idx]
        for head in range(heads):
            evicted = torch.ones(n, dtype=torch.bool)
            evicted[sets[head * len(sets) // heads]] = False
            hidden[head, n:, :n] |= evicted
        scores = query @ key.transpose(-1, -2) * options["scaling"]
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value).transpose(1, 2), None

    AttentionInterface.register("krogh-evicted", attention)
    before = model.config._attn_implementation
    model.set_attn_implementation("krogh-evicted")
    try:
        with torch.no_grad():
            return model(tokens[None]).logits[0]
    finally:
        model.set_attn_implementation(before)


def decoded_logits(model: Any, cache: Any, tokens: Any, n: int) -> Any:
    """Logits (tokens, vocabulary) of tokens that follow a prompt of n, one after the other against its cache."""
    import torch

    from krogh.llm.prefill import own_attention

    with torch.no_grad(), own_attention(model):
        return torch.cat([decode_step(model, cache, token.view(1, 1), n + i) for i, token in enumerate(tokens)])


def distinct(sets: list[Any]) -> int:
    """How many of the index sets (…, k) differ in some prompt; an item per prompt."""
    rows = [one.reshape(-1, one.shape[-1]).tolist() for one in sets]
    return len(set(zip(*(map(tuple, row) for row in rows), strict=True)))


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
        kept = top(scores, s.keep).tolist()
        same.append(kept == naive_choice(q, key, s.keep))
        listed.append(torch.sort(scores.topk(s.keep).indices).indices.tolist() == kept)
    equal, ordered = [], []
    names = ("full", "snapkv", "h2o", "one-run")
    errors = np.zeros((len(s.families), len(names), s.prompts))
    later = np.zeros((len(s.families), len(names) - 1, s.prompts))
    sets = np.zeros((len(s.families), 3))
    expected = np.zeros((len(s.families), 3))
    for row, family in enumerate(s.families):
        model = tiny_model(family, s.layers)
        options = {"max_new_tokens": s.generated, "do_sample": False}
        chosen: dict[str, list[Any]] = {"gemfilter": [], "snapkv": [], "h2o": []}
        for i in range(s.prompts):
            tokens = torch.randint(1, 96, (s.n + s.generated,), generator=torch.Generator().manual_seed(i))
            ids = tokens[None, : s.n]
            plain = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
            equal.append(torch.equal(GemFilter(model, 1, s.n).generate(ids, **options).sequences, plain))
            (kept,) = GemFilter(model, 1, s.keep).select(ids)
            ordered.append(len(kept) == s.keep and bool((kept.diff() > 0).all()))
            chosen["gemfilter"].append(kept)
            with torch.no_grad():
                logits = model(ids).logits[0, -1]
            whole = (FullAttention(model, chunk=16), SnapKV(model, s.n, 8), H2O(model, s.n, 8), OneRun(model, 1, s.n))
            errors[row, :, i] = [float((m.prefill(ids[0])[1][0] - logits).abs().max()) for m in whole]
            evicting = (SnapKV(model, s.keep, 8), H2O(model, s.keep, 8), OneRun(model, 1, s.keep))
            for column, (name, method) in enumerate(zip(names[1:], evicting, strict=True)):
                cache, _, kept = method.prefill(ids[0], s.generated)
                if name in chosen:
                    chosen[name].append(kept)
                apart = decoded_logits(model, cache, tokens[s.n :], s.n)
                apart = apart - evicted_logits(model, tokens, s.n, kept)[s.n :]
                later[row, column, i] = float(apart.abs().max())
        sets[row] = [distinct(kept) for kept in chosen.values()]
        expected[row] = [1, s.layers * 8, s.layers * 2]
    return xr.Dataset(
        {
            "same_as_loops": (("draw",), same),
            "listing_sorted": (("draw",), listed),
            "equal_when_all_kept": (("case",), equal),
            "ordered": (("case",), ordered),
            "logit_error": (("family", "approach", "prompt"), errors),
            "evicted_error": (("family", "eviction", "prompt"), later),
            "sets": (("family", "kind"), sets),
            "sets_expected": (("family", "kind"), expected),
        },
        coords={
            "family": list(s.families),
            "approach": list(names),
            "eviction": list(names[1:]),
            "kind": ["gemfilter", "snapkv", "h2o"],
        },
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


@exact.claim(
    "08.2",
    "with k = n SnapKV, H2O and One-Run give the logits of full attention to 1e-4; with k < n tokens after the prompt "
    "get those of attention with the evicted keys masked, to 1e-4",
    source="§9.4",
)
def eviction_identity(ds: xr.Dataset):
    whole = {str(m): ds.logit_error.sel(approach=m) for m in ds.approach.values}
    evicted = {f"{m}, k < n": ds.evicted_error.sel(eviction=m) for m in ds.eviction.values}
    return all_of(**{name: at_most(float(e.max(skipna=False)), 1e-4) for name, e in (whole | evicted).items()})


@exact.claim(
    "08.18",
    "distinct index sets: 1 (GemFilter), m h (SnapKV), m h_kv (H2O)",
    source="Fig G.5",
    finding="These are the most there can be, reached here with weights ten times the usual initial ones. With those "
    "attention is nearly uniform, and in four of the five families all heads of H2O choose one set, the first tokens.",
)
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
