"""Facts about attention, decoders and prompts."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import krogh as kr
from krogh.errors import InputError
from krogh.nn import decoder
from krogh.nn.attention import (
    LayerNorm,
    by_lag,
    causal,
    dropout_masks,
    earlier,
    linear_weights,
    sinusoidal,
    softmax_weights,
)
from krogh.nn.decoder import CausalTransformer, SymbolTransformer
from krogh.tasks.base import Batch
from krogh.tasks.modular import ModularAddition
from krogh.tasks.prompts import orthonormal, orthonormalised, prompt


class Vectors(kr.tasks.Task):
    """Five vectors in R^3; the answer is the sign of the sum of their first coordinates."""

    @property
    def in_shape(self):
        return (5, 3)

    def sample(self, key, size):
        x = jax.random.normal(key, (size, 5, 3))
        return Batch(x, jnp.sign(x[..., 0].sum(1)))


@pytest.mark.parametrize("first", [0, 2, 5])
def test_by_lag_shifts_every_row_by_its_own_position(first):
    products = np.random.default_rng(0).normal(size=(2, 6 - first, 6)).astype(np.float32)
    found = np.asarray(by_lag(jnp.asarray(products), first))
    for i in range(6 - first):
        for j in range(first + i + 1):
            np.testing.assert_array_equal(found[:, i, j], products[:, i, first + i - j])


def test_hidden_positions_get_no_weight():
    scores = jax.random.normal(jax.random.key(0), (3, 4, 4))
    weights = np.asarray(softmax_weights(scores, causal(4)))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    assert (weights[:, ~causal(4)] == 0).all()
    np.testing.assert_array_equal(linear_weights(scores, causal(4)), np.asarray(scores) * causal(4))
    np.testing.assert_array_equal(earlier(3), [[True, True, True, False]])


def test_layer_norm_centres_scales_and_shifts():
    x, scale, shift = np.random.default_rng(0).normal(2.0, 3.0, (3, 4, 6)).astype(np.float32)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * scale[0] + shift[0]
    norm = LayerNorm(jnp.asarray(scale[0]), jnp.asarray(shift[0]))
    np.testing.assert_allclose(norm(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-4)


def test_sinusoidal_codes_are_the_printed_ones():
    code = np.asarray(sinusoidal(5, 6))
    for i in range(5):
        for j in range(3):
            angle = i / 10_000 ** (2 * j / 6)
            np.testing.assert_allclose(code[i, 2 * j : 2 * j + 2], [np.sin(angle), np.cos(angle)], atol=1e-6)


@pytest.mark.parametrize("positions", ["relative", "learned", "sinusoidal", "none"])
def test_a_decoder_is_the_printed_sum(positions):
    """Position by position, as in 003 (8.4), with a feed-forward part."""
    task = ModularAddition(7, 6)
    architecture = CausalTransformer(heads=2, emb=8, attn=3, mlp=5, positions=positions, scale=0.5)
    network = architecture.build(task, jax.random.key(1))
    x = jnp.array([3, 1, 4, 1, 5, 2])
    s = network.tokens[x]
    if positions == "learned":
        s = s + network.positions
    if positions == "sinusoidal":
        s = s + sinusoidal(6, 8)
    for block, maps in zip(network.blocks, network.attention(x), strict=True):
        a, n = block.attention, np.asarray(block.norm(s))
        brought = np.zeros(s.shape, np.float32)
        for h in range(2):
            for i in range(6):
                keys = n[: i + 1] @ a.key[:, h]
                if positions == "relative":
                    keys = keys + np.asarray(a.lags)[i - np.arange(i + 1), h]
                weights = np.asarray(jax.nn.softmax(n[i] @ a.query[:, h] @ keys.T / np.sqrt(3)))
                np.testing.assert_allclose(maps[h, i, : i + 1], weights, rtol=1e-3, atol=1e-5)
                brought[i] += weights @ (n[: i + 1] @ a.value[:, h]) @ a.out[h]
        s = s + brought
        inner = block.mlp_norm(s) @ block.mlp.inner.weight + block.mlp.inner.bias
        s = s + jax.nn.gelu(inner) @ block.mlp.outer.weight + block.mlp.outer.bias
    np.testing.assert_allclose(network(x), network.norm(s) @ network.output, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_reading_the_last_position_alone_changes_nothing(positions):
    task = Vectors()
    key = jax.random.key(0)
    whole = CausalTransformer(heads=2, emb=8, positions=positions, scale=0.5).build(task, key)
    last = CausalTransformer(heads=2, emb=8, positions=positions, scale=0.5, reads="last").build(task, key)
    x = task.sample(jax.random.key(1), 1).x[0]
    assert whole(x).shape == (5,)
    np.testing.assert_allclose(last(x), whole(x)[-1], rtol=1e-4)


def test_later_symbols_do_not_change_earlier_outputs():
    network = CausalTransformer(emb=8, scale=0.5).build(ModularAddition(5, 6), jax.random.key(0))
    a, b = network(jnp.array([0, 1, 2, 3, 4, 0])), network(jnp.array([0, 1, 2, 3, 1, 2]))
    np.testing.assert_array_equal(a[:4], b[:4])
    assert not np.allclose(a[4:], b[4:])


def test_shorter_sequences_have_the_first_positions():
    network = CausalTransformer(emb=8, positions="learned", scale=0.5).build(ModularAddition(5, 6), jax.random.key(0))
    x = jnp.array([0, 1, 2, 3, 4, 0])
    np.testing.assert_allclose(network(x[:4]), network(x)[:4], rtol=1e-4, atol=1e-5)


def test_matrices_start_as_they_are_said_to():
    """Output projections of attention with half the scale; uniform ones with the deviation 1/√(3 fan_in)."""
    task = ModularAddition(5, 6)
    block = CausalTransformer(heads=2, emb=64, mlp=96, scale=0.3).build(task, jax.random.key(0)).blocks[0]
    for matrix, deviation in ((block.attention.value, 0.3), (block.attention.out, 0.15), (block.mlp.inner.weight, 0.3)):
        assert float(matrix.std()) == pytest.approx(deviation, rel=0.05)
    block = SymbolTransformer(heads=4, emb=64, attn=32, mlp=96).build(task, jax.random.key(0)).blocks[0]
    for matrix, fan_in in ((block.attention.key, 64), (block.attention.out, 128), (block.mlp.outer.weight, 96)):
        assert float(jnp.abs(matrix).max()) == pytest.approx(fan_in**-0.5, rel=0.01)
        assert float(matrix.std()) == pytest.approx((3 * fan_in) ** -0.5, rel=0.05)


def test_the_output_bias_is_added():
    network = SymbolTransformer(heads=2, emb=8, attn=4).build(ModularAddition(5, 3), jax.random.key(0))
    bias, x = jnp.arange(5.0), jnp.array([4, 0, 2])
    moved = eqx.tree_at(lambda n: n.output_bias, network, bias)
    np.testing.assert_allclose(moved(x) - network(x), bias, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_tables_of_the_first_block_change_nothing(layers, monkeypatch):
    """Outputs and gradients of four ways: by tables, with rows picked by products as on GPUs, without tables as for
    many symbols, and position by position."""
    network = SymbolTransformer(layers, heads=2, emb=8, attn=4).build(ModularAddition(5, 3), jax.random.key(0))
    x = jnp.array([[4, 0, 2], [1, 1, 3]])

    def position_by_position(network, x):
        sequence = network.sequence(x)
        for block in network.blocks:
            sequence = block(sequence)
        return network.norm(sequence)[-1] @ network.output + network.output_bias

    def measured(run):
        cubes = eqx.filter_grad(lambda n: jnp.sum(jax.vmap(partial(run, n))(x) ** 3))
        return jax.vmap(partial(run, network))(x), cubes(network)

    agree = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    expected = measured(position_by_position)
    jax.tree.map(agree, measured(decoder.Decoder.__call__), expected)
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(jax, "default_backend", lambda: "gpu")
        jax.tree.map(agree, measured(decoder.Decoder.__call__), expected)
    monkeypatch.setattr(decoder.Decoder, "_first_block", None)
    monkeypatch.setattr(decoder, "TABLED", 0)
    jax.tree.map(agree, measured(decoder.Decoder.__call__), expected)


def test_dropout_masks_keep_the_mean_and_drop_the_share():
    (mask,) = dropout_masks(jax.random.key(0), 0.25, (1_000_000,))
    assert set(np.unique(mask)) == {0, np.float32(4 / 3)}
    assert float((mask == 0).mean()) == pytest.approx(0.25, abs=0.002)


def test_dropout_acts_on_embeddings_and_on_attention_weights():
    """With attention to oneself alone and unit values, every coordinate is m_0 x (1 + m_1 m_2), the m being 0 or 2."""
    task = ModularAddition(5, 4)
    network = CausalTransformer(1, emb=1, norm=False, dropout=0.5, positions="none").build(task, jax.random.key(0))
    one = jnp.ones((1, 1, 1))
    network = eqx.tree_at(
        lambda n: (n.tokens, n.output, n.blocks[0].attention), network,
        (jnp.ones((5, 1)), jnp.ones((1, 5)), type(network.blocks[0].attention)(one, one, one, one)),
    )  # fmt: skip
    x = jnp.zeros((2000, 4), int)
    outputs = np.asarray(network.batch(x, jax.random.key(1))[0][:, 0, 0])
    np.testing.assert_allclose(np.unique(outputs), [0, 2, 10])
    np.testing.assert_allclose([np.mean(outputs == v) for v in (0, 2, 10)], [0.5, 0.375, 0.125], atol=0.04)
    again = eqx.tree_at(lambda n: n.masks.value, network, network.masks.value + 1)
    assert (np.asarray(again.batch(x, jax.random.key(1))[0][:, 0, 0]) != outputs).any()


def test_outputs_under_dropout_scatter_around_those_without():
    task = ModularAddition(5, 6)
    network = CausalTransformer(emb=8, mlp=16, norm=False, dropout=0.1, scale=0.05).build(task, jax.random.key(0))
    x = jnp.tile(jnp.array([0, 1, 2, 3, 4, 0]), (4096, 1))
    with_dropout, _ = network.batch(x, jax.random.key(1))
    assert float(with_dropout.std(axis=0).max()) > 0
    spread = np.asarray(with_dropout.std(axis=0)) / 64
    assert (np.abs(with_dropout.mean(axis=0) - network(x[0])) < 6 * spread + 1e-5).all()


def test_only_matrices_decay_where_asked():
    learner = kr.Adam(lr=0.0, weight_decay=0.5, decay="direct", decay_matrices=True)
    network = CausalTransformer(emb=8, scale=0.5, reads="last").build(Vectors(), jax.random.key(0))
    batch = Vectors().sample(jax.random.key(1), 4)
    trains = jax.tree.map(lambda leaf: True, network)
    memory = learner.rule().init(network)
    moved, *_ = learner.update(network, memory, batch, jax.random.key(2), jnp.asarray(0), trains)
    np.testing.assert_allclose(moved.tokens, network.tokens / 2)
    np.testing.assert_array_equal(moved.norm.scale, network.norm.scale)


def test_prompts_close_with_an_unanswered_query():
    x, y, query = jnp.arange(6.0).reshape(3, 2), jnp.ones((3, 1)), jnp.array([7.0, 8.0])
    np.testing.assert_array_equal(prompt(x, y, query), [[0, 1, 1], [2, 3, 1], [4, 5, 1], [7, 8, 0]])
    rows = orthonormal(jax.random.key(0), 4, 9)
    np.testing.assert_allclose(rows @ rows.T, np.eye(4), atol=1e-5)
    slanted = jnp.ones((4, 9)) + 1e-2 * jax.random.normal(jax.random.key(1), (4, 9))
    rows = orthonormalised(slanted)
    np.testing.assert_allclose(rows @ rows.T, np.eye(4), atol=1e-5)
    many = jax.vmap(lambda key: orthonormal(key, 2, 3))(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(many.mean(0), 0, atol=0.05)


def test_bad_decoders_are_refused():
    with pytest.raises(InputError, match="did you mean 'relative'"):
        CausalTransformer(positions="relativ")
    with pytest.raises(InputError, match="set attn"):
        CausalTransformer(emb=16, heads=3)
    with pytest.raises(InputError, match="'all' or 'last'"):
        CausalTransformer(reads="first")
