"""Facts about products that are split so that GPUs do them fast: they, and their gradients, are the plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from krogh.nn.products import few_columns, picked_sum, pieces
from krogh.systems.modular_fourier_circuits import training
from krogh.systems.modular_fourier_circuits.training import MarginAdam
from krogh.tasks.modular import ModularAddition


def numbers(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def test_three_pieces_are_the_number():
    values = numbers(0, 1000) * 10.0 ** jnp.arange(-20, 20).repeat(25)
    np.testing.assert_array_equal(sum(piece.astype(jnp.float32) for piece in pieces(values)), values)


def test_picked_rows_are_exact():
    tables, x = numbers(0, 1, 47, 64), jax.random.randint(jax.random.key(1), (128, 1), 0, 47)
    np.testing.assert_array_equal(picked_sum(tables, x), tables[0][x[:, 0]])


def value_and_gradients(function, left, right, slope):
    value, back = jax.vjp(function, left, right)
    return value, *back(slope)


@pytest.mark.parametrize(("rows", "inner"), [(128, 96), (5, 7), (64, 46)])
def test_few_columns_is_a_product(rows, inner):
    left, right, slope = numbers(0, rows, inner), numbers(1, inner, 3), numbers(2, rows, 3)
    for ours, plain in zip(
        value_and_gradients(few_columns, left, right, slope),
        value_and_gradients(jnp.matmul, left, right, slope),
        strict=True,
    ):
        np.testing.assert_allclose(ours, plain, atol=2e-5)


def test_gradients_of_picked_rows_are_sums_of_slopes():
    tables, x = numbers(0, 3, 11, 32), jax.random.randint(jax.random.key(1), (200, 3), 0, 11)
    slope = numbers(2, 200, 32)
    value, back = jax.vjp(lambda t: picked_sum(t, x), tables)
    plain, plain_back = jax.vjp(lambda t: sum(t[j][x[:, j]] for j in range(3)), tables)
    np.testing.assert_allclose(value, plain, atol=1e-6)
    np.testing.assert_allclose(back(slope)[0], plain_back(slope)[0], atol=1e-5)


def test_the_objective_is_the_same_by_products_and_by_lookups(monkeypatch):
    task = ModularAddition(17, 4)
    network = training.Lookup(24).build(task, jax.random.key(0))
    batch = task.sample(jax.random.key(1), 64)

    def gradient():
        return jax.grad(lambda net: MarginAdam().objective_of(net, batch, jax.random.key(2))[0])(network)

    here = gradient()
    monkeypatch.setattr(training.jax, "default_backend", lambda: "gpu")
    there = gradient()
    np.testing.assert_allclose(here.weights, there.weights, atol=1e-6)
    np.testing.assert_allclose(here.output, there.output, atol=1e-6)
