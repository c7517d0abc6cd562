"""The kernel of many steps against the steps themselves, in the interpreter."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from krogh.nn.mlp import MLP
from krogh.tasks.base import Task
from krogh.tasks.offline import OfflineParity
from krogh.tasks.parity import LabelNoise, SparseParity
from krogh.train import SGD, Adam, fused

RATES = {"weights": 0.3, "bias": 0.2, "output": 0.1, "output_bias": 0.05}
DECAYS = {"weights": 0.1, "bias": 0.2, "output": 0.3, "output_bias": 0.4}


@pytest.mark.parametrize(("n", "width"), [(20, 10), (50, 300), (130, 140)])
@pytest.mark.parametrize("learner", [SGD(lr=RATES, weight_decay=DECAYS), SGD(lr=0.05, loss="square", batch=16)])
def test_the_kernel_takes_the_learners_steps(n, width, learner):
    task = SparseParity(n, 3)
    keys = jax.random.split(jax.random.key(0), 4)
    batches = [task.sample(key, learner.batch) for key in keys]
    network = MLP(width).build(task, jax.random.key(1))
    trains = jax.tree.map(lambda _: True, network)
    stepped, losses, update = network, [], eqx.filter_jit(learner.update)
    with jax.default_matmul_precision("highest"):
        for i, batch in enumerate(batches):
            stepped, _, loss = update(stepped, learner.rule().init(network), batch, keys[0], jnp.int32(i), trains)
            losses.append(float(loss))
    x, y = jnp.stack([batch.x for batch in batches]), jnp.stack([batch.y for batch in batches])
    moved, total = fused.steps(network, x, y, learner, interpret=True)
    for ours, theirs in zip(jax.tree.leaves(moved), jax.tree.leaves(stepped), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=3e-7)
    assert float(total) == pytest.approx(sum(losses), rel=1e-5)
    assert np.abs(moved.weights - network.weights).max() > 1e-3


@pytest.mark.parametrize(("n", "batch", "warps"), [(100, 16, 4), (50, 32, 8), (70, 64, 4)])
def test_wide_networks_learn_from_several_blocks_of_batches(n, batch, warps):
    """Parts of unequal size, a last tile that is not full, four or two batches a pass, two words of signals."""
    task, learner = SparseParity(n, 3), SGD(lr=RATES, weight_decay=DECAYS, batch=batch)
    keys = jax.random.split(jax.random.key(0), 12)
    batches = jax.vmap(lambda key: task.sample(key, batch))(keys)
    network = MLP(150).build(task, jax.random.key(1))
    trains = jax.tree.map(lambda _: True, network)
    assert 12 // fused.batches_per_pass(12, batch, n) >= 3

    def step(network, batch):
        return learner.update(network, learner.rule().init(network), batch, keys[0], jnp.int32(0), trains)[::2]

    with jax.default_matmul_precision("highest"):
        stepped, losses = jax.lax.scan(step, network, batches)
    moved, total = fused.steps(network, batches.x, batches.y, learner, warps, interpret=True)
    for ours, theirs in zip(jax.tree.leaves(moved), jax.tree.leaves(stepped), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert float(total) == pytest.approx(float(losses.sum()), rel=1e-5)


def test_a_wide_network_that_has_stopped_stays_and_disturbs_nobody():
    task, keys = SparseParity(50, 3), jax.random.split(jax.random.key(0), 4)
    batch = jax.vmap(lambda key: task.sample(key, 16))(keys)
    networks = jax.vmap(lambda key: MLP(140).build(task, key))(keys[:2])
    step = jax.vmap(lambda net, live: fused.steps(net, batch.x, batch.y, SGD(batch=16), 4, live, interpret=True))
    moved, total = step(networks, jnp.array([True, False]))
    alone, _ = step(networks, jnp.array([True, True]))
    for before, after, both in zip(*map(jax.tree.leaves, (networks, moved, alone)), strict=True):
        np.testing.assert_array_equal(after[1], before[1])
        np.testing.assert_array_equal(after[0], both[0])
    assert not np.array_equal(moved.weights[0], networks.weights[0])
    assert total[1] == 0 < total[0]


def test_products_with_signs_are_exact_to_single_precision():
    signs = np.sign(np.random.default_rng(0).standard_normal((32, 64))).astype(np.float32)
    matrix = np.random.default_rng(1).standard_normal((64, 16)).astype(np.float32)
    found = fused._times(jnp.asarray(matrix.T), jnp.asarray(signs, jnp.bfloat16), transposed=True).T
    exact = signs.astype(np.float64) @ matrix.astype(np.float64)
    assert np.abs(found - exact).max() < 1e-5


def test_only_plain_descent_on_signs_runs_in_the_kernel():
    parity = SparseParity(50, 3)
    network = MLP(100).build(parity, jax.random.key(0))
    wide = MLP(1000).build(parity, jax.random.key(0))
    assert fused.applies(network, parity, SGD(), 1)
    assert fused.applies(network, LabelNoise(OfflineParity(50, 3, m=100.0)), SGD(weight_decay=0.1), 1)
    assert fused.applies(wide, parity, SGD(), fused.ENOUGH_REPLICAS)
    assert not fused.applies(wide, parity, SGD(), 1)
    others = [
        (network, parity, Adam()),
        (network, parity, SGD(momentum=0.9)),
        (network, parity, SGD(noise=0.1)),
        (network, parity, SGD(loss="logistic")),
        (network, parity, SGD(batch=33)),
        (network, parity, SGD(weight_decay=0.1, decay="direct")),
        (network, Task(), SGD()),
        (MLP(1000).build(SparseParity(2000, 3), jax.random.key(0)), SparseParity(2000, 3), SGD()),
        (MLP(100, activation="square").build(parity, jax.random.key(0)), parity, SGD()),
        (MLP(100, head=False).build(parity, jax.random.key(0)), parity, SGD()),
        (eqx.tree_at(lambda net: net.weights, network, network.weights.astype(jnp.bfloat16)), parity, SGD()),
    ]
    assert not any(fused.applies(*case, 1000) for case in others)


def test_launches_divide_the_steps_and_pass_through_networks_as_seldom_as_they_can():
    """500 steps are five launches of 100, of four batches a pass; 50 would leave two batches a pass."""
    assert fused.block_of(500, batch=32, n=200) == 100
    assert fused.batches_per_pass(100, 32, 200) == fused.ROWS // 32 > fused.batches_per_pass(50, 32, 200)
    assert [fused.block_of(length, 32, 200) for length in (1, 7, 64, 1000)] == [1, 7, 64, 100]
    # products of inputs this long need more than eight bits
    assert fused.batches_per_pass(100, 32, 257) == 1
