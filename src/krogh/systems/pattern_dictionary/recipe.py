"""The two aggressive steps, the classifier on top and the six methods of the tables (000 §2.3, A.7.1)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from krogh.nn.fixed_features import Tangent, ridge_head, sum_over_chunks
from krogh.nn.truncated import PairedTruncated, TruncatedNetwork
from krogh.probes.basic import accuracy, correct, probe
from krogh.probes.dictionary import feature_cosines
from krogh.tasks.base import Batch
from krogh.tasks.dictionary import IntervalDictionary, ParityDictionary, PatternDictionary
from krogh.theory.dictionary import KEPT, class_weights, first_step, schedule, second_step
from krogh.train.learners import SGD, Adam, Stage
from krogh.train.seeds import over_seeds
from krogh.train.sweep import spec, sweep

LEARNERS = ("network", "tangent", "random")
METHODS = (*LEARNERS, "one step", "two steps")


@dataclass(frozen=True)
class Setting:
    """What every simulation of A.7 shares; `d = None` is the reduction to R^D (M = I). It is exact for gradient
    descent and for any classifier on frozen features; Adam on the first layer depends on the basis.

    `ambient` is the d whose off-span part is then added to the norm of weights that keep their initial value.
    `lr1 = None` is Theorem A.20's first learning rate, or 1e-3 where w0 is kept (float32 cannot hold a smaller rest).
    """

    labels: Literal["parity", "interval"] = "parity"
    d: int | None = None
    ambient: int = 500
    D: int = 100
    k: int = 5
    m: int = 300
    n: int = 50_000
    steps: int = 600
    batch: int = 1000
    negative: float = 0.5
    reading: Literal["wipe", "keep"] = "wipe"
    weighted: bool = False
    lr1: float | None = None
    lr: float = 1e-2
    head_lr: float = 1.0
    random_lr: float = 0.03
    tangent_lr: float = 1e-5
    test: int = 10_000
    records: int = 12
    seeds: int = 5

    def task(self, structure: float = 1.0) -> PatternDictionary:
        if self.labels == "interval":
            return IntervalDictionary(D=self.D, k=self.k, d=self.d, structure=structure)
        return ParityDictionary(D=self.D, k=self.k, d=self.d, structure=structure, negative=self.negative)

    def plain(self, **changes: Any) -> "Setting":
        """These settings without a subclass's own fields, some of them changed."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in Setting.__dataclass_fields__}
        return Setting(**{**fields, **changes})

    @property
    def sigma_xi(self) -> float:
        return self.k**-1.5

    def first_lr(self, task: PatternDictionary) -> float:
        if self.lr1 is not None:
            return self.lr1
        if self.reading == "keep":
            return 1e-3
        with jax.ensure_compile_time_eval():
            return schedule(self.k, self.m, task.gamma, float(task.variance), self.steps).theorem

    @property
    def off_span(self) -> int:
        """Coordinates the reduction leaves out."""
        return 0 if self.d is not None else max(self.ambient - self.D, 0)


# --- Stages ---


@dataclass(frozen=True)
class SmoothedHinge:
    """E[alpha_y max(0, 1 - y E_xi g)] over the whole sample, in blocks so that memory does not grow with it.

    An object, not a closure: a run is recognised by what its objective and probes print.
    """

    sigma_xi: float
    weighted: bool

    def __call__(self, network: TruncatedNetwork, batch: Batch, key: Array):
        alpha = class_weights(batch.y) if self.weighted else jnp.ones_like(batch.y)

        @jax.checkpoint
        def part(mask, x, y, alpha):
            return jnp.sum(mask * alpha * jax.nn.relu(1 - y * network.smoothed(x, self.sigma_xi)))

        return sum_over_chunks(part, batch.x, batch.y, alpha) / len(batch.y), None


def aggressive(s: Setting, task: PatternDictionary, steps: int = 2) -> list[Stage]:
    """The first one or two full-batch steps; a direct decay of 1 wipes exactly (added to the gradient it drowns it)."""
    lr, objective = s.first_lr(task), SmoothedHinge(s.sigma_xi, s.weighted)
    full: dict[str, Any] = dict(batch=None, samples=s.n, objective=objective, decay="direct")
    one = SGD(lr=lr, weight_decay={"weights": 1 - KEPT[s.reading] * lr, "bias": 0.0, "output": 0.0}, **full)
    two = SGD(lr=1.0, weight_decay={"weights": 1.0, "bias": 0.0, "output": 1.0}, **full)
    return [Stage(one, 1), Stage(two, 1)][:steps]


def empty_head(network: TruncatedNetwork, task: Any, key: Array) -> TruncatedNetwork:
    return eqx.tree_at(lambda n: n.output, network, jnp.zeros_like(network.output))


def method(name: str, s: Setting, task: PatternDictionary) -> tuple[Any, list[Stage]]:
    """Architecture and stages of one column of the tables."""
    network, later = PairedTruncated(m=s.m), dict(batch=s.batch, samples=s.n, loss="hinge")
    if name == "tangent":
        return Tangent(network), [Stage(Adam(lr=s.tangent_lr, **later), s.steps)]
    if name == "network":
        rates = {"weights": s.lr, "bias": s.lr, "output": s.head_lr}
        return network, [*aggressive(s, task), Stage(Adam(lr=rates, **later), s.steps)]
    rate = s.random_lr if name == "random" else s.head_lr
    head = Stage(Adam(lr=rate, **later), s.steps, trains=("output",), before=empty_head)
    return network, [*aggressive(s, task, {"random": 0, "one step": 1, "two steps": 2}[name]), head]


# --- What is recorded ---


