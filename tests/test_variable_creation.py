"""Facts about sparse Boolean tasks, the bit transformer, capacity bounds and the heads built by hand."""

import itertools
import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import krogh as kr
from krogh.errors import InputError
from krogh.lab.system import systems
from krogh.nn.attention import dropout_masks
from krogh.nn.bit_transformer import OneLayerTransformer, attention_norms
from krogh.systems.variable_creation.capacity import Capacity
from krogh.systems.variable_creation.capacity import capacity as capacity_bounds
from krogh.systems.variable_creation.conjunctions import (
    Grid,
    above_lower_bounds,
    fit,
    grows_slowly,
    sample_complexity,
    sample_grid,
    weighted_loss,
)
from krogh.tasks.sparse_boolean import SparseBoolean, balanced_bias, consistent_conjunctions
from krogh.theory import attention_capacity as capacity
from krogh.theory import attention_constructions as built
from krogh.theory import conjunctions

# ------------------------------------------------------------------------------------------- tasks


def test_bits_have_their_bias_and_labels_are_the_gate_of_the_support():
    task = SparseBoolean(20, gate="and", support=(3, 7, 11), bias=balanced_bias(3))
    batch = task.sample(jax.random.key(0), 20_000)
    x, y = np.asarray(batch.x), np.asarray(batch.y)
    assert np.abs(x.mean(axis=0) - 0.5 ** (1 / 3)).max() < 5 / math.sqrt(len(x))
    np.testing.assert_array_equal(y, x[:, 3] * x[:, 7] * x[:, 11])
    assert abs(y.mean() - 0.5) < 0.02
    whole = SparseBoolean(6, gate="xor").enumerate()
    np.testing.assert_array_equal(whole.y, np.asarray(whole.x)[:, :3].sum(axis=1) % 2)
    np.testing.assert_array_equal(
        SparseBoolean(6, gate="or").enumerate().y, np.asarray(whole.x)[:, :3].max(axis=1).astype(int)
    )


@pytest.mark.parametrize("s", [1, 2, 3])
def test_consistent_conjunctions_are_those_of_a_search_over_all_subsets(s):
    rng = np.random.default_rng(s)
    count = jax.jit(lambda x, y: consistent_conjunctions(x, y, s))
    for _ in range(20):
        m, n = 8, 9
        x = (rng.random((m, n)) < 0.75).astype(np.float32)
        y = x[:, :s].prod(axis=1).astype(np.int32)
        y[-2:] = -1  # not part of the sample
        right = sum(
            np.array_equal(x[:-2, list(subset)].prod(axis=1), y[:-2]) for subset in itertools.combinations(range(n), s)
        )
        assert int(count(x, y)) == right


def test_redrawn_samples_leave_one_conjunction_and_only_the_first_m_examples_count():
    task = SparseBoolean(12, bias=balanced_bias(3), m=25.0, redraws=500)
    sample = jax.jit(task.sample, static_argnums=1)(jax.random.key(3), 40)
    weight = np.asarray(sample.latents["weight"])
    np.testing.assert_allclose(weight, np.where(np.arange(40) < 25, 40 / 25, 0.0), rtol=1e-6)
    assert int(consistent_conjunctions(sample.x[:25], sample.y[:25], 3)) == 1
    plain = SparseBoolean(12, bias=balanced_bias(3))

    @jax.jit
    @jax.vmap
    def ambiguous(key):
        batch = plain.sample(key, 15)
        return consistent_conjunctions(batch.x, batch.y, 3)

    assert ambiguous(jax.random.split(jax.random.key(0), 16)).max() > 1


