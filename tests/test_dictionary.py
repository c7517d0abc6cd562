import math
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from krogh.errors import InputError
from krogh.nn.fixed_features import Tangent, ridge_head, sum_over_chunks
from krogh.nn.truncated import PairedTruncated, smoothed_gate, smoothed_relu, truncated_relu
from krogh.systems.pattern_dictionary.bounds import largest_overlap
from krogh.systems.pattern_dictionary.general import General
from krogh.systems.pattern_dictionary.recipe import LEARNERS, Setting, aggressive, bias_updates
from krogh.systems.pattern_dictionary.tables import robust_in_dimension, weighting_is_needed
from krogh.tasks.clusters import ClusterParity
from krogh.tasks.dictionary import IntervalDictionary, LookupDictionary, ParityDictionary, max_coherence
from krogh.theory import dictionary as theory
from krogh.theory.boolean import character, cube
from krogh.train.losses import hinge
from krogh.train.program import DATA, INIT, stream
from krogh.train.sweep import train


def moments(task, n=100_000, seed=0):
    phi, y = task.patterns(jr.key(seed), n)
    return np.asarray(phi, float), np.asarray(y, float)


@pytest.mark.parametrize("task", [ParityDictionary(), ParityDictionary(negative=0.8), IntervalDictionary()])
def test_sampled_moments_match_the_definitions(task):
    phi, y = moments(task)
    np.testing.assert_allclose(phi.mean(0), task.means, atol=0.006)
    x = np.asarray(task.sample(jr.key(1), 50_000).x)
    np.testing.assert_allclose(x.mean(0), 0, atol=0.003)
    np.testing.assert_allclose((x**2).sum(1).mean(), 1, atol=0.01)


def test_parity_mixture_has_the_derived_constants():
    task = ParityDictionary()
    phi, y = moments(task)
    count = phi[:, :5].sum(1)
    np.testing.assert_array_equal(y, np.where(count % 2 == 1, 1, -1))
    assert task.gamma == 0.25 and task.variance == pytest.approx(25) and y.mean() == 0
    np.testing.assert_allclose((y[:, None] * phi).mean(0)[:5], 0.25, atol=0.005)
    np.testing.assert_allclose((y[:, None] * phi).mean(0)[5:], 0, atol=0.006)
    # half the mass is D1, where all relevant patterns agree; D0 adds 2/32
    assert np.isin(count, (0, 5)).mean() == pytest.approx(0.5 + 0.5 / 16, abs=0.004)
    np.testing.assert_allclose(np.linalg.norm(task.sample(jr.key(0), 100).x, axis=1), 1, rtol=1e-5)


def test_class_shares_are_exact_and_conditional_laws_unchanged():
    balanced, skewed = moments(ParityDictionary()), moments(ParityDictionary(negative=0.9))
    assert (skewed[1] < 0).mean() == pytest.approx(0.9, abs=1e-5)
    for label in (-1, 1):
        np.testing.assert_allclose(
            balanced[0][balanced[1] == label].mean(0), skewed[0][skewed[1] == label].mean(0), atol=0.02
        )


def test_unstructured_patterns_are_uniform_with_the_same_labeller():
    phi, y = moments(ParityDictionary(structure=0.0))
    np.testing.assert_array_equal(y, np.where(phi[:, :5].sum(1) % 2 == 1, 1, -1))
    signs = 2 * phi - 1
    np.testing.assert_allclose((y[:, None] * signs).mean(0), 0, atol=0.012)
    assert (y * signs[:, :5].prod(1)).mean() == 1


