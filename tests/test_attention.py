"""Facts about attention, decoders and prompts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import krogh as kr
from krogh.errors import InputError
from krogh.nn.attention import by_lag, causal, earlier, linear_weights, sinusoidal, softmax_weights
from krogh.nn.decoder import CausalTransformer
from krogh.tasks.base import Batch
from krogh.tasks.modular import ModularAddition
from krogh.tasks.prompts import orthonormal, prompt


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
    for block in network.blocks:
        a, n = block.attention, np.asarray(block.norm(s))
        brought = np.zeros(s.shape, np.float32)
        for h in range(2):
            for i in range(6):
                keys = n[: i + 1] @ a.key[:, h]
                if positions == "relative":
                    keys = keys + np.asarray(a.lags)[i - np.arange(i + 1), h]
                weights = np.asarray(jax.nn.softmax(n[i] @ a.query[:, h] @ keys.T / np.sqrt(3)))
                brought[i] += weights @ (n[: i + 1] @ a.value[:, h]) @ a.out[h]
        s = s + brought
        inner = block.mlp_norm(s) @ block.mlp.inner.weight + block.mlp.inner.bias
        s = s + jax.nn.gelu(inner) @ block.mlp.outer.weight + block.mlp.outer.bias
    np.testing.assert_allclose(network(x), network.norm(s) @ network.output, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.asarray(network.attention(x)[0]).sum(-1), 1, rtol=1e-5)


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
    many = jax.vmap(lambda key: orthonormal(key, 2, 3))(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(many.mean(0), 0, atol=0.05)


def test_bad_decoders_are_refused():
    with pytest.raises(InputError, match="did you mean 'relative'"):
        CausalTransformer(positions="relativ")
    with pytest.raises(InputError, match="set attn"):
        CausalTransformer(emb=16, heads=3)
    with pytest.raises(InputError, match="'all' or 'last'"):
        CausalTransformer(reads="first")