def test_replicas_redraw_as_often_as_they_would_alone():
    task = SparseBoolean(30, bias=balanced_bias(3), m=1.0, redraws=20)

    def drawn(key, m):
        return eqx.tree_at(lambda task: task.m, task, m).sample(key, 40).x

    plain = SparseBoolean(30, bias=balanced_bias(3))

    @jax.jit
    def tried(key, m):
        batch = plain.sample(key, 40)
        return batch.x, consistent_conjunctions(batch.x, jnp.where(jnp.arange(40) < m, batch.y, -1), 3)

    keys, sizes = jax.random.split(jax.random.key(0), 8), [5.0, 9, 10, 11, 12, 13, 14, 40]
    together, redraws = jax.jit(jax.vmap(drawn))(keys, jnp.array(sizes)), []
    for key, m, x in zip(keys, sizes, together, strict=True):
        every = [tried(k, m) for k in (key, *(jax.random.fold_in(key, i) for i in range(20)))]
        redraws.append(next((i for i, (_, count) in enumerate(every) if count <= 1), 20))
        np.testing.assert_array_equal(x, every[redraws[-1]][0])
    assert max(redraws) == 20 and min(redraws) == 0 and len(set(redraws)) > 3


def test_bad_tasks_are_refused_in_a_sentence():
    for wrong in ({"gate": "nand"}, {"support": (0, 9)}, {"support": (1, 1)}, {"gate": "xor", "redraws": 3}):
        with pytest.raises(InputError):
            SparseBoolean(5, **wrong)


def test_identifying_samples_solve_their_equation():
    for n in (25, 300):
        assert conjunctions.near_misses(n, 3, conjunctions.identifying_samples(n)) == pytest.approx(0.1)
    assert [round(conjunctions.identifying_samples(n)) for n in (25, 50, 100, 300, 1100)] == [28, 31, 35, 39, 45]


# ------------------------------------------------------------------------------------------- networks


def _network(task, seed=0, **settings):
    network = OneLayerTransformer(**{"emb": 8, "heads": 2, "attn": 4, "mlp": 16, "scale": 0.5} | settings)
    return eqx.filter_jit(network.build)(task, jax.random.key(seed))


def _every(function):
    return eqx.filter_jit(eqx.filter_vmap(function, in_axes=(None, 0)))


@eqx.filter_jit
def _trained(network, x, seed):
    return network.batch(x, jax.random.key(seed))[0]


def _by_hand(network, x):
    """The layer written as in the textbook: every row, softmax, then the [CLS] row."""
    rows = jnp.concatenate([network.tokens[x.astype(int)], network.tokens[2:]]) + network.positions
    normed = network.norm(rows)
    query = network.query(normed[-1])
    key = jnp.einsum("ne,eha->nha", normed, network.key) + 0.3
    weights = jax.nn.softmax(jnp.einsum("ha,nha->hn", query, key) / math.sqrt(4), axis=-1)
    mixed = jnp.einsum("hn,nha->ha", weights, network.value(normed))
    row = rows[-1] + network.out(mixed.reshape(-1))
    row = row + network.mlp_out(jax.nn.gelu(network.mlp_in(network.mlp_norm(row))))
    return network.last_norm(row) @ network.output, weights


