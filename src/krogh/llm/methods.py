"""GemFilter and what it is compared with, each with `generate(input_ids, attention_mask, **ordinary arguments)`."""

from __future__ import annotations

import copy
import importlib
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from krogh.errors import InputError, check_choice, check_integer, nearest
from krogh.llm.layers import DEFAULT_LAYER, POOLS, check_kernel, pooled, row_scores, top
from krogh.llm.models import check_layer, check_model, check_prompt
from krogh.llm.prefill import Held, own_attention, walk


@dataclass(frozen=True)
class Generated:
    """`sequences` (rows, prompt + new) as from `model.generate`; `kept` per prompt: positions of its tokens in use.

    GemFilter keeps one set, (k,); SnapKV and H2O one per layer and head, (layers, heads, k).
    """

    sequences: Tensor
    kept: list[Tensor]
    prompt: int

    @property
    def new_tokens(self) -> Tensor:
        return self.sequences[:, self.prompt :]


class Method:
    """A way to answer a prompt; this one uses all of it."""

    def __init__(self, model: Any, keep: int | None = None, chunk: int = 1024):
        self.model = check_model(model)
        self.keep = None if keep is None else check_integer("the number of tokens to keep", keep, least=1)
        self.chunk = check_integer("the chunk", chunk, least=1)

    def prompts(self, input_ids: Tensor, attention_mask: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """Each row's tokens without padding, and where in the row they stand."""
        masks = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        rows = []
        for ids, mask in zip(input_ids, masks, strict=True):
            places = mask.nonzero()[:, 0]
            n = check_prompt(self.model, len(places))
            if self.keep is not None and self.keep > n:
                warnings.warn(
                    f"keep={self.keep} is more than the prompt's {n} tokens: all of it is used, nothing is filtered.",
                    stacklevel=3,
                )
            rows.append((ids[places].to(self.model.device), places))
        return rows

    def setting(self, options: dict[str, Any], name: str) -> Any:
        """What generation goes by: the argument, else that of the given `generation_config`, else the model's own."""
        configs = (options.get("generation_config"), self.model.generation_config)
        values = (options.get(name), *(getattr(config, name, None) for config in configs))
        return next((value for value in values if value is not None), None)

    def pad_id(self, options: dict[str, Any]) -> int:
        for name in ("pad_token_id", "eos_token_id"):
            value = self.setting(options, name)
            if value is not None:
                return int(value[0] if isinstance(value, (list, tuple)) else value)
        return 0

    def shorter(self, options: dict[str, Any], removed: int) -> dict[str, Any]:
        """The options for a prompt with tokens removed: `max_length` and `min_length` count the prompt."""
        lengths = {}
        for name, instead in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
            length = self.setting(options, name)
            if removed and length is not None and self.setting(options, instead) is None:
                lengths[name] = max(0, length - removed)
        config = options.get("generation_config")
        if config is None or not lengths:
            return options | lengths
        config = copy.deepcopy(config)
        config.update(**lengths)
        return {name: value for name, value in options.items() if name not in lengths} | {"generation_config": config}

    @torch.no_grad()
    def generate(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Generated:
        rows = self.prompts(input_ids, attention_mask)
        return self.answer(input_ids, [places for _, places in rows], options)

    def answer(self, input_ids: Tensor, kept: list[Tensor], options: dict[str, Any]) -> Generated:
        """The model's own generation from these tokens of every row, which are moved to the right end."""
        width = max(map(len, kept))
        ids = input_ids.new_full((len(kept), width), self.pad_id(options))
        mask = torch.zeros_like(ids)
        for row, places in enumerate(kept):
            ids[row, width - len(places) :] = input_ids[row, places]
            mask[row, width - len(places) :] = 1
        options = self.shorter(options, input_ids.shape[1] - width)
        new = _sequences(self.model.generate(ids, attention_mask=mask, **options))[:, width:]
        return self.generated(input_ids, new, kept)

    def generated(self, input_ids: Tensor, new: Tensor, kept: list[Tensor]) -> Generated:
        """Every prompt as it was given, as often as it was answered, and what follows it."""
        prompt = input_ids.repeat_interleave(len(new) // len(input_ids), 0)
        return Generated(torch.cat([prompt, new.to(prompt)], 1), kept, input_ids.shape[1])

    def together(self, rows: list[Tensor], options: dict[str, Any]) -> Tensor:
        """New tokens of each row alone, filled up as generation fills up a batch."""
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad_id(options))


class Rerun(Method):
    """Chooses tokens of the prompt and runs the whole model anew on them alone, with new positions."""

    def choose(self, ids: Tensor) -> Tensor:
        """The positions (k,) to use of a prompt (n,) longer than `keep`, in order."""
        raise NotImplementedError

    @torch.no_grad()
    def select(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> list[Tensor]:
        """Per row the positions of the kept tokens; all of them where there are no more than `keep`."""
        kept = []
        for ids, places in self.prompts(input_ids, attention_mask):
            few = self.keep is None or len(ids) <= self.keep
            kept.append(places if few else places[self.choose(ids).to(places.device)])
        return kept

    @torch.no_grad()
    def generate(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Generated:
        return self.answer(input_ids, self.select(input_ids, attention_mask), options)


class GemFilter(Rerun):
    """Runs the layers below `layer` on the prompt, keeps the tokens its last query scores highest, answers from those.

    J = top-k of pool_5(Σ_heads q_n · K), sorted; then generation from T[J] by the whole model (000 Algorithm 2).
    Layers are counted from 0, and of layer `layer` only queries and keys are computed: `layers_run` = `layer`.
    `row`: whose scores; the last token's, the middle one's, or those of the row with the largest norm (000 §G.4.4).
    `offload`: the layers above wait in host memory meanwhile, so the selection needs only the memory of those below.
    """

    def __init__(
        self,
        model: Any,
        layer: int = DEFAULT_LAYER,
        keep: int = 1024,
        pool: str = "mean",
        kernel: int = 5,
        row: str = "last",
        keep_last: int = 0,
        chunk: int = 1024,
        offload: bool = False,
    ):
        super().__init__(model, keep, chunk)
        self.layer = check_layer(model, layer)
        self.pool = check_choice("pooling", pool, POOLS)
        self.kernel = check_kernel(kernel)
        self.row = check_choice("row", row, ("last", "middle", "largest"))
        self.keep_last = check_integer("the number of last tokens to keep", keep_last, least=0)
        self.offload = offload

    @property
    def layers_run(self) -> int:
        """Whole layers computed on the full prompt."""
        return self.layer

    def choose(self, ids: Tensor) -> Tensor:
        assert self.keep is not None
        return top(self.scores(ids), self.keep, self.keep_last)

    @torch.no_grad()
    def scores(self, ids: Tensor) -> Tensor:
        """The pooled score of every token of a prompt (n,)."""
        queries: list[Tensor] = []

        def observe(layer: int, query: Tensor, key: Tensor, scaling: float) -> None:
            if layer < self.layer:
                return
            if self.row == "last":
                queries[:] = [query[0, :, -1:].clone()]  # a view would hold its whole chunk
            else:
                queries.append(query[0])

        keys = None
        with own_attention(self.model), self.alone() if self.offload else nullcontext():
            for layer, held, _ in walk(self.model, ids[None], self.chunk, observe, stop=self.layer):
                if layer == self.layer:
                    keys = held.held()[0][0]
                del held  # before the next layer's
        assert keys is not None
        if self.row == "largest":
            chunks = [pooled(row_scores(q, keys), self.pool, self.kernel) for q in queries]
            norms = [chunk.norm(dim=-1) for chunk in chunks]
            best = max(range(len(chunks)), key=lambda i: float(norms[i].max()))
            return chunks[best][int(norms[best].argmax())]
        query = queries[-1][:, -1:]
        if self.row == "middle":
            query = torch.cat(queries, 1)[:, len(ids) // 2][:, None]
        return pooled(row_scores(query, keys)[0], self.pool, self.kernel)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, what lies above the filter layer is in host memory."""
        base, head = self.model.model, self.model.lm_head
        waiting = list(base.layers[self.layer + 1 :])
        if head.weight is not base.embed_tokens.weight:
            waiting.append(head)
        device = self.model.device
        try:
            for module in waiting:
                module.to("cpu")
            yield
        finally:
            for module in waiting:
                module.to(device)


class Truncated(Rerun):
    """What any choice must beat: the last k tokens, the first and last k/2, or k at random, by seed and prompt."""

    def __init__(self, model: Any, keep: int = 1024, which: str = "last", seed: int = 0):
        super().__init__(model, keep)
        self.which = check_choice("choice of tokens", which, ("last", "ends", "random"))
        self.seed = check_integer("the seed", seed, least=0)

    def choose(self, ids: Tensor) -> Tensor:
        n, k = len(ids), self.keep or len(ids)
        if self.which == "random":
            rng = np.random.default_rng([self.seed, *ids.tolist()])
            return torch.from_numpy(np.sort(rng.permutation(n)[:k]))
        first = k // 2 if self.which == "ends" else 0
        return torch.cat([torch.arange(first), torch.arange(n - k + first, n)])


@contextmanager
def first_logits(model: Any, logits: Tensor) -> Iterator[None]:
    """Inside, the head's next output is the prompt's own logits (1, vocabulary), which saw every key."""

    def give(_: Any, __: Any, output: Tensor) -> Tensor:
        hook.remove()
        return logits.to(output)[:, None].expand_as(output)

    hook = model.lm_head.register_forward_hook(give)
    try:
        yield
    finally:
        hook.remove()


class FullAttention(Method):
    """The whole prompt, every key and value held; `prefill` runs it by chunks, as the others are."""

    @torch.no_grad()
    def prefill(self, ids: Tensor, spare: int = 0) -> tuple[Cache, Tensor, Tensor | None]:
        """A prompt (n,) → its cache with room for `spare` more, logits (1, vocabulary) of the next token, kept sets."""
        check_prompt(self.model, len(ids))
        layers, kept, last = [], [], None
        with own_attention(self.model):
            for layer, held, hidden in walk(self.model, ids[None], self.chunk, self.observe, spare=spare):
                last = hidden[:, -1:]
                layers.append(held)
                chosen = self.choose(layer, held) if self.keep is not None and len(ids) > self.keep else None
                if chosen is not None:
                    held.keep(chosen, spare)
                    kept.append(chosen)
        self.evict(layers, kept, spare)
        assert last is not None
        logits = self.model.lm_head(self.model.model.norm(last))[:, 0]
        return Cache(layers=layers), logits, torch.stack(kept) if kept else None

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> None:
        """Sees every chunk in every layer: query (1, heads, rows, d), all keys up to it (1, kv heads, columns, d)."""

    def choose(self, layer: int, held: Held) -> Tensor | None:
        """The tokens (sets, k) to keep of a layer that has just been computed."""
        return None

    def evict(self, layers: list[Held], kept: list[Tensor], spare: int) -> None:
        """What can only be decided after the last layer."""


class Evicting(FullAttention):
    """Computes the whole prompt, then keeps k keys and values of it; later tokens keep their positions n, n + 1, …"""

    least_window = 0

    def __init__(self, model: Any, keep: int = 1024, window: int = 32, chunk: int = 1024):
        super().__init__(model, keep, chunk)
        self.window = check_integer("the window of recent tokens", window, self.least_window, keep - 1)

    @torch.no_grad()
    def generate(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Generated:
        kept, news = [], []
        copies = max(self.setting(options, name) or 1 for name in ("num_beams", "num_return_sequences"))
        window = getattr(self.model.config, "sliding_window", None)
        for ids, places in self.prompts(input_ids, attention_mask):
            for layer in self.model.model.layers:
                sliding = getattr(layer.self_attn, "sliding_window", window)
                if sliding is not None and len(ids) > sliding:
                    raise InputError(
                        f"the prompt has {len(ids)} tokens and the model looks back only {sliding}; "
                        "evicting keys from such a cache is not defined, use GemFilter."
                    )
            cache, logits, chosen = self.prefill(ids, spare=1)
            for held in cache.layers:
                held.replay()  # type: ignore[attr-defined]
            if copies > 1:
                cache.batch_repeat_interleave(copies)
            own = self.shorter(options, input_ids.shape[1] - len(ids))
            with own_attention(self.model), first_logits(self.model, logits):
                ones = torch.ones_like(ids)[None]
                made = self.model.generate(ids[None], attention_mask=ones, past_key_values=cache, **own)
            news += list(_sequences(made)[:, len(ids) :])
            kept.append(places if chosen is None else places.to(chosen.device)[chosen])
        return self.generated(input_ids, self.together(news, options), kept)


class SnapKV(Evicting):
    """Per query head the keys that the last 32 queries attend to most, pooled over 5, and those 32 (000 §9.4)."""

    least_window = 1

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> None:
        new = query.shape[-2] == key.shape[-2]
        self.recent = (query if new else torch.cat([self.recent, query], 2))[:, :, -self.window :]
        self.scaling = scaling

    def choose(self, layer: int, held: Held) -> Tensor:
        keys, n = held.held()[0][0], held.length
        queries = self.recent[0].reshape(keys.shape[0], -1, *self.recent.shape[2:])
        future = torch.ones(self.window, self.window, dtype=torch.bool, device=keys.device).triu(1)
        chosen = []
        for query, key in zip(queries, keys, strict=True):  # a key head at a time, or the weights would fill memory
            logits = query.float() @ key.float().T * self.scaling  # (queries of this key head, window, n)
            logits[..., n - self.window :].masked_fill_(future, -torch.inf)
            weight = logits.softmax(-1)[..., : n - self.window].sum(-2)
            chosen.append(top(pooled(weight), (self.keep or n) - self.window))
        return _with_recent(torch.cat(chosen), n, self.window)


class H2O(Evicting):
    """Per key head the keys with the largest attention summed over all queries, and the last 32 (000 §9.4.2)."""

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> None:
        rows, columns = query.shape[-2], key.shape[-2]
        heads = key.shape[1]
        if rows == columns:
            self.mass = key.new_zeros(heads, 0, dtype=torch.float32)
        self.mass = torch.nn.functional.pad(self.mass, (0, columns - self.mass.shape[1]))
        queries = query[0].reshape(heads, -1, rows, query.shape[-1])
        for start in range(0, rows, 256):
            part = torch.arange(start, min(start + 256, rows), device=key.device)
            future = torch.arange(columns, device=key.device) > (columns - rows + part)[:, None]
            for head in range(heads):
                logits = queries[head][:, part].float() @ key[0, head].float().T * scaling
                self.mass[head] += logits.masked_fill_(future, -torch.inf).softmax(-1).sum((0, 1))

    def choose(self, layer: int, held: Held) -> Tensor:
        n = held.length
        best = top(self.mass[:, : n - self.window], (self.keep or n) - self.window)
        return _with_recent(best, n, self.window)


class OneRun(Evicting):
    """GemFilter's tokens, but kept in the caches of one whole run, with their old positions (000 §G.4.5)."""

    def __init__(self, model: Any, layer: int = DEFAULT_LAYER, keep: int = 1024, chunk: int = 1024):
        super().__init__(model, keep, 0, chunk)
        self.layer = check_layer(model, layer)

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> None:
        if layer == self.layer:
            self.query = query[0, :, -1:]

    def choose(self, layer: int, held: Held) -> None:
        if layer == self.layer:
            self.chosen = top(pooled(row_scores(self.query, held.held()[0][0])[0]), self.keep or held.length)

    def evict(self, layers: list[Held], kept: list[Tensor], spare: int) -> None:
        if self.keep is not None and layers[0].length > self.keep:
            for held in layers:
                kept.append(self.chosen.expand(held.keys.shape[1], -1))
                held.keep(kept[-1], spare)


class KVPress(Method):
    """A press of the package `kvpress`, by its name, at the ratio that leaves `keep` of the prompt's tokens.

    Which tokens these are a press does not tell: `kept` holds the whole prompt.
    """

    def __init__(self, model: Any, press: str = "SnapKVPress", keep: int = 1024):
        super().__init__(model, keep)
        try:
            package = importlib.import_module("kvpress")
        except ImportError:
            raise InputError("the package kvpress is not installed: pip install kvpress.") from None
        presses = [name for name in dir(package) if name.endswith("Press")]
        if press not in presses:
            raise InputError(f"kvpress has no {press!r}{nearest(press, presses)}; it has {', '.join(presses)}.")
        self.press = getattr(package, press)
        if "compression_ratio" not in inspect.signature(self.press).parameters:
            raise InputError(
                f"{press} of kvpress has no compression ratio to set; choose one that has, like SnapKVPress."
            )

    @contextmanager
    def pressed(self, ratio: float) -> Iterator[None]:
        """Inside, the model drops this share of a prompt's keys and values."""

        def tell(_: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return arguments, {"cache_position": named["position_ids"][0]} | named

        # kvpress 0.5 reads `cache_position`, which Transformers from 5.3 on no longer hands to attention
        hooks = [layer.self_attn.register_forward_pre_hook(tell, with_kwargs=True) for layer in self.model.model.layers]
        try:
            with self.press(compression_ratio=ratio)(self.model):
                yield
        except AssertionError as error:
            raise InputError(f"{self.press.__name__} of kvpress cannot be used here: {error}.") from error
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def generate(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Generated:
        kept, news = [], []
        for ids, places in self.prompts(input_ids, attention_mask):
            # presses round n(1 − ratio) down, or to the nearest whole number
            ratio = max(0.0, 1 - ((self.keep or len(ids)) + 0.25) / len(ids))
            with self.pressed(ratio):
                own = self.shorter(options, input_ids.shape[1] - len(ids))
                made = self.model.generate(ids[None], attention_mask=torch.ones_like(ids)[None], **own)
            news += list(_sequences(made)[:, len(ids) :])
            kept.append(places)
        return self.generated(input_ids, self.together(news, options), kept)


def _with_recent(best: Tensor, n: int, window: int) -> Tensor:
    """The chosen positions (sets, k − window) and the last `window` of n."""
    recent = torch.arange(n - window, n, device=best.device)
    return torch.cat([best, recent.expand(len(best), -1)], 1)


def _sequences(made: Any) -> Tensor:
    return made if isinstance(made, Tensor) else made.sequences
