"""Facts about in-context prompts, linear attention and what is known of them in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import krogh as kr
from krogh.errors import InputError
from krogh.lab.system import systems
from krogh.nn.attention import earlier
from krogh.nn.linear_attention import InContextRegressor, LinearAttention, LowRank, RankLimited, ReluHeads
from krogh.systems.icl_model_scale.minimality import least_margin, pair_margins, task_weights
from krogh.tasks.parity_prompts import ParityPrompts, ordered_pairs
from krogh.tasks.regression_prompts import RegressionPrompts
from krogh.tasks.sentiment_prompts import SentimentPrompts, at_labels
from krogh.theory import linear_attention as theory
from krogh.train.schedules import LinearDecay

SPECTRUM = (2.0, 1.5, 1.0, 0.6, 0.4)


def normals(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ------------------------------------------------------------------------------------------- networks


def test_linear_attention_on_rows_is_the_printed_product_on_columns():
    E, W, P = normals(5, 3), normals(3, 3, seed=1), normals(3, 3, seed=2)
    printed = P @ E.T @ (E @ W @ E.T)  # W_PV E (Eᵀ W_KQ E), columns
    layer = LinearAttention(jnp.asarray(W.T), jnp.asarray(P.T))
    np.testing.assert_allclose(layer(jnp.asarray(E)), printed.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(layer(jnp.asarray(E), first=4), printed.T[4:], rtol=1e-4, atol=1e-4)
    hidden = layer(jnp.asarray(E), first=4, visible=jnp.asarray(earlier(4)))
    np.testing.assert_allclose(hidden[0], P @ E[:4].T @ (E[:4] @ W @ E[4]), rtol=1e-4, atol=1e-4)
    factors = LowRank(jnp.asarray(normals(2, 3)), jnp.asarray(normals(2, 3, seed=3)))
    whole = LinearAttention(factors.matrix, layer.value)
    assert np.linalg.matrix_rank(factors.matrix) == 2
    low = LinearAttention(factors, layer.value)
    np.testing.assert_allclose(low(jnp.asarray(E)), whole(jnp.asarray(E)), rtol=1e-4, atol=1e-4)


def test_the_regressor_is_the_last_entry_of_linear_self_attention():
    """Equation 5.1 with the blocks of 5.3, residual included: the query's own label is 0."""
    d, N, u = 3, 7, 0.7
    x, y, U = normals(N + 1, d), normals(N, seed=1), normals(d, d, seed=2)
    E = np.concatenate([x, np.append(y, 0)[:, None]], axis=1).T
    W, P = np.zeros((d + 1, d + 1)), np.zeros((d + 1, d + 1))
    W[:d, :d], P[d, d] = U, u
    printed = (E + P @ E @ (E.T @ W @ E) / N)[d, N]
    network = InContextRegressor(jnp.asarray(U.T), jnp.asarray(u))
    np.testing.assert_allclose(network(jnp.asarray(E.T)), printed, rtol=1e-4)
    np.testing.assert_allclose(printed, u * (y @ x[:N] / N) @ U @ x[N], rtol=1e-4)
    np.testing.assert_allclose(network.U, U)
    factors = LowRank(jnp.asarray(normals(2, d)), jnp.asarray(normals(2, d, seed=3)))
    low, full = (InContextRegressor(matrix, jnp.asarray(u)) for matrix in (factors, factors.matrix))
    np.testing.assert_allclose(low(jnp.asarray(E.T)), full(jnp.asarray(E.T)), rtol=1e-4)


def test_factors_start_with_the_deviation_asked_for():
    built = RankLimited(rank=40, scale=0.3).build(RegressionPrompts((1.0,) * 50, 4), jax.random.key(0)).query_key
    assert [float(factor.std()) for factor in (built.query, built.key)] == pytest.approx([0.3, 0.3], rel=0.05)


def test_relu_heads_are_the_printed_sum():
    prompt, W, a = normals(6, 4), normals(5, 3, 3, seed=1), normals(5, seed=2)
    prompt[5, 3] = 0
    z = prompt[:5, 3] @ prompt[:5, :3] / 5
    printed = sum(a[h] * max(0.0, float(z @ W[h] @ prompt[5, :3])) for h in range(5))
    np.testing.assert_allclose(ReluHeads(jnp.asarray(W), jnp.asarray(a))(jnp.asarray(prompt)), printed, rtol=1e-4)


