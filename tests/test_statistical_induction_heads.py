"""Facts about Markov chains in context: samplers, strategies, exact gradients, minimal model, induction head."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import krogh as kr
from krogh.errors import InputError
from krogh.nn.decoder import CausalTransformer
from krogh.nn.minimal_induction import MinimalInduction, MinimalInductionNetwork
from krogh.probes.markov import (
    OnOtherChains,
    divergences,
    even_odd,
    induction_scores,
    last_log_probabilities,
    positional_weights,
)
from krogh.systems.statistical_induction_heads import minimal, priors, theory, transformer
from krogh.systems.statistical_induction_heads.learning import halved, transition
from krogh.systems.statistical_induction_heads.theory import margin_loss
from krogh.tasks.markov import MarkovChains, Mixture, dirichlet, doubly_stochastic, stationary, unigrams
from krogh.theory import markov
from krogh.train.losses import mean_cross_entropy

# ------------------------------------------------------------------------------------------- sampling


@pytest.mark.parametrize("states", [2, 3, 5])
def test_stationary_laws_solve_the_linear_system(states):
    chains = dirichlet(jax.random.key(0), 50, states, states)
    law = np.asarray(stationary(chains))
    np.testing.assert_allclose(np.einsum("bi,bij->bj", law, chains), law, atol=1e-6)
    np.testing.assert_allclose(law.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(law, markov.stationary_law(np.asarray(chains, float)), atol=1e-5)
    periodic = jnp.array([[1e-6, 1 - 1e-6], [1.0, 0.0]])
    np.testing.assert_allclose(stationary(periodic), [0.5, 0.5], atol=1e-6)


def test_walks_follow_their_chain():
    """Frequencies of pairs and of the first symbol, for one chain and many walks."""
    task = MarkovChains(3, 40)
    row = jnp.array([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25], [0.8, 0.0, 0.2]])
    walks = np.asarray(jax.jit(task.walk)(jax.random.key(0), jnp.broadcast_to(row, (4000, 3, 3))))
    assert walks.shape == (4000, 41)
    for p in (0, 1, 20, 39):
        pairs = np.zeros((3, 3))
        np.add.at(pairs, (walks[:, p], walks[:, p + 1]), 1)
        law = np.asarray(stationary(row))
        np.testing.assert_allclose(pairs / 4000, law[:, None] * np.asarray(row), atol=0.03)
    assert not ((walks[:, :-1] == 2) & (walks[:, 1:] == 1)).any()


def test_trigram_walks_follow_their_rows():
    task = MarkovChains(2, 30, n=3)
    rows = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.4, 0.6]])
    walks = np.asarray(jax.jit(task.walk)(jax.random.key(1), jnp.broadcast_to(rows, (6000, 4, 2)))).astype(int)
    assert walks.shape == (6000, 31)
    for p in (0, 13, 28):
        context = 2 * walks[:, p] + walks[:, p + 1]
        for c in range(4):
            share = np.mean(walks[context == c, p + 2])
            assert abs(share - float(rows[c, 1])) < 0.05
    # stationary from the first pair on
    first, later = (np.bincount(2 * walks[:, p] + walks[:, p + 1], minlength=4) / 6000 for p in (0, 25))
    np.testing.assert_allclose(first, later, atol=0.03)


def test_longer_contexts_open_stationary():
    """Order 3: the first triple has the law of a later one, which a wrong order of its symbols would not have."""
    task = MarkovChains(2, 20, n=4)
    rows = jax.random.dirichlet(jax.random.key(5), jnp.full(2, 0.5), (8,))
    walks = np.asarray(jax.jit(task.walk)(jax.random.key(1), jnp.broadcast_to(rows, (20_000, 8, 2)))).astype(int)
    first, later = (np.bincount(walks[:, p : p + 3] @ [4, 2, 1], minlength=8) / 20_000 for p in (0, 15))
    np.testing.assert_allclose(first, later, atol=0.015)
    assert np.abs(first - first.reshape(2, 2, 2).transpose(1, 0, 2).ravel()).max() > 0.05


def test_labels_and_truth_belong_to_the_sequence():
    task = MarkovChains(3, 25, n=3)
    key = jax.random.key(3)
    batch = jax.jit(lambda key: task.sample(key, 8))(key)
    np.testing.assert_array_equal(batch.x[:, 1:], batch.y[:, :-1])
    rows = task.rows(jax.random.split(key)[0], 8)
    expected = [rows[b, 3 * batch.x[b, -2] + batch.x[b, -1]] for b in range(8)]
    np.testing.assert_allclose(batch.latents["next"], np.stack(expected))


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_doubly_stochastic_matrices_are_uniform(k):
    """Entries are non-negative with rows and columns summing to one; entry (1, 1) has the law of every other one."""
    chains = np.asarray(doubly_stochastic(jax.random.key(0), 3000, k, k))
    assert chains.min() >= 0
    np.testing.assert_allclose(chains.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(chains.sum(2), 1, atol=1e-5)
    squares = (chains**2).mean(0)
    np.testing.assert_allclose(squares, squares.mean(), rtol=0.12)


def test_other_priors():
    flat = np.asarray(dirichlet(jax.random.key(0), 4000, 3, 3))
    np.testing.assert_allclose((flat**2).mean((0, 1)), 2 / (3 * 4), rtol=0.03)
    free = np.asarray(unigrams(jax.random.key(0), 4000, 3, 3))
    np.testing.assert_array_equal(free[:, 0], free[:, 2])
    np.testing.assert_allclose((free[:, 0] ** 2).mean(0), 2 / (3 * 4), rtol=0.1)
    mixed = np.asarray(Mixture(doubly_stochastic, unigrams, 0.25)(jax.random.key(0), 4000, 3, 3))
    same = np.all(mixed == mixed[:, :1], axis=(1, 2))
    assert abs(same.mean() - 0.25) < 0.03
    np.testing.assert_allclose(mixed[~same].sum(1), 1, atol=1e-5)
    with pytest.raises(InputError, match="from 2 to 5"):
        MarkovChains(6, 10, prior=doubly_stochastic).sample(jax.random.key(0), 2)
    with pytest.raises(InputError, match="k must be"):
        MarkovChains(1)


@pytest.mark.parametrize(("k", "n"), [(257, 2), (17, 3)])
def test_more_contexts_than_a_byte_counts_are_refused(k, n):
    assert MarkovChains(16, n=3).contexts == 256
    with pytest.raises(InputError, match=f"give {k ** (n - 1)} contexts"):
        MarkovChains(k, n=n)


# ------------------------------------------------------------------------------------------- strategies


def test_grams_count():
    x = jnp.array([0, 1, 1, 0, 1, 2, 0, 1])
    np.testing.assert_allclose(markov.gram(x, 3, 0), [1 / 3] * 3)
    np.testing.assert_allclose(markov.gram(x, 3, 1), np.array([4, 5, 2]) / 11)
    np.testing.assert_allclose(markov.gram(x, 3, 2), np.array([2, 2, 2]) / 6)  # after 1: 1, 0, 2
    np.testing.assert_allclose(markov.gram(x, 3, 3), np.array([1, 2, 2]) / 5)  # after 0 1: 1, 2


def test_divergence_is_zero_only_at_home():
    p = jnp.array([0.2, 0.5, 0.3])
    assert float(markov.divergence(p, jnp.log(p))) == pytest.approx(0, abs=1e-7)
    assert float(markov.divergence(p, jnp.log(jnp.full(3, 1 / 3)))) == pytest.approx(
        float(np.log(3) + np.sum(p * np.log(p)))
    )


# ------------------------------------------------------------------------------------------- exact gradients


@pytest.mark.parametrize("k", [2, 3])
def test_population_gradients_are_those_of_all_sequences(k):
    """Autodiff of the margin loss summed over every sequence of length t + 1 with its probability."""
    t, rng = 4, np.random.default_rng(k)
    chain = rng.dirichlet(np.ones(k), k)
    law = markov.stationary_law(chain[None])[0]
    W, v = rng.uniform(0.1, 0.3, (k, k)), rng.uniform(0.1, 0.3, t)
    sequences = np.array(list(itertools.product(range(k), repeat=t + 1)))
    chance = law[sequences[:, 0]] * np.prod(chain[sequences[:, :-1], sequences[:, 1:]], axis=1)
    with jax.enable_x64(True):

        def loss(net):
            values = jax.vmap(lambda s: margin_loss(net(s[:-1]), s[1:], 50.0))(jnp.asarray(sequences))
            return jnp.sum(jnp.asarray(chance) * values)

        found = eqx.filter_grad(loss)(MinimalInductionNetwork(jnp.asarray(W), jnp.asarray(v)))
    for_match, for_lags = markov.population_gradients((chain[None], np.ones(1)), W, v)
    np.testing.assert_allclose(-found.match, for_match, atol=1e-7)
    np.testing.assert_allclose(-found.lags, for_lags, atol=1e-7)


def test_quadrature_agrees_with_sampled_chains():
    t = 12
    exact = markov.population_gradients(markov.flat_chains(), np.ones((2, 2)), np.ones(t))
    finer = markov.population_gradients(markov.flat_chains(200, 60), np.ones((2, 2)), np.ones(t))
    sampled = markov.population_gradients(
        markov.sampled_chains(np.random.default_rng(0), 2, 40_000), np.ones((2, 2)), np.ones(t)
    )
    for a, b, c in zip(exact, finer, sampled, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
        np.testing.assert_allclose(a, c, rtol=0.1)


def test_leading_constants_are_limits():
    """Closed forms to machine precision, and the finite-t gradients approach them."""
    found = markov.leading_constants()
    assert found["B"] == pytest.approx(markov.CLOSED["B"], abs=1e-12)
    assert found["A"] == pytest.approx(markov.CLOSED["A"], abs=1e-12)
    assert found["D"] == pytest.approx(markov.CLOSED["D"], abs=1e-12)
    np.testing.assert_allclose(found["e"][:2], [markov.CLOSED["e_1"], markov.CLOSED["e_2"]], atol=1e-12)
    errors = []
    for t in (40, 160):
        for_match, for_lags = markov.population_gradients(markov.flat_chains(60, 24), np.ones((2, 2)), np.ones(t))
        errors.append(
            [
                abs(for_match[0, 0] / ((t + 1) * (t + 2) / 6 * found["B"]) - 1),
                abs(for_lags[0] / (markov.pairs(t)[0] * found["D"]) - 1),
            ]
        )
    assert (np.array(errors[1]) < np.array(errors[0]) / 2).all()


def test_chains_without_unigrams():
    for_match, for_lags = markov.population_gradients(markov.symmetric_chains(), np.ones((2, 2)), np.ones(30))
    np.testing.assert_allclose(for_match - np.diag(np.diag(for_match)), 0, atol=1e-12)
    np.testing.assert_allclose(for_lags, markov.symmetric_lag_gradient(30), atol=1e-12)


def test_the_curriculum_ends_at_bigrams():
    t, eps = 400, 0.25
    first = markov.population_step(markov.flat_chains(60, 20), np.zeros((2, 2)), np.ones(t), 1 / t**2)
    W, v = markov.population_step(markov.symmetric_chains(eps, 60), *first, 1 / t, decay=1.0)
    assert np.argmax(v) == 1
    assert W[0, 0] == pytest.approx(markov.curriculum_match(t, eps, 1.0, 1 / t), rel=0.01)
    assert abs(W[0, 1]) < 1e-10 < W[0, 0]
    assert markov.printed_curriculum_match(t, eps, 1.0, 1 / t) < 0
    for_match, for_lags = markov.population_gradients(markov.symmetric_chains(eps, 60), *first)
    for decay in (0.0, 1.0):
        W, v = markov.population_step(markov.symmetric_chains(eps, 60), *first, 0.5, decay)
        np.testing.assert_allclose(W, (1 - decay) * first[0] + for_match / 2)
        np.testing.assert_allclose(v, (1 - decay) * first[1] + for_lags / 2)


def test_printed_forms_differ_where_they_are_wrong():
    assert markov.CLOSED["e_2"] - markov.PRINTED_E_2 == pytest.approx((8 * np.log(2) - 5) / 3)
    assert (markov.printed_symmetric_lag_gradient(30) < 0).all() and (markov.symmetric_lag_gradient(30)[:-1] > 0).all()
    np.testing.assert_allclose(markov.printed_symmetric_lag_gradient(2), [-0.5, -0.25])


# ------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize("normalised", [False, True])
def test_the_minimal_model_is_its_printed_sum(normalised):
    rng = np.random.default_rng(0)
    W, v, x = rng.normal(size=(3, 3)), rng.normal(size=7), rng.integers(0, 3, 7)
    net = MinimalInductionNetwork(jnp.asarray(W, jnp.float32), jnp.asarray(v, jnp.float32), normalised)
    expected = np.zeros((7, 3))
    for p in range(7):
        for q in range(p + 1):
            weights = v[: q + 1] if not normalised else np.exp(v[: q + 1]) / np.exp(v[: q + 1]).sum()
            expected[p, x[q]] += sum(weights[q - s] * W[x[p], x[s]] for s in range(q + 1))
    np.testing.assert_allclose(net(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)


def test_the_minimal_model_starts_level():
    net = MinimalInduction(match=0.3).build(MarkovChains(3, 8), jax.random.key(0))
    np.testing.assert_allclose(net.match, np.full((3, 3), 0.3))
    np.testing.assert_allclose(net.lags, np.full(8, 1 / 8))


@pytest.mark.parametrize("settings", [{}, {"layers": 1, "mlp": 8}, {"norm": False, "projection": False}, {"heads": 2}])
def test_a_decoder_on_few_symbols_sees_only_the_past(settings):
    task = MarkovChains(3, 12)
    net = CausalTransformer(emb=8, scale=0.5, **settings).build(task, jax.random.key(0))
    x = jnp.array([0, 2, 2, 1, 0, 0, 1, 2, 1, 1, 0, 2])
    run = eqx.filter_jit(net)
    found = run(x)
    np.testing.assert_allclose(found[:7], run(x.at[7:].set(0))[:7], rtol=1e-4, atol=1e-5)
    last = eqx.filter_jit(last_log_probabilities)(net, x[None])[0]
    np.testing.assert_allclose(last, jax.nn.log_softmax(found[-1]), atol=1e-4)


def test_the_printed_form_has_no_norm_and_no_projection():
    net = CausalTransformer(norm=False, projection=False).build(MarkovChains(3, 12), jax.random.key(0))
    assert net.norm is None and all(b.norm is None and b.attention.out is None for b in net.blocks)
    assert sum(a.size for a in jax.tree.leaves(eqx.filter(net, eqx.is_array))) == 2 * 3 * 16 + 2 * (3 * 16**2 + 12 * 16)
    with pytest.raises(InputError, match="without projection"):
        CausalTransformer(projection=False, attn=4)


def test_the_induction_head_averages_followers():
    x = np.random.default_rng(0).integers(0, 3, (6, 40))
    network = markov.induction_head(3, 40, 100.0)
    head = eqx.filter_jit(network)
    for row in x:
        found, expected = np.asarray(head(jnp.asarray(row))), markov.followers(row, 3, first=True)
        seen = ~np.isnan(expected[:, 0])
        np.testing.assert_allclose(found[seen], expected[seen], atol=1e-3)
    louder = eqx.filter_jit(markov.induction_head(3, 40, 100.0, readout=3.0))
    np.testing.assert_allclose(louder(jnp.asarray(x[0])), 3 * head(jnp.asarray(x[0])), rtol=1e-5)
    np.testing.assert_array_equal(markov.followers(np.array([1, 0, 1]), 2, first=False)[[0, 2]], [[np.nan] * 2, [1, 0]])
    first, second = eqx.filter_jit(lambda x: network.attention(x))(jnp.asarray(x[0]))
    np.testing.assert_allclose(np.diagonal(first[0], -1), 1, atol=1e-4)
    follows = np.append(False, x[0][:-1] == x[0][-1]) | ((np.arange(40) == 0) & (x[0][0] == x[0][-1]))
    np.testing.assert_allclose(second[0, -1], follows / follows.sum(), atol=1e-4)


def test_probes_of_the_induction_head():
    task = MarkovChains(3, 60)
    batch = jax.jit(lambda key: task.sample(key, 128))(jax.random.key(2))
    head = markov.induction_head(3, 60, 100.0, readout=3.0)
    scores = eqx.filter_jit(induction_scores)(head, batch)
    assert float(scores["previous"]) == pytest.approx(1, abs=1e-4) and float(scores["induction"]) > 0.9
    np.testing.assert_allclose(scores["by_lag"], np.eye(8)[1], atol=1e-4)
    np.testing.assert_allclose(eqx.filter_jit(positional_weights)(head), np.eye(12)[1], atol=1e-4)
    distances = eqx.filter_jit(divergences())(head, batch)
    assert int(jnp.argmin(distances["kl_to"])) == 2 and distances["kl"] < distances["level"][1]
    follows = (np.asarray(batch.x[:64, :-1]) == np.asarray(batch.x[:64, -1:])).sum(axis=1) / 60
    assert float(scores["baseline"]) == pytest.approx(follows.mean(), rel=1e-5)
    assert even_odd(np.array([9.0, 3, 1, 4, 2, 5, 6, 9])) == 4 - 3


def test_probes_of_a_random_network():
    """Weights by place and both divergences, from their definitions."""
    task = MarkovChains(3, 20)
    net = CausalTransformer(emb=8, attn=4, scale=1.0).build(task, jax.random.key(0))
    block = net.blocks[0]
    query = np.asarray(block.norm(net.tokens)) @ np.asarray(block.attention.query[:, 0])
    weights = jax.nn.softmax(query @ np.asarray(block.attention.lags[:, 0]).T / 2, axis=1)
    np.testing.assert_allclose(positional_weights(net), weights.mean(0)[:12], rtol=1e-3)
    batch = task.sample(jax.random.key(1), 50)
    model = np.asarray(eqx.filter_jit(last_log_probabilities)(net, batch.x))
    found = eqx.filter_jit(divergences())(net, batch)
    assert float(found["kl_to"][0]) == pytest.approx(float((-np.log(3) - model.mean(axis=1)).mean()), rel=1e-3)
    other = eqx.filter_jit(OnOtherChains(unigrams, "free", 4000))(net, task, jax.random.key(2))
    # of 20 independent symbols counting loses about (k - 1)/(2 · 20), saying nothing log k - E H = log 3 - 5/6
    np.testing.assert_allclose(other["level_free"][:2], [np.log(3) - 5 / 6, 0.05], atol=0.02)
    assert float(other["kl_free"]) > float(other["level_free"][0])


def test_training_moves_the_minimal_model_to_its_bias():
    run = kr.train(
        MarkovChains(2, 30),
        MinimalInduction(),
        kr.SGD(lr=2e-2, batch=64, loss=mean_cross_entropy),
        20,
        seeds=4,
        probes=[divergences()],
        every=20,
        validation=64,
    )
    W = run.networks.match
    assert (np.diagonal(W, axis1=1, axis2=2).min(axis=1) > 2 * np.abs(W[:, 0, 1])).all()
    assert run.data.kl_to.dims == ("seed", "step", "strategy")


# ------------------------------------------------------------------------------------------- predicates


LEVEL = np.array([0.28, 0.16, 0.025])


def staged(begins, falls, steps=3000, end: float | list[float] = 0.04, every=40):
    """Records of seeds that leave the unigram plateau at `begins` and reach the KL `end` after `falls` steps."""
    step = np.arange(0, steps + 1, every)
    done = np.clip((step - np.array(begins)[:, None]) / np.array(falls)[:, None], 0, 1)
    kl = np.where(step == 0, LEVEL[0], LEVEL[1] + done * (np.broadcast_to(end, len(begins))[:, None] - LEVEL[1]))
    to = np.stack([np.where(step == 0, 0.0, 0.3) + 0 * kl, 0.05 + 0.1 * done, 0.14 - 0.1 * done], -1)
    dims = ("seed", "step", "strategy")
    return xr.Dataset(
        {"kl": (dims[:2], kl), "kl_to": (dims, to), "level": (dims, np.broadcast_to(LEVEL, to.shape))},
        coords={"step": step, "strategy": list(markov.STRATEGIES[:3])},
        attrs={"steps": steps},
    )


BEGINS = tuple(range(1000, 1400, 40))


def test_the_fall_is_a_share_of_the_training():
    assert transformer.three_stages.judge(staged(BEGINS, [400] * 10)).outcome == "holds"
    # 0.8 to 0.3 of the plateau is two thirds of the way: 560 steps
    slow = [840] * 10
    assert transformer.three_stages.judge(staged(BEGINS, slow)).parts["fall"].outcome == "holds"
    assert transformer.three_stages.judge(staged(BEGINS, slow, steps=2400)).parts["fall"].outcome == "fails"


def test_every_seed_must_fall_and_end_low():
    assert transformer.every_seed.judge(staged(BEGINS, [400] * 10)).outcome == "holds"
    slow = staged(BEGINS, [400] * 9 + [1200])
    assert transformer.three_stages.judge(slow).outcome == "holds"
    high = staged(BEGINS, [400] * 10, end=[0.03] * 9 + [0.057])
    for ds, wrong in ((slow, {"fall"}), (high, {"bigram_level", "unigram_level", "fall"})):
        parts = transformer.every_seed.judge(ds).parts
        assert {name for name, part in parts.items() if part.outcome == "fails"} == wrong


def test_both_times_of_the_transition():
    ds = staged((1000, 1200), (400, 400))
    np.testing.assert_array_equal(transition(ds), [1200, 1400])
    np.testing.assert_array_equal(halved(ds), [1280, 1480])
    assert np.isinf(halved(staged((1000,), (4000,)))).all()


@pytest.mark.parametrize(("shift", "outcome"), [(0, "fails"), (-40, "holds"), (-600, "holds"), (-640, "fails")])
def test_even_places_count_before_the_transition_only(shift, outcome):
    ds = staged(BEGINS, [400] * 10)
    even = xr.DataArray(np.arange(12) % 2, dims="place")
    places = 0.5 + (ds.step == transition(ds) + shift) * even
    assert transformer.even_places.judge(ds.assign(positional=places)).outcome == outcome


def test_even_places_must_lead_at_records_twenty_steps_apart():
    ds = staged(BEGINS, [400] * 10, steps=2000, every=1)
    ds = ds.isel(step=np.isin(ds.step, [*range(20), *range(0, 2001, 10)]))
    match = xr.DataArray([[1.0, 0.1], [0.1, 1.0]], dims=("row", "column"), coords={"row": [0, 1], "column": [0, 1]})
    ds = ds.assign(match=xr.ones_like(ds.kl) * match)
    for last, outcome in ((19, "fails"), (80, "fails"), (100, "holds")):
        lead = (ds.step > 0) & (ds.step <= last)
        lags = 0.01 + 0.01 * lead * xr.DataArray(np.arange(12) % 2, dims="place") + 0 * ds.kl
        parts = minimal.reaches_bigrams.judge(ds.assign(lags=lags)).parts
        assert parts["even_first"].outcome == outcome


def test_small_levels_have_a_small_tolerance():
    cases = [theory._case(*case) for case in theory.REFERENCE]
    values = np.full((6, 4, 8), np.nan)
    for i, row in enumerate(theory.REFERENCE.values()):
        values[i, : len(row)] = np.array(row)[:, None]
    coords = {"case": cases, "strategy": list(markov.STRATEGIES)}
    ds = xr.Dataset({"level": (("case", "strategy", "seed"), values)}, coords=coords)
    assert theory.whole_table.judge(ds).outcome == "holds"
    for shift, wrong in ((0.0015, 3), (0.003, 5), (0.005, 13)):
        parts = theory.whole_table.judge(ds + shift).parts.values()
        assert sum(part.outcome == "fails" for part in parts) == wrong


def test_shares_of_a_mixture_give_whole_numbers_of_batches():
    assert [priors.whole_ratio(share) for share in (0.0, 0.5, 2 / 3, 0.75)] == [1, 2, 3, 4]
    for share in (0.3, 0.6, 1.0, -1.0, 1.5):
        with pytest.raises(InputError, match="whole number"):
            priors.whole_ratio(share)


@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_one_layer_trains_eight_times_as_long(preset):
    assert priors.one_layer.settings(preset).steps >= 8 * transformer.stages.settings("quick").steps
