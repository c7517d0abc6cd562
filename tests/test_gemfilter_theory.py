"""What can be computed about GemFilter without a language model: costs, scorer, planted retrieval."""

import numpy as np
import pytest
import xarray as xr

from krogh import llm
from krogh.cli import invoke
from krogh.lab.system import systems
from krogh.systems.gemfilter.cost import efficiency_fit
from krogh.systems.gemfilter.exact import distinct
from krogh.systems.gemfilter.needle import words_of
from krogh.systems.gemfilter.planted import A, B, average_pool, coverage, planted_prompts, planted_scores
from krogh.systems.gemfilter.retrieval import copies, distance_vanishes, texts
from krogh.systems.gemfilter.tables import tables
from krogh.theory.gemfilter import LLAMA, NEMO, PHI, needle_score


def test_shapes_have_the_published_numbers_of_parameters():
    for shape, layer, total in ((LLAMA, 218.1, 8.03), (NEMO, 272.6, 12.25), (PHI, 113.3, 3.82)):
        assert shape.layer_parameters / 1e6 == pytest.approx(layer, abs=0.1)
        assert shape.parameters / 1e9 == pytest.approx(total, abs=0.01)


def test_costs_at_120k_are_those_counted_by_hand():
    n = 120_000
    linear, quadratic = LLAMA.prefill_flops(n)
    assert (linear + quadratic) / 1e15 == pytest.approx(5.45, rel=0.01)
    assert linear / (linear + quadratic) == pytest.approx(0.31, abs=0.01)
    assert LLAMA.cache_bytes(n) / 1e9 == pytest.approx(15.7, rel=0.01)
    found = [LLAMA.prompt_bytes(m, n, 1024) / 1e9 for m in ("full", "snapkv", "gemfilter")]
    np.testing.assert_allclose(found, [31.8, 17.1, 7.2], rtol=0.02)
    assert LLAMA.cache_bytes(1024, per_query_head=True) == 4 * LLAMA.cache_bytes(1024)


def test_the_scorer_cannot_give_a_verbatim_answer_full_marks():
    assert needle_score("eat a sandwich and sit in Dolores Park on a sunny day.") == pytest.approx(11 / 12)
    assert needle_score("Eat a sandwich.") == pytest.approx(2 / 12)


def test_planted_prompts_hold_one_needle_and_distractors_that_share_half_of_its_key():
    x, start = planted_prompts(2000, 50, np.linspace(0, 1, 7))
    for row, at in zip(x, start, strict=True):
        a, b = row[-2:]
        pairs = [(row[j], row[j + 1]) for j in range(1, 1990) if A <= row[j] < B]
        assert pairs.count((a, b)) == 1 and len(pairs) == 51
        assert all((p == a) != (q == b) for p, q in pairs if (p, q) != (a, b))
        assert tuple(row[at : at + 2]) == (a, b) and at + 5 <= 1992


def test_only_bound_keys_with_pooling_cover_the_needle():
    x, start = planted_prompts(4096, 100, np.linspace(0, 1, 20))
    rng = np.random.default_rng(0)
    pooled = average_pool(planted_scores(x, 2))
    np.testing.assert_allclose(pooled[0, 100], planted_scores(x, 2)[0, 98:103].mean())
    assert (coverage(pooled, start, 64, rng) == 1).all()
    assert coverage(planted_scores(x, 2), start, 64, rng).mean() <= 0.2 + 1e-9
    assert (coverage(average_pool(planted_scores(x, 1)), start, 64, rng) == 1).mean() <= 0.5


def test_texts_end_in_questions_whose_answers_stand_in_them():
    x, start = texts(9, 96, 5, 2, np.random.default_rng(0))
    for row, starts in zip(x, start, strict=True):
        for q, at in enumerate(starts):
            asked = row[96 - 12 + 6 * q :][:6]
            assert asked[0] == 1 and (asked[1:] == row[at : at + 5]).all()
    x, start = texts(11, 96, 5, 1, np.random.default_rng(0), np.linspace(0, 1, 11))
    assert (np.diff(start[:, 0])[[4, 9]] != 0).all() and (start[-1] > start[0]).all()


