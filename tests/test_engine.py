"""Facts about training: updates against hand computation, and what may not change a replica's path."""

import signal
import subprocess
import sys
import textwrap
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import krogh as kr
from krogh.errors import InputError
from krogh.nn.base import Architecture
from krogh.tasks import LabelNoise, SparseParity
from krogh.train import engine, workspace
from krogh.train.cost import largest_array, operations
from krogh.train.engine import plan
from krogh.train.losses import LOSSES
from krogh.train.seeds import PORTIONS, over_seeds

TASK = SparseParity(n=10, k=2)


class Linear(eqx.Module):
    weights: jax.Array
    bias: jax.Array

    def __call__(self, x):
        return x @ self.weights + self.bias


class LinearAtZero(Architecture):
    """Under the correlation loss its weights add up y·x exactly: they are a record of the data seen."""

    def build(self, task, key):
        return Linear(jnp.zeros(task.in_shape[0]), jnp.zeros(()))


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def adding_up(batch=32, **settings):
    return kr.SGD(lr=float(batch or 1), batch=batch, loss="correlation", **settings)


def final_weights(learner, steps=1, **settings):
    """Trained weights and the sample of a one-replica run on a fixed sample of 16."""
    run = kr.train(TASK, kr.nn.MLP(width=4), learner, steps, snapshots=[0], **settings)
    return run.network(step=0), run.network()


def reference_gradient(network, loss="hinge"):
    batch = TASK.enumerate()

    def objective(network):
        return jnp.mean(jax.vmap(LOSSES[loss])(jax.vmap(network)(batch.x), batch.y))

    return jax.grad(objective)(jax.tree.map(jnp.asarray, network))


@pytest.mark.parametrize("loss", ["hinge", "square", "logistic", "correlation"])
def test_one_full_batch_step_is_minus_lr_times_the_population_gradient(loss):
    before, after = final_weights(kr.SGD(lr=0.3, batch=None, samples="all", loss=loss))
    gradient = reference_gradient(before, loss)
    for old, new, g in zip(*map(jax.tree.leaves, (before, after, gradient)), strict=True):
        np.testing.assert_allclose(new, old - 0.3 * g, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("decay", "factor"), [("gradient", 1 - 0.3 * 0.2), ("decoupled", 1 - 0.3 * 0.2), ("direct", 1 - 0.2)]
)
def test_the_decay_conventions(decay, factor):
    learner = kr.SGD(lr=0.3, batch=None, samples="all", weight_decay=0.2, decay=decay)
    before, after = final_weights(learner)
    gradient = reference_gradient(before)
    np.testing.assert_allclose(after.weights, factor * before.weights - 0.3 * gradient.weights, rtol=1e-5, atol=1e-6)


def test_adam_follows_optax_for_three_steps():
    before, after = final_weights(kr.Adam(lr=0.01, batch=None, samples="all"), steps=3)
    rule, network = optax.adam(0.01), jax.tree.map(jnp.asarray, before)
    memory = rule.init(network)
    for _ in range(3):
        updates, memory = rule.update(reference_gradient(network), memory)
        network = optax.apply_updates(network, updates)
    # Entries with a vanishing gradient move by its rounding error over itself.
    np.testing.assert_allclose(after.weights, network.weights, atol=3e-5)


def test_momentum_repeats_the_first_update_with_its_factor():
    before, after = final_weights(adding_up(None, samples="all", momentum=0.5), steps=2)
    gradient = reference_gradient(before, "correlation")
    # The gradient of the output bias under the correlation loss is constant: −E[y].
    expected = before.output_bias - (1 + 1.5) * gradient.output_bias
    np.testing.assert_allclose(after.output_bias, expected, atol=1e-6)


def test_sign_descent_moves_every_parameter_by_lr():
    before, after = final_weights(kr.SignDescent(lr=0.01, batch=None, samples="all"))
    gradient = reference_gradient(before)
    moved = np.abs(after.weights - before.weights)[np.abs(gradient.weights) > 1e-6]
    np.testing.assert_allclose(moved, 0.01, rtol=1e-4)


def test_truncation_keeps_only_large_gradient_entries():
    before, after = final_weights(kr.SGD(lr=1.0, batch=None, samples="all", truncate=0.02))
    gradient = reference_gradient(before)
    expected = np.where(np.abs(gradient.weights) <= 0.02, 0, gradient.weights)
    assert 0 < np.mean(expected == 0) < 1
    np.testing.assert_allclose(before.weights - after.weights, expected, atol=1e-6)


