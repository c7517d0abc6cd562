"""Verdicts and the statistics under them."""

import math

import numpy as np
import pytest
import xarray as xr

from krogh.errors import InputError
from krogh.lab import (
    System,
    all_of,
    at_least,
    at_most,
    between,
    equals,
    every,
    share_at_least,
    share_at_most,
    statistics,
)

RNG = np.random.default_rng(3)


def test_wilson_matches_published_values():
    # Newcombe (1998), table I: 81/263 and 0/20
    assert statistics.wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert statistics.wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert statistics.wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=5e-5)


def test_bootstrap_interval_of_a_mean_has_the_normal_width():
    values = RNG.normal(2.0, 1.0, 400)
    low, high = at_least(values, 0).interval
    half = 1.96 * values.std() / math.sqrt(400)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_a_few_replicas_have_students_interval_of_the_mean_and_one_has_none():
    assert at_least([1.0, 3.0], 0).interval == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)
    assert at_least([1.0, 1.1, 1.2, 1.3], 1).interval == pytest.approx((1.15 - 0.20542, 1.15 + 0.20542), abs=1e-4)
    alone = at_least([1.0], 0)
    assert alone.interval is None and alone.outcome == "undecided"


@pytest.mark.parametrize(("values", "stat"), [([1.0, 1.1, 1.2], "median"), ([1.0, 1.1, math.inf], "mean")])
def test_a_few_replicas_decide_nothing_but_means(values, stat):
    verdict = at_least(values, 0, stat)
    assert verdict.outcome == "undecided" and verdict.interval is None and "at least 5" in verdict.detail


def test_the_interval_of_four_replicas_covers_the_mean_in_95_percent_of_samples():
    found = [at_least(RNG.normal(0, 1, 4), 0).interval for _ in range(1000)]
    assert 0.93 <= np.mean([low <= 0 <= high for low, high in found]) <= 0.97


def test_bootstrap_covers_the_mean_in_95_percent_of_samples():
    inside = 0
    for _ in range(300):
        low, high = at_least(RNG.normal(0, 1, 60), 0).interval
        inside += low <= 0 <= high
    assert 0.91 <= inside / 300 <= 0.985


def test_callable_and_named_statistics_agree():
    values = RNG.normal(size=50)
    named, called = at_least(values, 0, "median"), at_least(values, 0, lambda v: np.median(v))
    assert named.measured == called.measured
    assert named.interval == pytest.approx(called.interval, abs=0.15)


def test_three_outcomes():
    values = RNG.normal(1.0, 0.5, 100)
    assert at_least(values, 0.5).outcome == "holds"
    assert at_least(values, 1.5).outcome == "fails"
    assert at_least(values, float(values.mean())).outcome == "undecided"
    assert at_most(values, 1.5).outcome == "holds"
    assert at_most(values, 0.5).outcome == "fails"
    assert between(values, 0.5, 1.5).outcome == "holds"
    assert between(values, 1.5, 2).outcome == between(values, -1, 0.5).outcome == "fails"
    assert between(values, float(values.mean()), 2).outcome == "undecided"


def test_shares_are_judged_by_wilson():
    flags = np.arange(100) < 90
    assert share_at_least(flags, 0.8).outcome == "holds"
    assert share_at_least(flags, 0.88).outcome == "undecided"
    assert share_at_least(flags, 0.96).outcome == "fails"
    assert share_at_most(flags, 0.96).outcome == "holds"
    assert share_at_most(flags, 0.8).outcome == "fails"
    # ten of ten do not yet prove 80 percent
    assert share_at_least(np.ones(10, bool), 0.8).outcome == "undecided"
    assert share_at_least(flags, 0.8).interval == statistics.wilson(90, 100)


def test_a_value_without_replicas_is_just_compared():
    assert at_least(0.99, 0.99) == at_least(np.float32(0.99).astype(float).round(2), 0.99)
    assert at_least(0.98, 0.99).outcome == "fails"
    assert at_least(0.99, 0.99).interval is None


@pytest.mark.parametrize("value", [math.nan, np.array([1.0]), np.array([1.0, math.nan, 1.0]), np.array([])])
def test_nothing_to_judge_from_is_undecided_and_says_why(value):
    verdict = at_least(value, 0.0)
    assert verdict.outcome == "undecided"
    assert verdict.detail


def test_one_replica_named_by_over_is_undecided():
    assert at_least(xr.DataArray([3.0], dims="seed"), 1, over="seed").outcome == "undecided"


