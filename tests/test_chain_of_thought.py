"""Facts about prompts of several steps, the head that reads them, erroneous chains and votes."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from krogh.errors import InputError
from krogh.nn.decoder import CausalTransformer
from krogh.nn.query_attention import QueryAttention, QueryReader
from krogh.probes.chain_of_thought import KINDS, attention_classes, infer, kinds_of, reason
from krogh.systems.chain_of_thought import learning
from krogh.systems.chain_of_thought.guarantees import bound, shortest
from krogh.systems.chain_of_thought.inference import last_step
from krogh.systems.chain_of_thought.learning import Heads, ask, half_squares
from krogh.tasks.chain_of_thought import ChainPrompts, ErroneousChains, rotated
from krogh.tasks.prompts import evenly, orthonormal, orthonormalised, step_columns
from krogh.theory import reasoning_chains as rc
from krogh.train.checkpoint import workspace


@eqx.filter_jit
def draw(task, seed, size):
    return task.sample(jax.random.key(seed), size)


@eqx.filter_jit
def inferred(network, task, seed, size, lengths):
    return infer(network, task, jax.random.key(seed), size, lengths)


@pytest.fixture(scope="module")
def prompts():
    task = ChainPrompts(M=6, K=3, d=10, examples=5, alpha=0.4).instance(jax.random.key(0))
    return task, draw(task, 1, 400)


def columns_of(task, row):
    """One prompt's real columns as (input pattern, step, output pattern or −1), read off its vectors."""
    row = np.asarray(row)
    row = row[np.any(row != 0, axis=1)]
    upper, lower = row[:, : task.d], row[:, task.d :]
    pattern = np.asarray(upper @ task.patterns.T)
    step = np.asarray(upper @ task.steps.T)
    answer = np.asarray(lower @ task.patterns.T)
    last = np.where(answer.max(1) > 0.5, answer.argmax(1), -1)
    np.testing.assert_allclose(pattern.max(1), 1, atol=1e-5)
    np.testing.assert_allclose(step.max(1), 1, atol=1e-5)
    return list(zip(pattern.argmax(1).tolist(), step.argmax(1).tolist(), last.tolist(), strict=True))


# ------------------------------------------------------------------------------------------- training prompts


def test_a_training_prompt_is_the_printed_one(prompts):
    """Examples of K consistent steps of one bijective task, then k columns of the query (7.1)."""
    task, (x, y, latents) = prompts
    seen_k, twice = set(), 0
    for i, (row, label) in enumerate(zip(x[:60], y[:60], strict=True)):
        columns = columns_of(task, row)
        told = [np.asarray(latents[name][i])[latents["present"][i]].tolist() for name in ("pattern", "step")]
        assert told == [[pattern for pattern, _, _ in columns], [step for _, step, _ in columns]]
        examples, query = columns[:15], columns[15:]
        k = len(query)
        seen_k.add(k)
        assert [step for _, step, _ in columns] == [*list(range(3)) * 5, *range(k)]
        answers = {}
        for chain in [examples[i : i + 3] for i in range(0, 15, 3)]:
            assert chain[0][2] == chain[1][0] and chain[1][2] == chain[2][0]
            for given, step, answer in chain:
                assert answers.setdefault((step, given), answer) == answer
        for (step, given), answer in answers.items():
            # step k moves k places on the task's cycle: step 2 is step 1 done twice
            if step == 0 and {(0, answer), (1, given)} <= answers.keys():
                assert answers[(0, answer)] == answers[(1, given)]
                twice += 1
        for step in range(3):
            images = [answer for (s, _), answer in answers.items() if s == step]
            assert len(set(images)) == len(images)
        for (_, _, answer), (given, _, _) in itertools.pairwise(query):
            assert answer == given
        assert query[-1][2] == -1
        z = int(np.argmax(task.patterns @ label))
        assert answers[(k - 1, query[-1][0])] == z  # a helpful example is always there
        assert sum(chain[0] == query[0][0] for chain in examples[::3]) == 2  # alpha l = 2
    assert seen_k == {1, 2, 3} and twice > 10