def test_gradient_noise_has_the_stated_deviation():
    learner = kr.SGD(lr=1.0, batch=None, samples="all", noise=0.5, loss=lambda output, y: 0.0 * output)
    run = kr.train(TASK, kr.nn.MLP(width=50), learner, steps=1, seeds=8, snapshots=[0])
    moved = run.networks.weights - run.snapshots[0].weights
    assert moved.std() == pytest.approx(0.5, rel=0.05)


def test_per_layer_rates_and_frozen_fields():
    learner = kr.SGD(lr={"weights": 0.0, "bias": 0.0, "output": 0.1, "output_bias": 0.0}, batch=8)
    before, after = final_weights(learner, steps=5)
    assert same(before.weights, after.weights)
    assert not same(before.output, after.output)
    stage = kr.Stage(kr.SGD(lr=0.1, batch=8), 5, trains=("output",))
    run = kr.train(TASK, kr.nn.MLP(width=4), [stage], snapshots=[0])
    assert same(run.network(step=0).weights, run.network().weights)
    np.testing.assert_allclose(run.network().output, after.output, rtol=1e-5)


def test_stages_run_in_order_and_edit_the_network_between():
    def wipe(network, task, key):
        return eqx.tree_at(lambda n: n.weights, network, jnp.zeros_like(network.weights))

    first = kr.Stage(adding_up(), 3)
    second = kr.Stage(adding_up(), 4, before=wipe)
    run = kr.train(TASK, LinearAtZero(), [first, second], seeds=3)
    alone = kr.train(TASK, LinearAtZero(), adding_up(), 7, seeds=3, snapshots=[3])
    np.testing.assert_array_equal(run.networks.weights, alone.networks.weights - alone.snapshots[3].weights)
    assert list(run.data.step.values) == [0, *range(1, 8)]


def test_a_seed_has_the_same_start_and_data_alone_and_among_255_others():
    together = kr.train(TASK, kr.nn.MLP(width=5), adding_up(), 3, seeds=256, snapshots=[0])
    alone = kr.train(TASK, kr.nn.MLP(width=5), adding_up(), 3, seeds=[77], snapshots=[0])
    assert same(together.network(step=0, seed=77), alone.network(step=0))
    together = kr.train(TASK, LinearAtZero(), adding_up(), 50, seeds=256)
    alone = kr.train(TASK, LinearAtZero(), adding_up(), 50, seeds=[77])
    assert same(together.network(seed=77), alone.network())
    assert not same(together.network(seed=77), together.network(seed=78))


def test_neither_records_nor_replica_batches_nor_probes_change_the_data_seen():
    def trained(**settings):
        return kr.train(TASK, LinearAtZero(), adding_up(), 60, seeds=6, **settings).networks

    plain = trained()
    assert same(plain, trained(every=7))
    assert same(plain, trained(record=kr.log_spaced(60, 12)))
    assert same(plain, trained(replicas_at_once=4))
    assert same(plain, trained(probes=[kr.probes.accuracy, kr.probes.parameter_norm], every=5))
    assert same(plain, trained(snapshots=[13, 40]))


def test_log_spaced_records_run_from_the_first_step_to_the_last():
    steps = np.array(kr.log_spaced(10_000, 41))
    assert steps[0] == 1 and steps[-1] == 10_000
    assert (np.diff(steps) >= 1).all()
    later = steps[steps >= 100]
    np.testing.assert_allclose(later[1:] / later[:-1], 10**0.1, rtol=0.01)


def test_a_network_can_ask_for_few_replicas_at_once(monkeypatch):
    class Alone(LinearAtZero):
        at_once = 1

    sizes, run = [], engine.Ensemble.run

    def counted(self, *arguments):
        sizes.append(self.group.size)
        return run(self, *arguments)

    monkeypatch.setattr(engine.Ensemble, "run", counted)
    one_by_one, together = (
        kr.train(TASK, network, adding_up(), 60, seeds=3, **settings).networks
        for network, settings in ((Alone(), {}), (Alone(), {"replicas_at_once": 3}))
    )
    assert sizes == [1, 1, 1, 3] and same(one_by_one, together)


def test_replicas_that_take_turns_go_the_same_way(monkeypatch):
    def trained():
        engine.forget_programs()
        return kr.train(TASK, LinearAtZero(), adding_up(), 60, seeds=6, every=20, probes=[kr.probes.accuracy])

    together = trained()
    for size in ("CACHE", "CACHE_PROBED"):
        monkeypatch.setattr(engine, size, 1)
    in_turn = trained()
    assert same(together.networks, in_turn.networks)
    np.testing.assert_array_equal(together.data.accuracy, in_turn.data.accuracy)


