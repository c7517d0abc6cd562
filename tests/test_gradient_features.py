"""Tasks, symmetric initialisation, closed forms and constructions behind gradient feature learning."""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import xarray as xr

from krogh.errors import InputError
from krogh.nn.mlp import TwoLayer
from krogh.nn.symmetric import SymmetricReLU, relu_network
from krogh.systems.gradient_feature_learning.feature_set import search_finds_features
from krogh.systems.gradient_feature_learning.guarantees import theorem_in_numbers
from krogh.systems.gradient_feature_learning.lottery import largest
from krogh.systems.gradient_feature_learning.simplicity import cluster_accuracy
from krogh.tasks.base import Batch, Task
from krogh.tasks.block_parity import BlockParity
from krogh.tasks.mixtures import GaussianMixture, LinearMargin, orthogonal_mixture, xor_mixture
from krogh.tasks.multi_index import CUBIC, MultiIndex, hermite
from krogh.theory import feature_guarantees as guarantees
from krogh.theory import gradient_features as features
from krogh.theory.boolean import cube
from krogh.theory.fourier_gap import population_gradient, step

N = 50_000


@eqx.filter_jit
def outputs(network: eqx.Module, x: jax.Array) -> jax.Array:
    return jax.vmap(network)(x)  # type: ignore[arg-type]


@eqx.filter_jit
def built(architecture: SymmetricReLU, task: Task, key: jax.Array) -> TwoLayer:
    return architecture.build(task, key)


@eqx.filter_jit
def sampled(task: Task, key: jax.Array, size: int) -> Batch:
    return task.sample(key, size)


def test_mixture_samples_have_the_components_moments():
    mixture = GaussianMixture(
        jnp.array([[3.0, 0.0], [0.0, -2.0]]), jnp.array([1.0, -1.0]), jnp.array([0.25, 0.75]), jnp.array([0.5, 2.0])
    )
    x, y, latents = sampled(mixture, jr.key(0), N)
    assert latents is not None
    for j in range(2):
        member = np.asarray(latents["component"] == j)
        assert abs(member.mean() - mixture.shares[j]) < 0.01
        np.testing.assert_array_equal(np.asarray(y)[member], mixture.labels[j])
        np.testing.assert_allclose(np.asarray(x)[member].mean(0), mixture.means[j], atol=0.05)
        np.testing.assert_allclose(np.asarray(x)[member].std(0), mixture.deviations[j], rtol=0.02)


def test_linear_data_keep_their_margin_and_signal():
    task = LinearMargin(5, margin=0.3)
    x, y, _ = sampled(task, jr.key(0), N)
    assert float((y * x[:, 0]).min()) >= 0.3
    expected = np.zeros(5)
    expected[0] = task.signal
    np.testing.assert_allclose((np.asarray(y)[:, None] * x).mean(0), expected, atol=0.02)


@pytest.mark.parametrize(("r", "k", "p_a", "p_o"), [(1, 5, 0.25, 0.5), (3, 3, 0.1, 0.1)])
def test_block_parity_is_the_mixture_it_says(r, k, p_a, p_o):
    task = BlockParity(20, r, k, p_a, p_o)
    x, y, latents = sampled(task, jr.key(0), N)
    x, y, structured = np.asarray(x), np.asarray(y), np.asarray(latents["structured"])
    assert abs(structured.mean() - 2 * r * p_a) < 0.01
    blocks = x[:, : r * k].reshape(-1, r, k)
    assert (abs(blocks[structured]).sum((1, 2)) == k).all()
    assert (abs(blocks[structured].sum(2)).max(1) == k).all()
    assert (abs(blocks[~structured]) == 1).all()
    np.testing.assert_array_equal(y, np.sign(blocks.prod(2).sum(1)))
    np.testing.assert_allclose((y[:, None] * x)[:, : r * k].mean(0), 2 * p_a, atol=0.02)
    np.testing.assert_allclose((x[:, r * k :] ** 2).mean(0), 2 * p_o, atol=0.01)
    uniform = np.asarray(sampled(replace(task, p_a=0.0), jr.key(1), 1000).x)
    assert (abs(uniform[:, : r * k]) == 1).all()
    np.testing.assert_allclose(task.directions @ task.directions.T, np.eye(r), atol=1e-6)


def test_block_parity_refuses_even_sizes():
    with pytest.raises(InputError, match="odd r and k"):
        BlockParity(20, 2, 3)


