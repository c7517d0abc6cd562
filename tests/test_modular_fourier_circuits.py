"""Facts about tables of modular addition, maximum-margin networks, symbol Transformers and their spectra."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import krogh as kr
from krogh.errors import InputError
from krogh.nn.decoder import SymbolTransformer
from krogh.nn.tables import Lookup, LookupNetwork
from krogh.probes.embeddings import TableMargin, attention_maps, closing_scores, folded_power
from krogh.systems.modular_fourier_circuits.grokking import delay_shrinks
from krogh.systems.modular_fourier_circuits.training import (
    SHORT_TABLES,
    Case,
    MarginAdam,
    amplitude_spread,
    trained,
)
from krogh.tasks.modular import ModularAddition, permuted
from krogh.theory import modular_margin as theory
from krogh.train.schedules import WarmUp


def numbers(x, p):
    x = np.asarray(x)
    return x @ p ** np.arange(x.shape[1] - 1, -1, -1)


# ------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("size", [1, 2, 5, 49, 1331])
def test_permuted_is_a_permutation_that_depends_on_its_words(size):
    words = jax.random.bits(jax.random.key(0), (2, 8), jnp.uint32)
    a, b = (np.asarray(permuted(jnp.arange(size, dtype=jnp.uint32), size, w)) for w in words)
    assert sorted(a) == list(range(size)) == sorted(b)
    if size > 5:
        assert (a != b).mean() > 0.5


def test_seen_and_held_out_parts_are_the_whole_table_once():
    task = ModularAddition(7, 3, share=0.3).instance(jax.random.key(3))
    seen, rest = task.sample(jax.random.key(0), task.seen), task.held_out(jax.random.key(1), 10**6)
    assert len(seen.y) == int(343 * 0.3)
    together = np.concatenate([numbers(seen.x, 7), numbers(rest.x, 7)])
    assert sorted(together) == list(range(343))
    np.testing.assert_array_equal(np.asarray(seen.x).sum(1) % 7, seen.y)


def test_batches_are_different_rows_of_the_seen_part_of_this_replica():
    task = ModularAddition(7, 3)
    one, other = task.instance(jax.random.key(1)), task.instance(jax.random.key(2))
    part = set(numbers(one.sample(jax.random.key(5), one.seen).x, 7))
    batch = numbers(one.sample(jax.random.key(6), 50).x, 7)
    assert len(set(batch)) == 50
    assert set(batch) <= part
    assert part != set(numbers(other.sample(jax.random.key(5), other.seen).x, 7))


def test_splits_are_uniform():
    task = ModularAddition(5, 2)
    draw = jax.vmap(lambda key: task.instance(key).held_out(jax.random.key(0), 13).x)
    rows = jax.jit(draw)(jax.random.split(jax.random.key(0), 400))
    held = np.bincount(numbers(rows.reshape(-1, 2), 5), minlength=25)
    # 400 draws of 13 rows out of 25
    expected, deviation = 400 * 13 / 25, np.sqrt(400 * 13 * 12) / 25
    assert np.abs(held - expected).max() < 4.5 * deviation


@pytest.mark.parametrize(("p", "k", "share"), [(2, 2, 0.5), (3, 2, 0.6), (2, 3, 0.5), (2, 4, 0.2)])
def test_rows_unseen_in_any_order_are_those_of_all_splits(p, k, share):
    task = ModularAddition(p, k, share)
    rows = list(itertools.product(range(p), repeat=k))
    wrong = []
    for seen in itertools.combinations(rows, task.seen):
        known = {tuple(sorted(row)) for row in seen}
        held_out = set(rows) - set(seen)
        wrong.append(np.mean([tuple(sorted(row)) not in known for row in held_out]))
    assert task.unseen_in_any_order == pytest.approx(np.mean(wrong), rel=1e-9)
    assert ModularAddition(p, k, share=1.0).unseen_in_any_order == 0


def test_large_tables_are_refused_or_sampled_never_stored():
    large = ModularAddition(47, 4)
    with pytest.raises(InputError, match="too many to enumerate"):
        large.enumerate()
    with pytest.raises(InputError, match="too large"):
        ModularAddition(2039, 3)
    for p, k in ((1, 3), (5, 0)):
        with pytest.raises(InputError, match="whole numbers p >= 2 and k >= 1"):
            ModularAddition(p, k)
    assert ModularAddition(2, 1).rows == 2
    with pytest.raises(InputError, match="12 of 5\\^2 rows"):
        ModularAddition(5, 2).sample(jax.random.key(0), 13)
    memory = (
        jax.jit(lambda key: large.instance(key).sample(key, 64)).lower(jax.random.key(0)).compile().memory_analysis()
    )
    assert memory.temp_size_in_bytes < 100_000


def test_whole_tables_validate_on_themselves():
    task = ModularAddition(5, 2, share=1.0)
    np.testing.assert_array_equal(np.sort(numbers(task.held_out(jax.random.key(0), 99).x, 5)), np.arange(25))
    np.testing.assert_array_equal(numbers(task.enumerate().x, 5), np.arange(25))


# ------------------------------------------------------------------------------------------- theory


@pytest.mark.parametrize(("k", "p"), [(2, 7), (3, 5), (4, 5), (5, 3)])
def test_construction_has_the_largest_margin_everywhere(k, p):
    u, w = theory.construction(k, p)
    assert len(w) == theory.sufficient_width(k, p) == 2 ** (2 * k - 2) * (p - 1)
    assert theory.network_norm(u, w) == pytest.approx(1)
    np.testing.assert_allclose(theory.margins(u, w), theory.max_margin(k, p), rtol=1e-10)
    f = theory.outputs(u, w, theory.table(k, p))
    right = np.arange(p) == (theory.table(k, p).sum(1) % p)[:, None]
    np.testing.assert_allclose(f[~right] / f[right][0], -1 / (p - 1), rtol=1e-9)


def test_closed_forms_at_two_and_three():
    assert theory.max_margin(3, 11) == pytest.approx(3 / 16 / (11 * 10))
    assert theory.max_margin(2, 7) == pytest.approx(np.sqrt(2 / 27) / (np.sqrt(7) * 6))


def test_class_margin_is_that_of_enumeration_for_any_neuron():
    rng = np.random.default_rng(1)
    for k, p in ((2, 5), (3, 7), (4, 5)):
        u, w = rng.normal(size=(k, p)), rng.normal(size=p) + 3
        assert theory.class_margin(u, w) == pytest.approx(theory.class_margin_enumerated(u, w), rel=1e-10)


def test_optimal_neurons_reach_the_bound_and_nothing_found_exceeds_it():
    rng = np.random.default_rng(0)
    for k, p in ((2, 7), (4, 5)):
        u, w = theory.optimal_neuron(p, 2, rng.uniform(0, 6, k))
        assert np.sum(u**2) + np.sum(w**2) == pytest.approx(1)
        assert theory.class_margin(u, w) == pytest.approx(theory.max_margin(k, p))
        value, u, w = theory.ascend(k, p, rng)
        assert 0.999 < value / theory.max_margin(k, p) <= 1 + 1e-9
        assert theory.class_margin(u, w) == pytest.approx(value)


def test_polarisation_and_even_products():
    rng = np.random.default_rng(0)
    d, x = rng.normal(size=(20, 4)), rng.normal(size=(20, 5))
    np.testing.assert_allclose(theory.polarised(d), 2**4 * 24 * d.prod(1), rtol=1e-8)
    terms = theory.even_products(4)
    assert len(terms) == 2**4
    total = sum(sign * np.prod(np.where(np.array(b, bool), np.sin(x), np.cos(x)), axis=1) for b, sign in terms)
    np.testing.assert_allclose(total, np.cos(x.sum(1)), atol=1e-12)


def test_unit_logit_scale_gives_unit_logits():
    k, p, m = 3, 11, 160
    rng = np.random.default_rng(0)
    scale = theory.unit_logit_scale(k, m)
    draws = [
        theory.outputs(scale * rng.normal(size=(m, k, p)), scale * rng.normal(size=(m, p)), np.array([[1, 2, 3]]))
        for _ in range(400)
    ]
    assert np.std(draws) == pytest.approx(1, abs=0.12)


def test_the_transform_of_the_construction_is_its_margin_on_the_diagonal():
    k, p = 3, 5
    u, w = theory.construction(k, p)
    spectrum = theory.spectrum(u, w)
    j = np.arange(1, p)
    np.testing.assert_allclose(spectrum[j, j, j, -j % p], theory.max_margin(k, p) * p**k, atol=1e-10)
    spectrum[j, j, j, -j % p] = 0
    assert np.abs(spectrum[..., 1:]).max() < 1e-10


# ------------------------------------------------------------------------------------------- networks and probes


def constructed(k, p):
    u, w = theory.construction(k, p)
    return LookupNetwork(jnp.asarray(u.transpose(1, 2, 0)), jnp.asarray(w), lambda z: z**k)


@pytest.mark.parametrize("rows", [2**17, 60])
def test_table_margin_of_the_construction(rows):
    task = ModularAddition(7, 3)
    read = TableMargin(rows)(constructed(3, 7), task)
    assert float(read["margin"]) == pytest.approx(theory.max_margin(3, 7), rel=1e-4)
    assert float(read["table_accuracy"]) == 1.0


def test_table_margin_is_the_lowest_of_all_rows():
    task = ModularAddition(17, 3)  # more rows than one block
    network = Lookup(20, scale=1.0).build(task, jax.random.key(0))
    exact = theory.margins(np.asarray(network.weights).transpose(2, 0, 1), np.asarray(network.output))
    read = TableMargin()(network, task)
    assert float(read["margin"]) == pytest.approx(exact.min(), rel=1e-4)
    assert float(read["table_accuracy"]) == pytest.approx((exact > 0).mean(), abs=1e-6)


@pytest.mark.parametrize(("k", "p"), [(3, 5), (4, 17)])
def test_margin_adam_adds_the_norm_itself(k, p):
    assert (k * p <= SHORT_TABLES) == (p == 5)  # both ways of looking up
    task = ModularAddition(p, k)
    network = Lookup(6).build(task, jax.random.key(0))
    batch = task.sample(jax.random.key(1), 20)
    plain = kr.Adam(loss="cross_entropy").objective_of(network, batch, jax.random.key(2))[0]
    norm = theory.network_norm(np.asarray(network.weights).transpose(2, 0, 1), np.asarray(network.output))
    found = MarginAdam(penalty=0.3).objective_of(network, batch, jax.random.key(2))[0]
    assert float(found - plain) == pytest.approx(0.3 * norm, rel=1e-4)
    euclid = MarginAdam(penalty=0.3, plain=True).objective_of(network, batch, jax.random.key(2))[0]
    assert float(euclid - plain) == pytest.approx(0.3 * float(kr.probes.parameter_norm(network)), rel=1e-4)


def test_warm_up_and_decay():
    factor = WarmUp(100)
    np.testing.assert_allclose([factor(jnp.asarray(t)) for t in (0, 9, 50, 100)], [0.1, 0.91, 0.5, 0], atol=1e-6)
    assert float(WarmUp(100, decay=False)(jnp.asarray(99))) == 1


def test_scale_of_a_case_is_unit_logit():
    case = Case(3, 11, seeds=1)
    assert case.neurons == 160
    network = case.spec().network.build(ModularAddition(11, 3), jax.random.key(0))
    assert float(jnp.std(network.weights)) == pytest.approx(theory.unit_logit_scale(3, 160), rel=0.02)


def test_the_transformer_is_attention_as_defined():
    """One block written out position by position, without projecting queries onto embeddings."""
    task = ModularAddition(5, 3)
    network = SymbolTransformer(layers=2, heads=3, emb=8, attn=4).build(task, jax.random.key(0))
    x = jnp.array([4, 0, 2])
    sequence = np.sqrt(8) * network.tokens[jnp.array([4, 0, 2, 5])] + network.positions
    for block in network.blocks:
        a, n = block.attention, block.norm(sequence)
        q, k, v = (jnp.einsum("ne,eha->nha", n, matrix) for matrix in (a.query, a.key, a.value))
        rows = []
        for i in range(4):
            weights = jax.nn.softmax(jnp.einsum("ha,nha->hn", q[i], k[: i + 1]) / 2, axis=1)
            rows.append(jnp.einsum("hn,nha,hae->e", weights, v[: i + 1], a.out))
        sequence = sequence + jnp.stack(rows)
        hidden = jax.nn.gelu(block.mlp_norm(sequence) @ block.mlp.inner.weight + block.mlp.inner.bias)
        sequence = sequence + hidden @ block.mlp.outer.weight + block.mlp.outer.bias
    expected = network.norm(sequence[-1]) @ network.output + network.output_bias
    np.testing.assert_allclose(network(x), expected, rtol=2e-4, atol=2e-5)


def test_power_is_shared_by_the_squares_of_amplitudes():
    """Two 2-D cosines with amplitudes 2 and 1, on rows and columns of their own level, which do not count."""
    a, b = np.arange(11)[:, None], np.arange(11)
    wave = lambda f, g: np.cos(2 * np.pi * f * a / 11 + 0.3) * np.cos(2 * np.pi * g * b / 11 - 1.1)  # noqa: E731
    shares = np.asarray(folded_power(jnp.asarray(2 * wave(2, 3) + wave(5, 1) + 3 * a**2 + 7 * b)))
    expected = np.zeros((5, 5))
    expected[1, 2], expected[4, 0] = 0.8, 0.2
    np.testing.assert_allclose(shares, expected, atol=1e-5)


def test_folded_power_of_one_two_dimensional_cosine():
    a = np.arange(11)
    wave = np.cos(2 * np.pi * 3 * a / 11 + 1)[:, None] * np.cos(2 * np.pi * 4 * a / 11) + 5 + a[:, None]
    power = np.asarray(folded_power(jnp.asarray(wave)))
    assert power.shape == (5, 5)
    assert power[2, 3] == pytest.approx(1, abs=1e-4)
    noise = folded_power(jax.random.normal(jax.random.key(0), (50, 11, 11)))
    np.testing.assert_allclose(noise.mean(0), 1 / 25, atol=0.02)


def test_attention_maps_and_closing_scores_agree_with_the_definition():
    network = SymbolTransformer(heads=2, emb=8, attn=3).build(ModularAddition(5, 2), jax.random.key(0))
    block = network.blocks[0]
    x = block.norm(np.sqrt(8) * network.tokens)
    w = block.attention.key[:, 1] @ block.attention.query[:, 1].T
    np.testing.assert_allclose(attention_maps(network)[1], x[:5] @ w @ x[:5].T, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(closing_scores(network)[1], x[:5] @ w @ x[5], rtol=1e-3, atol=1e-4)


def test_training_a_small_table_finds_the_answer():
    case = Case(2, 5, share=1.0, batch=25, penalty=1e-3, steps=600, seeds=2, records=1)
    from krogh.systems.modular_fourier_circuits.training import trained

    end = trained(case).isel(step=-1)
    assert (end.table_accuracy == 1).all()
    assert (end.relative_margin > 0.5).all()
    assert (end.relative_margin <= 1 + 1e-6).all()
    assert (end.counts.sum("zeta") <= case.neurons).all()


def test_a_network_that_learns_nothing_is_not_quick():
    def judged(held_out_at_five):
        seen = [[1.0] * 8, [1.0] * 8, [np.inf] * 8, [np.inf] * 8]
        held_out = [[6.0] * 8, [2.0] * 8, [1.0] * 8, held_out_at_five]
        ds = xr.Dataset({"seen_time": (("case", "seed"), seen), "held_out_time": (("case", "seed"), held_out)})
        return delay_shrinks.predicate(ds.assign_coords(k=("case", [2, 3, 4, 5]))).outcome

    assert judged([1.0] * 7 + [np.inf]) == "holds"
    assert judged([np.inf] * 7 + [1.0]) == "fails"


def test_a_network_that_collapsed_has_no_margin():
    case = Case(3, 5, share=1.0, penalty=5.0, batch=64, width=32, steps=400, seeds=2)
    ds = trained(case)
    assert np.isfinite(ds.relative_margin.isel(step=0)).all()
    assert np.isnan(ds.relative_margin.isel(step=-1)).all()


def test_amplitudes_of_the_construction_are_equal():
    network = constructed(3, 7)
    assert float(amplitude_spread(network).max()) < 1e-6
    longer = eqx.tree_at(lambda n: n.output, network, 3 * network.output)  # norms 1, 1, 1, 3: deviation √3/2, mean 3/2
    assert float(amplitude_spread(longer).mean()) == pytest.approx(3**0.5 / 3, rel=1e-5)