@pytest.mark.parametrize("embedding_dropout", [0.0, 1e-9])
def test_tables_and_rows_give_the_layer_written_out(embedding_dropout):
    task = SparseBoolean(7)
    network = _network(task, dropout=0.0, embedding_dropout=embedding_dropout)
    x = task.sample(jax.random.key(1), 5).x
    right, weights = _every(lambda n, row: _by_hand(n, row))(network, x)
    np.testing.assert_allclose(_every(lambda n, row: n(row))(network, x), right, atol=1e-5)
    np.testing.assert_allclose(_trained(network, x, 2), right, atol=1e-5)
    np.testing.assert_allclose(_every(lambda n, row: n.attention(row))(network, x), weights, atol=1e-6)
    made, known = (
        eqx.filter_jit(eqx.filter_grad(lambda n, f=f: jnp.sum(jnp.sin(f(n)))))(network)
        for f in (lambda n: n.batch(x, jax.random.key(2))[0], lambda n: jax.vmap(lambda row: _by_hand(n, row)[0])(x))
    )
    for ours, theirs in zip(jax.tree.leaves(made), jax.tree.leaves(known), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_one_score_far_above_the_others_does_not_cancel_the_rest():
    task = SparseBoolean(6)
    network = _network(task, dropout=0.0, embedding_dropout=0.0)
    sharp = eqx.tree_at(lambda n: n.key, network, 12 * network.key)
    x = task.sample(jax.random.key(4), 64).x
    right = _every(lambda n, row: _by_hand(n, row)[0])(sharp, x)
    np.testing.assert_allclose(_every(lambda n, row: n(row))(sharp, x), right, atol=2e-3)


def test_dropout_keeps_the_mean_and_restarts_have_their_own_masks():
    first, second = dropout_masks(jax.random.key(0), 0.1, (300, 100), (50, 7))
    assert second.shape == (50, 7)
    assert float(first.mean()) == pytest.approx(1, abs=0.01)
    assert float((first == 0).mean()) == pytest.approx(26 / 256, abs=0.01)
    task = SparseBoolean(5)
    x = task.sample(jax.random.key(1), 64).x
    network, other = _network(task, dropout=0.2), _network(task, seed=1, dropout=0.2)
    restarted = eqx.tree_at(lambda n: n.masks, network, other.masks)
    outputs = [_trained(n, x, 2) for n in (network, network, restarted)]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.allclose(outputs[0], outputs[2])


@pytest.mark.parametrize("attention_dropout", [True, False])
@pytest.mark.parametrize("embedding_dropout", [0.0, 0.1])
def test_outputs_under_dropout_scatter_around_those_without(embedding_dropout, attention_dropout):
    task = SparseBoolean(5)
    dropout = {"embedding_dropout": embedding_dropout / 5, "attention_dropout": attention_dropout}
    network = _network(task, dropout=0.02, scale=0.2, **dropout)
    x = jnp.tile(task.sample(jax.random.key(1), 1).x, (4000, 1))
    mean = _trained(network, x, 0).mean(axis=0)
    np.testing.assert_allclose(mean, network(x[0]), atol=0.02)


def test_head_norms_are_those_of_the_products():
    network = _network(SparseBoolean(5))
    norms = attention_norms(network)
    q, k = np.asarray(network.query.weight)[:, 1], np.asarray(network.key)[:, 1]
    product = q @ k.T / 2
    assert float(norms["qk"][1]) == pytest.approx(np.linalg.norm(product, 2), rel=1e-4)
    assert float(norms["qk_21"][1]) == pytest.approx(np.linalg.norm(product.T, axis=0).sum(), rel=1e-4)
    through = np.asarray(network.value.weight)[:, 1] @ np.asarray(network.out.weight)[4:8]
    assert float(norms["value_21"][1]) == pytest.approx(np.linalg.norm(through, axis=0).sum(), rel=1e-4)


def test_samples_of_different_sizes_share_a_program_and_padding_changes_nothing():
    padded = SparseBoolean(8, bias=balanced_bias(3), m=12.0).sample(jax.random.key(0), 20)
    alone = kr.tasks.Batch(padded.x[:12], padded.y[:12])
    network = _network(SparseBoolean(8), dropout=0.0, embedding_dropout=0.0)
    losses = [eqx.filter_jit(weighted_loss)(network, batch, jax.random.key(1))[0] for batch in (padded, alone)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    reads = [eqx.filter_jit(fit)(network, batch) for batch in (padded, alone)]
    for name in ("train_accuracy", "train_loss"):
        np.testing.assert_allclose(reads[0][name], reads[1][name], rtol=1e-5)


# ------------------------------------------------------------------------------------------- capacity


def test_bounds_hold_and_are_almost_reached_by_small_changes():
    rng = np.random.default_rng(0)
    z = capacity.project(rng.standard_normal((200, 9, 4)))
    w, v = rng.standard_normal((2, 200, 4, 4))
    other_w, other_v = w + 0.1 * rng.standard_normal(w.shape), v + 0.1 * rng.standard_normal(v.shape)
    moved = capacity.largest_row(capacity.attend(z, w, v) - capacity.attend(z, other_w, other_v))
    ratio = moved / capacity.weight_change_bound(z, w, other_w, v, other_v)
    assert 0.1 < ratio.max() <= 1


def test_a_read_out_moves_no_further_than_its_bound():
    rng = np.random.default_rng(2)
    w, z = rng.standard_normal((2, 300, 5))
    other_w, other_z = w + rng.standard_normal(w.shape), z + rng.standard_normal(z.shape)
    moved = np.abs((w * z).sum(axis=1) - (other_w * other_z).sum(axis=1))
    bound = capacity.scalar_change_bound(w, other_w, z, other_z)
    assert bound.shape == (300,)
    assert (moved <= bound + 1e-12).all()
    # reached where z moves along w and w along the moved z
    w, z = np.array([[3.0, 4.0]]), np.array([[1.0, 1.0]])
    other_z = z - w
    other_w = w - other_z
    np.testing.assert_allclose(
        capacity.scalar_change_bound(w, other_w, z, other_z), (w * z - other_w * other_z).sum(axis=1)
    )


def test_attention_rows_are_those_of_the_definition():
    rng = np.random.default_rng(1)
    z, w, v = rng.standard_normal((5, 3)), rng.standard_normal((3, 3)), rng.standard_normal((3, 2))
    scores = np.exp(z @ w @ z.T)
    right = scores / scores.sum(axis=1, keepdims=True) @ z @ v
    np.testing.assert_allclose(capacity.attend(z, w, v), right)
    np.testing.assert_allclose(capacity.attend(z, w, v, rows=2), right[:2])


def test_the_deep_cover_is_the_best_split_of_its_error_terms():
    layer = capacity.LayerNorms(1.3, 2.0, 0.7, 3.0, 0.4, 5.0)
    alpha = np.array([2.0**2, layer.out_21**2, layer.query_key_21**2, layer.value_21**2])
    beta = np.array([1.0, 2.0, 2.0 * 2 * layer.out * layer.value, 2.0 * layer.out])
    right = capacity.best_split(alpha, beta, 0.1)[0] * math.log(8 * 10 * 20)
    assert capacity.layers_cover(0.1, 8, 10, 20, [layer], readout=2.0) == pytest.approx(right)
    assert capacity.amplification([layer, layer]) == pytest.approx([layer.growth(), 1.0])


def test_calculators_have_the_stated_values():
    assert capacity.linear_cover(0.5, 10) == pytest.approx(36 * 4 * math.log(2 * 10 * 10 + 1))
    assert capacity.matrix_cover(0.5, 3, 10, 1.0, 2.0) == pytest.approx(16 * math.log(30))
    one = [capacity.HeadNorms(1.0, 1.0, 0.5)]
    assert capacity.heads_cover(1.0, 1, 1, 3, one) == pytest.approx(8 * math.log(3))
    # twice the token bound: (2)^2 in front and twice the second term inside
    wider = 4 * (1 + 2 ** (2 / 3)) ** 3 * math.log(3)
    assert capacity.heads_cover(1.0, 1, 1, 3, one, tokens=1.5, positions=0.5) == pytest.approx(wider)
    assert capacity.rademacher(1.0, 100) == pytest.approx(0.1 * (1 + math.log(10)))
    assert capacity.generalisation_gap(1.0, 100) > 4 * capacity.rademacher(1.0, 100)


def test_two_to_the_q_heads_shatter_q_inputs():
    outputs = capacity.shattering(4).outputs() > 0.5
    np.testing.assert_array_equal(outputs, (np.arange(16)[:, None] >> np.arange(4)) & 1)


# ------------------------------------------------------------------------------------------- constructions


def test_scales_of_scores_by_hand():
    assert built.scale(16, 0.5) == pytest.approx(math.log(256))
    assert built.scale(16, 0.5, leak=0.75) == pytest.approx(4 * math.log(256))
    assert math.isnan(built.scale(16, 0.5, leak=1.0))
    assert built.dual_leak(3, 0.125) == pytest.approx(0.5)
    assert built.dual_leak(3, 0.5) == math.inf
    assert built.bag_scale(4, 0.75, 2, 0.125) == pytest.approx(math.log(144) / 0.75)


def test_the_look_up_network_is_exact_within_delta_and_silent_beyond():
    rng = np.random.default_rng(0)
    points, values = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]), np.array([3.0, -1.0, 0.5])
    network = built.look_up(points, values, 0.25)
    near = points[:, None] + rng.uniform(-0.25, 0.25, (3, 50, 2))
    np.testing.assert_allclose(network(near.reshape(-1, 2)), np.repeat(values, 50), atol=1e-12)
    np.testing.assert_allclose(network(np.array([[5.0, 5.0], [0.5, 0.0]])), 0, atol=1e-12)
    assert network.first.shape == (3, 24)
    assert network.second.shape == (25, 6)
    assert abs(built.look_up(points, values, 0.25, printed=True)(points) - values).max() > 0.4