def test_every_needle_is_asked_for_about_equally_often():
    x, start = texts(50, 128, 4, 10, np.random.default_rng(0))
    times = [[list(starts).count(at) for at in set(starts)] for starts in start]
    assert all(len(t) == 4 and max(t) <= 3 for t in times)
    assert all((row[-6:][1:] == row[at : at + 5]).all() for row, at in zip(x, start[:, -1], strict=True))


def test_copies_say_everything_again_from_another_place():
    x = copies(40, 49, np.random.default_rng(0))
    assert x.shape == (40, 49) and (x[:, 0] == 0).all()
    shifts = set()
    for row in x:
        first, again = row[1:25].tolist(), row[25:].tolist()
        found = [k for k in range(24) if first[k:] + first[:k] == again]
        assert len(found) == 1
        shifts |= set(found)
    assert len(shifts) > 10


def test_one_efficiency_per_term_is_recovered():
    n = np.array([1e3, 3e3, 1e4, 3e4])
    seconds = 2e-9 * n + 5e-13 * n**2
    np.testing.assert_allclose(efficiency_fit(n, n**2, seconds), seconds, rtol=1e-6)


def claim(id):
    return next(found for _, found in systems()["gemfilter"].claims if found.id == id)


def test_a_printed_number_that_is_missing_proves_nothing():
    ds = tables("quick")
    assert claim("08.19").judge(ds).outcome == "holds"
    for name, where in (("score", (0, 0, 0)), ("printed", (0, 0)), ("layer_score", (0, 0)), ("chat_printed", (0,))):
        gap = ds.copy(deep=True)
        gap[name][where] = np.nan
        assert claim("08.19").judge(gap).outcome == "undecided", name


def test_errors_that_are_no_numbers_prove_nothing():
    errors = {"logit_error": ("approach", [0.0]), "evicted_error": ("eviction", [0.0])}
    ds = xr.Dataset(errors, coords={"approach": ["full"], "eviction": ["h2o"]})
    assert claim("08.2").judge(ds).outcome == "holds"
    for name in errors:
        assert claim("08.2").judge(ds.assign({name: ds[name] + np.nan})).outcome == "undecided"


def test_sets_are_one_where_they_agree_on_every_prompt():
    one, other = np.array([[[0, 1], [0, 1]]]), np.array([[[0, 1], [2, 3]]])
    assert distinct([one, one]) == 1 and distinct([one, other]) == 2 and distinct([other[0, 0]]) == 1


def test_answers_are_compared_without_case_and_punctuation():
    assert words_of('the Whale, and -- "sir"') == words_of("The whale and SIR.") == {"the", "whale", "and", "sir"}


def test_what_is_near_its_bound_at_quick_is_judged_there_too():
    assert set(claim("08.13").presets) == {"quick", "paper"} and claim("08.12").finding is None


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'GemFliter'"):
        llm.GemFliter  # noqa: B018


def test_the_command_refuses_what_it_cannot_use(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("Some text.")
    common = ["gemfilter", "--question", "What?", "--html", str(tmp_path / "page.html")]
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    cases = {
        "no weights at": ["--model", str(tmp_path / "none"), "--context", str(text)],
        "cannot read the context": ["--model", "smollm2", "--context", str(tmp_path / "none.txt")],
        "tokens to keep is 0": ["--model", "smollm2", "--context", str(text), "--keep", "0"],
    }
    for said, options in cases.items():
        assert invoke([*common, *options]) == 2
        told = capsys.readouterr().err
        assert said in told and told.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_networks_that_never_learned_to_retrieve_are_left_out_of_the_verdicts():
    far_then_near = np.array([[5, 5], [0, 0]])
    ds = xr.Dataset(
        {
            "distance": (("seed", "layer", "prompt"), np.stack([far_then_near, far_then_near, far_then_near[::-1]])),
            "filter_layer": ("seed", [1, 1, 1]),
            "train_stage": ("seed", [4, 4, 0]),
        },
        coords={"layer": [0, 1]},
        attrs={"stages": 4},
    )
    assert distance_vanishes.predicate(ds).outcome == "holds"
    assert distance_vanishes.predicate(ds.assign(train_stage=("seed", [4, 4, 4]))).outcome == "undecided"
    alone = distance_vanishes.predicate(ds.assign(train_stage=("seed", [4, 3, 0])))
    assert (alone.outcome, alone.n) == ("undecided", 1)