def test_replicas_take_turns_where_side_by_side_they_leave_the_cache(monkeypatch):
    found, decide = {}, engine.Ensemble._with_turns

    def told(self, *arguments):
        program = decide(self, *arguments)
        found[self.spec.network.width, self.group.size] = program.in_turn
        return program

    monkeypatch.setattr(engine.Ensemble, "_with_turns", told)
    cores = jax.local_device_count()
    # a step of 32 examples makes arrays of 128 KiB at width 1000 and of 13 KiB at width 100
    cases = {(1000, 32 * cores): True, (1000, 2 * cores): False, (100, 256 * cores): False}
    for width, seeds in cases:
        kr.train(kr.tasks.SparseParity(10, 2), kr.nn.MLP(width), kr.SGD(batch=32), 1, seeds=seeds, networks=False)
    assert {case: found[case] for case in cases} == cases


def test_the_largest_array_is_found_inside_loops():
    def function(x):
        return jax.lax.fori_loop(0, 3, lambda i, a: a + jnp.outer(x, x).sum(), 0.0)

    assert largest_array(jax.make_jaxpr(function)(jnp.ones(50)).jaxpr) == 4 * 50**2


@pytest.mark.parametrize("part", ["_options", "_compiled"])
def test_without_memory_to_compile_or_to_run_there_are_fewer_replicas(monkeypatch, part):
    spec = kr.spec(TASK, LinearAtZero(), adding_up(), 37, seeds=9)
    whole, tried, original = kr.sweep(spec), [], getattr(engine.Ensemble, part)

    def short_of_memory(self, *arguments):
        slots = arguments[1] if part == "_options" else arguments[2][0].status.shape[0]
        tried.append(slots)
        if slots > 4 and len(tried) > 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return original(self, *arguments)

    monkeypatch.setattr(engine, "_programs", {})
    monkeypatch.setattr(engine.Ensemble, part, short_of_memory)
    assert same(kr.sweep(spec).networks, whole.networks)
    assert max(tried) > 4 >= tried[-1]


def test_streams_can_be_held_apart():
    spec = kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(lr=0.1, batch=4), 2, snapshots=[0])
    run = kr.sweep(spec, init_seed=[1, 2], data_seed=[5, 6])
    assert run.data.loss.dims == ("init_seed", "data_seed", "step")
    start = {(i, d): run.network(step=0, init_seed=i, data_seed=d) for i in (1, 2) for d in (5, 6)}
    assert same(start[1, 5], start[1, 6]) and not same(start[1, 5], start[2, 5])
    seen = kr.sweep(kr.spec(TASK, LinearAtZero(), adding_up(), 4), init_seed=[1, 2], data_seed=[5, 6])
    assert same(seen.network(init_seed=1, data_seed=5), seen.network(init_seed=2, data_seed=5))
    assert not same(seen.network(init_seed=1, data_seed=5), seen.network(init_seed=1, data_seed=6))


def test_an_epoch_visits_every_example_once():
    learner = adding_up(4, samples=16)

    @kr.probes.probe(dims=("coordinate",))
    def total(sample):
        return sample.y @ sample.x

    run = kr.train(TASK, LinearAtZero(), learner, 4, seeds=3, probes=[total], every=4)
    np.testing.assert_array_equal(run.networks.weights, run.data.total.isel(step=-1))
    twice = kr.train(TASK, LinearAtZero(), learner, 8, seeds=3)
    np.testing.assert_array_equal(twice.networks.weights, 2 * run.networks.weights)


def test_enumerated_and_sampled_quantities_agree():
    spec = {"probes": [kr.probes.accuracy, kr.probes.hinge_error], "seeds": 4}
    exact = kr.train(TASK, kr.nn.MLP(width=20), kr.SGD(), 1, validation="all", **spec).data.isel(step=0)
    sampled = kr.train(TASK, kr.nn.MLP(width=20), kr.SGD(), 1, validation=40_000, **spec).data.isel(step=0)
    np.testing.assert_allclose(exact.accuracy, sampled.accuracy, atol=4 * 0.5 / 200)
    np.testing.assert_allclose(exact.hinge_error, sampled.hinge_error, atol=0.01)


def test_a_diverging_replica_is_recorded_and_leaves_the_others_alone():
    spec = kr.spec(TASK, kr.nn.MLP(width=8, activation="square"), kr.SGD(loss="square"), 60, every=5, seeds=2)
    mixed = kr.sweep(spec, lr=[0.001, 1000.0])
    healthy = kr.sweep(spec, lr=[0.001])
    assert mixed.data.status.sel(lr=1000.0).values.tolist() == ["diverged"] * 2
    assert mixed.data.status.sel(lr=0.001).values.tolist() == ["finished"] * 2
    np.testing.assert_allclose(mixed.data.loss.sel(lr=0.001), healthy.data.loss.sel(lr=0.001), rtol=1e-4)
    assert np.isnan(mixed.data.loss.sel(lr=1000.0).isel(step=-1)).all()
    assert np.isfinite(mixed.network(lr=1000.0, seed=0).weights).all()
    assert (mixed.data.steps_used.sel(lr=1000.0) < 60).all()