def test_the_printed_vector_head_is_blind():
    at, b = built.embedding(np.eye(6)), built.all_bits(6)
    assert np.abs(built.apply(built.deterministic_heads(at, (1, 4), 5.0, printed=True), at, b)).max() == 0
    right = built.apply(built.deterministic_heads(at, (1, 4), 12.0), at, b)[:, :2]
    np.testing.assert_allclose(right, 1 - 2 * b[:, [1, 4]], atol=1e-3)


def test_the_dual_basis_scores_the_chosen_positions_alike():
    positions = built.random_positions(np.random.default_rng(0), 10, 30)
    chosen, delta = positions[:3], built.coherence(positions)
    dual = built.selection_vector(chosen, dual=True)
    np.testing.assert_allclose(chosen @ dual, 1)
    assert np.ptp(chosen @ built.selection_vector(chosen, dual=False)) > 0.01
    assert math.isnan(built.scale(10, 1.0, 1.2))
    small = built.random_positions(np.random.default_rng(0), 10, 2000)
    leak = np.abs(small[3:] @ built.selection_vector(small[:3], dual=True)).max()
    assert leak <= built.dual_leak(3, built.coherence(small)) < built.dual_leak(3, delta)


def test_bag_of_vectors_ignores_the_order_of_rows():
    rng = np.random.default_rng(0)
    at, b = built.embedding(np.eye(7), bag=True), rng.integers(0, 2, (20, 7))
    head = built.bag_head(at, (0, 3), 4.0)
    shuffled = at._replace(positions=at.positions[::-1])
    np.testing.assert_allclose(built.apply([head], at, b), built.apply([head], shuffled, b[:, ::-1]), atol=1e-12)


