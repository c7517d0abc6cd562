"""The compiled half of the engine: a scan over records of { vmap over replicas of a scan over steps }."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task
from krogh.train import fused
from krogh.train.spec import RESERVED, Spec, probe_dims, probe_inputs, probe_name
from krogh.train.success import Reach

# Separate random streams of one seed: one can be held fixed while another varies.
INIT, DATA, NOISE, VALIDATION, TASK, PROBE, CONFIRM = range(7)

RUNNING, REACHED, DIVERGED = range(3)

# Steps whose randomness is drawn at once; more only costs memory.
BLOCK = 64

# Steps per iteration of the innermost loop on a GPU.
UNROLL = 5

# Candidates looked at together when success is confirmed, on accelerators and on CPUs.
CONFIRMED_AT_ONCE = 256, 4


def stream(seed: Array, name: int) -> Array:
    """One of a seed's independent random streams."""
    return jax.random.fold_in(jax.random.key(seed), name)


class Replica(eqx.Module):
    """What one replica carries: its numbers, seeds, own data, network, optimizer memory and fate."""

    numbers: Any
    init_seed: Any
    data_seed: Any
    world: Any
    network: Any
    memory: Any
    start: Any
    status: Any
    reached: Any
    streak: Any


@dataclass(frozen=True)
class Program:
    """One stage of a group as functions to compile.

    static       the group's spec without its numbers and arrays
    net_static   the part of the network that is not arrays
    own          which leaves of the task each replica draws for itself
    in_turn      replicas of a device take turns instead of stepping together; measured_in_turn: so do the probes
    """

    static: Any
    stage: int
    net_static: Any
    own: tuple[bool, ...]
    on_gpu: bool
    in_turn: bool = False
    measured_in_turn: bool = False

    def spec(self, replica: Replica, shared: Any) -> Spec:
        return eqx.combine(replica.numbers, shared, self.static)

    def task(self, replica: Replica, spec: Spec) -> Task:
        task = stage_task(spec, self.stage)
        if replica.world["task"] is None:
            return task
        leaves, treedef = jax.tree.flatten(task)
        own = iter(replica.world["task"])
        return jax.tree.unflatten(
            treedef, [next(own) if mine else leaf for mine, leaf in zip(self.own, leaves, strict=True)]
        )

    def sample(self, replica: Replica, task: Task, spec: Spec) -> Batch | None:
        samples = spec.stages[self.stage].learner.samples
        return task.enumerate() if samples == "all" else replica.world["sample"]

    # --- beginning a stage

    def enter(self, replica: Replica, shared: Any) -> tuple[Replica, Any]:
        """A replica at the beginning of the stage, and its network's static part."""
        spec = self.spec(replica, shared)
        task = stage_task(spec, self.stage)
        here = spec.stages[self.stage]
        own = None
        if any(self.own):
            task = task.instance(stream(replica.data_seed, TASK))
            own = [leaf for leaf, mine in zip(jax.tree.leaves(task), self.own, strict=True) if mine]
        samples = here.learner.samples
        sample = task.sample(stream(replica.data_seed, DATA), samples) if isinstance(samples, int) else None
        if self.stage == 0:
            build: Any = getattr(spec.network, "build", spec.network)
            network = build(task, stream(replica.init_seed, INIT))
        else:
            network = eqx.combine(replica.network, self.net_static)
        if here.before is not None:
            network = here.before(network, task, jax.random.fold_in(stream(replica.init_seed, NOISE), self.stage))
        arrays, net_static = eqx.partition(network, eqx.is_array)
        wants_start = any("start" in probe_inputs(probe) for probe in spec.probes)
        replica = Replica(
            numbers=replica.numbers,
            init_seed=replica.init_seed,
            data_seed=replica.data_seed,
            world={"task": own, "sample": sample},
            network=arrays,
            memory=here.learner.rule().init(eqx.filter(network, here.trained(network))),
            start=arrays if self.stage == 0 and wants_start else replica.start,
            status=replica.status,
            reached=replica.reached,
            streak=replica.streak,
        )
        return replica, net_static

    # --- steps

    def advance(
        self, replica: Replica, shared: Any, t: Array, length: Any, begin: Array, replicas: int
    ) -> tuple[Replica, Array]:
        """`length` steps from global step `t` of a stage that began at `begin`; the mean loss on the way.

        `replicas` of them are advanced together.
        """
        spec = self.spec(replica, shared)
        task = self.task(replica, spec)
        stage = spec.stages[self.stage]
        learner = stage.learner
        data_key, noise_key = stream(replica.data_seed, DATA), stream(replica.data_seed, NOISE)
        sample = self.sample(replica, task, spec)
        start = eqx.combine(replica.network, self.net_static)
        trains = stage.trained(start)
        in_one_kernel = self.on_gpu and all(jax.tree.leaves(trains)) and fused.applies(start, task, learner, replicas)

        def step(carry, s, batch):
            arrays, memory, total = carry
            network = eqx.combine(arrays, self.net_static)
            network, memory, value = learner.update(
                network, memory, batch, jax.random.fold_in(noise_key, s), s - begin, trains
            )
            return eqx.filter(network, eqx.is_array), memory, total + value

        def several(carry, batches):
            arrays, memory, total = carry
            network = eqx.combine(arrays, self.net_static)
            live = replica.status == RUNNING
            network, losses = fused.steps(network, batches.x, batches.y, learner, fused.warps(replicas), live)
            return eqx.filter(network, eqx.is_array), memory, total + losses

        carry = (replica.network, replica.memory, jnp.zeros(()))
        if sample is None:
            together = several if in_one_kernel else None
            carry = self._online(step, together, carry, task, learner.batch, data_key, t, length)
        elif learner.batch is None:
            carry = _loop(lambda i, c: step(c, t + i, sample), carry, length)
        else:
            carry = self._minibatches(step, carry, sample, learner, data_key, t, length, begin)
        arrays, memory, total = carry
        replica = eqx.tree_at(
            lambda r: (r.network, r.memory), replica, (arrays, memory), is_leaf=lambda leaf: leaf is None
        )
        return replica, total / length

    def _online(self, step, several, carry, task, batch, data_key, t, length):
        """`several(carry, batches)` takes the steps of all batches at once; without it they are taken one by one."""

        def draw(s):
            return task.draw(jax.random.fold_in(data_key, s), batch)

        if not isinstance(length, int):
            return _loop(lambda i, c: step(c, t + i, task.decode(draw(t + i), batch)), carry, length)
        block = block_of(length) if several is None else fused.block_of(length, batch, math.prod(task.in_shape))

        def run_block(i, carry):
            s = t + i * block + jnp.arange(block, dtype=jnp.int32)

            raw = jax.vmap(draw)(s)
            if several is not None:
                return several(carry, jax.vmap(lambda raw: task.decode(raw, batch))(raw))

            def body(carry, inputs):
                s, raw = inputs
                return step(carry, s, task.decode(raw, batch)), None

            return lax.scan(body, carry, (s, raw), unroll=min(UNROLL, block) if self.on_gpu else 1)[0]

        return _loop(run_block, carry, length // block)

    @staticmethod
    def _minibatches(step, carry, sample, learner, data_key, t, length, begin):
        size, batch = len(sample.y), learner.batch
        if batch > size:
            raise InputError(f"batch={batch} is larger than the {size} examples there are")
        key = jax.random.fold_in(data_key, 0)

        def take(rows):
            return jax.tree.map(lambda a: a[rows], sample)

        if learner.order == "replacement":

            def independent(i, carry):
                rows = jax.random.randint(jax.random.fold_in(key, t + i), (batch,), 0, size)
                return step(carry, t + i, take(rows))

            return _loop(independent, carry, length)
        per_epoch = size // batch

        def shuffled(s):
            return jax.random.permutation(jax.random.fold_in(key, (s - begin) // per_epoch), size)

        def body(i, state):
            order, carry = state
            s = t + i
            position = (s - begin) % per_epoch
            # `s` is the same for all replicas, so this stays a branch and is not computed at every step.
            order = lax.cond(position == 0, lambda: shuffled(s), lambda: order)
            return order, step(carry, s, take(lax.dynamic_slice(order, (position * batch,), (batch,))))

        return _loop(body, (shuffled(t), carry), length)[1]

    # --- measurements

    def measure(self, replica: Replica, shared: Any, t: Array) -> dict[str, Array]:
        """What the probes read off a replica at step `t`."""
        spec = self.spec(replica, shared)
        task = self.task(replica, spec)
        given = {
            "network": lambda: eqx.combine(replica.network, self.net_static),
            "start": lambda: eqx.combine(replica.start, self.net_static),
            "task": lambda: task,
            "validation": lambda: validation_batch(task, spec.validation, replica.data_seed),
            "sample": lambda: self.sample(replica, task, spec),
            "key": lambda: jax.random.fold_in(stream(replica.data_seed, PROBE), t),
            "step": lambda: t,
        }
        out: dict[str, Array] = {}
        for probe in spec.probes:
            value = probe(**{name: given[name]() for name in probe_inputs(probe)})
            named = value if isinstance(value, dict) else {probe_name(probe): value}
            dims = probe_dims(probe)
            for name, read in named.items():
                if name in out or name in RESERVED:
                    whose = "a run itself" if name in RESERVED else "another probe"
                    raise InputError(
                        f"probe {probe_name(probe)} records {name!r}, as {whose} does; give it another name"
                    )
                out[name] = jnp.asarray(read)
                if name in dims and len(dims[name]) != out[name].ndim:
                    raise InputError(f"probe {name} names {len(dims[name])} dims but returns {out[name].ndim}")
        return out

    def confirmed(self, replica: Replica, shared: Any, until: Reach) -> Array:
        from krogh.probes.basic import accuracy_in_parts

        spec = self.spec(replica, shared)
        task = self.task(replica, spec)
        batch = task.held_out(stream(replica.data_seed, CONFIRM), until.confirm)  # type: ignore[arg-type]
        return accuracy_in_parts(eqx.combine(replica.network, self.net_static), batch) >= until.level

    def confirmations(self, replicas: Replica, shared: Any, candidates: Array, until: Reach) -> Array:
        """Which candidates are confirmed; a few at a time, because the rest must not pay for the fresh examples."""
        at_once = min(len(candidates), CONFIRMED_AT_ONCE[jax.default_backend() == "cpu"])

        def look(state):
            pending, confirmed = state
            rows = jnp.nonzero(pending, size=at_once, fill_value=0)[0]
            some = jax.tree.map(lambda a: a[rows], replicas)
            good = jax.vmap(lambda r: self.confirmed(r, shared, until))(some) & pending[rows]
            return pending.at[rows].set(False), confirmed | jnp.zeros_like(confirmed).at[rows].set(good)

        start = candidates, jnp.zeros_like(candidates)
        return lax.while_loop(lambda state: jnp.any(state[0]), look, start)[1]

    def judge(self, replicas: Replica, shared: Any, out: dict[str, Array], t: Array) -> Replica:
        """Update who has reached the goal; `replicas` carry their replica axis here."""
        until = self.static.until
        if until is None:
            return replicas
        if until.record not in out or out[until.record].ndim != 1:
            single = ", ".join(name for name, read in out.items() if read.ndim == 1)
            raise InputError(
                f"until looks at {until.record!r}, which is not one number per replica; these are: {single}"
            )
        value = out[until.record]
        met = (value <= until.level) if until.below else (value >= until.level)
        streak = jnp.where(met, replicas.streak + 1, 0)
        passed = (streak >= until.consecutive) & (replicas.status == RUNNING)
        if until.confirm is not None:
            confirmed = self.confirmations(replicas, shared, passed, until)
            # A candidate that was refused begins anew, so that its time is that of the confirmed streak.
            streak = jnp.where(passed & ~confirmed, 0, streak)
            passed = confirmed
        # Records before this one may be unevenly spaced; the time of the streak's first one is kept.
        began = jnp.where(met & (replicas.streak == 0), t, replicas.reached)
        return eqx.tree_at(
            lambda r: (r.streak, r.reached, r.status),
            replicas,
            (streak, began, jnp.where(passed, REACHED, replicas.status)),
        )

    def chunk(self, replicas: Replica, shared: Any, t: Array, begin: Array, lengths: Any) -> tuple[Replica, Any]:
        """Advance all replicas over several records; `lengths` is (count, steps) or an array of steps."""

        def record(state, length):
            replicas, t = state
            count = len(replicas.status)
            after, loss = each(lambda r: self.advance(r, shared, t, length, begin, count), replicas, self.in_turn)
            healthy = jnp.isfinite(loss)
            for leaf in jax.tree.leaves(after.network):
                if jnp.issubdtype(leaf.dtype, jnp.inexact):
                    healthy &= jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim)))
            moves = (replicas.status == RUNNING) & healthy

            def keep(new, old):
                return jnp.where(moves.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            status = jnp.where((replicas.status == RUNNING) & ~healthy, DIVERGED, replicas.status)
            replicas = eqx.tree_at(
                lambda r: (r.network, r.memory, r.status),
                replicas,
                (
                    jax.tree.map(keep, after.network, replicas.network),
                    jax.tree.map(keep, after.memory, replicas.memory),
                    status,
                ),
                is_leaf=lambda leaf: leaf is None,
            )
            t = t + length
            out = {**each(lambda r: self.measure(r, shared, t), replicas, self.measured_in_turn), "loss": loss}
            replicas = self.judge(replicas, shared, out, t)
            return (replicas, t), {**out, "_moved": moves}

        if isinstance(lengths, tuple):
            count, length = lengths
            state, out = lax.scan(lambda s, _: record(s, length), (replicas, t), None, length=count)
        else:
            state, out = lax.scan(record, (replicas, t), lengths)
        return state[0], out


def each(function: Callable, replicas: Any, in_turn: bool = False) -> Any:
    """`function` of every replica. One alone is not batched: products without a batch axis are faster on CPU."""
    if jax.tree.leaves(replicas)[0].shape[0] > 1:
        return lax.map(function, replicas) if in_turn else jax.vmap(function)(replicas)
    return jax.tree.map(lambda a: a[None], function(jax.tree.map(lambda a: a[0], replicas)))


def block_of(length: int) -> int:
    """Most steps whose randomness is drawn at once and that divide `length`."""
    return max(d for d in range(1, min(length, BLOCK) + 1) if length % d == 0)


def _loop(body: Callable, carry: Any, length: Any) -> Any:
    if isinstance(length, int) and length == 1:
        return body(0, carry)
    return lax.fori_loop(0, length, body, carry)


def own_leaves(task: Task) -> tuple[bool, ...]:
    """Which leaves of a task `instance` replaces."""
    mask: list[bool] = []

    def trace(key):
        own = task.instance(key)
        mask.extend(a is not b for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(task), strict=True))
        return [leaf for leaf, mine in zip(jax.tree.leaves(own), mask, strict=True) if mine]

    if type(task).instance is not Task.instance:
        jax.eval_shape(trace, jax.random.key(0))
    return tuple(mask)


def stage_task(spec: Spec, stage: int) -> Task:
    return spec.stages[stage].task or spec.task


def validation_batch(task: Task, size: int | str, seed: Array) -> Batch:
    return task.enumerate() if size == "all" else task.held_out(stream(seed, VALIDATION), size)  # type: ignore[arg-type]