def test_success_is_timed_confirmed_and_stops_the_replica(monkeypatch):
    settings = {"seeds": 12, "probes": [kr.probes.accuracy], "every": 10, "validation": 64}
    goal = kr.Reach("accuracy", 1.0, confirm=4096)

    def run(**more):
        return kr.train(TASK, kr.nn.MLP(width=30), kr.SGD(lr=0.5), 600, until=goal, **settings, **more)

    done = run()
    assert set(done.data.status.values) == {"reached"}
    batch = TASK.enumerate()
    for seed in (0, 5):
        network = done.network(seed=seed)
        assert float(kr.probes.accuracy(network, batch)) == 1.0
        index = int(done.data.reached.sel(seed=seed)) // 10
        assert (done.data.accuracy.sel(seed=seed).isel(step=slice(index, None)) == 1).all()
    np.testing.assert_array_equal(done.data.samples_used, done.data.reached * 32)
    monkeypatch.setitem(sys.modules["krogh.train.engine"].WORTH_COMPACTING, "cpu", 0)
    monkeypatch.setitem(sys.modules["krogh.train.engine"].LEAST_REPLICA_STEPS, "cpu", 1)
    compacted = run(replicas_at_once=12)
    np.testing.assert_array_equal(done.data.reached, compacted.data.reached)
    assert compacted.data.replica_steps_computed < 12 * 600


def test_consecutive_records_count_from_the_first():
    def rising(step):
        return jnp.where((step >= 30) & (step != 50), 1.0, 0.0)

    goal = kr.Reach("rising", 1.0, consecutive=3)
    run = kr.train(TASK, LinearAtZero(), adding_up(), 100, probes=[rising], every=10, until=goal)
    assert float(run.data.reached[0]) == 60
    never = kr.train(
        TASK, LinearAtZero(), adding_up(), 40, probes=[rising], every=10, until=kr.Reach("rising", 1.0, consecutive=3)
    )
    assert never.data.status.values[0] == "censored" and np.isinf(never.data.reached.values[0])


def test_points_that_are_left_out_change_nothing_for_the_others():
    spec = kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(batch=8), 20, seeds=3, probes=[kr.probes.accuracy], every=5)
    axes = {"lr": [0.05, 0.2], "width": [3, 6]}
    whole = kr.sweep(spec, **axes)
    where = np.array([[[1, 0, 1], [0, 0, 0]], [[0, 1, 1], [0, 0, 0]]], bool)
    part = kr.sweep(spec, **axes, where=where)
    for name in ("accuracy", "loss", "steps_used", "samples_used", "status"):
        np.testing.assert_array_equal(part.data[name].values[where], whole.data[name].values[where])
    assert set(part.data.status.values[~where]) == {"left out"} and not part.data.steps_used.values[~where].any()
    assert np.isnan(part.data.accuracy.values[~where]).all() and np.isinf(part.data.reached.values[~where]).all()
    assert part.data.attrs["replica_steps_asked"] == 4 * 20 and len(part.groups) == 1
    np.testing.assert_array_equal(
        part.network(lr=0.2, width=3, seed=1).weights, whole.network(lr=0.2, width=3, seed=1).weights
    )
    with pytest.raises(InputError, match="left out"):
        part.network(lr=0.2, width=6, seed=1)


def test_a_sweep_is_one_labelled_dataset_equal_to_its_parts():
    spec = kr.spec(TASK, kr.nn.MLP(width=4), kr.SGD(lr=0.1), 20, seeds=3, every=10)
    swept = kr.sweep(spec, lr=[0.05, 0.2], width=[3, 6])
    assert swept.data.loss.dims == ("lr", "width", "seed", "step")
    part = kr.train(TASK, kr.nn.MLP(width=6), kr.SGD(lr=0.2), 20, seeds=3, every=10)
    np.testing.assert_allclose(swept.data.loss.sel(lr=0.2, width=6), part.data.loss, rtol=1e-5)
    assert swept.network(lr=0.2, width=6, seed=1).weights.shape == (10, 6)
    assert len(swept.groups) == 2


def test_nested_settings_are_found_by_name_or_dotted_name():
    spec = kr.spec(LabelNoise(TASK, 0.1), kr.nn.MLP(width=4), kr.SGD(), 4, every=2)
    assert kr.sweep(spec, flip=[0.0, 0.4]).data.sizes["flip"] == 2
    assert kr.sweep(spec, **{"task.task.n": [5, 6]}).data.sizes["task.task.n"] == 2
    with pytest.raises(InputError, match="did you mean 'width'"):
        kr.sweep(spec, widht=[3])


