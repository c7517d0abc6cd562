"""The cube, the Walsh–Hadamard transform, majority's spectrum and Fourier gaps."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krogh.errors import InputError
from krogh.theory import boolean, fixed_features, majority, one_step
from krogh.theory import fourier_gap as gaps
from krogh.theory.limits import RandomSearch, gaussian_elimination, noise_factor, samples_needed


def test_transform_equals_the_definition():
    table = np.random.default_rng(0).normal(size=(16, 3))
    x = boolean.cube(4)
    direct = [
        (table * boolean.character(x, [i for i in range(4) if s >> i & 1])[:, None]).mean(axis=0) for s in range(16)
    ]
    np.testing.assert_allclose(boolean.walsh_hadamard(table), direct, atol=1e-14)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_parseval_and_inversion(n: int, seed: int):
    table = np.random.default_rng(seed).normal(size=2**n)
    spectrum = boolean.walsh_hadamard(table)
    assert math.isclose(boolean.level_weights(spectrum).sum(), (table**2).mean(), rel_tol=1e-10)
    np.testing.assert_allclose(boolean.walsh_hadamard(spectrum) * 2**n, table, atol=1e-10)


def test_a_character_is_one_coefficient():
    spectrum = boolean.walsh_hadamard(boolean.character(boolean.cube(6), [1, 4]))
    assert spectrum[boolean.mask([1, 4])] == 1 and np.count_nonzero(spectrum) == 1


def test_tables_off_the_cube_are_refused():
    with pytest.raises(InputError, match="2\\^n rows"):
        boolean.walsh_hadamard(np.ones(6))


def test_cubes_too_large_to_enumerate_are_refused():
    with pytest.raises(InputError, match="too large"):
        boolean.cube(23)


def test_product_of_others_survives_zeros():
    np.testing.assert_array_equal(gaps.product_of_others(jnp.array([0.0, 2.0, 3.0])), [6, 0, 0])


@pytest.mark.parametrize("n", [1, 3, 7, 11])
def test_majority_spectrum_equals_enumeration(n: int):
    spectrum = boolean.walsh_hadamard(np.sign(boolean.cube(n).sum(axis=1)))
    formula = np.array([majority.coefficient(n, k) for k in range(n + 1)])[boolean.degrees(n)]
    np.testing.assert_allclose(spectrum, formula, atol=1e-15)
    for k in range(2, n - 1, 2):
        assert math.isclose(boolean.fourier_gap(spectrum, range(k)), majority.gap(n, k), abs_tol=1e-15)


def test_majority_level_weights_sum_to_one_and_approach_their_limit():
    assert math.isclose(sum(majority.level_weight(51, k) for k in range(52)), 1.0, rel_tol=1e-12)
    assert math.isclose(majority.coefficient(4001, 5), majority.coefficient_limit(4001, 5), rel_tol=5e-3)
    assert math.isclose(majority.level_weight(20_001, 25), majority.level_weight_limit(25), rel_tol=0.05)
    scaled = [majority.gap(101, k) * 100 ** ((k - 1) / 2) for k in (2, 4, 6, 8)]
    np.testing.assert_allclose(scaled, [0.788, 0.779, 2.36, 12.1], rtol=2e-3)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_sign_neuron_gradient_equals_enumeration(k: int):
    rng = np.random.default_rng(k)
    w, u, b = rng.choice([-1.0, 1.0], (4, 11)), rng.choice([-1.0, 1.0], 4), rng.uniform(-1, 1, 4)
    by_weight, by_bias = gaps.sign_neuron_gradient(w, u, k)
    np.testing.assert_allclose(by_weight, -u[:, None] * gaps.population_gradient(gaps.step, w, k, b), atol=1e-15)
    x = boolean.cube(11)
    fires = gaps.step(x @ w.T + b) * boolean.character(x, range(k))[:, None]
    np.testing.assert_allclose(by_bias, -u * fires.mean(axis=0), atol=1e-15)


@pytest.mark.parametrize(("k", "scale"), [(2, 1.0), (3, 2.0)])
def test_sinusoid_gap_equals_enumeration_and_autodiff(k: int, scale: float):
    rng = np.random.default_rng(0)
    w, b, x = rng.normal(size=(5, 9)) / 3, rng.normal(size=5), boolean.cube(9)

    def derivative(z: np.ndarray) -> np.ndarray:
        return -np.pi / 2 * scale * np.sin(np.pi / 2 * (scale * z - k))

    def correlation(w: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.mean(jnp.prod(x[:, :k], axis=1) * jnp.cos(jnp.pi / 2 * (scale * (x @ w + b) - k)))

    enumerated = gaps.population_gradient(derivative, w, k, b)
    with jax.enable_x64(True):
        closed = np.asarray(gaps.sinusoid_gradient(jnp.asarray(w), jnp.asarray(b), k, scale))
        gap = np.asarray(gaps.fourier_gap_sinusoid(jnp.asarray(w), jnp.asarray(b), k, scale))
        autodiff = np.asarray(jax.vmap(jax.grad(correlation))(jnp.asarray(w), jnp.asarray(b)))
    np.testing.assert_allclose(closed, enumerated, atol=1e-14)
    np.testing.assert_allclose(closed, autodiff, atol=1e-14)
    np.testing.assert_allclose(gap, gaps.relaxed_gap(enumerated, k), atol=1e-14)


def test_sinusoid_gradient_survives_vanishing_factors():
    gradient = gaps.sinusoid_gradient(jnp.array([1.0, 1.0, 0.0, 0.0]), 0.0, 2)
    assert bool(jnp.isfinite(gradient).all())
    assert not jnp.isnan(jax.grad(lambda w: gaps.fourier_gap_sinusoid(w, 0.1, 2))(jnp.zeros(5))).any()


def test_noise_multiplies_the_gradient():
    w = np.random.default_rng(0).normal(size=(3, 9))
    clean, noisy = (gaps.population_gradient(gaps.step, w, 2, flip=p) for p in (0.0, 0.2))
    np.testing.assert_allclose(noisy, noise_factor(0.2) * clean, atol=1e-15)


def test_square_neurons_get_no_gradient_beyond_degree_two():
    """003 §B.3.7: E[y x_i sigma'(w.x + b)] = 0 for sigma = z^2 and k > 2, for every w and b."""
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(3, 8)), rng.normal(size=3)
    assert abs(gaps.population_gradient(lambda z: 2 * z, w, 3, b)).max() < 1e-12
    assert abs(gaps.population_gradient(lambda z: 2 * z, w, 2, b)).max() > 0.1


