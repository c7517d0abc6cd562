"""Facts about offline parities, sparse first layers, the theory of tickets and the tables."""

import dataclasses
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import xarray as xr
from jax.flatten_util import ravel_pytree

import krogh as kr
from krogh.data import tabular as tables
from krogh.errors import InputError
from krogh.lab.statistics import power_law
from krogh.nn.sparse import PairedTickets, SparseRows, Ticket, hot_rows, keep_neurons
from krogh.probes.basic import accuracy_in_parts
from krogh.probes.offline import sample_accuracy
from krogh.systems.pareto_frontiers.frontier import feasible_from, more_data_hurts, sparse_helps
from krogh.systems.pareto_frontiers.one_step import first_step, rate
from krogh.systems.pareto_frontiers.published import TABLE_C1, TABLE_C2
from krogh.systems.pareto_frontiers.tables import width_and_sparsity_help
from krogh.systems.pareto_frontiers.theory import Queries, Tickets, queries_bounded, supports
from krogh.tasks import Batch, Task
from krogh.tasks.offline import OfflineParity
from krogh.tasks.tabular import RuleTable, tabular
from krogh.theory import majority, tickets
from krogh.theory.boolean import cube
from krogh.theory.fourier_gap import population_gradient, step

# ------------------------------------------------------------------------------------------- the sample nobody stores


class Stored(Task):
    """The same sample written out, m × n floats a replica, and drawn from in the same order."""

    parity: OfflineParity
    x: jax.Array
    y: jax.Array

    @property
    def in_shape(self):
        return self.parity.in_shape

    def instance(self, key):
        batch = self.parity.instance(key).rows(jnp.arange(len(self.y)))
        return eqx.tree_at(lambda task: (task.x, task.y), self, (batch.x, batch.y))

    def draw(self, key, size):
        return jr.randint(key, (size,), 0, len(self.y))

    def decode(self, raw, size):
        return Batch(self.x[raw], self.y[raw])

    def sample(self, key, size):
        return self.decode(self.draw(key, size), size)

    def held_out(self, key, size):
        return self.parity.held_out(key, size)


def test_the_sample_generated_row_by_row_trains_exactly_as_the_stored_one():
    offline = OfflineParity(n=70, k=2, m=90.0)
    settings = dict(seeds=3, probes=[accuracy_in_parts], every=50, validation=64)
    learner = kr.SGD(lr=0.1, batch=16, weight_decay=0.01)
    one = kr.train(offline, kr.nn.MLP(8), learner, 150, **settings)
    two = kr.train(Stored(offline, jnp.zeros((90, 70)), jnp.zeros(90)), kr.nn.MLP(8), learner, 150, **settings)
    assert np.array_equal(one.networks.weights, two.networks.weights)
    assert np.array_equal(one.data.accuracy, two.data.accuracy)


def test_rows_are_fixed_fair_and_belong_to_the_replica():
    task = OfflineParity(n=40, k=3, m=1000.0).instance(jr.key(0))
    rows = task.rows(jnp.arange(4000))
    np.testing.assert_array_equal(task.rows(jnp.asarray([5, 999])).x, rows.x[np.array([5, 999])])
    np.testing.assert_array_equal(rows.y, rows.x[:, :3].prod(axis=1))
    x = np.asarray(rows.x)
    assert set(np.unique(x)) == {-1.0, 1.0}
    correlation = x.T @ x / len(x) - np.eye(40)
    assert abs(x.mean(axis=0)).max() < 5 / 4000**0.5 and abs(correlation).max() < 5.5 / 4000**0.5
    assert OfflineParity(n=33, k=3, m=9.0).rows(jnp.arange(9)).x.shape == (9, 33)
    other = OfflineParity(n=40, k=3, m=1000.0).instance(jr.key(1)).rows(jnp.arange(4000))
    assert abs(np.mean(x * np.asarray(other.x))) < 5 / 160_000**0.5