def test_plans_cover_a_stage_once_and_break_at_snapshots():
    chunks = plan(100, 400, [*range(110, 401, 10)], [200], 0, 400)
    assert chunks[0].start == 100 and chunks[-1].end == 400
    assert all(a.end == b.start for a, b in zip(chunks, chunks[1:], strict=False))
    assert 200 in [c.end for c in chunks]
    uneven = plan(0, 64, [1, 2, 4, 8, 16, 32, 64], [], 0, 64)
    assert not uneven[0].even and sum(c.steps for c in uneven) == 64


@pytest.mark.parametrize(
    ("least", "most", "steps"), [(0, 1000, 40), (0, 20, 20), (0, 1, 10), (100, 1000, 100), (60, 20, 60)]
)
def test_chunks_are_neither_shorter_than_worth_it_nor_longer_than_silence_may_last(least, most, steps):
    chunks = plan(0, 2400, [*range(10, 2401, 10)], [], least, most)
    assert {chunk.steps for chunk in chunks} == {steps}
    assert chunks[-1].end == 2400


RESUMABLE = """
    import sys, time
    from pathlib import Path
    import numpy as np
    import krogh as kr
    from krogh.train import engine, workspace
    checkpoint = sys.modules["krogh.train.checkpoint"]
    checkpoint.SECONDS_BETWEEN_CHECKPOINTS = checkpoint.SAVING_SHARE = 0.0
    sys.modules["krogh.train.engine"].LEAST_REPLICA_STEPS["cpu"] = 1
    folder, out, slow = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "slow"
    def progress(label, done, total, rate):
        print(done, flush=True)
        if slow:
            time.sleep(0.2)
    stages = [kr.Stage(kr.SGD(lr=0.1), 200), kr.Stage(kr.Adam(lr=0.01), 200)]
    with workspace(folder, progress):
        run = kr.train(kr.tasks.SparseParity(n=12, k=3), kr.nn.MLP(width=8), stages, seeds=5,
                       probes=[kr.probes.accuracy], every=4, replicas_at_once=3)
    np.savez(out, loss=run.data.loss, accuracy=run.data.accuracy, weights=run.networks.weights)
"""


def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path):
    script = tmp_path / "resumable.py"
    script.write_text(textwrap.dedent(RESUMABLE))
    command = [sys.executable, str(script)]
    subprocess.run([*command, tmp_path / "a", tmp_path / "whole.npz", "fast"], check=True, capture_output=True)
    process = subprocess.Popen([*command, tmp_path / "b", tmp_path / "resumed.npz", "slow"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(9):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "resumed.npz").exists()
    assert list((tmp_path / "b").glob("*.checkpoint"))
    again = subprocess.run(
        [*command, tmp_path / "b", tmp_path / "resumed.npz", "fast"], check=True, capture_output=True
    )
    assert int(float(again.stdout.split()[0])) > 12, "the second process began anew"
    whole, resumed = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "resumed.npz")
    for name in whole.files:
        np.testing.assert_array_equal(whole[name], resumed[name])


def test_a_damaged_checkpoint_is_named_and_set_aside(tmp_path):
    def run():
        with workspace(tmp_path):
            return kr.train(TASK, LinearAtZero(), adding_up(), 20, seeds=2).networks

    first = run()
    (saved,) = tmp_path.glob("*.checkpoint")
    content = saved.read_bytes()
    saved.write_bytes(content[:-10] + b"0123456789")
    with pytest.warns(UserWarning, match="damaged"):
        again = run()
    assert same(first, again)
    assert list(tmp_path.glob("*.damaged"))


def test_runs_that_differ_in_an_enclosed_value_have_their_own_checkpoints(tmp_path):
    def shifted(by):
        return lambda output, y: (output - by * y) ** 2

    def final(by):
        return kr.train(TASK, LinearAtZero(), kr.SGD(lr=0.1, loss=shifted(by)), 20, seeds=2).networks

    with workspace(tmp_path):
        kept = [final(1.0), final(2.0), final(1.0)]
    assert same(kept[0], kept[2]) and not same(kept[0], kept[1])
    assert len(list(tmp_path.glob("*.checkpoint"))) == 2


def reading(body, **names):
    """A probe whose code is `body`, as a user's module would define it anew."""
    namespace = {"jnp": jnp, **names}
    exec(f"def reads(network):\n    return {body}", namespace)
    namespace["reads"].__module__ = "__main__"
    return namespace["reads"]


