"""Facts about attention on sequences of few coordinates: it is the plain formula, in value and gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from krogh.nn.attention import LayerNorm
from krogh.nn.decoder import CausalTransformer
from krogh.nn.spanned import Spanned, attend, attend_last
from krogh.tasks.markov import MarkovChains


def plain(query, key, value, lags):
    n = key.shape[1]
    lag = np.arange(n)[:, None] - np.arange(n)
    scores = query.T @ key + jnp.einsum("ai,aij->ij", query, lags[:, np.maximum(lag, 0)])
    return value @ jax.nn.softmax(jnp.where(lag >= 0, scores, -jnp.inf), axis=-1).T


@pytest.mark.parametrize(("n", "scale"), [(1, 1.0), (2, 1.0), (7, 1.0), (12, 1.0), (12, 30.0)])
def test_attention_and_its_gradients_are_the_plain_formula(n, scale):
    keys = jax.random.split(jax.random.key(n), 5)
    shapes = [(3, n), (3, n), (4, n), (3, n), (4, n)]
    *arguments, slope = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    arguments[0] = scale * arguments[0]
    found, pull = jax.jit(lambda *a: jax.vjp(attend, *a))(*arguments)
    expected, expected_pull = jax.vjp(plain, *arguments)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(attend_last(*arguments), expected[:, -1:], rtol=1e-4, atol=1e-5)
    for gradient, other in zip(pull(slope), expected_pull(slope), strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-3, atol=1e-4 * scale)


def test_the_last_position_of_many_sequences_is_that_of_each():
    keys = jax.random.split(jax.random.key(0), 4)
    query, key, value = (jax.random.normal(k, (3, 5, 2, 9)) for k in keys[:3])
    lags = jax.random.normal(keys[3], (3, 9))
    found = attend_last(query, key, value, lags)
    for i, j in np.ndindex(5, 2):
        each = plain(query[:, i, j], key[:, i, j], value[:, i, j], lags)[:, -1:]
        np.testing.assert_allclose(found[:, i, j], each, rtol=1e-4, atol=1e-5)


def test_gradients_add_up_over_sequences_with_common_lags():
    keys = jax.random.split(jax.random.key(0), 4)
    query, key, value = (jax.random.normal(k, (5, 3, 9)) for k in keys[:3])
    lags = jax.random.normal(keys[3], (3, 9))

    def slope(function):
        return jax.jit(jax.grad(lambda r: jnp.sum(jax.vmap(function, (0, 0, 0, None))(query, key, value, r) ** 2)))(
            lags
        )

    np.testing.assert_allclose(slope(attend), slope(plain), rtol=1e-3, atol=1e-4)


def test_norms_and_sums_in_coordinates_are_those_of_the_sequence():
    keys = jax.random.split(jax.random.key(0), 6)
    first = Spanned(jax.random.normal(keys[0], (2, 3, 7)), jax.random.normal(keys[1], (2, 5)))
    other = Spanned(jax.random.normal(keys[2], (4, 3, 7)), jax.random.normal(keys[3], (4, 5)))
    norm = LayerNorm(jax.random.normal(keys[4], (5,)), jax.random.normal(keys[5], (5,)))

    def sequence(spanned):
        return jnp.einsum("cbn,ce->bne", spanned.coordinates, spanned.basis)

    for scale in (1.0, 1e-3):  # the second one is as small as the norm's own offset
        given = first._replace(coordinates=scale * first.coordinates)
        np.testing.assert_allclose(sequence(given.normed(norm)), norm(sequence(given)), rtol=1e-3, atol=1e-4)
    both = first.plus(other)
    np.testing.assert_allclose(sequence(both), sequence(first) + sequence(other), rtol=1e-4, atol=1e-5)
    assert len(first.plus(first).basis) == 4 and len(both.basis) == 5


@pytest.mark.parametrize(
    ("k", "settings"),
    [
        (3, {}),
        (3, {"norm": False, "projection": False}),
        (3, {"layers": 3, "heads": 2}),
        (2, {"mlp": 8, "positions": "none"}),
        (8, {"heads": 2}),
    ],
)
def test_a_decoder_on_few_symbols_is_the_general_one(k, settings):
    """Vectors take the general path: the same one-hot codes as numbers."""
    task = MarkovChains(k, 11)
    network = CausalTransformer(emb=8, scale=0.5, **settings).build(task, jax.random.key(0))
    x, slope = task.sample(jax.random.key(1), 4).x, jax.random.normal(jax.random.key(2), (4, 11, k))

    def outputs_and_gradient(run):
        def aligned(network):
            outputs = run(network)
            return jnp.sum(slope * outputs), outputs

        (_, outputs), gradient = eqx.filter_jit(eqx.filter_value_and_grad(aligned, has_aux=True))(network)
        return outputs, gradient

    found, gradient = outputs_and_gradient(lambda net: net.batch(x, jax.random.key(0))[0])
    expected, other = outputs_and_gradient(lambda net: jax.vmap(net)(jax.nn.one_hot(x, k)))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(found[2], eqx.filter_jit(network)(x[2]), rtol=2e-3, atol=2e-4)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-3, atol=2e-3 * max(1.0, float(jnp.abs(b).max())))