def test_polynomials_are_centred_and_of_unit_variance():
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights /= weights.sum()
    for n in range(5):
        assert math.isclose(weights @ np.asarray(hermite(n, jnp.asarray(nodes))) ** 2, math.factorial(n), rel_tol=1e-4)
    task = MultiIndex(4, CUBIC)
    x, y, _ = sampled(task, jr.key(0), N)
    z = np.asarray(x)
    target = z[:, 0] * z[:, 1] + (z[:, 0] ** 2 - 1) / 2 + 0.3 * (z[:, 1] ** 3 - 3 * z[:, 1])
    np.testing.assert_allclose(y, target / math.sqrt(1 + 0.5 + 0.09 * 6), atol=1e-4)
    np.testing.assert_allclose((np.asarray(y)[:, None] * x).mean(0), 0, atol=0.05)
    with pytest.raises(InputError, match="degree at least 2"):
        MultiIndex(4, (((1, 0), 1.0),))


@pytest.mark.parametrize("signs", [False, True])
def test_the_symmetric_start_is_zero_and_its_first_step_is_the_gradient(signs: bool):
    task = LinearMargin(7)
    network = built(SymmetricReLU(6, threshold=0.7, sigma_a=2.0, signs=signs), task, jr.key(0))
    x, y, _ = sampled(task, jr.key(1), 500)
    np.testing.assert_allclose(outputs(network, x), 0, atol=1e-4)

    def loss(weights):
        return jnp.mean(jax.nn.relu(1 - y * outputs(relu_network(weights, -network.bias, network.output), x)))

    descent = -jax.jit(jax.grad(loss))(network.weights)
    np.testing.assert_allclose(eqx.filter_jit(features.symmetric_step)(network, x, y).weights, descent, atol=1e-5)
    np.testing.assert_allclose(descent[:, :12], -descent[:, 12:], atol=1e-6)


@pytest.mark.parametrize("name", ["mixture", "linear", "quadratic"])
def test_closed_gradients_equal_samples(name: str):
    w, b = jr.normal(jr.key(0), (6, 5)), jnp.linspace(-3.0, 3.0, 5)
    if name == "mixture":
        shares, deviations = jnp.array([0.1, 0.3, 0.4, 0.2]), jnp.array([0.5, 1, 2, 1.5])
        task = replace(xor_mixture(6, 1.3), shares=shares, deviations=deviations)
        exact = eqx.filter_jit(features.mixture_gradient)(task, w, b)
    elif name == "linear":
        task = LinearMargin(6, 0.4)
        exact = eqx.filter_jit(features.linear_gradient)(task, w, b)
    else:
        task, b = MultiIndex(6), jnp.zeros(5)
        exact = features.quadratic_gradient(jnp.zeros((6, 6)).at[:2, :2].set(task.hessian), w)
    x, y, _ = sampled(task, jr.key(1), N)
    scale = float(jnp.sqrt((y[:, None] ** 2 * x**2).mean(0).max() / N))
    assert float(jnp.abs(exact - features.sampled_gradient(w, b, x, y)).max()) < 5 * scale


def test_the_leading_gradient_of_block_parities_is_close_to_samples():
    task = BlockParity(60, 3, 3, 0.1, 0.1)
    w, b = jr.normal(jr.key(0), (60, 6)), jnp.linspace(-5.0, 5.0, 6)
    x, y, _ = sampled(task, jr.key(1), N)
    leading, measured = features.block_parity_gradient(task, w, b), features.sampled_gradient(w, b, x, y)
    assert float(jnp.abs(leading - measured).max()) < 0.018 < 0.1 * float(jnp.abs(leading).max())


def test_sign_neurons_match_enumeration():
    d, k = 13, 4
    w = np.sign(np.random.default_rng(0).normal(size=(200, d)))
    w[:, :k] = np.where(np.arange(200)[:, None] < 40, 1.0, w[:, :k])
    exact = population_gradient(step, w, k).T
    predicted = features.sign_neuron(d, k)
    np.testing.assert_allclose(np.linalg.norm(exact, axis=0), predicted.norm, rtol=1e-12)
    angle = features.cosines((np.arange(d) < k)[None] / 2.0, exact)[0]
    np.testing.assert_allclose(abs(angle[:40]), predicted.cosine, rtol=1e-12)
    assert predicted.share == np.mean(abs(cube(k).sum(1)) == k)