class Times:
    name = "reads"

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, network):
        return self.factor * jnp.sum(network.weights)


@pytest.mark.parametrize(
    "first, second",
    [
        (reading("jnp.max(network.weights)"), reading("jnp.min(network.weights)")),
        tuple(reading("FACTOR * jnp.sum(network.weights)", FACTOR=factor) for factor in (1.0, 2.0)),
        (reading("(lambda: 1.0)() * jnp.sum(network.weights)"), reading("(lambda: 2.0)() * jnp.sum(network.weights)")),
        (Times(1.0), Times(2.0)),
    ],
    ids=["names", "globals", "inner code", "objects"],
)
def test_a_checkpoint_is_not_that_of_other_code(tmp_path, first, second):
    def read(probe):
        return kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 4, seeds=2, probes=[probe]).data.reads.values

    with workspace(tmp_path):
        kept = [read(first), read(second), read(first)]
    assert np.array_equal(kept[0], kept[2]) and np.array_equal(kept[1], read(second))
    assert not np.array_equal(kept[0], kept[1])


def test_a_function_that_calls_itself_can_be_a_probe():
    def grown(network, times=2):
        return jnp.sum(network.weights) if times == 0 else 2 * grown(network, times - 1)

    assert kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 4, probes=[grown]).data.grown.sizes["step"] == 5


def wipe(network, task, key):
    return eqx.tree_at(lambda n: n.output, network, jnp.zeros_like(network.output))


def test_a_stage_leaves_replicas_alone_that_have_stopped():
    stages = [kr.Stage(kr.SGD(lr=0.3), 100), kr.Stage(kr.SGD(lr=0.1), 40, before=wipe, trains=("weights",))]
    goal = kr.Reach("accuracy", 0.95)
    run = kr.train(
        SparseParity(8, 1), kr.nn.MLP(20), stages, seeds=3, probes=[kr.probes.accuracy], every=20, until=goal
    )
    assert (run.data.status == "reached").all() and (run.data.reached <= 100).all()
    assert np.all(np.any(run.networks.output != 0, axis=1))


def test_a_snapshot_at_a_stage_boundary_is_from_before_the_next_stage():
    stages = [kr.Stage(kr.SGD(), 10), kr.Stage(kr.SGD(), 10, before=wipe)]
    run = kr.train(TASK, kr.nn.MLP(width=5), stages, seeds=2, snapshots=[10], probes=[kr.probes.parameter_norm])
    kept = run.snapshots[10]
    norm = np.sqrt(sum((leaf.reshape(2, -1) ** 2).sum(1) for leaf in jax.tree.leaves(eqx.filter(kept, eqx.is_array))))
    np.testing.assert_allclose(norm, run.data.parameter_norm.sel(step=10), rtol=1e-5)


def test_snapshots_after_everyone_has_stopped_are_the_last_networks(monkeypatch):
    monkeypatch.setitem(engine.LEAST_REPLICA_STEPS, "cpu", 64)
    goal = kr.Reach("accuracy", 0.9)
    settings = {"seeds": 3, "probes": [kr.probes.accuracy], "every": 20, "until": goal, "snapshots": [0, 2000]}
    run = kr.train(SparseParity(8, 1), kr.nn.MLP(20), kr.SGD(lr=0.3), 2000, **settings)
    assert (run.data.reached < 2000).all()
    assert set(run.snapshots) == {0, 2000} and same(run.snapshots[2000], run.networks)


def test_samples_are_counted_stage_by_stage_and_cell_by_cell():
    stages = [kr.Stage(kr.SGD(batch=10), 5), kr.Stage(kr.SGD(batch=100), 5)]
    assert int(kr.train(TASK, LinearAtZero(), stages).data.samples_used[0]) == 550
    spec = kr.spec(TASK, LinearAtZero(), kr.SGD(batch=32), 20)
    assert kr.sweep(spec, samples=[None, 100, "all"]).data.samples_used[:, 0].values.tolist() == [640, 100, -1]
    dotted = kr.sweep(spec, **{"stages.0.learner.batch": [8, 64]})
    assert dotted.data.samples_used[:, 0].values.tolist() == [160, 1280]


def test_what_is_counted_of_a_diverged_replica_is_unknown():
    def seven(network):
        return jnp.array(7)

    data = kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(lr=1e30, loss="square"), 3, probes=[seven], every=1).data
    assert data.status[0] == "diverged"
    assert data.seven[0, 0] == 7 and np.isnan(data.seven[0, -1])


def test_progress_ends_at_the_total():
    calls = []
    with workspace(progress=lambda *a: calls.append(a)):
        kr.train(TASK, LinearAtZero(), adding_up(), 20, seeds=2, every=5)
    assert calls[-1][1] == calls[-1][2] == 40


