"""Facts about the parity tasks, the activations made for them and the networks that learn them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krogh as kr
from krogh.nn.activations import OfDegree, oscillating_polynomial, power, sinusoid, triangle_wave, zigzag
from krogh.nn.base import INITS
from krogh.nn.transformer import SignTransformer
from krogh.tasks import Batch, DisjointParity, LabelNoise, SparseParity, Task
from krogh.tasks.parity import sign_words, signs


@given(size=st.integers(1, 70), n=st.integers(1, 70), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_packed_words_become_signs_of_the_asked_shape(size, n, seed):
    words = sign_words(jax.random.key(seed), size, n)
    x = np.asarray(signs(words, size, n))
    assert x.shape == (size, n)
    assert set(np.unique(x)) <= {-1.0, 1.0}
    assert words.size <= min(-(-size // 32) * n, size * -(-n // 32))


def test_inputs_are_uniform_and_independent_and_labels_their_parity():
    task = SparseParity(n=12, k=3)
    batch = task.sample(jax.random.key(0), 100_000)
    x = np.asarray(batch.x)
    covariance = x.T @ x / len(x)
    assert np.abs(covariance - np.eye(12)).max() < 5 / np.sqrt(len(x))
    assert np.abs(x.mean(axis=0)).max() < 5 / np.sqrt(len(x))
    np.testing.assert_array_equal(batch.y, x[:, 0] * x[:, 1] * x[:, 2])


def test_the_enumerated_domain_has_every_input_once():
    batch = SparseParity(n=7, k=2).enumerate()
    assert len({tuple(row) for row in np.asarray(batch.x)}) == 2**7
    assert float(batch.y.sum()) == 0


def test_disjoint_parities_have_one_relevant_coordinate_per_block():
    task = DisjointParity(n=12, k=3)
    np.testing.assert_array_equal(task.support, [0, 4, 8])
    batch = task.sample(jax.random.key(1), 64)
    np.testing.assert_array_equal(batch.y, batch.x[:, 0] * batch.x[:, 4] * batch.x[:, 8])


def test_label_noise_flips_the_stated_share_of_the_same_inputs():
    task = SparseParity(n=10, k=2)
    noisy = LabelNoise(task, flip=0.3).sample(jax.random.key(2), 50_000)
    clean = task.sample(jax.random.key(2), 50_000)
    np.testing.assert_array_equal(noisy.x, clean.x)
    np.testing.assert_array_equal(noisy.latents["clean"], clean.y)
    assert float(np.mean(noisy.y != clean.y)) == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("family", [zigzag, oscillating_polynomial, triangle_wave, sinusoid])
@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_the_sum_of_the_relevant_bits_is_mapped_to_their_parity(family, k):
    j = np.arange(k + 1)
    np.testing.assert_allclose(family(k)(jnp.asarray(k - 2.0 * j)), (-1.0) ** j, atol=2e-5)


def test_zigzag_has_k_linear_pieces_extended_outwards():
    z = np.linspace(-9, 9, 7201)
    slope = np.diff(np.asarray(zigzag(4)(jnp.asarray(z)))) / np.diff(z)
    assert np.sum(np.abs(np.diff(np.round(slope, 2))) > 1) == 3
    np.testing.assert_allclose(zigzag(4)(jnp.asarray([6.0, -6.0])), [3.0, 3.0])


def test_one_neuron_with_the_right_weights_computes_the_parity():
    task = SparseParity(n=8, k=3)
    batch = task.enumerate()
    network = kr.nn.MLP(width=1, activation=OfDegree(sinusoid), head=False).build(task, jax.random.key(0))
    weights = jnp.zeros((8, 1)).at[:3].set(1.0)
    network = eqx.tree_at(lambda m: (m.weights, m.bias), network, (weights, jnp.zeros(1)))
    np.testing.assert_allclose(jax.vmap(network)(batch.x), batch.y, atol=1e-5)


def test_products_of_the_relevant_bits_are_the_parity():
    task = SparseParity(n=6, k=2)
    network = kr.nn.PolyNet().build(task, jax.random.key(0))
    network = eqx.tree_at(lambda m: (m.weights, m.bias), network, (jnp.eye(6)[:, :2], jnp.zeros(2)))
    batch = task.enumerate()
    np.testing.assert_allclose(jax.vmap(network)(batch.x), batch.y)
    shifted = eqx.tree_at(lambda m: m.bias, network, jnp.array([0.5, -2.0]))
    np.testing.assert_allclose(jax.vmap(shifted)(batch.x), (batch.x[:, 0] + 0.5) * (batch.x[:, 1] - 2))


def test_positive_disjoint_starts_have_a_positive_product():
    task = DisjointParity(n=12, k=3)
    build = kr.nn.DisjointPolyNet(init="normal", positive=True).build
    starts = jax.vmap(lambda key: build(task, key).weights[:, 0])(jax.random.split(jax.random.key(0), 200))
    assert (jnp.prod(starts, axis=1) > 0).all()


@pytest.mark.parametrize(
    ("init", "deviation", "largest"),
    [
        ("uniform", 1 / np.sqrt(3 * 400), 1 / 20),
        ("xavier", np.sqrt(6 / 500 / 3), np.sqrt(6 / 500)),
        ("gaussian", np.sqrt(2 / 400), np.inf),
        ("bernoulli", 1 / 20, 1 / 20),
    ],
)
def test_initialisation_families_have_their_scale(init, deviation, largest):
    values = np.asarray(INITS[init](jax.random.key(0), (400, 100), 400, 100))
    assert values.std() == pytest.approx(deviation, rel=0.02)
    assert np.abs(values).max() <= largest * (1 + 1e-6)


def direct_transformer(network: SignTransformer, x: np.ndarray) -> float:
    """The formula of the document, head by head and token by token."""
    p = jax.tree.map(np.asarray, network)
    tokens = [p.tokens[1] if sign > 0 else p.tokens[0] for sign in x]
    sequence = np.array([*(t + position for t, position in zip(tokens, p.positions, strict=True)), p.tokens[2]])
    a = sequence[-1].copy()
    head = p.attention
    for h in range(head.query.shape[1]):
        scores = sequence[-1] @ head.query[:, h] @ (sequence @ head.key[:, h]).T / np.sqrt(head.query.shape[2])
        weights = np.exp(scores - scores.max())
        a += weights / weights.sum() @ sequence @ head.value[:, h] @ head.out[h]
    hidden = np.asarray(jax.nn.gelu(a @ p.mlp.inner.weight + p.mlp.inner.bias))
    return float(p.output @ (a + hidden @ p.mlp.outer.weight + p.mlp.outer.bias))


def test_the_transformer_is_the_printed_formula():
    task = SparseParity(n=9, k=2)
    network = kr.nn.ParityTransformer(emb=12, attn=3, heads=4, mlp=20).build(task, jax.random.key(3))
    x = np.asarray(task.sample(jax.random.key(4), 5).x)
    np.testing.assert_allclose(jax.vmap(network)(x), [direct_transformer(network, row) for row in x], rtol=1e-4)


def test_powers_and_deep_networks_compose():
    task = SparseParity(n=5, k=4)
    network = kr.nn.DeepMLP(widths=(2, 1), activation="square").build(task, jax.random.key(0))
    x = task.enumerate().x[7]
    first = (x @ network.weights[0] + network.biases[0]) ** 2
    second = (first @ network.weights[1] + network.biases[1]) ** 2
    np.testing.assert_allclose(network(x), second @ network.weights[2] + network.biases[2], rtol=1e-5)
    np.testing.assert_allclose(power(3)(jnp.asarray([2.0])), [8.0])


class Memorised(Task):
    """Keeps apart the inputs it trains on, with the other label."""

    @property
    def in_shape(self):
        return (1,)

    def sample(self, key, size):
        return Batch(jnp.ones((size, 1)), jnp.ones(size))

    def held_out(self, key, size):
        return Batch(jnp.ones((size, 1)), -jnp.ones(size))


def test_validation_uses_what_a_task_holds_out():
    run = kr.train(
        Memorised(), kr.nn.MLP(width=4, activation="identity"), kr.SGD(lr=0.1, loss="logistic"), 200,
        probes=[kr.probes.accuracy], every=200, seeds=4, validation=8,
    )  # fmt: skip
    assert float(run.data.loss[:, -1].max()) < 0.2
    assert float(run.data.accuracy[:, -1].max()) == 0.0