def test_recovery_samples():
    assert gaps.recovery_samples(majority.gap(31, 2) / 2, 31) == 11_716
    assert math.isclose(gaps.recovery_samples(majority.gap(21, 4) / 2, 21), 3.69e6, rel_tol=2e-3)


@pytest.mark.parametrize("k", range(1, 9))
def test_constructed_head_is_twice_the_parity(k: int):
    x = boolean.cube(k)
    np.testing.assert_allclose(one_step.constructed_head(k)(x), 2 * x.prod(axis=1), atol=1e-12)


@pytest.mark.parametrize("k", [2, 4, 6])
def test_printed_head_misses(k: int):
    x = boolean.cube(k)
    margins = one_step.printed_head(k)(x) * x.prod(axis=1)
    np.testing.assert_allclose(np.unique(margins.round(9)), [-2, 6])


def test_one_step_starts_at_zero_and_needs_biases_on_its_grid():
    w, b, u = one_step.initial(jax.random.key(0), 21, 4, 64)
    x, _ = one_step.sample_parity(jax.random.key(1), 100, 21, 4)
    assert abs(jax.nn.relu(x @ w.T + b) @ u).max() < 1e-5
    for k in (2, 4, 6):
        assert set(one_step.constructed_head(k).b.round(9)) <= set(one_step.bias_grid(k).round(9))


def test_sampled_gradient_approaches_the_closed_form():
    w, b, u = one_step.initial(jax.random.key(0), 15, 2, 8)
    g, gamma = one_step.sampled_gradient(jax.random.key(1), w, b, u, 2, 200_000)
    exact, _ = gaps.sign_neuron_gradient(np.asarray(w, float), np.asarray(u, float), 2)
    assert abs(np.asarray(g) - exact).max() < 5 / math.sqrt(200_000)
    w1, _ = one_step.first_step(jnp.asarray(exact), gamma, b, 2)
    np.testing.assert_allclose(abs(w1[:, :2]), 1 / 4, rtol=1e-5)