# ------------------------------------------------------------------------------------------- rivals and statistics


def test_linear_rivals_meet_their_optimality_conditions():
    task = SparseBoolean(15, bias=balanced_bias(3))
    sample = task.sample(jax.random.key(0), 40)
    y = 2.0 * sample.y - 1
    penalty = jnp.array([0.5])
    with jax.enable_x64(True):
        x = np.asarray(sample.x, float)
        w, c = conjunctions.ridge(jnp.asarray(x), jnp.asarray(np.asarray(y, float)), penalty)
        residual = np.asarray(y) - x @ np.asarray(w[0]) - float(c[0])
        np.testing.assert_allclose(x.T @ residual - x.mean(0) * residual.sum(), 0.5 * np.asarray(w[0]), atol=1e-5)
    penalty = jnp.array([0.03])
    w, c = conjunctions.sparse_logistic(sample.x, y, penalty, 4000)
    slope = -jax.nn.sigmoid(-y * (sample.x @ w[0] + c[0])) * y
    gradient = np.asarray(slope @ sample.x / len(y))
    active = np.abs(np.asarray(w[0])) > 1e-4
    assert abs(float(slope.mean())) < 1e-4
    np.testing.assert_allclose(gradient[active], -0.03 * np.sign(np.asarray(w[0]))[active], atol=1e-3)
    assert np.abs(gradient[~active]).max() <= 0.03 + 1e-3


