"""Facts about prompts of patterns, the one-layer Transformer on them, and what is predicted of it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gamma

from krogh.errors import InputError
from krogh.nn.prompt_transformer import PromptTransformer
from krogh.probes.classical import CLASSICAL, classical_errors
from krogh.probes.prompts import (
    attention_mass,
    errors,
    kept_neurons,
    lucky_neurons,
    neuron_alignment,
    outputs_by_length,
    pattern_projections,
    pruned_outputs,
)
from krogh.probes.trained import over_networks
from krogh.systems.icl_nonlinear_transformer.mechanism import several_heads
from krogh.systems.icl_nonlinear_transformer.models import smallest_length
from krogh.tasks.pattern_prompts import all_tasks, cyclic_tasks, pattern_prompts, same_pattern, shifted_patterns
from krogh.theory import prompt_classification as theory
from krogh.train import SGD, train


@pytest.fixture(scope="module")
def task():
    return pattern_prompts()


@pytest.fixture(scope="module")
def moved(task):
    """A network away from its symmetric start."""
    network = PromptTransformer(width=20).build(task, jax.random.key(1))
    noise = jax.random.normal(jax.random.key(2), (3, 60, 1, 60)) * 0.05
    matrices = (network.query, network.key, network.value)
    return eqx.tree_at(
        lambda n: (n.query, n.key, n.value), network, tuple(m + e for m, e in zip(matrices, noise, strict=True))
    )


# ------------------------------------------------------------------------------------------- prompts


def test_prompts_hold_their_latents(task):
    """x = β(μ_j + κ ν_k) with |κ| ≤ K, y = ±q by the task's rule, and a query whose label row is 0."""
    batch = task.sample(jax.random.key(0), 500)
    x, y = np.split(np.asarray(batch.x), [30], axis=-1)
    pattern = np.concatenate([batch.latents["pattern"], batch.latents["query_pattern"][:, None]], axis=1)
    rest = x / 3 - np.asarray(task.relevant)[pattern]
    along = rest @ np.asarray(task.irrelevant).T
    np.testing.assert_allclose(np.abs(along).max(-1), np.linalg.norm(rest, axis=-1), atol=1e-5)
    assert 0.45 < along.max() < 0.5 and -0.5 < along.min() < -0.45
    used = np.bincount(np.abs(along).argmax(-1).ravel(), minlength=24) / along[..., 0].size
    np.testing.assert_allclose(used, 1 / 24, atol=0.01)
    np.testing.assert_allclose(task.mean_pattern, 3 * np.asarray(task.relevant).mean(0), atol=1e-6)
    np.testing.assert_array_equal(y[:, -1], 0)
    np.testing.assert_allclose(
        y[:, :-1], np.asarray(batch.latents["sign"])[..., None] * np.asarray(task.label), atol=1e-6
    )
    own = np.asarray(same_pattern(batch))
    answers = np.broadcast_to(np.asarray(batch.y)[:, None], own.shape)
    np.testing.assert_array_equal(np.asarray(batch.latents["sign"])[own], answers[own])


@pytest.mark.parametrize(("alpha", "shares"), [(0.8, cyclic_tasks(6)), (0.3, all_tasks(6)), (1.0, cyclic_tasks(6, 4))])
def test_examples_follow_the_printed_law(task, alpha, shares):
    size = 4000
    prompts = eqx.tree_at(lambda t: (t.alpha, t.shares), task, (alpha, shares))
    batch = prompts.sample(jax.random.key(3), size)
    pattern, query = np.asarray(batch.latents["pattern"]), np.asarray(batch.latents["query_pattern"])
    z = np.asarray(batch.y)
    error = 4 / np.sqrt(size * 20)
    assert abs((pattern == query[:, None]).mean() - alpha / 2) < error
    assert abs(z.mean()) < 4 / np.sqrt(size)
    # the pair of a cyclic task is known from its query
    if int((np.asarray(shares) > 0).sum()) == 6:
        partner = np.where(z > 0, query + 1, query - 1) % 6
        seen = np.stack([(pattern == (np.minimum(query, partner)[:, None] + k) % 6).mean() for k in range(6)])
        assert abs((pattern == partner[:, None]).mean() - alpha / 2) < error
        others = (pattern != query[:, None]) & (pattern != partner[:, None])
        coins = np.asarray(batch.latents["sign"])[others]
        assert abs(others.mean() - (1 - alpha)) < error
        assert coins.size == 0 or abs(coins.mean()) < 4 / np.sqrt(coins.size)
        assert seen.sum() == pytest.approx(1)