def test_batches_come_from_the_first_m_rows_and_validation_does_not():
    task = OfflineParity(n=64, k=2, m=20.0).instance(jr.key(3))
    known = {row.tobytes() for row in np.asarray(task.rows(jnp.arange(20)).x)}
    drawn = {row.tobytes() for row in np.asarray(task.sample(jr.key(0), 400).x)}
    fresh = {row.tobytes() for row in np.asarray(task.held_out(jr.key(0), 400).x)}
    assert drawn == known and not fresh & known
    endless = eqx.tree_at(lambda t: t.m, task, float("inf")).sample(jr.key(0), 400)
    assert len({row.tobytes() for row in np.asarray(endless.x)}) == 400


def test_sample_sizes_share_a_program_without_meeting():
    settings = dict(seeds=2, probes=[sample_accuracy], every=40)
    spec = kr.spec(OfflineParity(12, 2, m=1.0), kr.nn.MLP(6), kr.SGD(lr=0.2), 40, **settings)
    together = kr.sweep(spec, m=[30, 500, float("inf")])
    assert len(together.groups) == 1
    alone = kr.train(OfflineParity(12, 2, m=500.0), kr.nn.MLP(6), kr.SGD(lr=0.2), 40, **settings)
    np.testing.assert_allclose(together.data.sel(m=500).sample_accuracy, alone.data.sample_accuracy, atol=1e-6)


def test_impossible_sample_sizes_are_refused():
    for m in (0.0, 0.5, 2.0**25, float("nan")):
        with pytest.raises(InputError, match="m="):
            OfflineParity(10, 2, m=m)


# ------------------------------------------------------------------------------------------- sparse rows and tickets


def test_hot_rows_have_s_ones_on_uniform_subsets():
    hot = np.asarray(hot_rows(jr.key(0), 6, 30_000, 2))
    assert set(np.unique(hot)) == {0.0, 1.0} and (hot.sum(axis=0) == 2).all()
    pairs = np.array([np.mean(hot[i] * hot[j]) for i, j in itertools.combinations(range(6), 2)])
    np.testing.assert_allclose(pairs, 1 / 15, atol=5 * (1 / 15 / 30_000) ** 0.5)
    assert (np.asarray(hot_rows(jr.key(1), 9, 50, 4, (0, 1)))[:2] == 1).all()


def test_sparse_rows_replace_the_first_layer_alone():
    task = kr.tasks.SparseParity(n=9, k=2)
    for inner in (kr.nn.MLP(7), kr.nn.DeepMLP(widths=(7, 5))):
        dense = inner.build(task, jr.key(0))
        zero = SparseRows(inner, s=0.0).build(task, jr.key(0))
        assert np.array_equal(
            ravel_pytree(eqx.filter(zero, eqx.is_array))[0], ravel_pytree(eqx.filter(dense, eqx.is_array))[0]
        )
        sparse = SparseRows(inner, s=2.0).build(task, jr.key(0))
        first = sparse.weights[0] if isinstance(sparse.weights, tuple) else sparse.weights
        assert (first.sum(axis=0) == 2).all() and first.shape == (9, 7)
        same = jax.tree.map(
            lambda a, b: bool(jnp.array_equal(a, b)), eqx.filter(sparse, eqx.is_array), eqx.filter(dense, eqx.is_array)
        )
        assert sum(not equal for equal in jax.tree.leaves(same)) == 1


def test_paired_networks_start_at_zero_and_good_ones_hold_the_support():
    task = kr.tasks.SparseParity(n=11, k=2)
    network = PairedTickets(40, 5, tickets.over_biases(2), background=0.01, good=True).build(task, jr.key(2))
    np.testing.assert_allclose(jax.vmap(network)(task.enumerate().x), 0, atol=1e-5)
    assert (network.weights[:2] == 1).all() and ((network.weights == 1).sum(axis=0) == 5).all()
    with pytest.raises(InputError, match="even"):
        PairedTickets(3, 1, (0.0,))


