"""Image tasks, residual networks and cluster probes, on small made-up arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from krogh.errors import InputError
from krogh.nn.base import Buffer
from krogh.nn.conv import BatchNorm, by_convolution, by_patches
from krogh.nn.resnet import ResNet
from krogh.probes.clusters import count_clusters, members, plane, split, tightest
from krogh.tasks.base import Task
from krogh.tasks.images import WithUnlabelled, from_arrays, gaussians, taught

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)

    def part(count):
        y = (np.arange(count) % 4).astype(np.uint8)
        x = np.clip(rng.normal(60 + 40 * y[:, None, None, None], 30, (count, 8, 8, 3)), 0, 255).astype(np.uint8)
        return x, y

    (x, y), (test_x, test_y) = part(400), part(80)
    return {"train_x": x, "train_y": y, "test_x": test_x, "test_y": test_y}


def test_two_classes_are_balanced_signs(arrays):
    task = from_arrays(arrays, classes=(1, 3))
    assert task.outputs == 1 and task.in_shape == (8, 8, 3) and len(task.labels) == 200
    assert float(task.labels.mean()) == 0 and set(np.unique(task.test_labels)) == {-1.0, 1.0}
    assert np.array_equal(np.asarray(task.labels) > 0, arrays["train_y"][np.isin(arrays["train_y"], (1, 3))] == 3)


def test_sample_is_made_of_training_images(arrays):
    task = from_arrays(arrays, classes=(0, 2, 3), train=30, normalise="none")
    batch = task.sample(KEY, 200)
    held = {np.asarray(x).tobytes(): int(y) for x, y in zip(task.normalised(task.images), task.labels, strict=True)}
    assert len(held) == 30 and all(
        held[np.asarray(x).tobytes()] == int(y) for x, y in zip(batch.x, batch.y, strict=True)
    )
    tested = {np.asarray(x).tobytes() for x in task.normalised(task.test_images)}
    out = task.held_out(KEY, 25)
    drawn = {np.asarray(x).tobytes() for x in out.x}
    assert len(drawn) == 25 and drawn <= tested and not drawn & set(held)


@pytest.mark.parametrize("normalise", ["channel", "total", "none"])
def test_normalisations(arrays, normalise):
    task = from_arrays(arrays, normalise=normalise)
    x = np.asarray(task.normalised(task.images), np.float64)
    if normalise == "channel":
        assert np.allclose(x.mean((0, 1, 2)), 0, atol=1e-5) and np.allclose(x.std((0, 1, 2)), 1, atol=1e-5)
    if normalise == "total":
        assert np.allclose(x.mean(0), 0, atol=1e-5) and np.isclose((x**2).sum((1, 2, 3)).mean(), 1, atol=1e-4)
    if normalise == "none":
        assert x.min() >= 0 and x.max() <= 1
    assert np.isclose(np.sqrt((x**2).mean()), float(task.rms), rtol=1e-4)
    rest = gaussians(task, KEY, 2000)
    assert np.isclose(float((rest**2).mean()), (x**2).mean(), rtol=0.02)


def test_shuffling_keeps_the_images_and_the_counts(arrays):
    task = from_arrays(arrays)
    mixed = task.shuffled(KEY)
    assert mixed.images is task.images and not np.array_equal(mixed.labels, task.labels)
    assert np.array_equal(np.bincount(mixed.labels), np.bincount(task.labels))


@pytest.mark.parametrize("classes", [(0,), (0, 0), (0, 9)])
def test_impossible_classes_are_refused(arrays, classes):
    with pytest.raises(InputError, match="classes"):
        from_arrays(arrays, classes=classes)


def test_mixture_is_labelled_by_the_teacher_in_the_right_share(arrays):
    task = from_arrays(arrays)
    teacher = eqx.nn.Linear(192, 4, key=KEY)
    label = jax.vmap(lambda x: jnp.argmax(teacher(x.reshape(-1))))
    rest, test_rest = gaussians(task, KEY, 400), gaussians(task, jax.random.key(1), 80)
    mixture = taught(task, lambda x: teacher(x.reshape(-1)), rest, test_rest, alpha=0.25)
    batch = mixture.sample(KEY, 4000)
    share = float(batch.latents["unlabelled"].mean())
    assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 4000)
    for part in (batch, mixture.held_out(KEY, 60), *mixture.test_parts()):
        assert np.array_equal(part.y, label(part.x))
    beside = WithUnlabelled(task, rest).sample(KEY, 16)
    assert beside.latents["unlabelled"].shape == beside.x.shape


@pytest.mark.parametrize(("side", "stride", "size"), [(3, 1, 8), (3, 2, 8), (3, 2, 7), (1, 2, 7), (1, 1, 4)])
def test_both_convolutions_agree(side, stride, size):
    x = jax.random.normal(KEY, (2, size, size, 3))
    weights = jax.random.normal(jax.random.key(1), (side, side, 3, 5))
    assert np.allclose(by_convolution(x, weights, stride), by_patches(x, weights, stride), atol=1e-5)


def test_batch_norm_statistics():
    x = 3 + 2 * jax.random.normal(KEY, (16, 4, 4, 5))
    norm = BatchNorm(5)
    y, after = norm(x, True)
    assert np.allclose(y.mean((0, 1, 2)), 0, atol=1e-5) and np.allclose(y.var((0, 1, 2)), 1, atol=1e-3)
    mean, var = after.running.value
    assert np.allclose(mean, 0.1 * x.mean((0, 1, 2)), atol=1e-5)
    assert np.allclose(var, 0.9 + 0.1 * x.reshape(-1, 5).var(0, ddof=1), atol=1e-4)
    for _ in range(200):
        norm = norm(x, True)[1]
    assert np.allclose(norm(x, False)[0], y, atol=0.01)


class TenClasses(Task):
    in_shape, outputs = (32, 32, 3), 10


def test_resnet_64_is_resnet_18():
    network = jax.eval_shape(lambda: ResNet(64).build(TenClasses(), KEY))
    count = sum(leaf.size for leaf in jax.tree.leaves(network, is_leaf=_buffer) if not _buffer(leaf))
    assert count == 11_173_962


def _buffer(node) -> bool:
    return isinstance(node, Buffer)


def test_resnet_single_example_and_batch_agree_once_settled(arrays):
    task = from_arrays(arrays, classes=(0, 1))
    network = ResNet(2).build(task, KEY)
    x = task.sample(KEY, 200).x

    @eqx.filter_jit
    def both(network):
        out, after = network.batch(x, KEY)
        return out, jax.vmap(network)(x), after

    for _ in range(100):
        out, single, network = both(network)
    # The running variance is the unbiased one, so that the last stage's (1 x 1 images) differs by a factor 200/199.
    assert out.shape == (200,) and np.allclose(single, out, rtol=0.03, atol=0.02)
    assert network.filters(4).shape == (16, 9 * 16)


def test_split_of_two_opposite_bundles():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(20, 50)), rng.normal(size=(10, 50))])
    rows[:20, 0] += 20
    rows[20:, 0] -= 20
    found = split(jnp.asarray(rows))
    assert np.array_equal(members(jnp.asarray(rows)), np.arange(30) < 20)
    assert found.first > 0.9 and found.second > 0.9 and found.between < -0.97
    low, high = tightest(rows, share=0.2)
    assert {frozenset(low // 20), frozenset(high // 20)} == {frozenset({0}), frozenset({1})}
    assert count_clusters(rows) == 2
    spots = plane(rows)
    inside = np.linalg.norm(spots[:20] - spots[:20].mean(0), axis=1).max()
    assert np.linalg.norm(spots[:20].mean(0) - spots[20:].mean(0)) > 3 * inside


def test_gradients_are_recovered_from_heavy_ball_iterates():
    from krogh.systems.pattern_dictionary.images_filters import mean_gradients

    rng = np.random.default_rng(0)
    gradients, w, velocity, weights = rng.normal(size=(30, 3, 4)), np.zeros((3, 4)), np.zeros((3, 4)), {}
    weights[0] = w
    for t, g in enumerate(gradients, 1):
        velocity = 0.95 * velocity + g
        w = w - 0.01 * velocity
        weights[t] = w
    found = mean_gradients(weights, lr=0.01, momentum=0.95)
    assert np.allclose(found, gradients.reshape(3, 10, 3, 4).mean(1))


def clusters_of(make_last, seeds=8):
    """The recorded cosines of 50 untrained rows at step 0 and of `make_last(rows, rng)` at the end."""
    pairs = []
    for seed in range(seeds):
        rows = np.random.default_rng(seed).normal(size=(50, 784))
        pairs.append([split(jnp.asarray(r)) for r in (rows, make_last(rows, np.random.default_rng(1000 + seed)))])
    names = ("first", "second", "between")
    return xr.Dataset(
        {name: (("seed", "step"), [[float(getattr(s, name)) for s in pair] for pair in pairs]) for name in names},
        coords={"step": [0, 400]},
    )


def test_untrained_weights_are_not_judged_to_gather():
    from krogh.systems.pattern_dictionary.images import two_clusters

    assert two_clusters(clusters_of(lambda rows, rng: rows)).outcome == "fails"
    assert two_clusters(clusters_of(lambda rows, rng: rng.normal(size=rows.shape))).outcome == "fails"
    sides = np.where(np.arange(50) < 30, 1.0, -1.0)[:, None]
    gathered = clusters_of(lambda rows, rng: rows + 40 * sides * np.eye(784)[:1])
    assert two_clusters(gathered).outcome == "holds"
    # all in one direction is one cluster, not two
    assert two_clusters(clusters_of(lambda rows, rng: rows + 40 * np.eye(784)[:1])).outcome == "fails"


def mixture_of(leads, students=3):
    """Accuracies of FC(9) students whose lead on the images depends on their teacher alone."""
    teachers = len(leads)
    lead = np.broadcast_to(np.reshape(leads, (-1, 1)), (teachers, students)) + 1e-3 * np.arange(students)
    images = np.full((1, teachers, 1, 2, students, 2), 0.9)
    unlabelled = images.copy()
    unlabelled[:] = 0.9 - lead[None, :, None, None, :, None]
    dims = ("foreign", "teacher", "m", "alpha", "seed", "step")
    return xr.Dataset(
        {
            "images": (dims, images),
            "unlabelled": (dims, unlabelled),
            "mixture": (dims, (images + unlabelled) / 2),
            "frequency": (("foreign", "teacher", "m", "alpha", "label"), np.full((1, teachers, 1, 2, 10), 0.1)),
        },
        coords={"foreign": ["gaussian"], "teacher": np.arange(teachers), "m": [9], "alpha": [0.0, 0.5]},
    )


def test_students_of_one_teacher_are_one_replica():
    from krogh.systems.pattern_dictionary.teacher_student import judge_structure

    # the mean over teachers is 0.35; resampling 12 students as if independent would put the interval above 0.3
    verdict = judge_structure(mixture_of([0.25, 0.35, 0.35, 0.45]), gap=0.3)
    assert verdict.parts["lead_9"].n == 4 and verdict.parts["lead_9"].outcome == "undecided"
    assert judge_structure(mixture_of([0.45, 0.5, 0.55, 0.6]), gap=0.3).outcome == "holds"
    assert judge_structure(mixture_of([0.4]), gap=0.3).parts["lead_9"].n == 3