def test_other_patterns_are_equally_likely(task):
    one = eqx.tree_at(lambda t: (t.shares, t.alpha), task, (jnp.zeros((6, 6)).at[4, 1].set(1.0), 0.4))
    count = (
        np.bincount(np.asarray(one.sample(jax.random.key(0), 4000).latents["pattern"]).ravel(), minlength=6) / 80_000
    )
    np.testing.assert_allclose(count, [0.15, 0.2, 0.15, 0.15, 0.2, 0.15], atol=0.006)


def test_classes_of_several_patterns():
    several = pattern_prompts(8, per_class=2, alpha=0.6)
    seen, unseen = np.asarray(several.shares) > 0, np.asarray(several.unseen.shares) > 0
    assert seen.sum() == 8 and unseen.sum() == 32 and not (seen & unseen).any()
    for a, b in np.argwhere(seen | unseen):
        assert not {a, (a + 1) % 8} & {b, (b + 1) % 8}
    one = eqx.tree_at(lambda t: t.shares, several, jnp.zeros((8, 8)).at[7, 3].set(1.0))
    batch = one.sample(jax.random.key(1), 4000)
    pattern, sign = np.asarray(batch.latents["pattern"]), np.asarray(batch.latents["sign"])
    share = np.bincount(pattern.ravel(), minlength=8) / pattern.size
    np.testing.assert_allclose(share, [0.15, 0.1, 0.1, 0.15, 0.15, 0.1, 0.1, 0.15], atol=0.006)
    assert (sign[np.isin(pattern, (7, 0))] == 1).all() and (sign[np.isin(pattern, (3, 4))] == -1).all()
    query = np.asarray(batch.latents["query_pattern"])
    np.testing.assert_array_equal(np.isin(query, (7, 0)), np.asarray(batch.y) > 0)
    np.testing.assert_allclose(np.bincount(query, minlength=8)[[7, 0, 3, 4]] / 4000, 0.25, atol=0.03)
    with pytest.raises(InputError, match="at least 5 relevant patterns, not 4"):
        pattern_prompts(4, per_class=2, shifts=1)
    with pytest.raises(InputError, match="patterns in a class"):
        pattern_prompts(6, per_class=0)


def test_the_cycle_is_balanced_and_unseen_tasks_are_the_others(task):
    assert theory.balanced(np.asarray(cyclic_tasks(6))) and theory.balanced(np.asarray(cyclic_tasks(6, 4)))
    # every pattern positive once, and pattern 0 negative twice; and the other way round
    uneven = np.asarray(cyclic_tasks(6)).copy()
    uneven[1] = uneven[5]
    assert not theory.balanced(uneven) and not theory.balanced(uneven.T)
    seen, unseen = np.asarray(task.shares) > 0, np.asarray(task.unseen.shares) > 0
    assert seen.sum() == 6 and unseen.sum() == 24 and not (seen & unseen).any() and not np.diag(unseen).any()
    assert seen.sum() / 30 == pytest.approx(theory.task_share(6)) == pytest.approx(theory.task_share_printed(6) ** 2)


def test_validation_is_on_tasks_that_are_never_trained(task):
    key = jax.random.key(0)
    np.testing.assert_array_equal(task.held_out(key, 20).x, task.unseen.sample(key, 20).x)
    assert (np.asarray(task.held_out(key, 20).x) != np.asarray(task.sample(key, 20).x)).any()


def test_shifted_prompts_have_the_new_patterns_and_wider_irrelevant_parts(task):
    rows = jnp.asarray(shifted_patterns(1.0), jnp.float32)
    new = task.shifted(rows, K=5.0)
    np.testing.assert_allclose(new.relevant, rows @ task.relevant, atol=1e-6)
    assert new.K == 5.0 and (np.asarray(new.shares) > 0).sum() == 6


@pytest.mark.parametrize("count", [2, 6, 9])
def test_replicas_draw_their_own_tasks(task, count):
    drawn = eqx.tree_at(lambda t: t.tasks, task, float(count), is_leaf=lambda leaf: leaf is None)
    first, second = (np.asarray(drawn.instance(jax.random.key(k)).shares) > 0 for k in (0, 1))
    cycle = np.asarray(cyclic_tasks(6)) > 0
    assert first.sum() == count and not np.diag(first).any()
    assert float(drawn.instance(jax.random.key(0)).shares.sum()) == pytest.approx(1)
    assert (first & cycle).sum() == min(count, 6)
    assert (first != second).any() == (count != 6)