def test_patterns_and_steps_are_equally_likely(prompts):
    task, (x, y, latents) = prompts
    labels = np.argmax(np.asarray(y @ task.patterns.T), axis=1)
    assert (np.abs(np.bincount(labels, minlength=6) / 400 - 1 / 6) < 0.075).all()
    k = np.asarray(latents["step"][:, -1])
    assert (np.abs(np.bincount(k) / 400 - 1 / 3) < 0.1).all()


def test_a_window_keeps_the_last_columns_of_the_same_prompt():
    whole = ChainPrompts(M=6, K=3, d=10, examples=4)
    window = ChainPrompts(M=6, K=3, d=10, examples=4, columns=13)
    a, b = (draw(task, 3, 20) for task in (whole, window))
    np.testing.assert_array_equal(a.x[:, -13:], b.x)
    assert bool(b.latents["present"].all())
    bare = draw(ChainPrompts(M=6, K=3, d=10, examples=4, coded=False), 3, 20)
    np.testing.assert_array_equal(bare.x[..., :6], a.x[..., :6])
    assert not bare.x[..., 6:10].any()


def test_frames_are_orthonormal_and_small_ones_are_refused():
    task = ChainPrompts(M=6, K=3, d=10).instance(jax.random.key(0))
    np.testing.assert_allclose(task.frame @ task.frame.T, np.eye(9), atol=1e-5)
    with pytest.raises(InputError, match="d >= 9"):
        ChainPrompts(M=6, K=3, d=8)
    with pytest.raises(InputError, match="columns must lie"):
        ChainPrompts(M=6, K=3, d=9, examples=2, columns=10)


def test_gram_schmidt_is_the_other_way_to_orthonormal_rows():
    rows = orthonormal(jax.random.key(0), 5, 9)
    np.testing.assert_allclose(orthonormalised(jax.random.normal(jax.random.key(0), (9, 5)).T), rows, atol=1e-5)


def test_the_share_of_helpful_examples_holds_in_every_prefix():
    phase = jax.random.uniform(jax.random.key(0), (2000,))
    chosen = np.asarray(evenly(phase, 0.3, 20))
    counts = chosen.cumsum(1)
    expected = 0.3 * np.arange(1, 21)
    assert (counts >= np.floor(expected - 1e-4)).all() and (counts <= np.ceil(expected + 1e-4)).all()
    np.testing.assert_allclose(chosen.mean(0), 0.3, atol=0.04)
    np.testing.assert_array_equal(counts[:, 9], 3)


def test_step_columns_chain_inputs_to_answers():
    chains = jnp.arange(24.0).reshape(2, 3, 4)
    rows = step_columns(chains, 100 * jnp.ones((2, 4)))
    np.testing.assert_array_equal(rows[1], [104, 105, 106, 107, 8, 9, 10, 11])
    np.testing.assert_array_equal(rows[2], [112, 113, 114, 115, 16, 17, 18, 19])


# ------------------------------------------------------------------------------------------- the head


def test_the_head_is_the_printed_sum_and_blind_to_absent_columns(prompts):
    task, (x, _, _) = prompts
    network = QueryAttention(scale=0.5).build(task, jax.random.key(2))
    for row in np.asarray(x[:5], np.float64):
        real = row[np.any(row != 0, axis=1)]
        scores = np.exp(real[:-1] @ np.asarray(network.weights, np.float64) @ real[-1])
        expected = (scores / scores.sum()) @ real[:-1, 10:]
        np.testing.assert_allclose(network(jnp.asarray(row, jnp.float32)), expected, atol=1e-5)


def test_the_head_starts_with_the_deviation_asked_for():
    weights = QueryAttention(scale=0.5).build(ChainPrompts(M=20, K=3, d=30), jax.random.key(0)).weights
    assert float(weights.std()) == pytest.approx(0.5, rel=0.05)


