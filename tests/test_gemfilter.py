"""GemFilter on tiny randomly initialised models of every family: selection, equality, eviction, errors."""

import importlib.util
import weakref

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
transformers = pytest.importorskip("transformers")

from krogh import llm  # noqa: E402
from krogh.errors import InputError  # noqa: E402
from krogh.llm.layers import pooled, row_scores, top  # noqa: E402
from krogh.llm.methods import first_logits  # noqa: E402
from krogh.llm.needle import first_tokens  # noqa: E402
from krogh.llm.prefill import attend, own_attention, walk  # noqa: E402
from krogh.llm.show import token_texts  # noqa: E402

SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "phi3": transformers.Phi3Config,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}
GREEDY = dict(max_new_tokens=6, do_sample=False)


def tiny(family: str = "llama", **changes):
    torch.manual_seed(0)
    config = CONFIGS[family](**(SIZES | changes))
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def prompt(n: int, rows: int = 1, seed: int = 0):
    return torch.randint(2, 64, (rows, n), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(scope="module", params=CONFIGS)
def any_model(request):
    return tiny(request.param)


# ------------------------------------------------------------------------------------------- scores and selection


def test_scores_are_the_sum_over_heads_of_raw_dot_products():
    torch.manual_seed(1)
    query, keys = torch.randn(8, 1, 5), torch.randn(2, 20, 5)
    naive = torch.zeros(20)
    for j in range(20):
        for head in range(8):
            naive[j] += query[head, 0] @ keys[head // 4, j]
    torch.testing.assert_close(row_scores(query, keys)[0], naive)
    for j in range(20):
        around = [naive[i] if 0 <= i < 20 else torch.tensor(0.0) for i in range(j - 2, j + 3)]
        torch.testing.assert_close(pooled(naive)[j], torch.stack(around).mean())
    torch.testing.assert_close(pooled(naive, "max")[7], naive[5:10].max())


def test_top_is_sorted_unique_and_no_longer_than_the_text():
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    chosen = top(scores, 12)
    assert chosen.shape == (3, 12) and (chosen.diff(dim=-1) > 0).all()
    assert scores[0][chosen[0]].min() >= scores[0].sort().values[-12]
    assert top(scores, 80).tolist() == [list(range(50))] * 3
    assert top(scores, 4, keep_last=2)[:, -2:].tolist() == [[48, 49]] * 3


def test_queries_and_keys_are_those_the_model_computes(any_model):
    """The chunked walk reproduces the model's hidden states, so its scores are the model's."""
    ids = prompt(41)
    whole = any_model(ids, output_hidden_states=True).hidden_states
    with torch.no_grad(), own_attention(any_model):
        for layer, _, hidden in walk(any_model, ids, chunk=7):
            if layer + 1 < len(any_model.model.layers):
                torch.testing.assert_close(hidden, whole[layer + 1], atol=1e-5, rtol=1e-4)
    chunks = [llm.layer_scores(any_model, ids, chunk) for chunk in (7, 64)]
    torch.testing.assert_close(chunks[0], chunks[1], atol=1e-4, rtol=1e-4)
    assert any_model.config._attn_implementation == "sdpa"
    own = llm.GemFilter(any_model, layer=2, keep=8, chunk=7)
    torch.testing.assert_close(own.scores(ids[0]), chunks[0][2], atol=1e-4, rtol=1e-4)


def test_sliding_windows_are_respected():
    model = tiny("mistral", sliding_window=9)
    ids = prompt(40)
    whole = model(ids, output_hidden_states=True).hidden_states
    with torch.no_grad(), own_attention(model):
        for layer, _, hidden in walk(model, ids, chunk=11):
            if layer < 2:
                torch.testing.assert_close(hidden, whole[layer + 1], atol=1e-5, rtol=1e-4)


def test_the_filter_stops_at_its_layer_and_computes_no_more_of_it(model):
    ran: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=f"{part} {i}": ran.append(name))
        for i, layer in enumerate(model.model.layers)
        for part, module in (("mlp", layer.mlp), ("keys", layer.self_attn.k_proj))
    ]
    largest = []
    hooks += [
        layer.mlp.register_forward_pre_hook(lambda _, inputs: largest.append(inputs[0].shape[1]))
        for layer in model.model.layers
    ]
    gem = llm.GemFilter(model, layer=1, keep=8, chunk=16)
    gem.select(prompt(40))
    for hook in hooks:
        hook.remove()
    assert set(ran) == {"mlp 0", "keys 0", "keys 1"} and ran.count("keys 1") == 3
    assert max(largest) == 16 and gem.layers_run == 1