def test_interval_labels_have_the_exact_class_share_and_gamma():
    task = IntervalDictionary()
    assert task.positive == pytest.approx(0.58476, abs=1e-5) and task.gamma == pytest.approx(0.06801, abs=1e-5)
    assert task.variance == pytest.approx(24.1667, abs=1e-3)
    assert IntervalDictionary(structure=0.0).positive == pytest.approx(0.04937, abs=1e-5)
    phi, y = moments(task)
    assert (y > 0).mean() == pytest.approx(task.positive, abs=0.004)
    covariance = (y[:, None] * phi).mean(0) - y.mean() * phi.mean(0)
    np.testing.assert_allclose(covariance[:30].mean(), task.gamma, atol=0.001)


def test_lookup_labels_are_a_function_of_the_relevant_word():
    task = LookupDictionary(D=30, k=12, words=8).instance(jr.key(3))
    phi, y = moments(task, 5000)
    for word, label in zip(np.asarray(task.codes), [1] * 4 + [-1] * 4, strict=True):
        rows = (phi[:, :12] == word).all(1)
        assert rows.any() and (y[rows] == label).all()
    np.testing.assert_allclose(phi.mean(0), task.means, atol=0.04)


def test_dictionary_columns_and_noise():
    task = ParityDictionary(D=20, d=60, noise=0.1).instance(jr.key(0))
    np.testing.assert_allclose(task.dictionary.T @ task.dictionary, np.eye(20), atol=1e-5)
    x = task.sample(jr.key(1), 50_000).x
    assert float(jnp.mean(jnp.sum(x**2, axis=1))) == pytest.approx(1, abs=0.01)
    assert task.variance == pytest.approx(20 / 4 + 60 * 0.01, rel=1e-5)
    rough = ParityDictionary(D=20, d=60, coherence=1e-3).instance(jr.key(0)).dictionary
    np.testing.assert_allclose(np.linalg.norm(rough, axis=0), 1, rtol=1e-5)
    assert 0 < max_coherence(rough) < 1e-3


def test_dictionary_input_errors():
    with pytest.raises(InputError, match="odd k"):
        ParityDictionary(k=4)
    with pytest.raises(InputError, match="d >= D"):
        ParityDictionary(d=50)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ParityDictionary(p_o=0.3)
    assert "(A2)" in str(caught[0].message)


def test_cluster_parity_moments():
    task = ClusterParity(d=25, k=4, sigma_r=0.7).instance(jr.key(0))
    assert task.centres.shape == (16, 25)
    np.testing.assert_allclose(np.linalg.norm(task.centres, axis=1), 2, rtol=1e-5)
    bare = ClusterParity(d=25, k=4, sigma_r=0.0).instance(jr.key(0)).sample(jr.key(2), 200).x
    distance = jnp.linalg.norm(bare[:, None] - task.centres, axis=-1)
    assert (jnp.min(distance, axis=1) < 1e-5).all() and len(set(jnp.argmin(distance, axis=1).tolist())) == 16
    x, y, _ = task.sample(jr.key(1), 100_000)
    signs = x @ task.dictionary
    assert float(jnp.mean(jnp.sum(x**2, axis=1))) == pytest.approx(4 + 0.49 * 4, rel=0.01)
    assert float(jnp.mean(y * jnp.prod(signs, axis=1))) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("sigma_xi", [0.03, 5**-1.5, 0.8])
def test_smoothing_is_the_gaussian_average(sigma_xi):
    z, xi = jnp.linspace(-0.5, 1.5, 41), jnp.linspace(-8, 8, 4001)
    law = jnp.exp(-(xi**2) / 2) / jnp.sum(jnp.exp(-(xi**2) / 2))
    np.testing.assert_allclose(smoothed_relu(z, sigma_xi), truncated_relu(z[:, None] + sigma_xi * xi) @ law, atol=1e-5)
    slope = jax.vmap(jax.grad(lambda u: smoothed_relu(u, sigma_xi)))(z)
    np.testing.assert_allclose(smoothed_gate(z, sigma_xi), slope, atol=1e-4)