def test_the_gradient_is_the_corrected_one():
    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(0), (7, 8))
        z, W = jax.random.normal(jax.random.key(1), (4,)), jax.random.normal(jax.random.key(2), (8, 8))
        automatic = jax.grad(lambda W: half_squares(QueryReader(W)(x), z))(W)
        np.testing.assert_allclose(rc.gradient(W, x[:-1], x[-1], z), automatic, atol=1e-10)
        assert not np.allclose(rc.gradient(W, x[:-1], x[-1], z, printed=True), automatic, atol=1e-3)


def test_descent_never_moves_the_conserved_sums(prompts):
    task, (x, y, _) = prompts
    network = QueryAttention(scale=0.3).build(task, jax.random.key(2))

    def loss(network):
        return jnp.mean(jax.vmap(half_squares)(jax.vmap(network)(x), y))

    gradient = eqx.filter_grad(loss)(network).weights
    sums = [jnp.pad(task.patterns.sum(0), (0, 10)), jnp.pad(task.patterns.sum(0), (10, 0))]
    for u in [*sums, jnp.pad(task.steps.sum(0), (0, 10))]:
        np.testing.assert_allclose(u @ gradient, 0, atol=1e-5)
    assert float(jnp.abs(gradient).max()) > 1e-3


def test_attention_kinds_at_zero_are_shares_of_columns(prompts):
    task, batch = prompts
    network = QueryReader(jnp.zeros((20, 20)))
    kinds = np.asarray(attention_classes(network, batch)["attention"])
    np.testing.assert_allclose(kinds.sum(), 1, atol=1e-5)
    np.testing.assert_allclose(kinds[0, 0], rc.initial_attention(0.4, 3, 5), atol=0.02)
    # 2 of 5 examples like the query, 3 steps each, and k - 1 of the query's own columns
    assert rc.initial_attention(0.4, 3, 5) == pytest.approx((2 / 15 + 2 / 16 + 2 / 17) / 3)
    deep = CausalTransformer(3, 2, 8, positions="none", norm=False, reads="last", scale=0.5)
    network = deep.build(task, jax.random.key(0))
    looks = np.asarray(attention_classes(network, batch)["attention"])
    own = np.mean([[layer[:, -1, -1] for layer in network.attention(x)] for x in batch.x[:8]], axis=0).ravel()
    few = jax.tree.map(lambda part: part[:8], batch)
    assert looks.shape == (6, 4)
    np.testing.assert_allclose(np.asarray(attention_classes(network, few)["attention"]).sum(1), 1 - own, atol=1e-4)


def test_kinds_are_told_by_pattern_and_step():
    same = jnp.array([True, False])
    pattern, step = jnp.repeat(same, 2), jnp.tile(same, 2)
    np.testing.assert_array_equal(kinds_of(pattern, step), np.eye(4))
    assert KINDS[1] == "same pattern, other step" and KINDS[2] == "other pattern, same step"


# ------------------------------------------------------------------------------------------- test chains


def chain_task(M=5, K=3, alpha=0.4, noise=0.3, examples=30, rho=0.4, tau=0.5):
    frame = orthonormal(jax.random.key(0), M + K, 12)
    maps = rc.shifts(M, K)
    A = rc.erroneous(np.random.default_rng(0), maps, (1.0,) * (K - 1) + (tau,), rho)[0]
    return ErroneousChains(
        frame[:M],
        frame[M:],
        jnp.asarray(maps),
        jnp.asarray(A, jnp.float32),
        jnp.array(alpha),
        jnp.array(noise),
        examples,
    )


def test_noise_is_orthogonal_and_of_the_given_norm():
    task = chain_task()
    x, z, latents = draw(task, 1, 50)
    delta = np.asarray(x - task.patterns[latents["states"]])
    np.testing.assert_allclose(np.linalg.norm(delta, axis=-1), 0.3, rtol=1e-4)
    np.testing.assert_allclose(delta @ np.asarray(task.patterns).T, 0, atol=1e-5)
    for k in range(3):
        np.testing.assert_array_equal(z[:, k + 1], np.asarray(task.maps)[k][np.asarray(z[:, k])])
    assert ((latents["states"][..., 0] == z[:, :1]).sum(1) == 12).all()