def test_shifted_patterns_are_orthonormal_with_the_asked_sum():
    for total in (-1.2, 0.0, 1.0, 1.28):
        rows = shifted_patterns(total)
        np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-12)
        np.testing.assert_allclose(theory.coefficient_sums(rows), [total, 2**0.5, 2**0.5])
        np.testing.assert_allclose(rows[:, :4], [[0.3, -0.3, 0, 0], [0.5**0.5] * 2 + [0] * 2, [0] * 2 + [0.5**0.5] * 2])
    with pytest.raises(InputError, match="at most"):
        shifted_patterns(1.3)


# ------------------------------------------------------------------------------------------- the network


@pytest.mark.parametrize(("heads", "itself"), [(1, False), (2, False), (1, True)])
def test_the_network_is_the_printed_sum(task, heads, itself):
    network = PromptTransformer(width=7, heads=heads, itself=itself).build(task, jax.random.key(0))
    noise = jax.random.normal(jax.random.key(5), (3, 60, heads, 60)) * 0.1
    network = eqx.tree_at(lambda n: (n.query, n.key, n.value), network, tuple(noise))
    p = np.asarray(task.sample(jax.random.key(1), 1).x[0], float)
    V = np.zeros(60)
    for h in range(heads):
        Q, K, W = (np.asarray(m, float)[:, h].T for m in (network.query, network.key, network.value))
        rows = range(21 if itself else 20)
        e = np.array([np.exp((K @ p[i]) @ (Q @ p[20])) for i in rows])
        V += sum(W @ p[i] * e[i] / e.sum() for i in rows)
    F = np.asarray(network.output.value) @ np.maximum(np.asarray(network.hidden, float).T @ V, 0)
    assert float(network(jnp.asarray(p, jnp.float32))) == pytest.approx(F, rel=1e-4)
    r = np.asarray(network.hidden, float).T @ sum(np.asarray(network.value, float)[:, h].T for h in range(heads))
    np.testing.assert_allclose(network.neurons(), r, atol=1e-5)


def test_the_initialisation_is_the_printed_one(task):
    network = PromptTransformer(width=400, delta=0.2).build(task, jax.random.key(0))
    np.testing.assert_array_equal(network.query[:, 0], np.diag([0.2] * 30 + [0.0] * 30).astype(np.float32))
    np.testing.assert_array_equal(network.value[:, 0], np.diag([0.2] * 60).astype(np.float32))
    assert float(network.hidden.std()) == pytest.approx(1 / 20, rel=0.02)
    assert set(np.unique(network.output.value)) == {np.float32(-1 / 400), np.float32(1 / 400)}
    root = PromptTransformer(width=400, output_power=0.5).build(task, jax.random.key(0))
    np.testing.assert_allclose(np.abs(root.output.value), 1 / 20)


def test_output_weights_stay_and_the_rest_moves(task):
    run = train(task, PromptTransformer(width=8), SGD(lr=1.0, batch=10), 2, seeds=1, snapshots=[0])
    start, end = run.network(seed=0, step=0), run.network(seed=0)
    np.testing.assert_array_equal(start.output.value, end.output.value)
    for name in ("query", "key", "value", "hidden"):
        assert (np.asarray(getattr(start, name)) != np.asarray(getattr(end, name))).any()
    np.testing.assert_array_equal(end.query[30:], 0)


# ------------------------------------------------------------------------------------------- probes


def test_shorter_contexts_are_prompts_of_their_own(task, moved):
    x = task.sample(jax.random.key(0), 5).x
    found = outputs_by_length(moved, x, (1, 7, 20))
    for row, length in zip(found, (1, 7, 20), strict=True):
        short = jnp.concatenate([x[:, :length], x[:, -1:]], axis=1)
        np.testing.assert_allclose(row, jax.vmap(moved)(short), rtol=1e-4, atol=1e-6)


def test_pruned_outputs_are_those_of_the_smaller_network(task, moved):
    x, y, _ = task.sample(jax.random.key(0), 5)
    sizes = neuron_alignment(moved, task)["norm"]
    kept = np.asarray(kept_neurons(sizes, (0.0, 0.25, 0.5, 1.0), jax.random.key(0)))
    np.testing.assert_array_equal(kept.sum(-1), [[20, 15, 10, 0]] * 3)
    assert np.asarray(sizes)[kept[0, 2]].min() >= np.asarray(sizes)[~kept[0, 2]].max()
    assert np.asarray(sizes)[kept[2, 2]].max() <= np.asarray(sizes)[~kept[2, 2]].min()
    found = pruned_outputs(moved, x, jnp.asarray(kept))
    for i in range(3):
        smaller = eqx.tree_at(
            lambda n: (n.hidden, n.output.value), moved, (moved.hidden[:, kept[i, 2]], moved.output.value[kept[i, 2]])
        )
        np.testing.assert_allclose(found[i, 2], jax.vmap(smaller)(x), rtol=1e-4, atol=1e-6)
    # with nothing left it is a coin
    np.testing.assert_array_equal(errors(found, y)["error"][:, 3], 0.5)