@probe(name="train_accuracy")
def first_train_accuracy(network: Any, sample: Batch) -> Float[Array, ""]:
    """Accuracy on the first 10 000 of the training sample."""
    x, y = sample.x[:10_000], sample.y[:10_000]
    return jnp.mean(correct(jax.vmap(network)(x), y))


@dataclass(frozen=True)
class Cosine:
    """max_i cos(w_i, sum_A M_j); `off_span` coordinates of variance sigma_w^2 are added to weights never decayed."""

    off_span: int
    sigma_w: float
    name: str = "cosine"

    def __call__(self, network: Any, task: PatternDictionary, key: Array) -> Float[Array, ""]:
        if not isinstance(network, TruncatedNetwork):
            return jnp.full((), jnp.nan)
        outside = off_span_norm(key, self.off_span, self.sigma_w, network.bias.shape)
        return jnp.max(feature_cosines(network, task, outside))


def off_span_norm(key: Array, coordinates: int, sigma_w: float | Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """The squared norm sigma_w^2 chi^2 of the initial weight outside the span of the dictionary."""
    if not coordinates:
        return jnp.zeros(shape)
    return sigma_w**2 * 2 * jr.gamma(key, coordinates / 2, shape)


# --- The six methods ---


def curves(s: Setting, name: str) -> xr.Dataset:
    """Test and training accuracy and the largest cosine of one method while its classifier trains.

    The three learners of Fig 2.1 train with and without structure, in the same program.
    """
    task = s.task()
    network, stages = method(name, s, task)
    begin = sum(stage.steps for stage in stages[:-1])
    marks = np.linspace(0, s.steps, s.records + 1).astype(int)[1:]
    spread = {"random": 1 / s.k, "one step": s.first_lr(task) * KEPT[s.reading] / s.k}.get(name, 0.0)
    described = spec(
        task, network, stages, seeds=s.seeds, record=(begin + marks).tolist(), validation=s.test, networks=False,
        probes=(accuracy, first_train_accuracy, Cosine(s.off_span if spread else 0, spread)),
    )  # fmt: skip
    run = sweep(described, structure=(1.0, 0.0) if name in LEARNERS else (1.0,))
    kept = run.data[["accuracy", "train_accuracy", "cosine"]].isel(step=slice(-s.records, None))
    kept = kept.rename(accuracy="test", train_accuracy="train", cosine="cos")
    return kept.assign_coords(step=marks, structure=["with", "without"][: kept.sizes["structure"]])


@lru_cache(maxsize=4)
def six_methods(s: Setting) -> xr.Dataset:
    """All columns of a table over (structure, learner, seed, step); without structure the three learners of Fig 2.1.

    Adds `ridge`, the test accuracy of the exact least-squares head on the random, one-step and two-step features.
    """
    ds = xr.concat([curves(s, name) for name in METHODS], xr.Variable("learner", list(METHODS)), join="outer")
    ds["ridge"] = least_squares(s).test
    return ds.assign_attrs(positive=_positive(s, 1.0), positive_without=_positive(s, 0.0))


def _positive(s: Setting, structure: float) -> float:
    return getattr(s.task(structure), "positive", 1 - s.negative)


# --- Closed-form steps with the exact least-squares head, in float64 ---


class Replica(eqx.Module):
    """One seed's task, training and test batches, and initial network, all float64."""

    task: PatternDictionary
    train: Batch
    test: Batch
    start: TruncatedNetwork


def replica(s: Setting, key: Array, structure: float = 1.0) -> Replica:
    init, world, data, test = jr.split(key, 4)
    task = s.task(structure).instance(world)
    return Replica(task, task.sample(data, s.n), task.sample(test, s.test), PairedTruncated(m=s.m).build(task, init))


def two_steps(s: Setting, r: Replica, lr: float | Array | None = None) -> tuple[TruncatedNetwork, TruncatedNetwork]:
    """The network after the first and after the second aggressive step, from the formula of Lemma A.6."""
    lr = s.first_lr(s.task()) if lr is None else lr
    one = first_step(r.start, r.train.x, r.train.y, lr, s.sigma_xi, KEPT[s.reading], s.weighted)
    return one, second_step(one, r.train.x, r.train.y, s.sigma_xi, s.weighted)


def head_accuracy(network: TruncatedNetwork, r: Replica) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Training and test accuracy of the least-squares classifier on a frozen hidden layer."""
    head = ridge_head(network.hidden, r.train.x, r.train.y)
    return tuple(jnp.mean(correct(head(network.hidden(b.x)), b.y)) for b in (r.train, r.test))  # type: ignore[return-value]


def bias_updates(s: Setting) -> xr.Dataset:
    """Median and largest |b2 - b1| over the neurons, of the second step, per seed."""

    def measure(key):
        one, two = two_steps(s, replica(s, key))
        update = jnp.abs(two.bias - one.bias)
        return {"median": jnp.median(update), "largest": jnp.max(update)}

    out = over_seeds(measure, s.seeds, double=True)
    return xr.Dataset({name: ("seed", values) for name, values in out.items()}, coords={"seed": np.arange(s.seeds)})


def least_squares(s: Setting, structure: float = 1.0) -> xr.Dataset:
    """Accuracy of the least-squares head on the random, one-step and two-step features over (learner, seed)."""

    def measure(key):
        r = replica(s, key, structure)
        one, two = two_steps(s, r)
        return {
            name: head_accuracy(network, r)
            for name, network in (("random", r.start), ("one step", one), ("two steps", two))
        }

    out = over_seeds(measure, s.seeds, double=True)
    return xr.Dataset(
        {
            name: (("learner", "seed"), np.stack([out[method][i] for method in out]))
            for i, name in enumerate(("train", "test"))
        },
        coords={"learner": list(out), "seed": np.arange(s.seeds)},
    )
