"""Images with their labels: a fixed training part that is sampled from, and a test part that is held out."""

from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from krogh.data import load
from krogh.errors import InputError
from krogh.tasks.base import Batch, Task

Normalise = Literal["channel", "total", "none"]


class Images(Task):
    """x = (pixels/255 - mean)/std of an image drawn from the training part with replacement; y = ±1 for two classes
    (+1 the second), the class's place in `classes` otherwise.

    The pixels stay bytes and are shared by all replicas; only a batch is ever turned into floats. `rms` is √E[x_j²]
    over the training part, all pixels j together.
    """

    images: UInt8[Array, "n *shape"]
    labels: Array
    test_images: UInt8[Array, "m *shape"]
    test_labels: Array
    mean: float | Array
    std: float | Array
    rms: float | Array
    classes: tuple[int, ...] = eqx.field(static=True)

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.images.shape[1:]

    @property
    def outputs(self) -> int:
        return 1 if len(self.classes) == 2 else len(self.classes)

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        return self.decode(self.draw(key, size), size)

    def draw(self, key: PRNGKeyArray, size: int) -> Int[Array, " size"]:
        return jax.random.randint(key, (size,), 0, len(self.labels))

    def decode(self, raw: Int[Array, " size"], size: int) -> Batch:
        return Batch(self.normalised(self.images[raw]), self.labels[raw])

    def held_out(self, key: PRNGKeyArray, size: int) -> Batch:
        """`size` images of the test part, without replacement; all of them where it has no more."""
        chosen = jax.random.permutation(key, len(self.test_labels))[:size]
        return Batch(self.normalised(self.test_images[chosen]), self.test_labels[chosen])

    def test(self) -> Batch:
        """The whole test part."""
        return Batch(self.normalised(self.test_images), self.test_labels)

    def normalised(self, pixels: UInt8[Array, "*batch_shape"]) -> Float[Array, "*batch_shape"]:
        return (pixels / 255 - self.mean) / self.std

    def shuffled(self, key: PRNGKeyArray) -> "Images":
        """The same images with the training labels permuted."""
        return eqx.tree_at(lambda task: task.labels, self, jax.random.permutation(key, self.labels))


def images(
    name: str,
    classes: Sequence[int] | None = None,
    train: int | None = None,
    normalise: Normalise = "channel",
) -> Images:
    """A data set of `krogh.data` as a task: some of its classes, its first `train` images of these.

    `normalise`: "channel" standardises each channel over the training part; "total" takes off the mean image and
    divides by the root of the total variance, so that E‖x‖² = 1 (000 §2.2); "none" leaves pixels in [0, 1].
    """
    return from_arrays(load(name), classes, train, normalise)