def test_a_built_solution_aligns_selects_and_survives(task):
    """Large scores for equal patterns, neurons (mean μ, ±q): attention and error are those of the coverage law."""
    network = PromptTransformer(width=2).build(task, jax.random.key(0))
    onto = jnp.pad(task.relevant.T @ task.relevant, (0, 30))[:, None]
    mean = task.mean_pattern / 9
    neurons = jnp.stack([jnp.concatenate([mean, task.label]), jnp.concatenate([mean, -task.label])], axis=1)
    network = eqx.tree_at(
        lambda n: (n.query, n.key, n.value, n.hidden, n.output.value),
        network,
        (3 * onto, 2 * onto, jnp.eye(60)[:, None], neurons, jnp.array([1.0, -1.0])),
    )
    batch = eqx.tree_at(lambda t: t.alpha, task.unseen, 0.5).sample(jax.random.key(1), 4000)
    covered = np.asarray(same_pattern(batch)).any(axis=1)
    assert float(attention_mass(network, batch)[0]) == pytest.approx(covered.mean(), abs=1e-4)
    assert abs((~covered).mean() - theory.uncovered(0.5, 20)) < 4 * np.sqrt(0.0032 / 4000)
    outputs = np.asarray(jax.vmap(network)(batch.x))
    assert (outputs[covered] * np.asarray(batch.y)[covered] > 0).all()
    found = neuron_alignment(network, task)
    np.testing.assert_allclose(found["norm"] ** 2, found["feature_norm"] ** 2 + found["label_norm"] ** 2, rtol=1e-5)
    np.testing.assert_allclose(found["label_norm"], 1, rtol=1e-5)
    np.testing.assert_allclose(found["feature_cosine"], 1, atol=1e-5)
    np.testing.assert_allclose(found["label_cosine"], 1, atol=1e-5)
    seen = pattern_projections(network, task, batch)
    assert (
        float(seen["query_along"]) == pytest.approx(float(seen["query_norm"]), rel=1e-4) == pytest.approx(9, rel=1e-4)
    )
    assert float(seen["key_along"]) == pytest.approx(float(seen["key_norm"]), rel=1e-4) == pytest.approx(6, rel=1e-4)


def test_errors_count_as_printed():
    found = errors(jnp.array([0.5, -2.0, 0.0, 3.0]), jnp.array([1.0, 1.0, -1.0, 1.0]))
    assert [float(found[name]) for name in ("error", "hinge")] == [(1 + 0.5) / 4, (0.5 + 3 + 1) / 4]


def test_two_heads_are_two_at_every_size():
    assert {several_heads.settings(preset).heads for preset in ("smoke", "quick", "paper")} == {2}


def test_the_smallest_length_is_that_of_the_mean_over_seeds():
    errors = np.array([[0.5, 0.1, 0.0, 0.2], [0.5, 0.02, 0.08, 0.0]])
    assert smallest_length(errors, np.array([2, 4, 8, 16])) == 8
    assert smallest_length(errors + 0.1, np.array([2, 4, 8, 16])) == np.inf


def test_measurements_on_a_run_are_those_on_its_networks(task):
    run = train(task, PromptTransformer(width=8), SGD(lr=1.0, batch=10), 1, seeds=3)
    x = task.sample(jax.random.key(0), 4).x
    found = over_networks(run.networks, lambda network, key: jax.vmap(network)(x))
    for seed in range(3):
        np.testing.assert_allclose(found[seed], jax.vmap(run.network(seed=seed))(x), rtol=1e-5, atol=1e-7)


def test_lucky_neurons_are_an_eighth_per_sign(task):
    network = PromptTransformer(width=4000).build(task, jax.random.key(0))
    x = task.sample(jax.random.key(1), 30).x
    lucky = np.asarray(lucky_neurons(network, task, x))
    assert (np.asarray(jax.vmap(network.activations)(x))[lucky] > 0).all()
    positive = np.asarray(network.output.value) > 0
    assert theory.lucky_share(30, 30) == pytest.approx(0.125)
    np.testing.assert_allclose([lucky[:, positive].mean() / 2, lucky[:, ~positive].mean() / 2], 0.125, atol=0.01)