def test_a_ticket_is_the_sum_of_the_neurons_kept():
    task = kr.tasks.SparseParity(n=8, k=2)
    run = kr.train(task, kr.nn.MLP(6), kr.SGD(lr=0.1), 5, seeds=3, snapshots=[0])
    chosen = np.array([[0, 3], [5, 1], [2, 4]])
    kept = keep_neurons(run.snapshots[0], chosen)
    x = task.enumerate().x[17]
    for seed in range(3):
        start = run.network(seed=seed, step=0)
        expected = (start.hidden(x) * start.output)[chosen[seed]].sum() + start.output_bias
        np.testing.assert_allclose(Ticket(kept, ticket=float(seed)).build(task, jr.key(0))(x), expected, rtol=1e-5)
    again = kr.sweep(kr.spec(task, Ticket(kept), kr.SGD(lr=0.1), 5, seeds=2, snapshots=[0]), ticket=range(3))
    assert len(again.groups) == 1
    np.testing.assert_array_equal(again.network(ticket=1, seed=1, step=0).weights, kept.weights[1])


# ------------------------------------------------------------------------------------------- theory


@pytest.mark.parametrize("n, s, k", [(9, 5, 2), (11, 7, 4)])
def test_over_sparse_gradients_are_the_enumerated_ones(n, s, k):
    support = supports(n, s, k)
    assert (support.sum(axis=1) == s).all()
    measured = population_gradient(step, support, k, tickets.over_biases(k)[0])
    np.testing.assert_allclose(tickets.over_sparse_gradient(support, k), measured, atol=1e-12)
    good = abs(measured[0])
    np.testing.assert_allclose(good[s - 1] / good[0], (k - 1) / (s - k))


@pytest.mark.parametrize("n, s, k", [(9, 2, 4), (11, 2, 6), (11, 4, 6)])
def test_under_sparse_gradients_are_the_enumerated_ones(n, s, k):
    support = supports(n, s, k)
    eps = 0.5 / (n - s)
    measured = population_gradient(step, support + eps * (1 - support), k, tickets.under_biases(k, eps)[0])
    np.testing.assert_allclose(tickets.under_sparse_gradient(support, k), measured, atol=1e-12)
    good = abs(measured[0])
    np.testing.assert_allclose(good[s] / good[-1], tickets.gap_ratio(n, s, k))


def test_half_is_the_derivative_of_majority():
    for n in (2, 4, 6):
        total = cube(n).sum(axis=1)
        for k in range(n + 1):
            expected = np.mean((total == 0) * cube(n)[:, :k].prod(axis=1))
            np.testing.assert_allclose(tickets.half(n, k), expected, atol=1e-15)
            # as printed, without 2^-n
            assert tickets.half_printed(n, k) == pytest.approx(2**n * expected)


def test_rho_is_the_limit_of_the_power_at_a_degree():
    for v in (1, 3, 5):
        n = 100_001
        assert tickets.rho(v) == pytest.approx(math.comb(n, v) * majority.coefficient(n, v) ** 2, rel=1e-3)
    for s, k in ((5, 2), (9, 4), (201, 4)):
        bound, exact = tickets.relevant_bound(s, k), abs(tickets.relevant(s, k))
        assert bound <= exact == pytest.approx(bound, rel=6 / s)


def test_biases_and_proven_sizes_by_hand():
    assert tickets.over_biases(4, offset=0.5) == (-3.5 / 8, -1.5 / 8)
    assert tickets.over_biases(4, offset=0.5, printed=True) == (-1.5 / 8,)
    assert tickets.under_biases(4, 0.5) == (-1 / 16, 1 / 16, -3 / 16, 3 / 16)
    assert tickets.width_proven(8, 4, 2, 0.5) == pytest.approx(20 * 2 * 16 * math.log(8))
    # k = 2: C = Maj_3^(1)/2 = 1/4, tau = 1/256
    assert tickets.samples_proven(8, 3, 2, 0.5) == pytest.approx(
        4 * math.log(64 * 40 * (16 / 3) ** 2 * math.log(8)) * 256**2
    )
    assert tickets.query_cost(10, 5, 0.5, 0.1) == pytest.approx(2000)