@pytest.mark.parametrize("reflected", [False, True])
@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_bumps_compute_the_parity(k: int, reflected: bool):
    x = cube(k)
    network = features.bump_network(jnp.ones((1, k)) / math.sqrt(k), k, reflected)
    np.testing.assert_allclose(outputs(network, jnp.asarray(x, jnp.float32)), x.prod(1), atol=1e-4)
    assert network.bias is not None and network.bias.shape == (3 * (k + 1),)
    if reflected:
        assert float(-network.bias.max()) >= (-1e-6 if k % 2 else -1 / math.sqrt(k) - 1e-6)
    if k % 2:
        assert abs(float(network(jnp.zeros(k)))) < 1e-5


def test_constructed_networks_separate():
    linear = LinearMargin(6, 0.5)
    x, y, _ = sampled(linear, jr.key(0), 2000)
    assert float((y * outputs(features.linear_network(linear.directions[0], 0.5), x)).min()) >= 1 - 1e-5
    mixture = orthogonal_mixture((1, -1, 1, -1), 4, math.sqrt(1000))
    x, y, _ = sampled(mixture, jr.key(0), 2000)
    network = features.mixture_network(mixture.directions, mixture.labels, math.sqrt(8 * math.log(1000)))
    assert float((y * outputs(network, x)).min()) >= 1


def test_projected_weights_give_the_same_gradients_as_full_ones():
    d, size, b = 50, 5_000, 12.0
    w = jr.normal(jr.key(0), (d, size))
    gradient = jax.jit(features.mixture_gradient)
    full = gradient(xor_mixture(d, 1.5), w, jnp.full(size, b))
    short = jnp.concatenate([w[:2], jnp.linalg.norm(w[2:], axis=0, keepdims=True)])
    reduced = gradient(xor_mixture(d, 1.5, ambient=3), short, jnp.full(size, b))
    np.testing.assert_allclose(reduced[:2], full[:2], atol=1e-4)
    np.testing.assert_allclose(jnp.abs(reduced[2]), jnp.linalg.norm(full[2:], axis=0), atol=1e-4)
    drawn = features.projected_normal(jr.key(1), d, 2, size)
    np.testing.assert_allclose((drawn**2).mean(1), [1, 1, d - 2], rtol=0.1)