def test_sample_complexity_is_the_first_size_at_which_four_of_five_succeed():
    success = np.zeros((10, 3, 3), bool)
    success[:8, 0, 1:] = success[:7, 1, 1] = success[:, 1, 2] = True
    np.testing.assert_array_equal(sample_complexity(success, np.array([20, 30, 40])), [30, 40, np.inf])


def grid_of(first: dict[int, int], samples: tuple[int, ...], seeds: int = 10) -> xr.Dataset:
    """All trials of context T succeed from m = first[T] on."""
    success = [[[m >= start for m in samples] for start in first.values()]] * seeds
    return xr.Dataset(
        {
            "success": (("seed", "T", "m"), success),
            "information": ("T", [math.log2(math.comb(T, 3)) for T in first]),
            "identifying": ("T", [conjunctions.identifying_samples(T) for T in first]),
        },
        coords={"T": list(first), "m": list(samples)},
    )


def test_growth_needs_a_smallest_context_that_is_learned():
    samples = (20, 40, 80)
    assert grows_slowly.judge(grid_of({25: 1000, 400: 40}, samples)).outcome == "undecided"
    assert grows_slowly.judge(grid_of({25: 20, 400: 1000}, samples)).outcome == "fails"
    assert grows_slowly.judge(grid_of({25: 20, 400: 40}, samples)).outcome == "holds"


def test_only_trials_that_failed_are_started_again():
    settings = Grid(contexts=(8,), samples=(12, 40), steps=80, redraws=0, restarts=1, seeds=4)
    once, thrice = sample_grid.function(settings), sample_grid.function(replace(settings, restarts=3))
    np.testing.assert_array_equal(thrice.first_try, once.success)
    np.testing.assert_array_equal(thrice.runs, np.where(once.success, 1, 3))
    assert set(thrice.runs.values.ravel()) == {1, 3}
    np.testing.assert_array_equal(thrice.success, np.isfinite(thrice.time))
    assert (thrice.best >= once.best).all() and (thrice.success >= once.success).all()


def test_lower_bounds_are_judged_only_where_they_can_fail():
    quick = Grid().samples
    late = above_lower_bounds.judge(grid_of({25: 35, 50: 45, 100: 60}, quick))
    assert late.outcome == "holds" and set(late.parts) == {"above_information", "above_identification", "within_factor"}
    early = above_lower_bounds.judge(grid_of({25: 10, 50: 10, 100: 10}, quick))
    assert {name for name, part in early.parts.items() if part.outcome == "fails"} == set(late.parts) - {
        "within_factor"
    }
    # no m* on this grid could be below .7 m_id(1100) = 31.5
    paper = above_lower_bounds.judge(grid_of({100: 50, 1100: 60}, (50, 60, 70)))
    assert set(paper.parts) == {"within_factor"}


def test_the_cover_and_the_gap_are_those_of_one_sample_size():
    settings = Capacity(m=10**8)
    ds = capacity_bounds.function(settings)
    cover = capacity.heads_cover(1.0, settings.d, 10**8, 300, [capacity.HeadNorms(4.0, 1.0, 4.0)])
    assert float(ds.gap.sel(T=300)) == pytest.approx(capacity.generalisation_gap(cover, 10**8))
    assert float(ds.gap.max()) < 4


def test_every_claim_of_the_specification_is_there():
    ids = {claim.id for _, claim in systems()["variable-creation"].claims}
    assert {f"13.{i}" for i in range(1, 20)} <= ids