def test_luck_counts_subsets():
    for n, s, k in ((8, 5, 3), (9, 4, 2)):
        subsets = [set(c) for c in itertools.combinations(range(n), s)]
        share = np.mean([set(range(k)) <= subset for subset in subsets])
        assert tickets.luck_over_bound(n, s, k) <= share
        np.testing.assert_allclose(tickets.luck_over(n, s, k), share)
    inside = np.mean([set(c) <= set(range(5)) for c in itertools.combinations(range(9), 3)])
    np.testing.assert_allclose(tickets.luck_under(9, 3, 5), inside)
    np.testing.assert_allclose(1 - (1 - 0.01) ** tickets.width_needed(0.01, 0.9), 0.9)


def test_readout_is_exact_only_with_all_biases():
    for k in (2, 4):
        features, parity = tickets.readout(k, tickets.over_biases(k))
        sums = cube(k).sum(axis=1)
        values = dict(zip(np.arange(-k, k + 1, 2), parity, strict=True))
        assert all(values[t] == y for t, y in zip(sums, cube(k).prod(axis=1), strict=True))
        assert np.linalg.matrix_rank(features) == k + 1


def test_query_correlations_sum_to_the_gradients_power():
    gradients = np.random.default_rng(0).normal(size=(2**6, 3))
    total = sum(tickets.query_correlations(gradients, k).sum(axis=0) for k in range(7))
    np.testing.assert_allclose(total, (gradients**2).mean(axis=0))


def test_the_query_bound_can_be_exceeded():
    s = Queries()
    parameters = s.width * (s.n + 2) + 1
    cost = tickets.query_cost(parameters, s.steps, 1.0, 1.0)
    subsets = math.comb(s.n, s.k)
    assert cost / subsets < 1
    ds = xr.Dataset(
        {"mean_square": (("seed", "step"), np.full((3, 2), 1e-4)), "largest": ("seed", [1e-4, 1.0, 1e-4])},
        attrs={"subsets": subsets, "cost": cost},
    )
    assert queries_bounded.judge(ds).parts["along_the_run"].outcome == "fails"
    assert queries_bounded.judge(ds.assign(largest=("seed", [1e-4, 0.6, 1e-4]))).outcome == "holds"


def test_the_law_of_the_width_holds_without_rounding_where_it_is_judged():
    s = Tickets()
    cells = [(n, t) for n in s.sizes for t in s.sparsities]
    assert min(n / t for n, t in cells) >= 2
    exact = [tickets.width_needed(tickets.luck_over(n, t, s.k), s.confidence) for n, t in cells]
    assert min(exact) > 10
    assert power_law([n / t for n, t in cells], exact)[0] == pytest.approx(s.k, abs=0.2)


def test_the_first_step_is_the_closed_form_in_the_limit_of_all_inputs():
    n, s, k = 9, 5, 2
    task = kr.tasks.SparseParity(n, k)
    network = PairedTickets(20, float(s), tickets.over_biases(k))
    # all 2^n inputs in place of a sample
    learner = dataclasses.replace(first_step(rate(s, k), 4).learner, samples="all")
    everything = kr.Stage(learner, 1, trains=("weights",))
    run = kr.train(task, network, everything, seeds=1, snapshots=[0])
    start, end = run.network(step=0), run.network()
    expected = tickets.over_sparse_gradient(np.asarray(start.weights.T, float), k) * np.asarray(start.output)[:, None]
    expected *= rate(s, k)
    np.testing.assert_allclose(end.weights.T, expected, atol=1e-5)


# ------------------------------------------------------------------------------------------- tables


def small_table(rows=200):
    rng = np.random.default_rng(0)
    return {"x": rng.normal(3, 2, (rows, 4)).astype(np.float32), "y": (np.arange(rows) % 4 == 0).astype(np.int8)}