def test_examples_follow_their_transition_matrices():
    task = chain_task()
    states = np.asarray(draw(task, 1, 2000).latents["states"]).reshape(-1, 4)
    for k in range(3):
        counts = np.zeros((5, 5))
        np.add.at(counts, (states[:, k], states[:, k + 1]), 1)
        np.testing.assert_allclose(counts / counts.sum(1, keepdims=True), task.transitions[k], atol=0.03)


def test_pairs_hold_inputs_and_final_answers_between_step_codes():
    task = chain_task(examples=2)
    chains = draw(task, 1, 1).x[0]
    rows = task.pairs(chains)
    np.testing.assert_allclose(rows[0], jnp.concatenate([chains[0, 0] + task.steps[0], chains[0, 3]]), atol=1e-6)
    np.testing.assert_allclose(rows[4], jnp.pad(task.steps[1], (0, 12)), atol=1e-6)


def perfect_head(task, strength=40.0):
    """W that compares patterns and steps so strongly that attention is a vote."""
    d = task.patterns.shape[1]
    upper = strength * (task.patterns.T @ task.patterns + task.steps.T @ task.steps)
    return QueryReader(jnp.zeros((2 * d, 2 * d)).at[:d, :d].set(upper))


def test_a_head_that_matches_perfectly_votes():
    task = chain_task(alpha=0.6, rho=0.5, noise=0.0)
    found = inferred(perfect_head(task), task, 2, 600, (3, 10, 30))
    # ties are broken differently, and only there
    np.testing.assert_allclose(found["cot"][1:], found["cot_vote"][1:], atol=0.05)
    np.testing.assert_allclose(found["icl"][1:], found["icl_vote"][1:], atol=0.05)
    np.testing.assert_allclose(found["attention"][2, :, 0], 1, atol=1e-3)
    uniform = inferred(QueryReader(jnp.zeros((24, 24))), task, 2, 600, (3, 10, 30))
    assert uniform["cot"][2].mean() > found["cot"][2].mean() + 0.2


def test_inference_on_clean_examples_is_the_function():
    task = eqx.tree_at(lambda t: t.transitions, chain_task(), jax.nn.one_hot(chain_task().maps, 5))
    found = inferred(perfect_head(task), task, 2, 300, (3, 10, 30))
    for name in ("cot", "icl", "cot_vote", "icl_vote"):
        assert not found[name][1:].any()


def test_decoding_is_the_loop_of_subroutine_4():
    """The scan against prompts built column by column and given to the whole network."""
    task = chain_task(examples=6)
    chains, z, latents = draw(task, 5, 4)
    network = QueryReader(0.5 * jax.random.normal(jax.random.key(1), (24, 24)))
    used = np.repeat(np.arange(6) < 4, 3)
    for i in range(4):
        columns = task.columns(chains[i])
        states = latents["states"][i][:, :-1].ravel()
        answers, looks = reason(network, task, columns, states, jnp.asarray(used), z[i, 0])
        prompt, state = list(np.asarray(columns)[used]), int(z[i, 0])
        for k in range(3):
            query = np.concatenate([task.patterns[state] + task.steps[k], np.zeros(12)])
            rows = jnp.asarray(np.array([*prompt, query]), jnp.float32)
            output, weights = network(rows), np.asarray(network.attention(rows))
            np.testing.assert_allclose(looks[k].sum(), weights[: used.sum()].sum(), rtol=1e-4)
            answer = int(np.argmin(np.linalg.norm(np.asarray(task.patterns) - np.asarray(output), axis=1)))
            assert answer == int(answers[k])
            prompt.append(np.concatenate([query[:12], task.patterns[answer]]))
            state = answer


def test_votes_count_examples_in_the_present_state():
    states = jnp.array([[0, 1, 2], [0, 1, 2], [0, 2, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0]])
    everyone = jnp.ones(6, bool)
    np.testing.assert_array_equal(rc.votes(jax.random.key(0), states, jnp.array(0), everyone, 3), [1, 0])
    np.testing.assert_array_equal(rc.votes(jax.random.key(0), states, jnp.array(0), jnp.arange(6) < 3, 3), [1, 2])
    guesses = jax.vmap(lambda key: rc.votes(key, states, jnp.array(2), everyone, 3)[0])
    drawn = np.asarray(guesses(jax.random.split(jax.random.key(0), 600)))
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 600, 1 / 3, atol=0.08)