def test_training_moves_the_factors_and_leaves_u():
    task = RegressionPrompts(SPECTRUM, 10, rotated=True)
    adam = kr.Adam(lr=0.01, batch=64, loss="square", schedule=LinearDecay(200))
    run = kr.train(task, RankLimited(rank=2), adam, 200, seeds=2, every=100)
    np.testing.assert_array_equal(run.networks.value.value, [1, 1])
    assert run.networks.query_key.query.shape == (2, 2, 5)
    assert (run.data.loss[:, -1] < 0.9 * run.data.loss[:, 1]).all()
    assert float(LinearDecay(200)(jnp.asarray(200))) == 0


# ------------------------------------------------------------------------------------------- prompts


def test_regression_prompts_have_the_moments_they_promise():
    d = len(SPECTRUM)
    w = np.arange(1, d + 1, dtype=np.float32) / d
    task = RegressionPrompts(SPECTRUM, 4, jnp.asarray(w), sigma=0.5, flip=0.3, rotated=True).instance(jax.random.key(1))
    Q = np.asarray(task.basis)
    np.testing.assert_allclose(Q.T @ Q, np.eye(d), atol=1e-5)
    x, truth, _ = (np.asarray(a) if a is not None else None for a in task.sample(jax.random.key(0), 40_000))
    inputs, y = x[..., :d], x[:, :4, d]
    np.testing.assert_array_equal(x[:, 4, d], 0)
    np.testing.assert_allclose(inputs[:, 4] @ Q @ w, truth, rtol=1e-3, atol=1e-4)
    flat = inputs.reshape(-1, d)
    np.testing.assert_allclose(flat.T @ flat / len(flat), (Q * np.array(SPECTRUM)) @ Q.T, atol=0.03)
    answers = inputs[:, :4] @ Q @ w
    np.testing.assert_allclose((y * answers).mean() / (answers**2).mean(), 1 - 2 * 0.3, atol=0.02)
    np.testing.assert_allclose((y**2).mean(), (answers**2).mean() + 0.25, rtol=0.02)


def test_random_task_vectors_are_standard_normal():
    batch = RegressionPrompts(SPECTRUM, 8).sample(jax.random.key(0), 20_000)
    x, y = np.asarray(batch.x[:, :8, :5]), np.asarray(batch.x[:, :8, 5])
    w = np.stack([np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(x[:3000], y[:3000], strict=True)])
    np.testing.assert_allclose(w.T @ w / len(w), np.eye(5), atol=0.1)
    np.testing.assert_allclose(np.sum(w * np.asarray(batch.x[:3000, 8, :5]), axis=1), batch.y[:3000], atol=0.02)


def test_parity_prompts_follow_the_pair_and_its_bias():
    d, k, gamma = 6, 3, 0.15
    task = ParityPrompts(d, k, 7, gamma, 0.4)
    x, y, latents = task.sample(jax.random.key(0), 30_000)
    phi, i, j = np.asarray(x[..., :d]), *np.asarray(latents["pair"]).T
    assert (i != j).all()
    np.testing.assert_allclose(((i < k) & (j < k)).mean(), 0.6, atol=0.01)
    first, second = ordered_pairs(d, k)
    assert (len(first), len(second)) == (k * (k - 1), d * (d - 1) - k * (k - 1))
    counts = np.bincount(i * d + j, minlength=d * d).reshape(d, d)
    np.testing.assert_allclose(counts[tuple(second.T)] / len(i), 0.4 / len(second), atol=0.004)
    rows = np.arange(len(i))[:, None], np.arange(8)[None]
    by_i, by_j = phi[(*rows, i[:, None])], phi[(*rows, j[:, None])]
    np.testing.assert_array_equal(by_i[:, :7] * by_j[:, :7], x[:, :7, d])
    np.testing.assert_array_equal(by_i[:, 7] * by_j[:, 7], y)
    found = [((by_i == a) & (by_j == b)).mean() for a, b in theory.SIGNS]
    np.testing.assert_allclose(found, theory.sign_probabilities(gamma), atol=0.005)
    moment = (np.asarray(x[:, :7, d:]) * phi[:, :7]).mean(axis=1)
    one_hot = np.eye(d)[i] + np.eye(d)[j]
    np.testing.assert_allclose((moment * one_hot).sum() / one_hot.sum(), 2 * gamma, atol=0.01)
    np.testing.assert_allclose((moment * (1 - one_hot)).sum() / (1 - one_hot).sum(), 0, atol=0.005)


