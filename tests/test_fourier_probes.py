"""The Fourier-gap probes against enumeration, and the censored times read off recorded curves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import krogh as kr
from krogh.errors import InputError
from krogh.lab.times import at_time, first_time
from krogh.nn.activations import OfDegree, sinusoid
from krogh.probes.fourier import correlation_gradient, fourier_gap, fourier_gap_exact
from krogh.systems.hidden_progress.depth import AnotherLayer, FirstLayer
from krogh.theory.fourier_gap import population_gradient, relaxed_gap, step


def test_gradient_on_the_whole_cube_is_the_population_gradient():
    task = kr.tasks.SparseParity(9, 4)
    network = kr.nn.MLP(width=5).build(task, jax.random.key(0))
    exact = population_gradient(step, np.asarray(network.weights, float).T, 4, np.asarray(network.bias, float))
    np.testing.assert_allclose(correlation_gradient(network, task.enumerate()).T, exact, atol=1e-6)
    gap = fourier_gap(network, task, task.enumerate())
    np.testing.assert_allclose(gap, relaxed_gap(exact, 4).mean(), atol=1e-6)


@pytest.mark.parametrize("k", [2, 3])
def test_closed_form_gap_equals_the_enumerated_one(k):
    task = kr.tasks.SparseParity(10, k)
    network = kr.nn.MLP(width=4, activation=OfDegree(sinusoid), head=False).build(task, jax.random.key(k))
    enumerated = fourier_gap(network, task, task.enumerate())
    np.testing.assert_allclose(fourier_gap_exact(network, task), enumerated, atol=1e-5)


def test_gap_is_a_probe_of_a_run():
    run = kr.train(
        kr.tasks.SparseParity(n=8, k=2),
        kr.nn.MLP(width=6),
        kr.SGD(lr=0.1),
        20,
        probes=[kr.probes.fourier_gap],
        every=10,
        validation="all",
    )
    assert run.data.fourier_gap.dims == ("seed", "step")
    assert np.isfinite(run.data.fourier_gap).all()


def test_a_product_network_has_no_neurons():
    task = kr.tasks.SparseParity(8, 2)
    network = kr.nn.PolyNet().build(task, jax.random.key(0))
    with pytest.raises(InputError, match="Product"):
        fourier_gap(network, task, task.enumerate())


def test_first_time_counts_streaks_and_censors():
    curve = xr.DataArray(
        [[0.6, 0.5, 0.6, 0.6, 0.7], [0.5] * 5], dims=("seed", "step"), coords={"step": range(0, 50, 10)}
    )
    np.testing.assert_array_equal(first_time(curve >= 0.6), [0, np.inf])
    assert set(first_time(curve >= 0.6).coords) == set()
    np.testing.assert_array_equal(first_time(curve >= 0.6, consecutive=3), [20, np.inf])
    np.testing.assert_array_equal(at_time(curve, first_time(curve >= 0.7) - 5), [0.6, np.nan])


def test_another_layer_keeps_what_was_learned():
    task = kr.tasks.SparseParity(6, 3)
    first = FirstLayer(2).build(task, jax.random.key(0))
    second = AnotherLayer(1)(first, task, jax.random.key(1))
    x = task.enumerate().x[5]
    features = first.layer(x) ** 2
    assert features.shape == (2,)
    np.testing.assert_allclose(second(x), second.head(second.layer(features) ** 2), rtol=1e-6)
    assert jnp.shape(second(x)) == ()