def test_thresholds_say_when_outside_the_proven_regime():
    thresholds = one_step.Thresholds(n=51, k=2, eps=0.1)
    assert math.isclose(2 / thresholds.tau**2 * math.log(32 * 51 * thresholds.width / 0.1), thresholds.batch)
    report = thresholds.report(width=64, batch=1e5, steps=2000)
    assert report.count("outside") == 4 - report.count("inside") and "n = 51" in report


def test_fixed_features_obey_parseval():
    rng = np.random.default_rng(0)
    psi = fixed_features.tangent_features(rng.normal(size=(3, 8)), rng.normal(size=3), rng.normal(size=3))
    assert math.isclose(np.linalg.norm(psi, axis=1).max(), 1.0)
    correlation, size = fixed_features.correlations(psi), boolean.degrees(8)
    assert math.isclose(correlation.sum(), (psi**2).sum(axis=1).mean(), rel_tol=1e-10)
    assert correlation[size == 3].mean() <= fixed_features.average_bound(8, 3)
    y = boolean.character(boolean.cube(8), range(3))
    head, *_ = np.linalg.lstsq(psi, y, rcond=None)
    own = boolean.mask(range(3))
    assert math.isclose(fixed_features.fit_shares(psi)[own], 1 - ((psi @ head - y) ** 2).mean(), abs_tol=1e-9)
    radii = np.array([1.0, 10.0])
    found = np.asarray(fixed_features.best_hinge(jnp.asarray(psi, jnp.float32), 3, jnp.asarray(radii)))
    assert (found >= fixed_features.hinge_bound(correlation[own], radii) - 1e-5).all()


def test_thresholds_by_hand():
    """n = 3, k = 2: xi_1 = 1/2 and xi_3 = -1/2; eps = 6/e makes the logarithms 1 + log 512 and 1 + log(8/3)."""
    asked = one_step.Thresholds(n=3, k=2, eps=6 / math.e, constants_ratio=3.0)
    assert asked.feature_eps == pytest.approx(6 / math.e / 768)
    assert asked.log_term == pytest.approx(1 + math.log(512))
    assert asked.tau == pytest.approx(0.5 / (32 * math.sqrt(6 * asked.log_term)))
    assert asked.width == pytest.approx(8 * (1 + math.log(8 / 3)))
    assert asked.steps_appendix == pytest.approx(512 * 8 * asked.width * 9 / asked.eps**2)
    assert asked.steps == pytest.approx(8 * asked.steps_appendix)
    assert asked.steps_main_text == pytest.approx(8 * asked.width**2 * 3 / asked.eps**2)
    assert asked.n_needed == pytest.approx(2048 * 16 * 9 * asked.log_term)
    assert asked.irrelevant_bound(0.25) == pytest.approx((0.5 + 0.5) / (4 * 0.5))
    assert asked.head_lr(width=8, steps=16) == pytest.approx(4 * math.sqrt(8) / (3 * math.sqrt(8 * 16)))


def test_the_gap_of_majority_is_above_its_bound():
    assert majority.gap_bound(101, 2) == pytest.approx(0.003)
    for n, k in ((17, 4), (41, 2), (101, 6), (101, 24)):
        assert majority.gap_bound(n, k) <= majority.gap(n, k)


def test_theorem_dimension_and_eps_are_inverse():
    eps = fixed_features.hard_eps(30, 3, 300, 2.0)
    assert math.isclose(fixed_features.width_needed(30, 3, 2.0, eps), 300)


@pytest.mark.parametrize("subset", [[2, 11, 29], [3, 4]])
def test_elimination_recovers_clean_parities_only(subset):
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], (40, 30))
    truth = np.zeros(30, dtype=bool)
    truth[subset] = True
    y = x[:, truth].prod(axis=1)
    found = gaussian_elimination(x, y)
    assert found is not None and (found == truth).all()
    y[7] *= -1
    assert gaussian_elimination(x, y) is None
    few = gaussian_elimination(x[:5], y[:5])
    assert few is not None and (x[:5][:, few].prod(axis=1) == y[:5]).all()


def test_random_search_is_geometric():
    search = RandomSearch(10, 2)
    assert math.isclose(search.mean, 45, rel_tol=1e-9)
    assert math.isclose(RandomSearch(30, 3, copies=10).mean, math.comb(30, 3) / 10, rel_tol=0.01)
    assert math.isclose(float(search.cdf(search.quantile(0.5))), 0.5)
    assert math.isclose(samples_needed(10, 2), math.log2(45))