def test_a_dictionary_changes_no_parity_output():
    plain = ParityPrompts(4, 2, 5, 0.2)
    rotated = ParityPrompts(4, 2, 5, 0.2, rotated=True).instance(jax.random.key(3))
    heads = theory.binary_heads(4, 2, 0.2)
    G, V, a = rotated.dictionary, jnp.asarray(heads.V, jnp.float32), jnp.asarray(heads.a)
    one, two = plain.sample(jax.random.key(0), 50), rotated.sample(jax.random.key(0), 50)
    direct = jax.vmap(ReluHeads(jax.vmap(jnp.diag)(V), a))(one.x)
    np.testing.assert_allclose(jax.vmap(ReluHeads(jnp.einsum("ij,hj,kj->hik", G, V, G), a))(two.x), direct, atol=1e-4)


@pytest.mark.parametrize("irrelevant", [0, 2])
def test_sentiment_prompts_say_what_their_words_mean(irrelevant):
    task = SentimentPrompts(words=10, length=4, examples=8, flip=0.25, irrelevant=irrelevant)
    x, y, _ = task.sample(jax.random.key(0), 2000)
    x, y, kinds = np.asarray(x), np.asarray(y), task.kinds()
    assert x.shape[1:] == task.in_shape and task.in_shape == (len(kinds),)
    words = x[:, kinds == 0].reshape(-1, 9, 4)
    score = np.where(words < 5, 1, -1).sum(axis=2)
    assert (score != 0).all() and words.max() == 9
    flipped = (score > 0) != (y == 1)
    np.testing.assert_array_equal(flipped[:, :8].sum(axis=1), 2)
    assert not flipped[:, 8].any()
    np.testing.assert_array_equal(x[:, kinds == 2], task.elements - 2 + y[:, :8])
    if irrelevant:
        extra = x[:, kinds == 1]
        assert extra.min() == 10 and extra.max() == 19
    outputs = np.stack([np.arange(len(kinds))] * 2, axis=1).astype(np.float32)
    before = np.asarray(at_labels(jnp.asarray(outputs), 9))[:, 0].astype(int)
    assert (kinds[before[:-1] + 1] == 2).all() and before[-1] == len(kinds) - 1


def test_inverted_prompts_mean_the_opposite_throughout():
    kept = SentimentPrompts(words=10, length=3, examples=4).sample(jax.random.key(0), 100)
    turned = SentimentPrompts(words=10, length=3, examples=4, inverted=1.0).sample(jax.random.key(0), 100)
    np.testing.assert_array_equal(kept.y, 1 - turned.y)


def test_bad_prompts_are_refused():
    with pytest.raises(InputError, match="2 <= k < d"):
        ParityPrompts(4, 4, 3)
    with pytest.raises(InputError, match="even number of words"):
        SentimentPrompts(words=7)
    with pytest.raises(InputError, match="at least 1"):
        RegressionPrompts(SPECTRUM, 0)


# ------------------------------------------------------------------------------------------- regression in closed form


def rotated_covariance():
    Q = np.linalg.qr(normals(5, 5).astype(float))[0]
    return (Q * np.array(SPECTRUM)) @ Q.T, Q


def test_pretraining_loss_gradient_and_gap():
    covariance, _ = rotated_covariance()
    U = normals(5, 5, seed=1).astype(float)
    with jax.enable_x64(True):
        L, G = jnp.asarray(covariance), jnp.asarray(theory.gamma_matrix(covariance, 20))
        gradient = jax.grad(lambda U: jnp.trace(G @ L @ U @ L @ U.T / 2 - L @ L @ U.T))(jnp.asarray(U))
    np.testing.assert_allclose(theory.pretraining_gradient(U, covariance, 20), gradient, rtol=1e-10)
    least = -np.trace(covariance @ covariance @ np.linalg.inv(theory.gamma_matrix(covariance, 20))) / 2
    above = theory.pretraining_loss(U, 0.3, covariance, 20) - least
    np.testing.assert_allclose(theory.pretraining_gap(U, 0.3, covariance, 20), above, rtol=1e-9)
    np.testing.assert_allclose(theory.optimal_loss(SPECTRUM, 20, 5), least, rtol=1e-12)