def test_tables_are_balanced_standardised_and_split_per_replica():
    task = tabular("any", 0.5, small_table())
    assert len(task.y) == 100 and float(task.y.sum()) == 0
    np.testing.assert_allclose(task.x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(task.x.std(axis=0), 1, atol=1e-5)
    one, two = (task.instance(jr.key(i)) for i in range(2))
    assert len(one.rows) == 45 and len(one.test_rows) == 10
    assert not set(one.rows.tolist()) & set(one.test_rows.tolist())
    assert one.rows.tolist() != two.rows.tolist()
    everything = one.sample(jr.key(5), 45)
    assert sorted(everything.x[:, 0].tolist()) == sorted(task.x[one.rows][:, 0].tolist())
    with pytest.raises(InputError, match="45"):
        one.sample(jr.key(0), 46)


def test_networks_see_the_replicas_own_rows():
    from krogh.systems.pareto_frontiers.tables import replica_data

    task = tabular("any", 0.5, small_table())
    seen = {}

    def first_row(sample):
        return sample.x[0]

    learner = kr.Adam(lr=1e-3, batch=45, samples=45, loss="logistic")
    run = kr.train(task, kr.nn.MLP(3), learner, 1, seeds=2, probes=[first_row, kr.probes.accuracy], validation=10)
    for seed in range(2):
        seen[seed], held = replica_data(task, seed, 45, 10)
        np.testing.assert_array_equal(run.data.first_row[seed, 0], seen[seed].x[0])
        start = SparseRows(kr.nn.MLP(3), s=0.0).build(task, jr.fold_in(jr.key(seed), 0))
        np.testing.assert_allclose(run.data.accuracy[seed, 0], kr.probes.accuracy(start, held), atol=1e-6)


def test_rules_label_as_they_say():
    x = np.asarray(RuleTable(10).sample(jr.key(0), 500).x)
    xor = RuleTable(10, kind=1.0, noise=0.0).instance(jr.key(1))
    a, b = np.asarray(xor.features)[:2]
    np.testing.assert_array_equal(xor.label(jnp.asarray(x)), np.sign(x[:, a] * x[:, b]))
    band = RuleTable(10, kind=2.0)
    assert abs(float(band.label(jnp.asarray(x)).mean())) < 0.2
    tree = RuleTable(10, kind=0.0, noise=0.0).instance(jr.key(2))
    features, thresholds, leaves = (np.asarray(a) for a in (tree.features, tree.thresholds, tree.leaves))
    for row, y in zip(x[:50], np.asarray(tree.label(jnp.asarray(x[:50]))), strict=True):
        node = 0
        while node < 7:
            node = 2 * node + 1 + int(row[features[node]] > thresholds[node])
        assert y == leaves[node - 7]
    noisy = RuleTable(10, kind=1.0, noise=0.25).sample(jr.key(0), 4000)
    flipped = np.mean(np.asarray(noisy.y) != np.asarray(RuleTable(10, kind=1.0).label(noisy.x)))
    assert abs(flipped - 0.25) < 5 * (0.25 * 0.75 / 4000) ** 0.5


def test_an_openml_copy_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("KROGH_DATA", str(tmp_path))
    (tmp_path / "openml").mkdir()
    text = "@relation pol\n@attribute a real\n@attribute class {N,P}\n@data\n1.5,P\n2,N\n-3,P\n"
    (tmp_path / "openml" / "pol.arff").write_text(text)
    arrays = tables.table("pol")
    assert arrays["x"].tolist() == [[1.5], [2.0], [-3.0]] and arrays["y"].tolist() == [1, 0, 1]
    assert tables.parse_openml("a,b,y\n1,2,0\n3,4,1\n")["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    for broken in ("a,y\n1,0\n2,1\n3,2\n", "a,y\nx,0\n2,1\n"):
        with pytest.raises(InputError):
            tables.parse_openml(broken)


def test_packaged_tables_are_read():
    bank = tables.from_bank([b'"age";"job";"y"\n56;"cook";"no"\n30;"clerk";"yes"\n'])
    assert bank["x"].tolist() == [[56.0], [30.0]] and bank["y"].tolist() == [0, 1]
    heloc = tables.from_heloc([b"RiskPerformance,a,b\nBad,1,-9\nGood,-9,-9\nGood,2,-8\n"])
    assert heloc["x"].tolist() == [[1.0, -9.0], [2.0, -8.0]] and heloc["y"].tolist() == [1, 0]
    magic = b"1,2,3,4,5,6,7,8,9,10,g\n1,2,3,4,5,6,7,8,9,11,h\n"
    header = b"a,b,c,d,e,f,g,h,i,j,Class\n"
    one, two = tables.from_keel([magic]), tables.from_telescope([header + magic])
    assert all(np.array_equal(one[key], two[key]) for key in one) and one["y"].tolist() == [0, 1]


def test_the_published_tables_are_whole():
    assert len(TABLE_C1) == len(TABLE_C2) == 16 and all(len(row) == 9 for row in TABLE_C2.values())
    assert sum(examples for _, examples in TABLE_C1.values()) == 1_866_090


def test_the_frontier_is_the_first_feasible_sample_size():
    success = xr.DataArray([[[0, 0], [1, 0], [1, 1]], [[0, 0], [0, 0], [0, 0]]], dims=("width", "m", "seed"))
    assert feasible_from(success).values.tolist() == [1, 3]
    assert feasible_from(success, 0.9).values.tolist() == [2, 3]


def test_sparse_rows_that_stop_converging_are_later():
    times = np.full((2, 3, 20), 1000.0)
    times[0, 0] = np.inf
    times[1, 2, :15] = np.inf

    def judged(reached):
        dims = ("s", "width", "m", "seed")
        values = {"reached": (dims, reached[:, None]), "success": (dims, np.isfinite(reached)[:, None])}
        return sparse_helps(xr.Dataset(values, coords={"s": [0, 2], "width": [1000], "m": [300, 500, 1000]}))

    assert judged(times).parts["r=1000, time"].outcome == "fails"
    # where dense networks do not converge there is nothing to compare
    times[1, 2] = 1000.0
    assert judged(times).parts["r=1000, time"].n == 2
    assert judged(times).outcome == "holds"


def test_medians_of_the_tables_carry_an_interval():
    rng = np.random.default_rng(0)
    dims = {"kind": 3, "m": 2, "s": 2, "depth": 1, "width": 2, "seed": 30}
    base = 0.3 + 0.02 * rng.standard_normal((1, 1, 1, 1, 1, 30)) * np.ones(tuple(dims.values()))
    coords = {"m": [100, 300], "s": [0, 2], "width": [100, 400]}

    def judged(error):
        return width_and_sparsity_help.judge(xr.Dataset({"error": (tuple(dims), error)}, coords=coords))

    better = base.copy()
    better[..., 1, :] -= 0.05
    better[0, :, :, :, 1] += 0.2
    assert judged(better).outcome == "holds"
    worse = better.copy()
    worse[1, 1, 1, :, 1] += 0.2
    assert judged(worse).parts["width"].outcome == "fails"
    close = base + 0.02 * rng.standard_normal(base.shape)
    assert judged(close).parts["width"].outcome == "undecided"
    assert judged(close).parts["width"].interval is not None


def test_a_fall_that_only_chance_chose_is_not_believed():
    sizes = {"m": 18, "s": 2, "width": 7, "seed": 50}
    draws = np.random.default_rng(0).random(tuple(sizes.values()))
    chance = xr.Dataset({"success": (tuple(sizes), draws < 0.5)})
    share = chance.success.mean("seed").values
    assert (np.maximum.accumulate(share) - share).max() >= 0.3
    assert more_data_hurts(chance).outcome != "holds"
    falling = chance.copy(deep=True)
    falling["success"][{"s": 1, "width": 0}] = draws[:, 1, 0] < np.where(np.arange(18) < 10, 1.0, 0.2)[:, None]
    verdict = more_data_hurts(falling)
    assert verdict.outcome == "holds"
    assert verdict.n == 25
    assert verdict.measured == pytest.approx(0.8, abs=0.2)