def test_the_filter_holds_one_layers_keys_and_no_chunk_of_queries(model, monkeypatch):
    layers, others = [], []

    def watched(model, ids, chunk, observe, stop):
        def seen(*arguments):
            others.append(sum(layer() is not None for layer in layers))
            observe(*arguments)

        for layer, held, hidden in walk(model, ids, chunk, seen, stop=stop):
            layers.append(weakref.ref(held))
            yield layer, held, hidden
            del held

    def scored(query, keys):
        assert query.untyped_storage().nbytes() == query.nbytes
        return row_scores(query, keys)

    monkeypatch.setattr("krogh.llm.methods.walk", watched)
    monkeypatch.setattr("krogh.llm.methods.row_scores", scored)
    llm.GemFilter(model, 2, 8, chunk=8).scores(prompt(64)[0])
    assert len(layers) == 3 and others == [0] * 3 * 8


def test_each_row_choice_reads_its_own_row(model):
    ids = prompt(40)
    with torch.no_grad(), own_attention(model):
        queries, keys = [], None
        see = lambda layer, query, key, _: queries.append(query[0]) if layer == 1 else None  # noqa: E731
        for _, held, _ in walk(model, ids, 64, see, stop=1):
            keys = held.held()[0][0]
    matrix = pooled(row_scores(queries[0], keys))
    rows = {"last": 39, "middle": 20, "largest": int(matrix.norm(dim=-1).argmax())}
    for name, row in rows.items():
        made = llm.GemFilter(model, layer=1, keep=8, row=name, chunk=16).scores(ids[0])
        torch.testing.assert_close(made, matrix[row], atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------------- generation


def test_a_prompt_no_longer_than_keep_is_answered_as_by_the_model(any_model):
    ids, mask = prompt(20, rows=2), torch.ones(2, 20, dtype=torch.long)
    ids[0, :6], mask[0, :6] = 0, 0
    expected = any_model.generate(ids, attention_mask=mask, **GREEDY)
    made = llm.GemFilter(any_model, layer=1, keep=20).generate(ids, mask, **GREEDY)
    assert torch.equal(made.sequences, expected)
    assert [k.tolist() for k in made.kept] == [list(range(6, 20)), list(range(20))]
    assert torch.equal(llm.FullAttention(any_model).generate(ids, mask, **GREEDY).sequences, expected)


def test_the_second_run_is_the_model_on_the_kept_tokens(any_model):
    ids = prompt(60)
    gem = llm.GemFilter(any_model, layer=1, keep=16)
    made = gem.generate(ids, **GREEDY)
    (kept,) = made.kept
    assert len(kept) == 16 and (kept.diff() > 0).all()
    expected = any_model.generate(ids[:, kept], attention_mask=torch.ones(1, 16), **GREEDY)[:, 16:]
    assert torch.equal(made.new_tokens, expected) and torch.equal(made.sequences[:, :60], ids)
    longer = gem.generate(ids, max_length=66, do_sample=False)
    assert torch.equal(longer.sequences, made.sequences)


def test_a_row_of_a_batch_is_answered_as_if_alone(any_model):
    ids, mask = prompt(50, rows=2), torch.ones(2, 50, dtype=torch.long)
    ids[1, :12], mask[1, :12] = 0, 0
    for method in (llm.GemFilter(any_model, 1, 16), llm.SnapKV(any_model, 16, window=4), llm.H2O(any_model, 16, 4)):
        both = method.generate(ids, mask, **GREEDY)
        for row, start in ((0, 0), (1, 12)):
            alone = method.generate(ids[row : row + 1, start:], **GREEDY)
            assert torch.equal(both.new_tokens[row], alone.new_tokens[0]), type(method)
            assert torch.equal(both.kept[row], alone.kept[0] + start)


def test_padding_may_stand_anywhere(any_model):
    ids, mask = prompt(30, rows=3), torch.ones(3, 30, dtype=torch.long)
    for row, gone in enumerate((slice(20, 30), slice(0, 5), slice(10, 13))):
        ids[row, gone], mask[row, gone] = 0, 0
    methods = [llm.FullAttention(any_model), llm.GemFilter(any_model, 1, 30), llm.GemFilter(any_model, 1, 12)]
    for method in (*methods, llm.SnapKV(any_model, 12, window=4)):
        both = method.generate(ids, mask, **GREEDY)
        for row in range(3):
            alone = method.generate(ids[row, mask[row] == 1][None], **GREEDY)
            assert torch.equal(both.new_tokens[row], alone.new_tokens[0]), type(method)
        assert torch.equal(both.sequences[:, :30], ids)


EVICTING = {"SnapKV": {"window": 4}, "H2O": {"window": 4}, "OneRun": {"layer": 1}}


def evicting(model, name: str, keep: int):
    return getattr(llm, name)(model, keep=keep, **EVICTING[name])


@pytest.mark.parametrize("name", EVICTING)
def test_the_first_token_too_goes_through_the_processors(model, name):
    ids, mask = prompt(37), torch.ones(1, 37, dtype=torch.long)
    first = int(model.generate(ids, attention_mask=mask, **GREEDY)[0, 37])
    everywhere = transformers.LogitsProcessorList([transformers.SuppressTokensLogitsProcessor([first])])
    for changes in (
        {"bad_words_ids": [[first]]},
        {"suppress_tokens": [first]},
        {"min_new_tokens": 3, "eos_token_id": first},
        {"logits_processor": everywhere},
    ):
        expected = model.generate(ids, attention_mask=mask, **GREEDY, **changes)
        assert expected[0, 37] != first
        assert torch.equal(evicting(model, name, 37).generate(ids, **GREEDY, **changes).sequences, expected), changes
        assert evicting(model, name, 12).generate(ids, **GREEDY, **changes).new_tokens[0, 0] == expected[0, 37]


def test_only_the_next_output_of_the_head_is_replaced(model):
    ids, wanted = prompt(5), torch.randn(1, 64)
    with first_logits(model, wanted):
        once, again = model(ids, logits_to_keep=1).logits, model(ids, logits_to_keep=1).logits
    assert torch.equal(once[:, 0], wanted) and torch.equal(again, model(ids, logits_to_keep=1).logits)
    assert not model.lm_head._forward_hooks


@pytest.mark.parametrize("name", EVICTING)
def test_several_answers_to_one_prompt_are_those_of_the_model(model, name):
    ids, mask = prompt(37), torch.ones(1, 37, dtype=torch.long)
    options = {"max_new_tokens": 4, "num_beams": 3, "num_return_sequences": 2, "do_sample": False}
    expected = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(evicting(model, name, 37).generate(ids, **options).sequences, expected)
    sampled = evicting(model, name, 12).generate(ids, max_new_tokens=4, num_return_sequences=3, do_sample=True)
    assert sampled.sequences.shape == (3, 41) and len(sampled.kept) == 1


def test_lengths_count_the_prompt_wherever_they_are_given():
    model, ids = tiny(), prompt(40, rows=2)
    mask = torch.ones_like(ids)
    mask[0, :10] = 0
    config = transformers.GenerationConfig(max_length=46, do_sample=False, pad_token_id=0)
    own = tiny()
    own.generation_config.max_length = 46
    for make in (lambda m: llm.GemFilter(m, 1, 12), lambda m: llm.SnapKV(m, 12, 4), lambda m: llm.Truncated(m, 12)):
        expected = make(model).generate(ids, mask, **GREEDY).sequences
        assert expected.shape == (2, 46)
        assert torch.equal(make(model).generate(ids, mask, generation_config=config).sequences, expected)
        assert torch.equal(make(own).generate(ids, mask, do_sample=False).sequences, expected)
        longer = make(own).generate(ids, mask, max_new_tokens=8, do_sample=False).sequences
        assert longer.shape == (2, 48)
    assert config.max_length == 46 and own.generation_config.max_length == 46


def test_short_answers_are_filled_up_with_the_padding_asked_for(model):
    ids, method = prompt(40, rows=8), llm.SnapKV(model, 12, window=4)
    first = method.generate(ids, **GREEDY).new_tokens[:, 0]
    other = int((first != first[0]).nonzero()[0])
    made = method.generate(ids[[0, other]], eos_token_id=int(first[0]), pad_token_id=63, **GREEDY).new_tokens
    assert made[0, 0] == first[0] and made.shape[1] > 1 and (made[0, 1:] == 63).all()


@pytest.mark.parametrize("name", ["FullAttention", "SnapKV", "H2O", "OneRun"])
def test_keeping_everything_gives_the_logits_of_full_attention(any_model, name):
    ids = prompt(37)
    options = {"FullAttention": {}, "OneRun": {"layer": 1, "keep": 37}}.get(name, {"keep": 37, "window": 4})
    method = getattr(llm, name)(any_model, chunk=10, **options)
    cache, logits, kept = method.prefill(ids[0])
    torch.testing.assert_close(logits[0], any_model(ids).logits[0, -1], atol=1e-4, rtol=1e-4)
    assert kept is None and {held.length for held in cache.layers} == {37}
    made = method.generate(ids, **GREEDY)
    assert torch.equal(made.sequences, any_model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY))


