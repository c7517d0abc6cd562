"""Facts about vector generation, the looped transformer and the gradient descent inside it."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import krogh as kr
from krogh.errors import InputError
from krogh.lab.system import systems
from krogh.nn import looped
from krogh.systems.looped_transformer import convergence, extensions
from krogh.systems.looped_transformer.convergence import slope
from krogh.tasks.vector_generation import VectorGeneration, gram, missed, squared_miss
from krogh.theory import looped as theory


def prompts(n=7, d=3, start=0.0, size=5, seed=0):
    with jax.enable_x64(True):
        batch = VectorGeneration(n, d, start=start).sample(jax.random.key(seed), size)
        return jax.tree.map(np.asarray, batch)


# ------------------------------------------------------------------------------------------- the task


def test_prompts_hold_examples_of_a_unit_vector_and_alpha_in_the_corner():
    x, y, _ = prompts(start=0.0, size=4000)
    alpha = x[:, -1, -1]
    theta = y / alpha[:, None]
    np.testing.assert_allclose(np.linalg.norm(theta, axis=1), 1)
    np.testing.assert_allclose(x[:, :-1, -1], np.einsum("bnd,bd->bn", x[:, :-1, :-1], theta), atol=1e-12)
    assert (x[:, -1, :-1] == 0).all() and np.abs(alpha).min() >= 0.1
    assert abs(np.mean(alpha)) < 0.08 and abs(theta.mean(axis=0)).max() < 0.04
    assert abs(np.mean(alpha**2) - (1 - _below(0.1)) / (1 - math.erf(0.1 / math.sqrt(2)))) < 0.1
    assert abs(x[:, :-1, :-1].var() - 1) < 0.02


def _below(c):
    """E[α² 1(|α| < c)] for a standard Gaussian."""
    return math.erf(c / math.sqrt(2)) - 2 * c * math.exp(-c * c / 2) / math.sqrt(2 * math.pi)


def test_what_is_missed_is_the_inner_product_minus_alpha():
    x, y, _ = prompts()
    alpha = x[:, -1, -1]
    q = np.random.default_rng(0).normal(size=y.shape)
    direct = np.sum(q * y, axis=1) / alpha - alpha
    np.testing.assert_allclose(np.abs(missed(jnp.asarray(q), jnp.asarray(y))), np.abs(direct), rtol=1e-4)
    np.testing.assert_allclose(squared_miss(jnp.asarray(y[0]), jnp.asarray(y[0])), 0, atol=1e-10)


def test_bartletts_matrices_have_the_moments_of_gaussian_grams():
    n, d = 9, 3
    found = np.asarray(jax.vmap(lambda key: gram(key, 9.0, d))(jax.random.split(jax.random.key(0), 20_000)))
    rows = np.random.default_rng(0).normal(size=(20_000, n, d))
    drawn = np.einsum("bni,bnj->bij", rows, rows)
    np.testing.assert_allclose(found.mean(axis=0), n * np.eye(d), atol=0.15)
    np.testing.assert_allclose(found.var(axis=0), n * (1 + np.eye(d)), rtol=0.1)
    kappas = [np.quantile(np.linalg.cond(a), [0.1, 0.5, 0.9]) for a in (found, drawn)]
    np.testing.assert_allclose(*kappas, rtol=0.05)


# ------------------------------------------------------------------------------------------- the network


def test_the_mask_lets_only_the_query_look_and_only_at_the_examples():
    printed = np.zeros((4, 4), bool)
    printed[3, :3] = True
    np.testing.assert_array_equal(looped.query_only(3), printed)


def test_attention_is_the_masked_product_for_any_weights():
    rng = np.random.default_rng(0)
    q, p = rng.normal(size=(2, 4, 4))
    z = prompts(start=1.0).x[0]
    with jax.enable_x64(True):
        network = looped.LoopedNetwork(jnp.asarray(q), jnp.asarray(p), 1, looped.inverse_trace)
        found = np.asarray(network.attention(jnp.asarray(z)))
        last = np.asarray(network.attention(jnp.asarray(z), -1))
    m = np.zeros((8, 8))
    m[-1, :-1] = 1
    np.testing.assert_allclose(found, (m * (z @ q @ z.T)) @ z @ p, atol=1e-12)
    np.testing.assert_array_equal(last, found[-1:])
    with jax.enable_x64(True):
        everyone = np.asarray(network.attention(jnp.asarray(z), visible=np.ones((8, 8), bool)))
    np.testing.assert_allclose(everyone, z @ q @ z.T @ z @ p, atol=1e-12)


@pytest.mark.parametrize("first", [0, -1])
def test_loops_are_gradient_descent_written_out(first):
    """Theorem 8.14 with step sizes of any sign and size, from a q that is not zero."""
    z = prompts(start=1.0).x[1]
    x, y, q, alpha = z[:-1, :-1], z[:-1, -1], z[-1, :-1], z[-1, -1]
    eta = np.random.default_rng(1).normal(size=6) / 10
    theta = [-q / alpha]
    for step in eta:
        theta.append(theta[-1] - step * (x.T @ x @ theta[-1] - x.T @ y))
    with jax.enable_x64(True):
        states = np.asarray(looped.gradient_steps(3, 6).states(jnp.asarray(z), jnp.asarray(eta), first))
        steps = np.asarray(theory.gradient_descent(*map(jnp.asarray, (x, y, theta[0], eta))))
    np.testing.assert_allclose(-states[:, -1, :-1] / alpha, theta, rtol=1e-9)
    np.testing.assert_allclose(steps, theta, rtol=1e-9)
    np.testing.assert_array_equal(states[:, -1, -1], alpha)
    if first == 0:
        np.testing.assert_array_equal(states[:, :-1], np.broadcast_to(z[:-1], states[:, :-1].shape))


def test_the_output_has_the_sign_that_answers():
    """Without the minus the error would be 2|α|."""
    x, y, _ = prompts(n=40)
    with jax.enable_x64(True):
        out = np.asarray(jax.vmap(looped.gradient_steps(3, 400))(jnp.asarray(x)))
    np.testing.assert_allclose(out, y, atol=1e-9)


def test_one_loop_with_the_answers_norm_is_exact_even_for_one_example():
    for n in (1, 7):
        x, y, _ = prompts(n=n)
        with jax.enable_x64(True):
            for network in (looped.gradient_steps(3, 1, looped.inverse_answers), looped.answer_steps(3, 1)):
                q = np.asarray(jax.vmap(network)(jnp.asarray(x)))
                np.testing.assert_allclose(np.sum(q * y, axis=1), x[:, -1, -1] ** 2, rtol=1e-9)
                assert np.abs(q - y).max() > 0.01


def test_with_p_the_identity_the_alpha_that_is_left_is_the_error():
    z = prompts().x[0]
    x, y, alpha = z[:-1, :-1], z[:-1, -1], z[-1, -1]
    theta = np.linalg.lstsq(x, y)[0]
    with jax.enable_x64(True):
        any_q = jax.random.normal(jax.random.key(0), (4, 4))
        network = looped.LoopedNetwork(any_q, jnp.eye(4), 5, looped.inverse_trace)
        eta = jnp.full(5, 0.01)
        states = np.asarray(network.states(jnp.asarray(z), eta))[:, 0]
        np.testing.assert_allclose(alpha + states[:, :-1] @ theta, states[:, -1], rtol=1e-9, atol=1e-12)
        states = np.asarray(looped.answer_steps(3, 5).states(jnp.asarray(z), eta))[:, 0]
    np.testing.assert_allclose(states[:, -1], alpha * (1 - 0.01 * y @ y) ** np.arange(6), rtol=1e-9)


def test_steps_are_what_they_are_called():
    z = prompts().x[0]
    x, y = z[:-1, :-1], z[:-1, -1]
    with jax.enable_x64(True):
        found = [
            float(step(jnp.asarray(z)))
            for step in (looped.inverse_smoothness, looped.inverse_trace, looped.inverse_answers)
        ]
    expected = [1 / np.linalg.norm(x, 2) ** 2, 1 / np.trace(x.T @ x), 1 / (y @ y)]
    np.testing.assert_allclose(found, expected)


def test_architectures_build_the_construction_or_random_weights_and_train():
    task = VectorGeneration(8, 2)
    built = looped.LoopedTransformer(3).build(task, jax.random.key(0))
    np.testing.assert_array_equal(built.value_out, np.diag([1, 1, 0]))
    assert built.step is looped.inverse_trace and built.loops == 3
    drawn = looped.LoopedTransformer(3, "gaussian", 0.5).build(task, jax.random.key(0))
    assert 0.2 < float(jnp.std(drawn.query_key)) < 0.9
    with pytest.raises(InputError, match="did you mean 'gaussian'"):
        looped.LoopedTransformer(3, "gausian")
    with pytest.raises(InputError, match="loops"):
        looped.LoopedTransformer(0)
    with pytest.raises(InputError, match="whole number"):
        VectorGeneration(0, 2)
    learner = kr.Adam(lr=0.01, batch=32, loss=squared_miss)
    run = kr.train(task, looped.LoopedTransformer(2, "gaussian", 0.1), learner, 200, seeds=2, every=50)
    assert (run.data.loss[:, -1] < 0.5 * run.data.loss[:, 1]).all()
    assert eqx.tree_equal(run.spec.network, looped.LoopedTransformer(2, "gaussian", 0.1))


# ------------------------------------------------------------------------------------------- theory


def test_log_decay_is_the_error_of_gradient_descent_and_of_the_prediction():
    x, y, _ = prompts(n=6, d=3, size=3)
    for z, answer in zip(x, y, strict=True):
        examples, theta = z[:-1, :-1], answer / z[-1, -1]
        hessian = examples.T @ examples
        smooth, convex = theory.curvature(hessian)
        assert smooth == pytest.approx(np.linalg.norm(examples, 2) ** 2) and convex <= smooth
        for eta in (0.3 / smooth, 1 / smooth, 1.7 / smooth):
            found, errors, misses = np.zeros(3), [], []
            for _ in range(8):
                errors.append(np.sum((found - theta) ** 2))
                misses.append(abs(found @ theta - 1))
                found = found - eta * hessian @ (found - theta)
            t = np.arange(8)
            np.testing.assert_allclose(np.exp(theory.log_decay(hessian, -theta, eta, 2 * t)), errors, rtol=1e-9)
            if eta <= 1 / smooth:
                np.testing.assert_allclose(np.exp(theory.log_decay(hessian, -theta, eta, t)), misses, rtol=1e-9)
                assert (np.log(errors) <= theory.log_contraction(eta, convex, t) + 1e-9).all()


def test_log_decay_has_no_floor_and_tends_to_the_tail_slope():
    hessian, start = np.diag([1.0, 2.0, 5.0]), np.array([1.0, 1.0, 1.0])
    late = theory.log_decay(hessian, start, 0.2, 2 * np.array([100_000, 100_001]))
    assert late[0] < -4e4
    assert np.diff(late)[0] == pytest.approx(float(theory.tail_slope(5.0)))
    assert theory.log_decay(hessian, start, 0.2, [0])[0] == pytest.approx(0.0, abs=1e-12)
    assert theory.log_decay(np.eye(2), np.ones(2), 1.0, [0, 2])[1] == -np.inf


def test_bounds_are_the_printed_numbers():
    assert theory.older_bound(1, 4, 262_144) == 1.0
    assert theory.older_bound(2, 4, 4096**2) == 1.0
    assert float(theory.log_prediction_bound(2.0, 8)) == -2.0
    assert float(theory.log_prediction_bound(2.0, 8, printed=False)) == float(theory.log_error_bound(2.0, 8)) == -4.0
    assert float(theory.limiting_kappa(1 / 16)) == pytest.approx((1.25 / 0.75) ** 2)
    gaussian = np.random.default_rng(0).normal(size=(2000, 100))
    assert np.linalg.cond(gaussian) ** 2 == pytest.approx(float(theory.limiting_kappa(0.05)), rel=0.06)


def test_slopes_are_least_squares():
    t = np.arange(50)
    values = np.random.default_rng(0).normal(size=(2, 50))
    np.testing.assert_allclose(slope(values, t, 5, 30), np.polyfit(t[5:31], values[:, 5:31].T, 1)[0])


def judged(claim: str, **values):
    """A claim's verdict on made-up data, (dimensions, values) by name."""
    found = next(c for _, c in systems()["looped-transformer"].claims if c.id == claim)
    return found.judge(xr.Dataset(values)).outcome