def test_classical_learners_separate_what_is_separable():
    rng = np.random.default_rng(0)
    centre = np.zeros(5)
    centre[0] = 10
    y = np.tile([1.0, -1.0], (6, 5))
    x = y[..., None] * centre + rng.normal(size=(6, 10, 5))
    z = np.array([1.0, -1.0] * 3)
    np.testing.assert_array_equal(classical_errors(x, y, z[:, None] * centre, z), np.zeros(len(CLASSICAL)))
    np.testing.assert_array_equal(classical_errors(x, y, -z[:, None] * centre, z), np.ones(len(CLASSICAL)))
    np.testing.assert_array_equal(
        classical_errors(x, np.ones_like(y), centre + x[:, 0], z), np.full(len(CLASSICAL), 0.5)
    )
    # the nearest example is wrong, the next two are right
    line, signs = np.array([[[0.0], [1.0], [2.0], [9.0]]]), np.array([[-1.0, 1.0, 1.0, -1.0]])
    np.testing.assert_array_equal(classical_errors(line, signs, np.zeros((1, 1)), np.ones(1))[-2:], [1, 0])


# ------------------------------------------------------------------------------------------- theory


@pytest.mark.parametrize("K", [0.5, 5.0])
def test_initial_attention_is_the_mean_over_prompts(task, K):
    network = PromptTransformer(width=2, delta=0.2).build(task, jax.random.key(0))
    wide = eqx.tree_at(lambda t: (t.K, t.irrelevant), task, (K, task.irrelevant[:3]))
    batch = wide.sample(jax.random.key(1), 8000)
    assert float(attention_mass(network, batch)[0]) == pytest.approx(
        theory.initial_attention(20, 0.8, 0.2, 3.0, K, 3), abs=0.006
    )


def test_initial_attention_without_scores_is_the_share_of_the_pattern():
    assert theory.initial_attention(20, 0.6, 0.0, 3.0, 5.0, 24) == pytest.approx(0.3, abs=1e-9)


def test_attention_elsewhere_is_a_softmax_with_two_levels():
    scores = np.array([2.0] * 2 + [0.0] * 8)
    weights = np.exp(scores) / np.exp(scores).sum()
    exact, printed = theory.attention_elsewhere(0.4, 2.0)
    assert exact == pytest.approx(weights[2:].sum()) and printed > exact


def test_closed_form_gradients_are_autodiff(task, moved):
    for seed in range(4):
        batch = task.sample(jax.random.key(seed), 1)
        x, z = batch.x[0], batch.y[0]
        auto = eqx.filter_grad(lambda n, x=x, z=z: jax.nn.relu(1 - z * n(x)))(moved)
        for name, value in theory.hinge_gradients(moved, x, z).items():
            exact = np.asarray(getattr(auto, name))
            assert np.abs(exact).max() > 0
            np.testing.assert_allclose(value, exact, atol=1e-4 * np.abs(exact).max())
        np.testing.assert_array_equal(auto.query[30:], 0)


@pytest.mark.parametrize(("d", "phi"), [(3, 0.7), (30, 1.3)])
def test_cap_share_is_the_integral_over_the_sphere(d, phi):
    area = 2 * np.pi ** (d / 2) / gamma(d / 2)
    ring = 2 * np.pi ** ((d - 1) / 2) / gamma((d - 1) / 2)
    exact = quad(lambda t: ring * np.sin(t) ** (d - 2), 0, phi)[0] / area
    assert theory.cap_share(phi, d) == pytest.approx(exact)


def test_pruning_bounds_and_requirements_have_their_limits():
    np.testing.assert_allclose(theory.pruned_large_bound([0.1, 0.5], 0.6, 0.6, 6), [0.1, 0.5])
    assert theory.pruned_large_bound(0.3, 0.8, 0.6, 6) < 0.3
    assert theory.pruned_small_bound(0.6, 0.6, 10**6) == pytest.approx(1e-3)
    assert theory.pruned_small_bound(0.6, 0.6, 9, eps=0.1) == pytest.approx(1 - 0.9 * 2 / 3)
    assert theory.pruned_large_bound(0.5, 0.6, 0.6, 6, eps=0.1) == pytest.approx(1 - 1.1 / 2)
    assert theory.iterations(6, 0.1) / theory.iterations(6, 0.8) == pytest.approx(4)
    assert theory.iterations(6, 0.5, beta=2.0, delta=8.0) == pytest.approx(6 * np.sqrt(np.log(6)) / 4)
    assert theory.iterations(6, 0.5, eta=0.5) == pytest.approx(2 * theory.iterations(6, 0.5))
    assert theory.training_length(6, 0.2) == pytest.approx(5 * np.log(6))
    assert theory.training_length(6, 0.2, beta=0.5) == pytest.approx(5 / 0.5**2)