def test_generation_after_eviction_attends_to_the_kept_keys_at_their_old_positions(model):
    """Against a whole recomputation with every evicted key masked out, in each layer and head."""
    ids = prompt(40)
    method = llm.H2O(model, keep=12, window=4)
    made = method.generate(ids, max_new_tokens=3, do_sample=False)
    (kept,) = made.kept  # (layers, kv heads, k)
    whole = made.sequences

    def masked(module, query, key, value, mask, scaling=None, **_):
        rows = query.shape[-2]
        allowed = torch.ones(4, rows, rows, dtype=torch.bool).tril()
        for head in range(4):
            gone = torch.ones(rows, dtype=torch.bool)
            gone[kept[module.layer_idx, head // 2]] = False
            gone[40:] = False
            allowed[head, 40:] &= ~gone
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2), None

    transformers.AttentionInterface.register("masked_for_test", masked)
    model.set_attn_implementation("masked_for_test")
    logits = model(whole).logits[0]
    model.set_attn_implementation("sdpa")
    assert whole[0, 40:].tolist() == logits[39:42].argmax(-1).tolist()


def test_snapkv_keeps_what_the_last_queries_attend_to(model):
    ids = prompt(40)
    kept = llm.SnapKV(model, keep=12, window=4, chunk=7).prefill(ids[0])[2]
    model.set_attn_implementation("eager")
    weights = model(ids, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    assert kept.shape == (3, 4, 12)
    for layer in range(3):
        for head in range(4):
            mass = pooled(weights[layer][0, head, -4:, :36].sum(0))
            assert kept[layer, head, :8].tolist() == mass.topk(8).indices.sort().values.tolist()
            assert kept[layer, head, 8:].tolist() == [36, 37, 38, 39]


def test_h2o_keeps_what_all_queries_attend_to(model):
    ids = prompt(40)
    kept = llm.H2O(model, keep=12, window=4, chunk=7).prefill(ids[0])[2]
    model.set_attn_implementation("eager")
    weights = model(ids, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    assert kept.shape == (3, 2, 12)
    for layer in range(3):
        mass = weights[layer][0].sum(1).reshape(2, 2, 40).sum(1)[:, :36]
        assert kept[layer, :, :8].tolist() == mass.topk(8).indices.sort().values.tolist()


def test_one_run_keeps_gemfilters_tokens_in_every_layer(model):
    ids = prompt(40)
    kept = llm.OneRun(model, layer=1, keep=12).prefill(ids[0])[2]
    (chosen,) = llm.GemFilter(model, layer=1, keep=12).select(ids)
    assert (kept == chosen).all() and kept.shape == (3, 2, 12)


def test_a_cache_holds_what_it_keeps_and_room_for_what_is_asked(model):
    cache = llm.SnapKV(model, keep=12, window=4).prefill(prompt(40)[0], spare=5)[0]
    full = llm.FullAttention(model).prefill(prompt(40)[0], spare=5)[0]
    assert {held.nbytes for held in cache.layers} == {2 * 4 * 17 * 8 * 4}
    assert {held.nbytes for held in full.layers} == {2 * 2 * 45 * 8 * 4}


def test_ordinary_arguments_pass_through(model):
    ids = prompt(40)
    torch.manual_seed(0)
    sampled = llm.SnapKV(model, keep=12, window=4).generate(ids, max_new_tokens=4, do_sample=True, temperature=0.7)
    beams = llm.GemFilter(model, layer=1, keep=12).generate(
        ids, max_new_tokens=4, num_beams=3, num_return_sequences=2, do_sample=False
    )
    assert sampled.sequences.shape == (1, 44) and beams.sequences.shape == (2, 44)
    with_dict = llm.GemFilter(model, layer=1, keep=12).generate(ids, return_dict_in_generate=True, **GREEDY)
    assert torch.equal(with_dict.sequences, llm.GemFilter(model, 1, 12).generate(ids, **GREEDY).sequences)


def test_offloading_the_upper_layers_changes_nothing(model):
    ids = prompt(40)
    plain, apart = (llm.GemFilter(model, 1, 12, offload=o).generate(ids, **GREEDY) for o in (False, True))
    assert torch.equal(plain.sequences, apart.sequences)


def test_truncations_keep_the_ends(model):
    ids = prompt(40)
    assert llm.Truncated(model, 6).select(ids)[0].tolist() == list(range(34, 40))
    assert llm.Truncated(model, 6, "ends").select(ids)[0].tolist() == [0, 1, 2, 37, 38, 39]
    assert len(set(llm.Truncated(model, 6, "random").select(ids)[0].tolist())) == 6


def test_random_tokens_differ_between_prompts_and_seeds_and_are_drawn_once(model):
    ids = prompt(40, rows=2)
    first, other = llm.Truncated(model, 6, "random").select(ids)
    assert not torch.equal(first, other)
    assert torch.equal(llm.Truncated(model, 6, "random").select(ids[1:])[0], other)
    assert not torch.equal(llm.Truncated(model, 6, "random", seed=1).select(ids)[0], first)


def test_the_sweep_finds_the_layer_that_looks_at_the_answer(model):
    ids = [prompt(40, seed=s) for s in range(3)]
    answers = [llm.GemFilter(model, layer=1, keep=5).select(i)[0].tolist() for i in ids]
    sweep = llm.find_layer(model, list(zip(ids, answers, strict=True)), keep=5)
    assert sweep.layer == 1 and (sweep.distance[:, 1] == 0).all() and (sweep.coverage[:, 1] == 1).all()
    assert sweep.coverage.shape == (3, 3) and sweep.coverage[:, 0].mean() < 1 and sweep.found


def test_where_no_layer_looks_at_the_answer_the_default_is_taken():
    deep = tiny(num_hidden_layers=15)
    ids = prompt(40)
    kept = top(llm.layer_scores(deep, ids), 2)
    (missed, *_) = set(range(40)) - set(kept.flatten().tolist())
    sweep = llm.find_layer(deep, [(ids, [missed])], keep=2)
    assert sweep.layer == 13 and not sweep.found


# ------------------------------------------------------------------------------------------- what is refused


def test_bad_input_is_one_sentence(model, tmp_path):
    other = transformers.AutoModelForCausalLM.from_config(
        transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2)
    )
    cases = {
        "unknown architecture 'gpt2'": lambda: llm.GemFilter(other),
        "the filter layer is 13": lambda: llm.GemFilter(model),
        "keep is 0": lambda: llm.GemFilter(model, layer=1, keep=0),
        "the model's window is 256": lambda: llm.GemFilter(model, 1, 8).generate(prompt(300)),
        "no weights at": lambda: llm.load(tmp_path / "nothing"),
        "unknown pooling 'mena' (did you mean 'mean'?)": lambda: llm.GemFilter(model, 1, 8, pool="mena"),
        "kernel is 4; it must be odd": lambda: llm.GemFilter(model, 1, 8, kernel=4),
        "kernel is 2; it must be odd": lambda: llm.layer_scores(model, prompt(10), kernel=2),
        "recent tokens is 0; it must be a whole number between 1 and 7": lambda: llm.SnapKV(model, 8, window=0),
        "the seed is -1": lambda: llm.Truncated(model, 8, "random", seed=-1),
    }
    if importlib.util.find_spec("kvpress") is None:
        cases["kvpress"] = lambda: llm.KVPress(model)
    if not torch.cuda.is_available():
        cases["PyTorch finds no GPU here"] = lambda: llm.load("smollm2", device="cuda")
    for text, call in cases.items():
        with pytest.raises(InputError) as error:
            call()
        said = str(error.value)
        assert text in said and said.endswith(".") and "\n" not in said, said
    with pytest.warns(UserWarning, match="all of it is used"):
        llm.GemFilter(model, 1, 50).generate(prompt(10), **GREEDY)


@pytest.mark.parametrize("family", ["mistral", "phi3", "qwen2"])
def test_eviction_beyond_a_sliding_window_is_refused(family):
    more = {"use_sliding_window": True, "max_window_layers": 1} if family == "qwen2" else {}
    model = tiny(family, sliding_window=9, **more)
    with pytest.raises(InputError, match="looks back only 9"):
        llm.SnapKV(model, keep=12, window=4).generate(prompt(20), **GREEDY)


def test_attention_over_chunks_is_attention():
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 12, 8), torch.randn(1, 2, 12, 8), torch.randn(1, 2, 12, 8)
    module = type("Module", (), {"layer_idx": 0})()
    whole = attend(module, query, key, value, None)[0]
    for cut in (1, 5, 11):
        late = attend(module, query[:, :, cut:], key, value, None)[0]
        torch.testing.assert_close(late, whole[:, cut:])
    # kvpress hands the dropout on by its place
    torch.testing.assert_close(attend(module, query, key, value, None, 0.0, scaling=8**-0.5)[0], whole)


# ------------------------------------------------------------------------------------------- needles and the page


class Letters:
    """A tokenizer of single characters."""

    chat_template = None
    bos_token, bos_token_id = None, None

    def encode(self, text, add_special_tokens=False):
        return [ord(c) % 64 for c in text]

    def decode(self, ids, **_):
        return "".join(chr(int(i) + (64 if i < 27 else 0)) for i in ids)


def test_a_haystack_has_its_length_and_its_needle_where_it_says():
    tokenizer, needle = Letters(), "THE NEEDLE"
    text = "SOME WORDS. " * 200
    for depth in (0.0, 0.5, 1.0):
        prompt = llm.haystack(tokenizer, text, 400, depth, needle, "WHERE?")
        assert prompt.input_ids.shape == (1, 400)
        hidden = prompt.input_ids[0, list(prompt.answer)].tolist()
        assert hidden == tokenizer.encode(" " + needle)
        if depth == 0.5:
            assert tokenizer.decode(prompt.input_ids[0, : prompt.answer.start]).endswith("WORDS.")
    with pytest.raises(InputError, match="too short"):
        llm.haystack(tokenizer, text, 20, 0.5, needle, "WHERE?")
    with pytest.raises(InputError, match="the text has"):
        llm.haystack(tokenizer, "SHORT. ", 400, 0.5, needle, "WHERE?")


def test_of_a_text_as_much_is_encoded_as_is_needed():
    class Lines(Letters):
        """A token is a line, of any length."""

        def encode(self, text, add_special_tokens=False):
            return [1] * text.count("\n") if "\n" in text else super().encode(text)

    line = "WORDS " * 40 + "\n"
    assert len(first_tokens(Lines(), line * 50, 30)) == 30 and len(first_tokens(Lines(), line * 20, 30)) == 20


class Bytes(Letters):
    """A tokenizer of single bytes that drops the space a text begins with."""

    def decode(self, ids, **_):
        return bytes(ids).decode(errors="replace").removeprefix(" ")


def test_characters_of_several_tokens_are_shown_whole():
    text = "Ångström — 日本語 🙂!"
    ids = list(text.encode())
    assert "".join(token_texts(Bytes(), ids, [False] * len(ids))) == text
    for i in range(len(ids)):
        kept = [j == i for j in range(len(ids))]
        texts = token_texts(Bytes(), ids, kept)
        assert "".join(texts) == text and texts[i] == text[len(bytes(ids[:i]).decode(errors="ignore"))]


def test_the_page_marks_exactly_the_kept_tokens(model, tmp_path):
    from krogh.llm.show import ask

    wide = tiny(max_position_embeddings=4096)
    answer = ask(wide, Letters(), "WORDS AND MORE <WORDS>. " * 12, "WHAT?", layer=1, keep=30, tokens=3)
    assert answer.kept == 30 and answer.full_usage is not None and answer.usage.seconds > 0
    answer.write_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    marked = "".join(part.split("</mark>")[0] for part in page.split("<mark>")[1:])
    assert len(marked.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&#x27;", "'")) == 30
    shown = answer.terminal()
    assert len(shown.plain) == len(answer.pieces)
    assert set(answer.summary()) >= {"gemfilter", "full", "layer", "prompt_tokens"}


def test_an_own_press_of_kvpress_is_used_at_the_ratio_that_keeps_k(model, monkeypatch):
    import sys
    import types
    from contextlib import nullcontext

    ratios = []
    package = types.ModuleType("kvpress")

    class KnormPress:
        def __init__(self, compression_ratio):
            ratios.append(compression_ratio)

        def __call__(self, model):
            return nullcontext()

    package.KnormPress = KnormPress
    monkeypatch.setitem(sys.modules, "kvpress", package)
    ids = prompt(40)
    made = llm.KVPress(model, "KnormPress", keep=10).generate(ids, **GREEDY)
    assert torch.equal(made.sequences, model.generate(ids, **GREEDY))
    for k in range(1, 40):
        llm.KVPress(model, "KnormPress", keep=k).generate(ids, max_new_tokens=1, do_sample=False)
        kept = 40 * (1 - ratios[-1])
        assert int(kept) == round(kept) == k
    with pytest.raises(InputError, match="did you mean 'KnormPress'"):
        llm.KVPress(model, "KnornPress")


def test_the_real_kvpress_keeps_k_keys_and_the_positions_of_what_follows(any_model):
    """On Transformers from 5.3 on as well, whose attention layers are no longer told what kvpress reads."""
    pytest.importorskip("kvpress")
    ids, seen = prompt(40), []
    hook = any_model.model.layers[1].self_attn.register_forward_hook(
        lambda _, __, named, ___: seen.append(
            (named["past_key_values"].layers[1].keys.shape[-2], int(named["position_ids"][0, -1]))
        ),
        with_kwargs=True,
    )
    for press in ("KnormPress", "RandomPress", "StreamingLLMPress"):
        seen.clear()
        llm.KVPress(any_model, press, keep=10).generate(ids, max_new_tokens=3, do_sample=False)
        assert seen[1:] == [(11, 40), (12, 41)], press
    hook.remove()
    whole = llm.KVPress(any_model, "KnormPress", keep=40).generate(ids, **GREEDY)
    assert torch.equal(whole.sequences, llm.FullAttention(any_model).generate(ids, **GREEDY).sequences)
    with pytest.raises(InputError, match="has no compression ratio"):
        llm.KVPress(any_model, "KeyRerotationPress")