@pytest.mark.parametrize("r", [1, 3, 5])
def test_no_matrix_of_the_rank_beats_the_truncation(r):
    covariance, Q = rotated_covariance()
    best = (Q * theory.optimal_values(SPECTRUM, 20, r)) @ Q.T
    least = theory.optimal_loss(SPECTRUM, 20, r)
    np.testing.assert_allclose(theory.pretraining_loss(best, 1.0, covariance, 20), least, rtol=1e-10)
    np.testing.assert_allclose(theory.pretraining_loss(4 * best, 0.25, covariance, 20), least, rtol=1e-10)
    left, values, right = np.linalg.svd(best)
    A, B = left[:, :r] * np.sqrt(values[:r]), right[:r].T * np.sqrt(values[:r])
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1, 1.0):
        near = (A + size * rng.standard_normal(A.shape)) @ (B + size * rng.standard_normal(B.shape)).T
        assert theory.pretraining_loss(near, 1.0, covariance, 20) > least


@pytest.mark.parametrize("flip", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("r", [0, 2, 5])
def test_evaluation_loss_is_what_the_moments_of_a_prompt_give(r, flip):
    """E(mᵀU x_q − wᵀx_q)² with mean c Λ w and covariance (E[y² xxᵀ] − c² Λ w wᵀ Λ)/M of m = (1/M) Σ y_i x_i."""
    covariance, Q = rotated_covariance()
    components, M, sigma, c = normals(5, seed=4).astype(float), 7, 0.8, 1 - 2 * flip
    w, U = Q @ components, (Q * theory.optimal_values(SPECTRUM, 30, r)) @ Q.T
    mean = c * covariance @ w
    spread = (theory.label_moment(w, covariance, sigma) - np.outer(mean, mean)) / M
    off = U.T @ mean - w
    expected = np.trace(U.T @ spread @ U @ covariance) + off @ covariance @ off
    e = theory.Evaluation(components, M, sigma, flip)
    np.testing.assert_allclose(theory.evaluation_loss(SPECTRUM, 30, r, e), expected, rtol=1e-10)


def test_label_moment_by_sampling():
    covariance, _ = rotated_covariance()
    w = normals(5, seed=4).astype(float)
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal(np.zeros(5), covariance, 400_000)
    y = x @ w + 0.5 * rng.standard_normal(len(x))
    sampled = (x * (y**2)[:, None]).T @ x / len(x)
    np.testing.assert_allclose(sampled, theory.label_moment(w, covariance, 0.5), atol=0.02 * abs(sampled).max())
    assert abs(sampled - theory.label_moment(w, covariance, 0.5, printed=True)).max() > 0.1 * abs(sampled).max()


def test_rank_gap_and_its_limit():
    w = np.array([1.0, -2.0, 0, 0, 0])
    e = theory.Evaluation(w, 16, 0.7)
    losses = [theory.evaluation_loss(SPECTRUM, 50, r, e) for r in range(6)]
    for larger in (3, 4, 5):
        gap = theory.rank_gap(SPECTRUM, 50, 2, larger, e)
        np.testing.assert_allclose(losses[larger] - losses[2], gap, rtol=1e-10)
    near = theory.evaluation_loss(SPECTRUM, 10**9, 4, theory.Evaluation(np.ones(5), 16, 0.7))
    limit = theory.long_pretraining_loss(SPECTRUM, 4, theory.Evaluation(np.ones(5), 16, 0.7))
    np.testing.assert_allclose(near, limit, rtol=1e-6)


# ------------------------------------------------------------------------------------------- heads in closed form


def brute_force_margin(heads, gamma, i, j, signs):
    """y g(z, φ) with z = E[y φ'] = 2γ (e_i + e_j), other features of the query at random."""
    d = heads.V.shape[1]
    phi = np.random.default_rng(0).choice([-1.0, 1.0], d)
    phi[i], phi[j] = signs
    z = np.zeros(d)
    z[[i, j]] = 2 * gamma
    return (
        signs[0]
        * signs[1]
        * sum(a * max(0.0, float(z @ np.diag(V) @ phi)) for a, V in zip(heads.a, heads.V, strict=True))
    )


@pytest.mark.parametrize("heads", [theory.binary_heads(8, 3, 0.1), theory.four_heads(8, 0.1)])
def test_margins_are_those_of_the_network(heads):
    margins = heads.margins(0.1)
    for i, j in [(0, 1), (5, 2), (7, 0)]:
        for p, signs in enumerate(theory.SIGNS):
            np.testing.assert_allclose(margins[i, j, p], brute_force_margin(heads, 0.1, i, j, signs), atol=1e-12)


@pytest.mark.parametrize("nu", [1, 3, 5])
def test_binary_heads_count_differing_digits(nu):
    d = 2**nu
    distance = [[bin(i ^ j).count("1") for j in range(d)] for i in range(d)]
    margins = theory.binary_heads(d, nu, 0.2).margins(0.2)
    off = ~np.eye(d, dtype=bool)
    np.testing.assert_allclose(margins[off], np.array(distance, float)[off][:, None] * np.ones(4), atol=1e-12)


def test_the_small_model_is_silent_where_low_digits_agree():
    margins = theory.binary_heads(16, 2, 0.1).margins(0.1)
    silent = np.nansum(np.all(abs(margins) < 1e-12, axis=-1))
    assert silent == theory.unanswered(16, 4) == 48
    assert theory.small_heads(1, 3) == [1, 4, 5, 8]
    # ± of one head per digit and one of that scale, 16 entries each
    assert theory.binary_heads(16, 2, 0.1).norm == pytest.approx(2 * 16 * (2 * 1 + 2**2) / (4 * 0.1) ** 2)


@pytest.mark.parametrize("d, count", [(4, 6), (8, 7), (16, 8), (64, 10)])
def test_fewer_heads_than_claimed_have_zero_loss(d, count):
    signs, four = theory.separating_heads(d, 0.1), theory.four_heads(d, 0.1)
    assert (len(signs.a), len(four.a)) == (count, 4)
    for heads in (signs, four):
        assert np.nanmin(heads.margins(0.1)) == pytest.approx(1)
        assert np.nanmax(theory.hinge(heads.margins(0.1), 0.1)) == pytest.approx(0, abs=1e-12)
    assert len(np.unique(abs(signs.V[0]))) == 1


def test_threshold_and_projection():
    assert theory.mixture_threshold(8, 0.1) == pytest.approx(0.01508, abs=1e-5)
    P = theory.projection(theory.binary_heads(16, 3, 0.1))
    np.testing.assert_allclose(P @ P, P, atol=1e-10)
    assert np.trace(P) == pytest.approx(4)


def test_restarts_see_the_same_margins_and_weights():
    heads, d = theory.binary_heads(8, 2, 0.1), 8
    i, j = np.triu_indices(d, 1)
    found = pair_margins(jnp.asarray(heads.a), jnp.asarray(2 * 0.1 * heads.V, jnp.float32))
    np.testing.assert_allclose(found, heads.margins(0.1)[i, j], atol=1e-5)
    weights = task_weights(d, 2, 0.1, 0.01)
    assert weights.sum() == pytest.approx(1)
    assert weights[(i < 2) & (j < 2)].sum() == pytest.approx(0.99)


# ------------------------------------------------------------------------------------------- claims


def claim(id):
    return next(found for _, found in systems()["icl-model-scale"].claims if found.id == id)


@pytest.mark.parametrize("value, outcome", [(0.0, "holds"), (np.nan, "undecided")])
def test_a_value_that_is_no_number_proves_nothing(value, outcome):
    zero = np.zeros((2, 1))
    found = {"loss": (("rank", "restart"), zero), "best_loss": ("rank", zero[:, 0])}
    ds = xr.Dataset(found | {"distance": (("rank", "restart"), zero + [[0.0], [value]])})
    assert claim("04.2").judge(ds).outcome == outcome
    counts = {"family": ["magnitudes", "signs"], "d": [4, 8, 16, 64]}
    margin = np.ones((2, 4)) + np.array([[value], [0.0]])
    ds = xr.Dataset(
        {"margin": (("family", "d"), margin), "count": (("family", "d"), [[4] * 4, [6, 7, 8, 10]])}, coords=counts
    )
    assert claim("04.17").judge(ds).outcome == outcome


def test_the_least_margin_leaves_out_the_diagonal_alone():
    heads = theory.four_heads(4, 0.1)
    assert least_margin(heads, 0.1) == np.nanmin(heads.margins(0.1))
    assert np.isnan(least_margin(heads._replace(V=heads.V + np.nan), 0.1))


def test_what_is_undecided_at_quick_is_judged_there_too():
    for id in ("04.19e", "04.20"):
        assert set(claim(id).presets) == {"quick", "paper"}
