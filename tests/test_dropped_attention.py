"""The kernels of attention over dropped-out rows against the layer row by row, in the interpreter."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from krogh.nn import dropped_attention
from krogh.nn.attention import dropout_bits, dropout_masks, unpacked
from krogh.nn.base import trainable
from krogh.nn.bit_transformer import OneLayerTransformer
from krogh.systems.variable_creation.conjunctions import weighted_loss
from krogh.tasks.sparse_boolean import SparseBoolean, balanced_bias
from krogh.train.cost import operations


@pytest.fixture
def use_kernels(monkeypatch):
    """A switch, because on CPUs nothing runs in the kernels."""

    def switch(on, interpret=True):
        monkeypatch.setattr(dropped_attention, "applies", lambda heads, emb: on)
        monkeypatch.setattr(dropped_attention, "attend", partial(attend, interpret=interpret))

    attend = dropped_attention.attend
    return switch


def _case(n, m, seeds=1, size=5, **settings):
    """Networks without a zero, and samples of which m examples carry weight."""
    task = SparseBoolean(n, bias=balanced_bias(3), m=m)
    network = OneLayerTransformer(**{"mlp": 16, "scale": 0.5} | settings)

    def drawn(key):
        built = network.build(task, key)
        moves, rest = eqx.partition(built, trainable(built))
        moved = jax.tree.map(lambda leaf: leaf + 0.2 * jax.random.normal(key, leaf.shape), moves)
        return eqx.combine(moved, rest), task.sample(key, size)

    return eqx.filter_vmap(drawn)(jax.random.split(jax.random.key(0), seeds))


def _slopes(networks, batches):
    def of_one(network, batch):
        return eqx.filter_value_and_grad(lambda net: weighted_loss(net, batch, jax.random.key(7))[0])(network)

    return eqx.filter_vmap(of_one)(networks, batches)


def test_bits_are_where_the_masks_of_the_same_draw_are_not_zero():
    key, shape = jax.random.key(3), (5, 7, 64)
    (mask,) = dropout_masks(key, 0.1, shape)
    np.testing.assert_array_equal(unpacked(dropout_bits(key, 0.1, shape)), mask > 0)


@pytest.mark.parametrize(
    ("n", "m", "settings"),
    [
        (63, 5.0, {"heads": 16}),
        (70, 3.0, {"heads": 2, "emb": 32, "attention_dropout": False}),
        (130, 4.0, {"heads": 16, "emb": 32, "dropout": 0.3}),
        (20, 1.0, {"heads": 1, "attn": 64}),
    ],
)
def test_the_kernels_have_the_layers_loss_and_gradient(use_kernels, n, m, settings):
    """For full and for partly filled tiles, with and without padding by examples of no weight."""
    networks, batches = _case(n, m, seeds=2, **settings)
    found = []
    for on in (False, True):
        use_kernels(on)
        found.append(eqx.filter_jit(lambda nets, samples: _slopes(nets, samples))(networks, batches))
    (right, known), (loss, slopes) = found
    np.testing.assert_allclose(loss, right, rtol=2e-5)
    for ours, theirs in zip(jax.tree.leaves(slopes), jax.tree.leaves(known), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


def test_outputs_of_what_is_not_counted_are_finite_and_the_others_are_what_they_were(use_kernels):
    use_kernels(True)
    networks, batches = _case(20, 5.0, heads=2, emb=32)
    network, x = jax.tree.map(lambda leaf: leaf[0], (networks, batches.x))
    outputs = eqx.filter_jit(lambda count: network.batch(x, jax.random.key(1), count)[0])
    every, some = outputs(jnp.int32(5)), outputs(jnp.int32(2))
    np.testing.assert_allclose(some[:2], every[:2], rtol=1e-6)
    assert np.isfinite(some).all() and np.abs(some[2:] - every[2:]).min() > 1e-3


def test_a_step_costs_what_it_does_without_the_kernels(use_kernels):
    """Which decides when stopped replicas are worth leaving out."""
    networks, batches = _case(63, 5.0, heads=16)
    arrays, rest = eqx.partition(networks, eqx.is_array)
    costs = []
    for on in (False, True):
        use_kernels(on)
        step = jax.make_jaxpr(lambda arrays: _slopes(eqx.combine(arrays, rest), batches))
        costs.append(operations(step(arrays).jaxpr))
    assert costs[0] == costs[1] > 0


def test_a_training_step_lowers_for_gpus_and_writes_no_rows(use_kernels):
    networks, batches = _case(300, 150.0, seeds=3, size=200)
    arrays, rest = eqx.partition(networks, eqx.is_array)
    gpu = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", None, "cuda"))
    made = []
    for on in (False, True):
        use_kernels(on, interpret=False)
        step = jax.jit(lambda arrays: _slopes(eqx.combine(arrays, rest), batches))
        with use_abstract_mesh(gpu):
            made.append(step.trace(arrays).lower(lowering_platforms=("cuda",)).as_text())
    rows = "200x301x64xf32"
    assert rows in made[0] and rows not in made[1]
    assert made[1].count("xla.gpu.triton") == 2