def from_arrays(
    arrays: dict[str, np.ndarray],
    classes: Sequence[int] | None = None,
    train: int | None = None,
    normalise: Normalise = "channel",
) -> Images:
    """A task over `train_x, train_y, test_x, test_y` with bytes as pixels."""
    present = np.unique(arrays["train_y"])
    chosen = np.asarray(present if classes is None else classes)
    if len(chosen) < 2 or len(set(chosen)) < len(chosen) or not np.isin(chosen, present).all():
        raise InputError(f"classes must be two or more different ones of {present.tolist()}, not {chosen.tolist()}.")
    place = np.zeros(256, np.int32)
    place[chosen] = np.arange(len(chosen))

    def part(which: str, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
        kept = np.flatnonzero(np.isin(arrays[f"{which}_y"], chosen))[:limit]
        y = place[arrays[f"{which}_y"][kept]]
        return arrays[f"{which}_x"][kept], (2.0 * y - 1).astype(np.float32) if len(chosen) == 2 else y

    x, y = part("train", train)
    test_x, test_y = part("test", None)
    mean, square = _moments(x)
    std, rms = np.sqrt(square - mean**2), 1.0
    if normalise == "total":
        mean = x.mean(0) / 255
        variance = np.mean(square) * mean.size - np.sum(mean**2)
        std, rms = np.sqrt(variance), mean.size**-0.5
    elif normalise == "none":
        mean, std, rms = 0.0, 1.0, float(np.sqrt(np.mean(square)))
    return Images(
        *map(jnp.asarray, (x, y, test_x, test_y)),
        mean=jnp.asarray(mean, jnp.float32),
        std=jnp.asarray(std, jnp.float32),
        rms=rms,
        classes=tuple(map(int, chosen)),
    )


def _moments(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E[p] and E[p²] of p = pixels/255 per channel, counted rather than summed so that no float copy is made."""
    channels = pixels.reshape(-1, pixels.shape[-1]).T if pixels.ndim == 4 else [pixels.reshape(-1)]
    shares = np.stack([np.bincount(channel, minlength=256) for channel in channels]) * (len(channels) / pixels.size)
    p = np.arange(256) / 255
    mean, square = shares @ p, shares @ p**2
    return (mean, square) if pixels.ndim == 4 else (mean[0], square[0])


def gaussians(task: Images, key: PRNGKeyArray, size: int) -> Float[Array, "size *shape"]:
    """Inputs without structure, N(0, rms² I): their mean square norm is that of the images."""
    return task.rms * jax.random.normal(key, (size, *task.in_shape))


class WithUnlabelled(Task):
    """The images, each batch with as many unlabelled inputs beside it in `latents["unlabelled"]`."""

    labelled: Images
    unlabelled: Float[Array, "n *shape"]

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.labelled.in_shape

    @property
    def outputs(self) -> int:
        return self.labelled.outputs

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        from_images, from_rest = jax.random.split(key)
        chosen = jax.random.randint(from_rest, (size,), 0, len(self.unlabelled))
        return self.labelled.sample(from_images, size)._replace(latents={"unlabelled": self.unlabelled[chosen]})

    def test(self) -> Batch:
        """The test part of the images."""
        return self.labelled.test()


class TeacherMixture(Task):
    """A share `alpha` of unlabelled inputs mixed into the images, all labelled by a teacher (000 §A.7.5).

    Both parts are fixed sets, drawn from with replacement; `latents["unlabelled"]` marks the second.
    """

    labelled: Images
    unlabelled: Float[Array, "n *shape"]
    unlabelled_labels: Array
    test_unlabelled: Float[Array, "m *shape"]
    test_unlabelled_labels: Array
    alpha: float | Array

    @property
    def in_shape(self) -> tuple[int, ...]:
        return self.labelled.in_shape

    @property
    def outputs(self) -> int:
        return self.labelled.outputs

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        from_images, from_rest, which = jax.random.split(key, 3)
        chosen = jax.random.randint(from_rest, (size,), 0, len(self.unlabelled))
        rest = Batch(self.unlabelled[chosen], self.unlabelled_labels[chosen])
        return self._mixed(self.labelled.sample(from_images, size), rest, which)

    def held_out(self, key: PRNGKeyArray, size: int) -> Batch:
        images, rest = self.test_parts()
        from_images, from_rest, which = jax.random.split(key, 3)
        size = min(size, len(images.y), len(rest.y))
        i = jax.random.permutation(from_images, len(images.y))[:size]
        j = jax.random.permutation(from_rest, len(rest.y))[:size]
        return self._mixed(Batch(images.x[i], images.y[i]), Batch(rest.x[j], rest.y[j]), which)

    def test_parts(self) -> tuple[Batch, Batch]:
        """The test inputs of the images and of the unlabelled part, with the teacher's labels."""
        return self.labelled.test(), Batch(self.test_unlabelled, self.test_unlabelled_labels)

    def _mixed(self, images: Batch, rest: Batch, key: PRNGKeyArray) -> Batch:
        other = jax.random.bernoulli(key, self.alpha, images.y.shape)
        x = jnp.where(other.reshape(-1, *[1] * (images.x.ndim - 1)), rest.x, images.x)
        return Batch(x, jnp.where(other, rest.y, images.y), {"unlabelled": other})


def taught(
    task: Images,
    teacher: Callable[[Array], Array],
    unlabelled: Float[Array, "n *shape"],
    test_unlabelled: Float[Array, "m *shape"],
    alpha: float = 0.5,
) -> TeacherMixture:
    """The mixture of a task's images and unlabelled inputs, both relabelled by the teacher: y = argmax teacher(x)."""

    @jax.jit
    def some(x: Array) -> Array:
        out = jax.vmap(teacher)(x)
        return jnp.where(out > 0, 1.0, -1.0) if out.ndim == 1 else jnp.argmax(out, -1).astype(jnp.int32)

    def label(x: Array, prepare: Callable[[Array], Array] = lambda x: x) -> Array:
        return jnp.concatenate([some(prepare(x[i : i + 1000])) for i in range(0, len(x), 1000)])

    labels = label(task.images, task.normalised), label(task.test_images, task.normalised)
    relabelled = eqx.tree_at(lambda t: (t.labels, t.test_labels), task, labels)
    return TeacherMixture(relabelled, unlabelled, label(unlabelled), test_unlabelled, label(test_unlabelled), alpha)