def test_progress_says_which_training_and_which_group_it_is():
    labels = []
    with workspace(progress=lambda label, *rest: labels.append(label)):
        run = kr.train(TASK, LinearAtZero(), adding_up(), 4)
        kr.sweep(run.spec, n=[5, 6])
    assert list(dict.fromkeys(labels)) == ["training", "training 2, group 1/2", "training 2, group 2/2"]


class Named:
    def __init__(self, name, dims=()):
        self.name, self.dims = name, dims

    def __call__(self, network):
        return jnp.ones(3)


BAD = {
    "task": lambda: kr.train("parity", kr.nn.MLP(width=3), kr.SGD(), 5),
    "network": lambda: kr.train(TASK, 3, kr.SGD(), 5),
    "learner": lambda: kr.train(TASK, kr.nn.MLP(width=3), "sgd", 5),
    "steps missing": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD()),
    "steps zero": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 0),
    "stages and steps": lambda: kr.train(TASK, kr.nn.MLP(width=3), [kr.Stage(kr.SGD(), 3)], 5),
    "seeds": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, seeds=0),
    "seed twice": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, seeds=[1, 1]),
    "every": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, every=0),
    "record": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, record=[9]),
    "snapshots": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, snapshots=[-1]),
    "probe": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, probes=["accuracy"]),
    "probe input": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, probes=[lambda weights: weights]),
    "probe sample": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, probes=[kr.probes.train_accuracy]),
    "until": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, until=kr.Reach("accurcy")),
    "validation": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, validation=0),
    "precision": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, precision="exact"),
    "n": lambda: SparseParity(n=3, k=5),
    "flip": lambda: LabelNoise(TASK, 1.5),
    "width": lambda: kr.nn.MLP(width=0),
    "init": lambda: kr.nn.MLP(width=3, init="unifrom"),
    "activation": lambda: kr.train(TASK, kr.nn.MLP(width=3, activation="rleu"), kr.SGD(), 5),
    "loss": lambda: kr.SGD(loss="hing"),
    "lr": lambda: kr.SGD(lr=-0.1),
    "batch": lambda: kr.SGD(batch=0),
    "full batch": lambda: kr.SGD(batch=None),
    "samples": lambda: kr.SGD(batch=32, samples=8),
    "decay": lambda: kr.SGD(decay="l2"),
    "order": lambda: kr.SGD(order="random"),
    "trains": lambda: kr.train(TASK, kr.nn.MLP(width=3), [kr.Stage(kr.SGD(), 3, trains=("wieghts",))]),
    "per-layer lr": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(lr={"weight": 0.1}), 5),
    "enumerate": lambda: SparseParity(n=40, k=2).enumerate(),
    "axis empty": lambda: kr.sweep(kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(), 5), lr=[]),
    "axis": lambda: kr.sweep(kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(), 5), learning_rate=[0.1]),
    "replicas_at_once": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, replicas_at_once=0),
    "replicas in parts": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, replicas_at_once=1.5),
    "architecture as class": lambda: kr.train(TASK, kr.nn.MLP, kr.SGD(), 5),
    "built network": lambda: kr.train(TASK, Linear(jnp.zeros(10), jnp.zeros(())), kr.SGD(), 5),
    "no learner": lambda: kr.train(TASK, kr.nn.MLP(width=3), None, 5),
    "no lr": lambda: kr.SGD(lr=None),
    "lr list": lambda: kr.SGD(lr=[0.1, 0.2]),
    "momentum": lambda: kr.SGD(momentum=-3.0),
    "samples in parts": lambda: kr.SGD(samples=40.0),
    "batch above domain": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(batch=5000, samples="all"), 5),
    "seed in parts": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, seeds=[0.5]),
    "seeds in parts": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, seeds=2.5),
    "stream twice": lambda: kr.sweep(kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(), 5), init_seed=[3, 3]),
    "stream too large": lambda: kr.sweep(kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(), 5), data_seed=[2**32]),
    "record in parts": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, record=[1.5]),
    "record no list": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, record=3),
    "points of another shape": lambda: kr.sweep(kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(), 5), where=[True, False]),
    "points that are numbers": lambda: kr.sweep(kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(), 5), where=[1]),
    "no points": lambda: kr.sweep(kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(), 5), where=[False]),
    "axis no list": lambda: kr.sweep(kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(), 5), lr=0.1),
    "steps swept": lambda: kr.sweep(kr.spec(TASK, kr.nn.MLP(width=3), kr.SGD(), 5), steps=[5, 10]),
    "two probes of a name": lambda: kr.train(
        TASK, kr.nn.MLP(width=3), kr.SGD(), 5, probes=[lambda network: 1.0, lambda step: 2.0]
    ),
    "reserved name": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, probes=[Named("loss")]),
    "dims": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(), 5, probes=[Named("flat", ("a", "b"))]),
    "until a vector": lambda: kr.train(
        TASK, kr.nn.MLP(width=3), kr.SGD(), 5, probes=[kr.probes.weights], until=kr.Reach("weights")
    ),
    "level": lambda: kr.Reach("accuracy", float("nan")),
    "classes by hinge": lambda: kr.train(kr.tasks.ModularAddition(p=7, k=2), kr.nn.Lookup(16), kr.SGD(batch=8), 5),
    "signs by cross entropy": lambda: kr.train(TASK, kr.nn.MLP(width=3), kr.SGD(loss="cross_entropy"), 5),
    "no steps": lambda: kr.log_spaced(0),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(case):
    with pytest.raises(InputError) as caught:
        BAD[case]()
    message = str(caught.value)
    assert "\n" not in message and len(message) > 15


