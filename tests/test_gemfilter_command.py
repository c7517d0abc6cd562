"""`krogh gemfilter` and chat templates, on a tiny random model with a real tokenizer in a folder."""

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from krogh import llm  # noqa: E402
from krogh.cli import invoke  # noqa: E402
from krogh.errors import InputError  # noqa: E402
from krogh.llm.needle import compose  # noqa: E402

CHAT = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save(folder, config) -> None:
    """A randomly initialised model and a tokenizer of single characters, roles and white space kept."""
    letters = [chr(c) for c in range(32, 127)] + ["\n"]
    names = ["<pad>", "<s>", "<user>", "<assistant>", *letters]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({t: i for i, t in enumerate(names)}, unk_token="<pad>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        additional_special_tokens=["<user>", "<assistant>"],
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config(vocab_size=len(names))).save_pretrained(folder)


def llama(vocab_size: int, window: int = 2048):
    return transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=window,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    save(place, llama)
    return place


@pytest.fixture
def text(tmp_path):
    place = tmp_path / "text.txt"
    place.write_text("Some <b>words</b> & more of them. " * 20)
    return place


def test_the_command_answers_marks_the_kept_tokens_and_compares_costs(folder, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    page = tmp_path / "page.html"
    options = ["--model", str(folder), "--context", str(text), "--question", "Which words?", "--html", str(page)]
    options += ["--layer", "1", "--keep", "60", "--tokens", "4"]
    assert invoke(["gemfilter", *options]) == 0
    shown = capsys.readouterr().out
    assert "\x1b[1;30;43m" in shown, "kept tokens are highlighted in the terminal"
    assert "full" in shown and "GiB" in shown and "seconds" in shown and "filter layer 1" in shown
    written = page.read_text()
    assert "60 of " in written and "<mark>" in written and "&lt;b&gt;" in written and "<b>" not in written
    assert "<td>gemfilter</td>" in written and "<td>full</td>" in written

    assert invoke(["gemfilter", *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["layer"] == 1 and told["gemfilter"]["tokens"] == 60
    assert told["full"]["tokens"] == told["prompt_tokens"] > 600
    assert told["gemfilter"]["seconds"] > 0 and told["full"]["peak_bytes"] > 0

    assert invoke(["gemfilter", *options[:-6], "--keep", "60", "--tokens", "2", "--no-compare", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layer"] in (0, 1, 2) and "full" not in found


def test_keeping_more_than_the_prompt_is_said_and_equals_full_attention(folder, text, tmp_path, capsys):
    options = ["--model", str(folder), "--context", str(text), "--question", "What?", "--layer", "1", "--tokens", "4"]
    assert invoke(["gemfilter", *options, "--html", str(tmp_path / "page.html"), "--keep", "1500"]) == 0
    told = capsys.readouterr()
    assert "keep=1500 is more than the prompt's" in told.err
    assert invoke(["gemfilter", *options, "--html", str(tmp_path / "page.html"), "--keep", "1500", "--json"]) == 0
    told = capsys.readouterr()
    both = json.loads(told.out)
    assert both["gemfilter"]["answer"] == both["full"]["answer"]
    assert "keep=1500 is more than the prompt's" in told.err


def test_a_layer_is_found_in_a_small_window_and_with_a_short_text(tmp_path, capsys):
    small, text = tmp_path / "small", tmp_path / "text.txt"
    save(small, lambda vocab_size: llama(vocab_size, window=512))
    text.write_text("Words. ")
    options = ["--model", str(small), "--context", str(text), "--question", "What?", "--html", str(tmp_path / "page")]
    options += ["--tokens", "1", "--no-compare", "--json"]
    assert invoke(["gemfilter", *options, "--keep", "40"]) == 0
    assert json.loads(capsys.readouterr().out)["layer"] in (0, 1, 2)


def test_where_no_layer_finds_the_needle_it_is_said(folder, text, tmp_path, capsys, monkeypatch):
    from krogh.llm import layers

    monkeypatch.setattr(layers, "top", lambda scores, keep: torch.zeros(len(scores), 1, dtype=torch.long))
    options = ["--model", str(folder), "--context", str(text), "--question", "What?", "--html", str(tmp_path / "page")]
    assert invoke(["gemfilter", *options, "--keep", "40", "--tokens", "1", "--no-compare", "--json"]) == 0
    told = capsys.readouterr()
    assert "no layer keeps anything of a needle planted in the text: layer 2 is used." in told.err
    assert json.loads(told.out)["layer"] == 2


def test_weights_that_are_not_all_there_are_refused(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    def copied(name):
        shutil.copytree(folder, tmp_path / name)
        return tmp_path / name, tmp_path / name / "model.safetensors"

    part, weights = copied("part")
    held = load_file(weights)
    save_file({name: w for name, w in held.items() if "layers.2.mlp" not in name}, weights, {"format": "pt"})
    wide, weights = copied("wide")
    save_file(held | {"model.norm.weight": torch.ones(17)}, weights, {"format": "pt"})
    cut, weights = copied("cut")
    weights.write_bytes(weights.read_bytes()[:-100])
    for place, said in (
        (part, "lack 3 of the model's parameters: model.layers.2.mlp"),
        (wide, "cannot load"),
        (cut, "cannot load"),
    ):
        with pytest.raises(InputError) as error:
            llm.load(place)
        told = str(error.value)
        assert said in told and told.endswith(".") and "\n" not in told, told


def test_bad_input_is_one_sentence_and_exit_2_and_nothing_is_lost(folder, text, tmp_path, capsys):
    strange, small = tmp_path / "gpt2", tmp_path / "small"
    save(strange, lambda vocab_size: transformers.GPT2Config(vocab_size=vocab_size, n_embd=16, n_layer=1, n_head=2))
    save(small, lambda vocab_size: llama(vocab_size, window=256))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "llama"}')
    binary, empty = tmp_path / "binary", tmp_path / "empty"
    binary.write_bytes(b"\xff\xfe\x00")
    empty.write_text(" \n")
    page = tmp_path / "page.html"
    page.write_text("an earlier page")
    cases = {
        "unknown architecture 'gpt2'": {"model": strange},
        "the filter layer is 7; it must be a whole number": {"layer": 7},
        "the number of tokens to keep is 0": {"keep": 0},
        "the model's window is 256": {"model": small},
        "no weights at": {"model": tmp_path / "nothing"},
        "cannot load": {"model": broken},
        "it is not UTF-8 text": {"context": binary},
        "No such file": {"context": tmp_path / "none.txt"},
        "must hold some text": {"context": empty},
        "unknown device 'tpux'": {"device": "tpux"},
    }
    if not torch.cuda.is_available():
        cases["PyTorch finds no GPU here; use cpu"] = {"device": "cuda"}
    capsys.readouterr()
    for said, change in cases.items():
        given = {"model": folder, "context": text, "question": "What?", "layer": 1, "keep": 60, "html": page} | change
        options = [part for name, value in given.items() for part in (f"--{name}", str(value))]
        assert invoke(["gemfilter", *options]) == 2, said
        told = capsys.readouterr().err.strip().splitlines()[-1]
        assert said in told and told.endswith("."), told
    assert page.read_text() == "an earlier page"


def test_a_chat_is_answered_from_what_the_tokenizer_gives(folder):
    model, tokenizer = llm.load(folder)
    chats = [[{"role": "user", "content": "Some words and more of them. " * n}] for n in (6, 4)]
    batch = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True, padding_side="left"
    )
    options = {"max_new_tokens": 4, "do_sample": False}
    gem = llm.GemFilter(model, layer=1, keep=40)
    both = gem.generate(**{name: batch[name] for name in ("input_ids", "attention_mask")}, **options)
    for row, chat in enumerate(chats):
        one = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        alone = gem.generate(one["input_ids"], one["attention_mask"], **options)
        assert torch.equal(both.new_tokens[row], alone.new_tokens[0]) and len(both.kept[row]) == 40


def test_a_prompt_is_wrapped_in_the_chat_template_where_there_is_one(folder):
    _, tokenizer = llm.load(folder)
    words = tokenizer.encode("Call me Ishmael.", add_special_tokens=False)
    made = compose(tokenizer, words, "Who?")
    assert tokenizer.decode(made.input_ids[0]).startswith("<user> ")
    assert made.input_ids[0, -1] == tokenizer.convert_tokens_to_ids("<assistant>")
    assert made.input_ids[0, list(made.context)].tolist() == words
    plain = compose(tokenizer, words, "Who?", chat=False)
    assert plain.input_ids[0, 0] == tokenizer.bos_token_id and "<user>" not in tokenizer.decode(plain.input_ids[0])
