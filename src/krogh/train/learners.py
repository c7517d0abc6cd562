"""Learners: a loss, an update rule and a data regime; stages string them together."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.errors import InputError, nearest
from krogh.nn.base import trainable
from krogh.tasks.base import Batch, Task
from krogh.train.losses import Loss, loss_function

Rate = float | dict[str, float]
Objective = Callable[[Any, Batch, PRNGKeyArray], tuple[Float[Array, ""], Any]]


class Learner(eqx.Module):
    """What every learner has; the subclasses say how a gradient becomes an update.

    lr, weight_decay   one number, or one per top-level field of the network
    batch              examples per step; None takes the whole sample every step
    loss               hinge, square, logistic, correlation, cross_entropy, or a function (output, y)
    objective          (network, batch, key) → (scalar, aux); replaces the loss. Where aux is a network of
                       the same structure, its buffers are kept
    samples            None: fresh examples every step. m: m examples drawn once per replica. "all": the
                       task's enumerated domain
    order              minibatches of a sample: "epochs" (reshuffled) or "replacement"
    decay              "gradient": λθ is added to the gradient; "decoupled": θ shrinks by lr·λ beside the
                       update; "direct": θ shrinks by λ itself
    decay_matrices     only parameters with two axes or more decay, biases and norms do not
    schedule           factor on lr as a function of the step within the stage
    truncate           gradient entries with |g| ≤ truncate are set to zero
    noise              standard deviation of Gaussian noise added to every gradient entry
    """

    lr: Rate = 0.1
    batch: int | None = eqx.field(static=True, default=32)
    loss: str | Loss = eqx.field(static=True, default="hinge")
    weight_decay: Rate | None = None
    decay: str = eqx.field(static=True, default="gradient")
    decay_matrices: bool = eqx.field(static=True, default=False)
    samples: int | str | None = eqx.field(static=True, default=None)
    order: str = eqx.field(static=True, default="epochs")
    objective: Objective | None = eqx.field(static=True, default=None)
    schedule: Callable[[Array], Array] | None = eqx.field(static=True, default=None)
    truncate: float | None = None
    noise: float | None = None

    def __check_init__(self):
        loss_function(self.loss)
        _one_of("decay", self.decay, ("gradient", "decoupled", "direct"))
        _one_of("order", self.order, ("epochs", "replacement"))
        if self.batch is not None and (not isinstance(self.batch, int) or self.batch < 1):
            raise InputError(f"batch must be a whole number of at least 1, or None, got {self.batch!r}")
        if self.samples is not None and self.samples != "all" and (type(self.samples) is not int or self.samples < 1):
            raise InputError(f"samples must be a whole number of at least 1, None or 'all', got {self.samples!r}")
        if self.batch is None and self.samples is None:
            raise InputError("batch=None takes the whole sample every step, so samples must be set too")
        if isinstance(self.samples, int) and self.batch is not None and self.batch > self.samples:
            raise InputError(f"batch={self.batch} is larger than samples={self.samples}")
        for name in ("lr", "weight_decay", "truncate", "noise", "momentum", "b1", "b2", "eps"):
            value = getattr(self, name, None)
            for number in value.values() if isinstance(value, dict) else (value,):
                unset = number is None and name != "lr"
                if not unset and (not hasattr(number, "dtype") and not _at_least_zero(number)):
                    raise InputError(f"{name} must be a number of at least 0, got {number!r}")

    def rule(self) -> optax.GradientTransformation:
        """The direction of the update, before the learning rate and its sign."""
        raise NotImplementedError

    def objective_of(self, network: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Float[Array, ""], Any]:
        """The training loss on a batch, and the network with its buffers updated."""
        if self.objective is not None:
            value, aux = self.objective(network, batch, key)
            return value, aux if type(aux) is type(network) else network
        if hasattr(network, "batch"):
            outputs, network = network.batch(batch.x, key)
        else:
            outputs = jax.vmap(network)(batch.x)
        losses = jax.vmap(loss_function(self.loss))(outputs, batch.y)
        if losses.ndim != 1:
            raise InputError(
                f"the loss {self.loss} of outputs of shape {outputs.shape[1:]} and labels of shape {batch.y.shape[1:]} "
                "is not one number an example; classes need loss='cross_entropy', single numbers any other"
            )
        return jnp.mean(losses), network

    def update(
        self, network: Any, memory: Any, batch: Batch, key: PRNGKeyArray, step: Array, trains: Any
    ) -> tuple[Any, Any, Float[Array, ""]]:
        """One step: the new network, the new optimizer memory and the loss before the step."""
        free, fixed = eqx.partition(network, trains)

        def objective(free):
            value, updated = self.objective_of(eqx.combine(free, fixed), batch, key)
            return value, eqx.partition(updated, trains)[1]

        (value, fixed), gradient = jax.value_and_grad(objective, has_aux=True)(free)
        if (least := self.truncate) is not None:
            gradient = jax.tree.map(lambda g: jnp.where(jnp.abs(g) <= least, 0.0, g), gradient)
        if (noise := self.noise) is not None:
            keys = jax.random.split(jax.random.fold_in(key, 1), len(jax.tree.leaves(gradient)))
            keys = jax.tree.unflatten(jax.tree.structure(gradient), list(keys))
            gradient = jax.tree.map(lambda g, k: g + noise * jax.random.normal(k, g.shape), gradient, keys)
        decay = None if self.weight_decay is None else per_field("weight_decay", self.weight_decay, free)
        if decay is not None and self.decay_matrices:
            decay = jax.tree.map(lambda w, p: w if p.ndim > 1 else 0.0, decay, free)
        rate = per_field("lr", self.lr, free)
        if self.schedule is not None:
            factor = self.schedule(step)
            rate = jax.tree.map(lambda r: r * factor, rate)
        if decay is not None and self.decay == "gradient":
            gradient = jax.tree.map(lambda g, p, w: g + w * p, gradient, free, decay)
        direction, memory = self.rule().update(gradient, memory, free)
        if decay is not None and self.decay != "gradient":
            shrink = decay if self.decay == "direct" else jax.tree.map(lambda w, r: w * r, decay, rate)
            free = jax.tree.map(lambda p, w: p - w * p, free, shrink)
        free = jax.tree.map(lambda p, d, r: p - (r * d).astype(p.dtype), free, direction, rate)
        return eqx.combine(free, fixed), memory, value


class SGD(Learner):
    """Gradient descent, with heavy-ball momentum where `momentum` is set."""

    momentum: float | None = None

    def rule(self) -> optax.GradientTransformation:
        return optax.identity() if self.momentum is None else optax.trace(self.momentum)


class Adam(Learner):
    """Adam; with decay="decoupled" it is AdamW."""

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def rule(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.b1, self.b2, self.eps)


class SignDescent(Learner):
    """θ ← θ − lr · sign(gradient)."""

    def rule(self) -> optax.GradientTransformation:
        return optax.scale_by_sign()


class Stage(eqx.Module):
    """A stretch of training with its own learner.

    trains   top-level fields of the network that move; None for all
    before   (network, task, key) → network, applied when the stage begins: wipe, prune, grow, rewind
    task     replaces the run's task from here to the stage's end
    """

    learner: Learner
    steps: int = eqx.field(static=True)
    trains: tuple[str, ...] | None = eqx.field(static=True, default=None)
    before: Callable[[Any, Task, PRNGKeyArray], Any] | None = eqx.field(static=True, default=None)
    task: Task | None = None

    def __check_init__(self):
        if not isinstance(self.learner, Learner):
            raise InputError(f"a stage's learner must be a Learner such as SGD or Adam, got {self.learner!r}")
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1:
            raise InputError(f"steps must be a whole number of at least 1, got {self.steps!r}")

    def trained(self, network: eqx.Module) -> Any:
        """Filter tree of what this stage trains."""
        tree = trainable(network)
        if self.trains is None:
            return tree
        fields = field_names(network)
        for name in self.trains:
            if name not in fields:
                raise InputError(
                    f"trains names {name!r}, but the network's fields are {', '.join(fields)}{nearest(name, fields)}"
                )
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf and path[0].name in self.trains,
            tree,  # type: ignore[operator]
        )


def field_names(network: Any) -> list[str]:
    return list(network.__dataclass_fields__)


def per_field(name: str, value: Rate, tree: Any) -> Any:
    """`value` spread over the leaves of `tree`: the same everywhere, or by top-level field."""
    if not isinstance(value, dict):
        return jax.tree.map(lambda _: value, tree)
    fields = field_names(tree)
    for key in value:
        if key not in fields:
            raise InputError(
                f"{name} names the field {key!r}; the network has {', '.join(fields)}{nearest(key, fields)}"
            )

    def pick(path, _):
        if path[0].name not in value:
            raise InputError(f"{name} gives no value for the network's field {path[0].name!r}")
        return value[path[0].name]

    return jax.tree_util.tree_map_with_path(pick, tree)


def _at_least_zero(number: Any) -> bool:
    return isinstance(number, float | int) and number >= 0


def _one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        raise InputError(f"{name} must be one of {', '.join(options)}, got {value!r}{nearest(value, options)}")