def test_hits_need_angle_and_norm_and_nice_neurons_the_sign():
    directions = jnp.eye(1, 3)
    gradient = jnp.array([[1.0, -2.0, 0.1, 1.0], [0.0, 0.1, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(features.hits(directions, gradient, 0.05, 0.5)[0], [True, True, False, False])
    nice = features.nice_neurons(directions, jnp.array([1.0, 1.0, 1.0, 1.0]), gradient, 0.05, 0.5)
    np.testing.assert_array_equal(nice[0], [True, False, False, False])


def test_the_search_finds_planted_directions():
    rng = np.random.default_rng(0)
    planted = np.eye(3, 10)
    rows = np.concatenate([s * (planted[j] + 0.02 * rng.normal(size=(30, 10))) for j, s in ((0, 1), (1, -2), (2, 1))])
    found = features.find_features(np.concatenate([rows, rng.normal(size=(30, 10)) * 0.01]).T, 0.05, 0.5)
    assert len(found.directions) == 3
    np.testing.assert_allclose(abs(planted @ found.directions.T).max(1), 1, atol=0.01)
    np.testing.assert_allclose(found.probability, 0.25)


def test_the_explicit_head_rebuilds_its_target():
    target = relu_network(jnp.eye(4, 2), jnp.array([1.0, 2.0]), jnp.array([3.0, -1.0]))
    scale = jnp.array([4.0, 4.0, 2.0, 50.0])
    columns = jnp.stack([jnp.eye(4)[0], jnp.eye(4)[0], jnp.eye(4)[1], jnp.eye(4)[2]], axis=1) * scale
    network = relu_network(columns, jnp.full(4, 4.0))
    head = eqx.filter_jit(features.explicit_head)(target, network, gamma=0.01, tolerance=0.05)
    np.testing.assert_array_equal(head.count, [2, 1])
    x = 3 * jr.normal(jr.key(0), (100, 4))
    rebuilt = outputs(relu_network(columns, jnp.full(4, 4.0), head.output), x)
    np.testing.assert_allclose(rebuilt, outputs(target, x), atol=1e-4)


def test_the_explicit_head_serves_small_biases_by_the_smallest_allowed():
    target = relu_network(jnp.eye(3, 2), jnp.array([0.0, 2.0]), jnp.array([3.0, -1.0]))
    columns = jnp.eye(3, 2) * jnp.array([8.0, 2.0])
    network = relu_network(columns, jnp.full(2, 4.0))
    explicit_head = eqx.filter_jit(features.explicit_head)
    np.testing.assert_array_equal(explicit_head(target, network, 0.01, 0.05).count, [0, 1])
    head = explicit_head(target, network, 0.01, 0.05, smallest_bias=0.5)
    np.testing.assert_array_equal(head.count, [1, 1])
    # the neuron of bias 0 is rebuilt with the bias B_eps
    raised = relu_network(jnp.eye(3, 2), jnp.array([0.5, 2.0]), jnp.array([3.0, -1.0]))
    x = 3 * jr.normal(jr.key(0), (100, 3))
    np.testing.assert_allclose(
        outputs(relu_network(columns, jnp.full(2, 4.0), head.output), x), outputs(raised, x), atol=1e-4
    )


def test_a_search_that_misses_a_feature_fails():
    ds = xr.Dataset({"covered": ("family", [0.99, 0.9, 0.1])}, coords={"family": ["linear", "XOR", "uniform parity"]})
    assert search_finds_features.judge(ds).outcome == "fails"
    assert search_finds_features.judge(ds.assign(covered=("family", [0.99, 0.96, 0.1]))).outcome == "holds"


def test_coefficients_that_are_zero_win_no_ticket():
    np.testing.assert_array_equal(largest(jnp.array([0.0, -3.0, 0.0, 1.0, 2.0]), 2), [False, True, False, False, True])
    np.testing.assert_array_equal(largest(jnp.array([0.0, -3.0, 0.0, 0.0, 2.0]), 4), [False, True, False, False, True])


def test_every_cluster_of_a_mixture_has_its_accuracy():
    mixture = orthogonal_mixture((1.0, -1.0) * 4, 10, 6.0)
    component = jnp.arange(16) % 8
    batch = Batch(jnp.zeros((16, 10)), mixture.labels[component], {"component": component})
    # the constant answer +1 is right on every other component
    score = eqx.filter_jit(cluster_accuracy)(lambda x: jnp.ones(()), mixture, batch)
    np.testing.assert_array_equal(score, [1, 0] * 4)


def test_what_small_networks_measure_is_no_part_of_the_theorem_in_numbers():
    ds = xr.Dataset(
        {
            "linear_width": ("eps", [4.9e3, 3.0e6]),
            "log10_n": ("family", [36.0, 40.0]),
            "error": (("family", "seed"), np.ones((2, 5))),
            "bound": ("family", [0.1, 0.2]),
        },
        coords={"eps": [0.5, 0.1]},
    )
    assert theorem_in_numbers.judge(ds).outcome == "holds"
    assert theorem_in_numbers.judge(ds.assign(log10_n=("family", [9.0, 40.0]))).outcome == "fails"


def test_rescaling_keeps_the_ratios_of_knots():
    network = built(SymmetricReLU(20, threshold=3.0), LinearMargin(5), jr.key(0))
    x = sampled(LinearMargin(5), jr.key(1), 1000).x
    after = eqx.filter_jit(features.rescaled)(network, x)
    assert math.isclose(float(jnp.mean(features.spread(after.weights, x) ** 2)), 1, rel_tol=1e-4)
    ratio = after.weights / network.weights
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)


def test_the_xor_optimum_is_that_of_the_nearer_axis():
    task = xor_mixture(16, 2.0)
    assert set(map(tuple, np.asarray(task.means[:, :2]))) == {(4, 0), (-4, 0), (0, 4), (0, -4)}
    x, y, _ = sampled(task, jr.key(0), N)
    guess = np.where(abs(np.asarray(x)[:, 0]) > abs(np.asarray(x)[:, 1]), 1.0, -1.0)
    assert abs(np.mean(guess == np.asarray(y)) - float(features.xor_bayes(16, 2.0))) < 0.01


def test_tail_ratio_equals_integration():
    grid = np.linspace(1.0, 12, 200_001)
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    mean, tail = np.trapezoid(grid * density, grid), np.trapezoid(density, grid)
    assert math.isclose(float(features.tail_ratio(np.array([1.0]))[0]), mean / (2 * tail**0.9), rel_tol=1e-5)


def test_the_theorem_in_numbers():
    signal, second = LinearMargin(50, 0.5).signal, 49 + 0.25 + math.sqrt(2 / math.pi) + 1
    family = guarantees.linear_family(50, 0.5, signal, second)
    # r B_a1 B_x1 sqrt(B_b/B_G) = 4/sqrt(rho), p = 1/2
    expected = 2 * (4 / math.sqrt(signal)) ** 4 / 0.5**4 + 0.1**-0.5 + 2 * math.log(20) ** 2
    assert math.isclose(guarantees.MainTheorem(family, 0.5, 0.1).width, expected, rel_tol=1e-4)
    wide = guarantees.MainTheorem(guarantees.mixture_family(1000, 20, 1.0, 1.0, 1.0, 0.05), 0.1, 0.1)
    assert wide.log10_samples > 300 and wide.family.conditions[0].met
    assert not guarantees.mixture_family(100, 20, 1.0, 1.0, 1.0, 0.05).conditions[0].met
    assert math.isclose(wide.family.opt, 1.4e-19, rel_tol=0.05)
    theorem = guarantees.MainTheorem(family, 0.5, 0.1)
    assert theorem.sampled_bound(1e30) >= theorem.bound and math.isclose(theorem.sampled_bound(1e60), theorem.bound)
    # eta^(1) sigma_a B_G |b*| / b~ ranges around 1: the knots that Lemma B.6 needs
    assert theorem.sigma_a(50) * theorem.first_lr(50) > 0


def test_the_theorem_by_hand():
    """p = 1/16, gamma = 1/32, B_G = 4, r = 2, B_a = 8 and 3, B_b = 16, B_x = 5, 64 and 7: most roots are whole."""
    family = guarantees.FeatureFamily("by hand", 1 / 16, 1 / 32, 4.0, 2, 8.0, 3.0, 16.0, 5.0, 64.0, 7.0, opt=0.25)
    theorem = guarantees.MainTheorem(family, 0.5, 0.25)
    assert family.threshold == pytest.approx(3 * 8 / 4 * math.sqrt(2))
    assert family.cone_loss == 2 * 8 * 5 / 4
    assert theorem.width == pytest.approx(16 * 16 * 160**4 + 2 + 16 * math.log(8) ** 2, rel=1e-14)
    assert theorem.bound == 20.75
    # cubes of n enter: n = 16^3
    assert theorem.sampled_bound(4096) == pytest.approx(0.75 + math.sqrt(20**2 + 80**2 * 8 / (4 * 16)))
    assert guarantees.good_network_bound(family, 256, 0.5) == 0.25 + 16 * (50 + 1.25 + 0.5)
    # with this width (m p)^{1/4} = 320 to seven digits, and sqrt(B_b B_G) = 8
    root, m = 320, theorem.width
    first = math.sqrt(2) * 3 * 16 * 5 / root + m * family.threshold
    assert theorem.lr == pytest.approx(0.5 / (first * (math.sqrt(math.log(m)) * 5 * root / 8 + 1)))
    assert theorem.steps == pytest.approx(1 / (theorem.lr * 5 * root))
    assert theorem.first_lr(4, 2.0) == pytest.approx(theorem.lr / (5 * 2 * 2 + family.threshold))
    low = replace(family, B_a2=0.03)
    small = guarantees.MainTheorem(low, 0.5, 0.25)
    assert small.first_lr(4) == pytest.approx(small.lr * low.threshold / (5 * 2 + low.threshold))
    assert theorem.sigma_a(4) == pytest.approx(family.threshold * root / (theorem.first_lr(4) * 5 * 8))
    heads = m * 7 * 9 * 4 * math.log(m) * math.sqrt(m / 16) / (0.5 * 2 * 8 * 2)
    data = 7 / 8 + math.log(theorem.steps) + math.log(m * 16 / 0.25) + (1 + 1 / 4) * 8
    assert theorem.log10_samples == pytest.approx(3 * math.log10(heads) + math.log10(1 + (data / heads) ** 3))
    assert guarantees.concentration(4.0, 64.0) == (pytest.approx(0.5), 0.25)
    # r = 2, degree 2, kappa = 3: 1/n + 4 * 81 * log(nmd)^13 / m
    assert guarantees.multi_index_loss(10, 5, 2, 2, 2, 3.0) == pytest.approx(0.1 + 4 * 81 * math.log(100) ** 13 / 5)
    n, m = guarantees.multi_index_sizes(0.1, 30, 2, 2, 1.5)
    assert guarantees.multi_index_loss(n, m, 30, 2, 2, 1.5) == pytest.approx(0.1)
    assert n == pytest.approx(30**2 * 2 * 1.5**2 * math.log(n * m * 30) ** 3)


def test_the_families_by_hand():
    """d = 16: roots are 4, and powers of d are powers of two."""
    log, root = math.log(16), math.sqrt(2 * math.log(16))
    linear = guarantees.linear_family(16, 0.5, 2.0, 9.0, tau=2.5)
    assert (linear.p, linear.gamma, linear.B_G, linear.B_b) == (0.5, 3 / 16 / 2, 2 - 3 / 16, 1 / 9)
    assert (linear.r, linear.B_a1, linear.B_a2, linear.B_x1, linear.B_x) == (2, 2.0, pytest.approx(math.sqrt(8)), 3, 6)
    mixture = guarantees.mixture_family(16, 3, 1.0, 2.0, 0.5, 0.25, tau=2.0, constant=1 / 3)
    assert mixture.p == pytest.approx(1 / (root * 2) * 16**-4)
    assert (mixture.gamma, mixture.B_G) == (pytest.approx(16**-0.3), pytest.approx(1 - 2 * 16**-1.8))
    assert (mixture.B_a1, mixture.B_a2) == (pytest.approx(1 / (2 * root)), pytest.approx(math.sqrt(3) / (2 * root)))
    assert (mixture.B_b, mixture.B_x1, mixture.B_x2, mixture.B_x) == (pytest.approx(4 * root), 16, 256, 24)
    assert mixture.opt == pytest.approx(3 / 256 + 4 / (16**0.8 * root))
    assert [c.met for c in mixture.conditions] == [False, False, True, True]
    xor = guarantees.xor_family(16, 0.5, tau=2.0)
    assert xor.p == pytest.approx(2 / (math.sqrt(2 * math.log(log)) * log ** (18 * 2 * 0.25 / 25)))
    assert (xor.gamma, xor.B_G, xor.r, xor.B_a1, xor.B_a2, xor.B_b) == (0.125, 0.8, 4, 1, 2, 2)
    assert (xor.B_x1, xor.B_x2, xor.B_x) == (6, 36, 8)
    # tau~ = 4/log 16, so that d^-tau~ = e^-4
    assert xor.opt == pytest.approx(min(1, 3 * math.exp(-4) + 4 / (math.exp(3.6) / 16 * 2)))
    block = guarantees.block_parity_family(16, 2, 4, 0.25, 0.1, tau=3.0, constant=1 / 3)
    assert (block.p, block.gamma) == (pytest.approx(1 / math.sqrt(6 * log) * 16**-0.75), 1 / 16)
    assert (block.B_G, block.r, block.B_a1) == (2 * (0.25 - 16**-3), 30, 4)
    assert (block.B_a2, block.B_b, block.B_x1, block.B_x2) == (pytest.approx(2 * math.sqrt(40)), 2.5, 4, 16)
    assert [c.met for c in block.conditions] == [False, False, True, True]
    uniform = guarantees.uniform_parity_family(9, 4)
    assert (uniform.p, uniform.gamma, uniform.r, uniform.B_b) == (1 / 8, 2 / 5, 15, 2.5)
    assert uniform.cone_loss == pytest.approx(15 * 4 * math.sqrt(18 * math.log(9)) * 0.4)
    assert [c.met for c in uniform.conditions] == [False, True, True]


def test_head_descent_respects_its_bound_and_smoothness():
    rng = np.random.default_rng(0)
    h, y = jnp.asarray(rng.normal(size=(50, 4))), jnp.asarray(np.sign(rng.normal(size=50)))
    loss = lambda a: jnp.mean(jax.nn.softplus(-y * (h @ a)))  # noqa: E731
    curvature = max(float(jnp.linalg.eigvalsh(jax.hessian(loss)(jnp.asarray(a)))[-1]) for a in rng.normal(size=(20, 4)))
    assert curvature <= float(features.smoothness(h, "logistic")) + 1e-6
    assert guarantees.frozen_layer_bound(2.0, 3.0, 9.0) == 1.0