def test_censored_times_are_infinite():
    times = np.r_[np.full(60, 10.0), np.full(40, np.inf)]
    assert at_most(times, 10, "median").measured == 10
    assert at_most(times, 10, "median").interval[1] in (10.0, math.inf)
    mostly = np.r_[np.full(40, 10.0), np.full(160, np.inf)]
    verdict = at_most(mostly, 100, "median")
    assert (verdict.outcome, verdict.measured, verdict.interval) == ("fails", math.inf, (math.inf, math.inf))
    assert verdict.as_dict()["measured"] == "inf"
    assert statistics.percentile(times, 50) == 10
    assert statistics.percentile(times, 61) == math.inf


def test_over_names_the_replicas_and_a_pair_is_resampled_together():
    data = xr.DataArray(RNG.normal(size=(3, 40)) + np.arange(3)[:, None], dims=("size", "seed"))
    slope = at_least(data, 0.5, lambda v: np.polyfit(range(3), v.mean(0), 1)[0], over="seed")
    assert slope.outcome == "holds" and slope.n == 40
    base = RNG.normal(size=200) * 100
    paired = between((base + 1, base), 0.99, 1.01, lambda a, b: np.mean(a - b))
    assert paired.outcome == "holds"
    assert at_least(data, -1, over=("size", "seed")).n == 120


def test_every_and_equals():
    assert every([True, True]).outcome == "holds"
    assert every([True, False]).outcome == "fails"
    assert every([]).outcome == "undecided"
    assert every([True, True], over="seed").interval == statistics.wilson(2, 2)
    assert equals(1.0, 1.0).outcome == "holds"
    assert equals([1, 2], [1, 2 + 1e-9], 1e-8).measured == pytest.approx(1e-9)
    assert equals([1, 2], [1, 3], 0.5).outcome == "fails"
    assert equals([1, math.nan], [1, 3], 0.5).outcome == "undecided"


def test_the_worst_part_decides():
    good, bad, open_ = at_least(2, 1), at_least(0, 1), at_least(math.nan, 1)
    assert all_of(good, good).outcome == "holds"
    assert all_of(good, k2=open_).outcome == "undecided"
    verdict = all_of(k2=open_, k3=bad, k4=good)
    assert (verdict.outcome, verdict.measured) == ("fails", 1.0)
    assert verdict.detail.startswith("k3: 0 (>= 1)")
    assert set(verdict.parts) == {"k2", "k3", "k4"}
    assert all_of().outcome == "undecided"


def test_power_law_and_local_exponents():
    x = np.array([10, 20, 40, 80])
    assert statistics.power_law(x, 3 * x**1.7) == pytest.approx((1.7, 3.0))
    assert statistics.local_exponents(x, x**2.0) == pytest.approx([2, 2, 2])


def test_icc_recovers_the_share_of_variance_between_groups():
    groups = RNG.normal(0, 3, (400, 1)) + RNG.normal(0, 1, (400, 8))
    assert statistics.icc(groups) == pytest.approx(0.9, abs=0.02)
    assert abs(statistics.icc(RNG.normal(size=(400, 8)))) < 0.05


def test_geometric_times_pass_the_geometric_test_and_concentrated_ones_do_not():
    geometric = RNG.geometric(0.01, 2000)
    assert statistics.ks_geometric(geometric)[1] > 0.01
    checked = np.ceil(geometric / 50) * 50
    assert statistics.ks_geometric(checked, spacing=50)[1] > 0.001
    assert statistics.ks_geometric(RNG.normal(1000, 100, 400).round())[1] < 1e-6
    assert math.isnan(statistics.ks_geometric([5, np.inf, np.inf])[1])


def test_a_claim_is_judged_at_presets_that_its_experiment_has():
    large = System("toy", 99, "Toy", "Why?", "nowhere").experiment("fig-1", "Toy", presets={"paper": None})(xr.Dataset)
    assert large.claim("1", "x is small")(lambda ds: at_most(ds.x, 1)).presets == ("paper",)
    with pytest.raises(InputError, match="unknown preset of claim 2 'quick'; it can be paper"):
        large.claim("2", "x is smaller", presets=("quick",))


def test_bad_requests_say_what_is_allowed():
    data = xr.DataArray(np.zeros((2, 3)), dims=("lr", "seed"))
    for call, told in [
        (lambda: at_least(data, 0), "over="),
        (lambda: at_least(data, 0, over="sed"), "did you mean 'seed'"),
        (lambda: at_least(data, 0, "medain", over="seed"), "did you mean 'median'"),
        (lambda: at_least((np.zeros(3), np.zeros(4)), 0, lambda a, b: 0.0), "3, 4 replicas"),
        (lambda: at_least((np.zeros(3), np.zeros(3)), 0), "function"),
        (lambda: share_at_least(data, 0.5, over="seed"), "reduced"),
        (lambda: share_at_least([0.5, 0.2], 0.5), "true or false"),
    ]:
        with pytest.raises(InputError, match=told):
            call()