def test_rotated_patterns_stay_in_the_span():
    patterns = jax.vmap(lambda key: orthonormal(key, 6, 10))(jax.random.split(jax.random.key(0), 2))
    shown = rotated(jax.random.split(jax.random.key(1), 2), 4, patterns)
    np.testing.assert_allclose(shown @ shown.transpose(0, 2, 1), np.broadcast_to(np.eye(4), (2, 4, 4)), atol=1e-5)
    inside = shown @ patterns.transpose(0, 2, 1) @ patterns
    np.testing.assert_allclose(inside, shown, atol=1e-5)


# ------------------------------------------------------------------------------------------- quantities


def test_example_1_is_exact():
    maps = np.array([[0, 1], [1, 0]])
    A = rc.paired(maps, 0.6, (0.6, 0.4), (0.8, 0.2))
    np.testing.assert_allclose(A, [[[0.6, 0.4], [0.4, 0.6]], [[0.4, 0.6], [0.8, 0.2]]], atol=1e-15)
    np.testing.assert_allclose(rc.composed(A), [[0.56, 0.44], [0.64, 0.36]], atol=1e-12)
    assert rc.tau(maps, A) == pytest.approx(0.36) and rc.tau_o(A) == pytest.approx(0.56)
    assert rc.primacy(maps, A) == pytest.approx(1 / 3) and rc.primacy_o(A) == pytest.approx(3 / 14)
    assert rc.condition(maps, A).tolist() == [False, True] and rc.icl_limit(maps, A) == 0.5


def test_quantities_by_enumerating_trajectories():
    rng = np.random.default_rng(0)
    maps = rc.shifts(4, 3)
    A = rc.erroneous(rng, maps, (0.7, 0.6, 0.8), 0.75, tasks=3, exact=False)
    for one, tau, rho in zip(A, rc.tau(maps, A), rc.primacy(maps, A), strict=True):
        B = np.zeros((4, 4))
        for i, j, k, m in itertools.product(range(4), repeat=4):
            B[i, m] += one[0, i, j] * one[1, j, k] * one[2, k, m]
        np.testing.assert_allclose(rc.composed(one), B)
        assert tau == pytest.approx(0.7 * 0.6 * 0.8)
        worst = min(
            1 - one[k, i, j] / one[k, i, maps[k, i]]
            for k, i, j in itertools.product(range(3), range(4), range(4))
            if j != maps[k, i]
        )
        assert rho == pytest.approx(worst)


@pytest.mark.parametrize(
    ("right", "rho"), [((1.0, 1.0, 0.5), 0.1), ((1.0, 1.0, 0.5), 0.8), ((0.5 ** (1 / 3),) * 3, 0.8)]
)
def test_erroneous_chains_have_the_wanted_quantities(right, rho):
    maps = rc.shifts(10, 3)
    A = rc.erroneous(np.random.default_rng(1), maps, right, rho, tasks=4)
    np.testing.assert_allclose(A.sum(-1), 1)
    assert (A >= 0).all()
    np.testing.assert_allclose(rc.tau(maps, A), 0.5)
    np.testing.assert_allclose(rc.primacy(maps, A), rho)


def test_impossible_primacies_are_refused():
    maps = rc.shifts(10, 3)
    low, high = rc.feasible(0.5 ** (1 / 3), 10)
    assert (round(low, 2), round(high, 2)) == (0.74, 0.97)
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"can lie in \[0.74, 0.971\]"):
        rc.erroneous(rng, maps, (0.5 ** (1 / 3),) * 3, 0.5)
    with pytest.raises(InputError, match="can lie in"):
        rc.erroneous(rng, maps, (1.0, 1.0, 0.5), 0.95, exact=False)
    assert (rc.primacy(maps, rc.erroneous(rng, maps, (0.9,) * 3, 0.5, exact=False)) >= 0.5).all()
    with pytest.raises(InputError, match="3 steps, but 2"):
        rc.erroneous(rng, maps, (0.9, 0.9), 0.9)