def test_paired_network_starts_at_zero_with_the_stated_scales():
    task = ParityDictionary()
    network = PairedTruncated(m=4000).build(task, jr.key(0))
    x = task.sample(jr.key(1), 32).x
    np.testing.assert_allclose(jax.vmap(network)(x), 0, atol=2e-3)
    np.testing.assert_allclose(
        [network.weights.std(), network.bias.std(), network.output.std()], [0.2, 0.04, 4], rtol=0.05
    )


@pytest.mark.parametrize("sigma_xi", [0.0, 5**-1.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_formula_matches_autodiff(sigma_xi, weighted):
    with jax.enable_x64(True):
        task = ParityDictionary(D=20, negative=0.7)
        network = theory.as_float64(PairedTruncated(m=16).build(task, jr.key(0)))
        network = eqx.tree_at(lambda n: n.output, network, 0.3 * jr.normal(jr.key(5), (32,), jnp.float64))
        x, y, _ = task.sample(jr.key(1), 700)
        alpha = theory.class_weights(y) if weighted else jnp.ones_like(y)

        def loss(network):
            z = x @ network.weights + network.bias
            hidden = smoothed_relu(z, sigma_xi) if sigma_xi else truncated_relu(z)
            return jnp.mean(alpha * jax.vmap(hinge)(hidden @ network.output, y))

        exact, formula = jax.grad(loss)(network), theory.gradient(network, x, y, sigma_xi, alpha, chunk=150)
        for name in ("weights", "bias", "output"):
            np.testing.assert_allclose(getattr(formula, name), getattr(exact, name), rtol=1e-9, atol=1e-12)


@given(st.integers(1, 30), st.data())
@settings(max_examples=30, deadline=None)
def test_constructive_network_is_the_label(k, data):
    positive = data.draw(st.sets(st.integers(1, k)))
    u = data.draw(st.floats(0, k))
    counts = np.arange(k + 1.0)
    y = np.where(np.isin(counts, list(positive)), 1, -1)
    net = theory.constructive_network(k, positive, u)
    np.testing.assert_allclose(net(counts - u), y, atol=1e-9)
    assert len(net.bias) == 3 * (k + 1) and np.abs(net.output).max() <= 32 * k
    assert 1 / (32 * k) - 1e-12 <= np.abs(net.bias).min() and np.abs(net.bias).max() <= 0.5
    assert np.abs(net.preactivation(counts - u)).max() <= 1
    general = theory.constructive_network(k, positive, u, general=True)
    shifted = counts + data.draw(st.floats(-0.125, 0.125))
    assert (y * general(shifted - u) >= 1 - 1e-9).all()


def test_general_construction_breaks_the_printed_output_bound_only_in_its_second_variant():
    first, second = theory.constructions(5, {1, 3, 5}, 2.5, general=True)
    assert np.abs(first.output).max() == 64 * 5 and np.abs(second.output).max() == 128 * 5


def test_calculators_return_the_worked_numbers():
    guarantee = theory.network_guarantee(k=5, D=100, m=300, p_o=0.5, gamma=0.25)
    assert guarantee.terms["k^8/m^(2/3)"] == pytest.approx(8717, rel=1e-3)
    assert guarantee.conditions[0].needed == pytest.approx(80.8, abs=0.1)
    assert not guarantee.applies and "outside the regime" in str(guarantee) and "vacuous" in str(guarantee)
    assert theory.statistical_queries(100, 5).needed == pytest.approx(211.1, abs=0.05)
    assert theory.largest_useful_norm(600, 100, 5) == pytest.approx((0.9238, 354.2), rel=1e-3)
    assert theory.threshold_ceiling(5, 0.5) == 0.84375 and theory.blind_ceiling(0.5) == 0.75
    assert theory.predicted_cosine(10_000, 100, 5, 0.5, 0.25) == pytest.approx(0.9962, abs=1e-4)
    assert theory.schedule(5, 300, 0.25, 25, 600).theorem == pytest.approx(1.157e-8, rel=1e-3)


def test_chunks_add_up_whatever_their_size():
    x = jr.normal(jr.key(0), (103, 4))
    whole = x.T @ x
    for chunk in (7, 50, 103, 1000):
        np.testing.assert_allclose(
            sum_over_chunks(lambda w, x: (x * w[:, None]).T @ x, x, chunk=chunk), whole, rtol=1e-4
        )


def test_ridge_head_solves_the_normal_equations_even_for_nearly_constant_features():
    with jax.enable_x64(True):
        x = jr.normal(jr.key(0), (500, 3), jnp.float64)
        y = x @ jnp.array([1.0, -2.0, 0.5]) + 3
        exact = ridge_head(lambda x: x, x, y, relative=0.0, chunk=64)
        np.testing.assert_allclose(exact(x), y, atol=1e-9)
        tiny = ridge_head(lambda x: 0.3 + 1e-8 * x, x, y, relative=1e-5)
        assert float(jnp.max(jnp.abs(tiny(0.3 + 1e-8 * x) - y))) < 1e-3


def test_tangent_network_is_linear_in_its_parameters_and_starts_at_zero():
    task = ParityDictionary(D=20)
    network = Tangent(PairedTruncated(m=8)).build(task, jr.key(0))
    x = task.sample(jr.key(1), 16).x
    np.testing.assert_array_equal(jax.vmap(network)(x), 0)
    tangent = jax.tree.map(lambda a: jr.normal(jr.key(2), a.shape), network.tangent)
    moved = eqx.tree_at(lambda n: n.tangent, network, tangent)
    twice = eqx.tree_at(lambda n: n.tangent, network, jax.tree.map(lambda a: 2 * a, tangent))
    np.testing.assert_allclose(2 * jax.vmap(moved)(x), jax.vmap(twice)(x), rtol=1e-5)
    # the coefficient of output i is the frozen feature sigma(z_i)
    unit = eqx.tree_at(lambda n: n.tangent.output, network, jnp.zeros(16).at[3].set(1.0))
    np.testing.assert_allclose(jax.vmap(unit)(x), network.origin.value.hidden(x)[:, 3], rtol=1e-5)


def test_two_wiped_steps_follow_the_derived_direction_and_magnitude():
    with jax.enable_x64(True):
        task = ParityDictionary(D=40)
        x, y, _ = task.sample(jr.key(1), 20_000)
        x, y = x.astype(jnp.float64), y.astype(jnp.float64)
        start = theory.as_float64(PairedTruncated(m=64).build(task, jr.key(0)))
        sigma_xi = 5**-1.5
        two = theory.second_step(theory.first_step(start, x, y, 1e-8, sigma_xi), x, y, sigma_xi)
        beta = theory.activation_probability(start.bias, sigma_xi)
        np.testing.assert_allclose(two.weights, jnp.outer(x.T @ y / len(y), start.output * beta), rtol=1e-4, atol=1e-6)
        cosine = np.abs(task.feature @ two.weights) / np.linalg.norm(two.weights, axis=0) / math.sqrt(5)
        predicted = theory.predicted_cosine(20_000, 40, 5, 0.5, 0.25)
        assert float(np.median(cosine)) == pytest.approx(float(predicted), abs=2e-3)


def test_explicit_head_separates_when_every_target_has_neurons():
    k, u, rng = 5, 2.5, np.random.default_rng(0)
    bias, slope = rng.uniform(-2, 2, 40_000) / k**2, rng.uniform(0, 0.8, 40_000)
    head = theory.explicit_head(theory.constructive_network(k, {1, 3, 5}, u), bias, slope, k, 1 / (4 * k**2))
    counts = np.arange(k + 1)
    g = np.clip(np.outer(counts - u, slope) + bias, 0, 1) @ head
    assert (np.where(counts % 2 == 1, 1, -1) * g >= 1).all()


@pytest.mark.parametrize("reading", ["wipe", "keep"])
def test_training_stages_equal_the_closed_form_steps(reading):
    s = Setting(D=20, m=8, n=600, reading=reading, lr1=1e-3, negative=0.7, weighted=True)
    task = s.task()
    run = train(task, PairedTruncated(m=s.m), aggressive(s, task), seeds=2, snapshots=(1,))
    for seed in range(2):
        x, y, _ = task.sample(stream(seed, DATA), s.n)
        start = PairedTruncated(m=s.m).build(task, stream(seed, INIT))
        one = theory.first_step(start, x, y, 1e-3, s.sigma_xi, theory.KEPT[reading], weighted=True)
        two = theory.second_step(one, x, y, s.sigma_xi, weighted=True)
        for name in ("weights", "bias", "output"):
            for trained, exact in ((run.network(seed=seed, step=1), one), (run.network(seed=seed), two)):
                np.testing.assert_allclose(getattr(trained, name), getattr(exact, name), rtol=2e-3, atol=2e-6)


def dimensions(reduced, network_at_2000=1.0):
    """A table by dimension in which everything is as claimed but, if so asked, the network at d = 2000."""
    learners = [*LEARNERS, "two steps"]
    test = np.tile(np.reshape([1.0, 0.8, 0.75, 1.0], (1, 1, 4, 1, 1)), (2, 1, 1, 5, 1))
    test[1, 0, 0] = network_at_2000
    dims = ("d", "structure", "learner", "seed", "step")
    coords = {"d": [100, 2000], "structure": ["with"], "learner": learners}
    return xr.Dataset({"test": (dims, test)}, coords, attrs={"D": 100, "reduced": int(reduced)})


def test_reduced_coordinates_judge_no_first_layer_under_adam():
    assert robust_in_dimension.judge(dimensions(False)).outcome == "holds"
    assert robust_in_dimension.judge(dimensions(False, 0.7)).outcome == "fails"
    reduced = robust_in_dimension.judge(dimensions(True, 0.7))
    assert reduced.outcome == "holds"
    assert set(reduced.parts) == {"d_100_learns", "d_100_fixed", "d_2000_two_steps", "d_2000_random"}


@pytest.mark.parametrize(("update", "outcome"), [(0.5, "fails"), (3.0, "holds")])
def test_unweighted_steps_are_judged_by_their_bias_update(update, outcome):
    shape = ("negative share", "steps", "seed")
    ds = xr.Dataset(
        {
            "ridge": (("negative share", "learner", "seed"), np.ones((1, 1, 4))),
            "unweighted": (("negative share", "head_seed"), np.full((1, 4), 0.9)),
            "bias_update_largest": (shape, np.stack([np.zeros((1, 4)), np.full((1, 4), update)], axis=1)),
        },
        {"negative share": [0.8], "learner": ["two steps"], "steps": ["weighted", "unweighted"]},
    )
    assert weighting_is_needed.judge(ds).outcome == outcome


def test_class_weights_keep_the_biases():
    s = Setting(D=20, m=32, n=4000, negative=0.8, seeds=2, weighted=True)
    plain = bias_updates(Setting(D=20, m=32, n=4000, negative=0.8, seeds=2))
    assert (bias_updates(s).largest < 0.3 * plain.largest).all() and (plain["median"] <= plain.largest).all()


def test_all_parities_are_orthogonal():
    parities = np.stack([character(cube(5), [i for i in range(5) if s >> i & 1]) for s in range(32)])
    gram = parities @ parities.T / 32
    assert largest_overlap(5) == abs(gram - np.eye(32)).max() == 0


def test_general_variance_counts_the_input_noise():
    s = General(d=500, negative=0.8)
    assert s.variance(0.0) == pytest.approx(95 / 4 + 5 * 0.35 * 0.65, rel=1e-5)
    assert s.variance(0.1) == pytest.approx(s.variance(0.0) + 500 * 0.01, rel=1e-5)