@pytest.mark.parametrize("value, outcome", [(0.0, "holds"), (np.nan, "undecided")])
def test_a_value_that_is_no_number_proves_nothing(value, outcome):
    off, one = ("seed", [0.0, value]), ("seed", [1.0, 1.0])
    assert judged("07.1", attention=off) == outcome
    assert judged("07.2", gap=(("loop", "seed"), [[0.0, value]]), loop=("loop", [1])) == outcome
    assert judged("07.3", frozen=off) == outcome
    curvatures = {"L": one, "mu": one, "mu_found": one, "least": one, "most": one}
    assert judged("07.L", L_found=("seed", [1.0, 1 + value]), **curvatures) == outcome
    assert judged("07.oracle", log_error=off, exact=("seed", [0.0, 0.0])) == outcome
    assert judged("07.oracle", log_error=("seed", [0.0, -72.0]), exact=("seed", [0.0, -90.0 + value])) == outcome
    kept = (("n", "seed", "trial"), [[[True], [True]]])
    assert judged("07.6-sharper", n=("n", [16]), sharper_kept=kept, off=off) == outcome
    step = (("rule", "n", "seed"), [[[0.5, 0.5]]])
    below = (("n", "seed"), [[-1.0, -1.0]])
    safe = {"rule": ("rule", ["1/trace"]), "step": step, "lemma": below, "d_kappa": below}
    assert judged("07.E1", off=(("n", "seed"), [[0.0, value]]), **safe) == outcome


def test_a_closed_form_that_is_no_number_is_not_left_out(monkeypatch):
    nowhere = lambda gram, start, eta, t: np.full((*np.shape(eta), len(t)), np.nan)  # noqa: E731
    for module in (convergence, extensions):
        monkeypatch.setattr(module, "log_decay", nowhere)
    small = convergence.prediction(convergence.Loops(ns=(4,), d=2, loops=3, trials=1, seeds=2))
    assert small.off.isnull().all()
    assert extensions.spectrum_free(extensions.Steps(ns=(4,), d=2, loops=3, seeds=2)).off.isnull().all()


def test_every_numbered_claim_is_there():
    claims = {claim.id for _, claim in systems()["looped-transformer"].claims}
    assert {f"07.{i}" for i in range(1, 14)} <= claims