def test_time_stays_out_of_the_plan(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert kr.train(TASK, LinearAtZero(), adding_up(), 10).data.sizes["step"] == 11


def test_a_run_may_stop_by_its_loss():
    task, network = kr.tasks.SparseParity(n=8, k=1), kr.nn.MLP(16)
    run = kr.train(task, network, kr.SGD(lr=0.1), 400, seeds=3, every=20, until=kr.Reach("loss", 0.5, below=True))
    for seed in range(3):
        one = run.data.sel(seed=seed)
        assert float(one.reached) == float(one.step[1:][one.loss.values[1:] <= 0.5][0])


def test_operations_are_those_of_products_and_convolutions():
    def products(w, x):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=5)[0].sum()

    w, x = jnp.ones((30, 30)), jnp.ones((7, 30))
    forward = 5 * 2 * 7 * 30 * 30
    assert operations(jax.make_jaxpr(products)(w, x).jaxpr) == forward
    assert operations(jax.make_jaxpr(jax.grad(products))(w, x).jaxpr) == 3 * forward

    def convolution(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    found = operations(jax.make_jaxpr(convolution)(jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 5))).jaxpr)
    assert found == 2 * (2 * 8 * 8 * 5) * (3 * 3 * 3)


def test_a_broken_off_measurement_goes_on_where_it_stopped(tmp_path, monkeypatch):
    for name in ("SECONDS_BETWEEN_CHECKPOINTS", "SAVING_SHARE"):
        monkeypatch.setattr(sys.modules[workspace.__module__], name, 0.0)
    told = []

    def of(factor):
        return lambda key: factor * jax.random.normal(key, (2,))

    def stop(label, done, total, rate):
        if done == 6:
            raise ConnectionAbortedError

    whole = over_seeds(of(1.0), 40)
    with workspace(tmp_path, stop), pytest.raises(ConnectionAbortedError):
        over_seeds(of(1.0), 40)
    with workspace(tmp_path, lambda label, done, total, rate: told.append(done)):
        np.testing.assert_array_equal(over_seeds(of(1.0), 40), whole)
        assert told == list(range(8, 41, 2))
        told.clear()
        np.testing.assert_array_equal(over_seeds(of(2.0), 40), 2 * whole)
        np.testing.assert_array_equal(over_seeds(of(1.0), 20), whole[:20])
        assert told[0] == 2 and told[20] == 1 and len(told) == 40


@pytest.mark.parametrize(("rows", "seeds"), [(None, 1), (None, 47), (3, 15)])
def test_measurements_over_seeds_are_those_of_every_seed_and_row_and_tell_how_far_they_are(rows, seeds):
    columns = [] if rows is None else [np.arange(rows), 10.0 * np.arange(rows)]

    def measure(key, *row):
        return {"draw": jax.random.normal(key, (2,)), "sum": sum(row, jnp.zeros(()))}

    told = []
    with workspace(progress=lambda *what: told.append(what)):
        found = over_seeds(measure, seeds, *columns)
    shape = (seeds,) if rows is None else (rows, seeds)
    assert found["draw"].shape == (*shape, 2) and found["sum"].shape == shape
    draws = [jax.random.normal(jax.random.key(seed), (2,)) for seed in range(seeds)]
    np.testing.assert_allclose(found["draw"], np.broadcast_to(draws, found["draw"].shape), rtol=1e-6)
    np.testing.assert_array_equal(found["sum"], np.broadcast_to(0 if rows is None else sum(columns)[:, None], shape))
    done = [how_far for _, how_far, *_ in told]
    assert 0 < len(done) <= PORTIONS and done == sorted(set(done)) and done[-1] == found["sum"].size
