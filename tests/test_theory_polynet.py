"""The disjoint-PolyNet: flow, exact error, bounds, step counts."""

import math

import numpy as np
import pytest

from krogh.theory import disjoint_polynet as polynet
from krogh.theory.boolean import cube


@pytest.mark.parametrize("k", [2, 3, 5])
def test_closed_flow_solves_the_equation(k: int):
    times = np.linspace(0, 0.9 if k == 2 else 0.9 / (k - 2), 20)
    np.testing.assert_allclose(polynet.flow(np.ones(k), times)[:, 0], polynet.relevant_weight(times, k), rtol=1e-8)
    np.testing.assert_allclose(polynet.reach_time(polynet.relevant_weight(times, k), k), times, atol=1e-12)


def test_flow_conserves_differences_of_squares_and_matches_quadrature():
    v0 = np.array([0.4, -1.3, -0.8, 1.1])
    times = np.linspace(0, 0.8, 9) * polynet.flow_time(math.inf, v0)
    v = polynet.flow(v0, times)
    np.testing.assert_allclose(v**2 - v[:, :1] ** 2, np.tile(v0**2 - v0[0] ** 2, (9, 1)), atol=1e-8)
    grown = v[:, 0] ** 2 - v0[0] ** 2
    np.testing.assert_allclose([polynet.flow_time(q, v0) for q in grown], times, atol=1e-8)


def test_blow_up_time_of_equal_weights():
    for k in (3, 4, 6):
        assert math.isclose(polynet.flow_time(math.inf, np.ones(k)), 1 / (k - 2), rel_tol=1e-9)


def test_bounds_of_lemma_b8_hold_and_are_tight_for_equal_weights():
    rng = np.random.default_rng(0)
    for _ in range(5):
        v0 = rng.normal(size=3)
        b = 2 * abs(v0).max()
        time = np.array([polynet.flow_time(b**2 - v**2, v0) for v in v0])
        rest = polynet.flow_time(math.inf, v0) - time
        assert (polynet.reach_time_bound(b, v0) <= time + 1e-12).all()
        assert (polynet.remaining_time_bound(b, v0) >= rest - 1e-12).all()
    assert math.isclose(polynet.reach_time_bound(3.0, np.ones(4))[0], polynet.reach_time(3.0, 4))


@pytest.mark.parametrize("seed", range(4))
def test_error_equals_enumeration(seed: int):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(3, 4)) if seed % 2 else rng.choice([-2.0, -1.0, 1.0], (3, 4))
    x = cube(12).reshape(-1, 3, 4)
    wrong = np.prod((x * w).sum(axis=2), axis=1) * np.prod(x[:, :, 0], axis=1) <= 0
    assert math.isclose(polynet.network_error(w), wrong.mean(), abs_tol=1e-12)


def test_printed_error_counts_ties_twice():
    p, t = np.full(2, 0.1), np.full(2, 0.2)
    assert polynet.printed_error(p, t) > polynet.error(p, t)
    assert math.isclose(polynet.printed_error(p, 0 * t), polynet.error(p, 0 * t))


def test_sign_weights_are_binomial():
    for m, v in ((9, 3.0), (10, 4.0), (10, 3.5)):
        np.testing.assert_allclose(polynet.overturned(np.ones(m), v), polynet.overturned_signs(m, v), atol=1e-12)


def test_tail_bound_of_hoeffding_holds_where_the_printed_one_fails():
    exact = sum(polynet.overturned_signs(100, 30))
    assert polynet.tail_bound(30, 10, printed=True) < exact < polynet.tail_bound(30, 10)


def test_error_bounds_enclose_the_error():
    rng = np.random.default_rng(0)
    for v in (0.5, 2.0, 6.0):
        w = rng.normal(size=(3, 15))
        w[:, 0] = v
        exact, norms = polynet.network_error(w), np.linalg.norm(w[:, 1:], axis=1)
        low = polynet.error_lower_bound(w[:, 0], w[:, 1:])
        assert low <= exact <= polynet.error_upper_bound(w[:, 0], norms)


def test_plateau_shares_of_the_specification():
    blocks = (257, 1025, 4097)
    np.testing.assert_allclose([polynet.plateau_share(b, 3) for b in blocks], [0.8366, 0.9176, 0.9548], atol=1e-4)
    np.testing.assert_allclose([polynet.plateau_share(b, 4) for b in blocks], [0.98439, 0.9961, 0.99902], atol=2e-5)


def test_plateau_value_is_the_first_below_the_target():
    block, k = 65, 3
    v = polynet.plateau_value(block, k)

    def error_past(v: int) -> float:
        return polynet.error(np.full(k, polynet.overturned_signs(block - 1, v + 0.5)[0]), np.zeros(k))

    assert error_past(v) <= 0.49 < error_past(v - 2)


def test_steps_of_theorem_5_8():
    steps = polynet.sgd_steps(3, 2, 0.1, 0.1)
    assert steps == 125_471
    needed = 6 * math.log(2 * 6 * steps / 0.1) * math.log(40) * 7**3
    assert needed <= steps < needed + 2
    assert math.isclose(polynet.relevant_bound(3, 2, steps, 0.1), 4.9008, rel_tol=1e-4)