def test_the_reported_pair_of_instances():
    """τ_o = .4 and ρ_o = .1 with and without Condition 7.3.2."""
    for w, strong, holds in ((0.56, 0.9, False), (0.94 / 1.5, 0.8, True)):
        maps = rc.shifts(10, 2)
        A = rc.paired(maps, 0.6, (w, 1 / 15), (strong, 0.06))
        np.testing.assert_allclose(A.sum(-1), 1)
        assert rc.tau_o(A) == pytest.approx(0.4) and rc.primacy_o(A) == pytest.approx(0.1)
        assert rc.condition(maps, A).all() == holds and rc.primacy(maps, A) > 0
    with pytest.raises(InputError, match="even"):
        rc.paired(rc.shifts(5, 2), 0.6, (0.6, 0.4), (0.8, 0.2))


def test_bounds_scale_as_printed():
    a, b = rc.training_times(1.0, 0.4, 3, 20, 0.01), rc.training_times(2.0, 0.2, 3, 40, 0.001)
    assert b[1] / a[1] == pytest.approx(2) and b[2] / a[2] == pytest.approx(10)
    assert rc.examples_needed(0.8, 0.5, 0.8, 20) == pytest.approx(np.log(20) / 0.32**2)
    assert rc.late_miss(10.0, 4000, 3, 20) / rc.late_miss(10.0, 1000, 3, 20) == pytest.approx(0.5)
    assert rc.late_miss(10.0, 600, 3, 20) == pytest.approx(0.1)
    assert a[0] == pytest.approx(27 * np.log(300) / 0.16) and b[0] == pytest.approx(27 * np.log(3000) / 0.08)


def test_the_shortest_prompt_is_where_the_error_stays_low():
    errors = np.array([[[0.5, 0.0, 0.2, 0.0, 0.0], [0.5, 0.4, 0.3, 0.2, 0.1]]])
    np.testing.assert_array_equal(shortest(errors, np.array([1, 2, 4, 8, 16]), 0.01), [8, np.inf])


@pytest.mark.parametrize("preset", ["smoke", "quick", "paper"])
def test_every_combination_of_the_bound_can_be_had(preset):
    """A primacy out of reach would become another one, and two combinations the same."""
    s = bound.settings(preset)
    maps = rc.shifts(s.test_patterns, s.K)
    for tau, rho in itertools.product(s.taus, s.rhos):
        A = rc.erroneous(np.random.default_rng(0), maps, last_step(tau, s.K), rho, exact=False)
        assert rc.tau(maps, A) == pytest.approx(tau) and rc.primacy(maps, A) == pytest.approx(rho)


def test_asking_goes_case_by_case_and_a_case_alone_is_answered_the_same(prompts):
    task, _ = prompts
    seeds = 2
    weights = jax.random.normal(jax.random.key(3), (seeds, 20, 20))
    heads = Heads(weights, *(jnp.stack([v] * seeds) for v in (task.patterns, task.steps)))
    s = learning.Testing(M=6, K=3, d=10, test_patterns=4, lengths=(3, 6), queries=6, at_once=2)
    maps = rc.shifts(4, 3)
    A = [np.broadcast_to(share * np.eye(4) + (1 - share) / 4, (seeds, 3, 4, 4)) for share in (0.9, 0.2)]
    told = []
    with workspace(progress=lambda *what: told.append(what[:3])):
        both = ask(heads, s, maps, A, [0.8, 0.3], noise=[0.1, 0.4])
    assert told == [("asking, case 1", 1, 2), ("asking, case 2", 2, 2)]
    alone = ask(heads, s, maps, A[1:], [0.3], noise=0.4)
    for name in both.data_vars:
        np.testing.assert_allclose(both[name].isel(case=1), alone[name].isel(case=0), atol=1e-6)
    assert float(abs(both.attention.isel(case=0) - both.attention.isel(case=1)).max()) > 0.01
