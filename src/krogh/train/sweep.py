"""`train` and `sweep`: from a task, a network and a learner to one labelled dataset."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

from krogh.errors import InputError, check_integer, nearest
from krogh.nn.base import Architecture
from krogh.tasks.base import Task
from krogh.train.checkpoint import current_workspace
from krogh.train.engine import Result, run_group
from krogh.train.learners import Learner, Stage
from krogh.train.program import DIVERGED, REACHED
from krogh.train.spec import Spec, group_key, make_group, probe_dims, probe_inputs, probe_name
from krogh.train.success import Reach

if TYPE_CHECKING:
    import xarray as xr

PRECISIONS = ("highest", "high", "default", "tensorfloat32", "bfloat16", "float32", "TF32_TF32_F32_X3")
STREAMS = ("init_seed", "data_seed")
# Beside the fates of replicas: of a point that was not run.
LEFT_OUT = -1


@dataclass(frozen=True)
class Run:
    """What training returns.

    data       labelled arrays over (sweep axes…, seed, step, probe axes…)
    networks   the trained networks as one pytree, replica axis first in the order of the flattened axes;
               a list of such pytrees where the sweep changed shapes
    snapshots  {step: networks at that step}
    spec       what was run; `sweep(run.spec, …)` varies it
    """

    data: xr.Dataset
    spec: Spec
    groups: tuple[tuple[np.ndarray, Result], ...]
    axes: dict[str, tuple]

    @property
    def networks(self) -> Any:
        trees = [result.networks for _, result in self.groups]
        return trees[0] if len(trees) == 1 else trees

    @property
    def snapshots(self) -> Any:
        trees = [result.snapshots for _, result in self.groups]
        return trees[0] if len(trees) == 1 else trees

    def network(self, step: int | None = None, **where: Any) -> Any:
        """One replica's network by its coordinates, e.g. `run.network(seed=3, lr=0.1)`."""
        index = []
        for name, values in self.axes.items():
            if name not in where and len(values) > 1:
                raise InputError(f"say which {name}: one of {_listed(values)}")
            value = where.pop(name, values[0])
            if value not in values:
                raise InputError(f"{name}={value!r} was not run; choose one of {_listed(values)}")
            index.append(values.index(value))
        if where:
            name = next(iter(where))
            raise InputError(f"{name!r} is no axis of this run; its axes are {', '.join(self.axes)}")
        flat = int(np.ravel_multi_index(index, [len(v) for v in self.axes.values()]))
        for rows, result in self.groups:
            if flat in rows:
                tree = result.networks if step is None else result.snapshots.get(step)
                if tree is None:
                    kept = "none were kept" if step is None else f"snapshots: {_listed(result.snapshots)}"
                    raise InputError(f"no networks at that step; {kept}")
                row = int(np.flatnonzero(rows == flat)[0])
                arrays, rest = eqx.partition(tree, lambda leaf: isinstance(leaf, np.ndarray))
                return eqx.combine(jax.tree.map(operator.itemgetter(row), arrays), rest)
        raise InputError("this point was left out")


def train(
    task: Task,
    network: Architecture | Callable,
    learner: Learner | Stage | Sequence[Stage],
    steps: int | None = None,
    *,
    replicas_at_once: int | None = None,
    **settings: Any,
) -> Run:
    """Train one replica per seed, all in one compiled program; the settings are those of `spec`.

    replicas_at_once   how many share the program; by default as many as memory allows
    """
    return sweep(spec(task, network, learner, steps, **settings), replicas_at_once=replicas_at_once)


def spec(
    task: Task,
    network: Architecture | Callable,
    learner: Learner | Stage | Sequence[Stage],
    steps: int | None = None,
    *,
    seeds: int | Iterable[int] = 1,
    probes: Callable | Sequence[Callable] = (),
    every: int | None = None,
    record: Sequence[int] | None = None,
    until: Reach | None = None,
    validation: int | str = 1024,
    snapshots: Sequence[int] = (),
    precision: str = "highest",
    networks: bool = True,
) -> Spec:
    """A run described but not started: what `sweep` varies.

    learner     a learner with `steps`, or stages that bring their own
    seeds       how many replicas, or their seeds
    probes      measurements taken at step 0 and at every record
    every       steps between records (default: a hundredth of the run); or `record`, the steps themselves
    until       success: a replica that reaches it stops
    validation  examples behind probes that ask for `validation`; "all" enumerates the task's domain
    snapshots   steps at which all parameters are kept
    precision   of matrix products; anything but "highest" trades exactness for speed
    networks    False drops the trained networks, for ensembles too large to keep
    """
    if not isinstance(task, Task):
        raise InputError(f"task must be a Task such as tasks.SparseParity(n=50, k=3), got {task!r}")
    built = issubclass(type(network), eqx.Module) and not hasattr(network, "build")
    if isinstance(network, type) or built or not callable(getattr(network, "build", network)):
        raise InputError(
            f"network must be an Architecture such as nn.MLP(width=100), or a function (task, key) that builds one; "
            f"got {network!r}"
        )
    if isinstance(learner, Learner):
        if steps is None:
            raise InputError("say how many steps to train: steps=...")
        stages = (Stage(learner, steps),)
    else:
        stages = (learner,) if isinstance(learner, Stage) else tuple(learner) if isinstance(learner, Iterable) else ()
        if not stages or not all(isinstance(stage, Stage) for stage in stages):
            raise InputError("learner must be a Learner such as SGD(lr=0.1), a Stage, or a list of Stages")
        if steps is not None:
            raise InputError("stages bring their own steps; leave steps out")
    total = sum(stage.steps for stage in stages)
    if isinstance(seeds, Iterable):
        chosen = _seeds("seeds", seeds)
    else:
        chosen = tuple(range(check_integer("the number of seeds", seeds, least=1)))
    probes = (probes,) if callable(probes) else tuple(probes)
    for probe in probes:
        if not callable(probe):
            raise InputError(f"a probe must be a function, got {probe!r}")
        if "sample" in probe_inputs(probe) and any(stage.learner.samples is None for stage in stages):
            raise InputError(f"probe {probe_name(probe)} asks for the training sample, but this learner draws online")
    ends = np.cumsum([stage.steps for stage in stages]).tolist()
    if record is not None:
        marks = _steps("record", record, total)
    else:
        gap = max(1, total // 100) if every is None else check_integer("every", every, least=1)
        marks = range(gap, total + 1, gap)
    cuts = _steps("snapshots", snapshots, total)
    records = tuple(sorted({*marks, *ends, *cuts} - {0}))
    if validation != "all" and not (isinstance(validation, int) and validation >= 1):
        raise InputError(f"validation must be a number of examples or 'all', got {validation!r}")
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if until is not None and not isinstance(until, Reach):
        raise InputError(f"until must be a Reach such as Reach('accuracy', 0.99), got {until!r}")
    offered = [name for p in probes for name in {probe_name(p): None, **probe_dims(p)}]
    if until is not None and until.record not in ("loss", *offered):
        raise InputError(
            f"until looks at {until.record!r}, which no probe records; probes: {', '.join(offered) or 'none'}"
            f"{nearest(until.record, offered)}"
        )
    return Spec(task, network, stages, chosen, probes, records, until, validation, tuple(cuts), precision, networks)


def sweep(spec: Spec, *, replicas_at_once: int | None = None, where: Any = None, **axes: Iterable) -> Run:
    """Run `spec` at every point of the product of `axes`, with all its seeds.

    An axis is a field of the task, the network or the learner by name (dotted where a name is not unique:
    `network.width`), or `init_seed` / `data_seed`, which cross the two random streams in place of `seed`.
    Values that are numbers inside the program share it; values that change shapes or code are compiled
    apart.

    where   truths over the axes, in their order (`seed` last where it is none of them): only these points are run, such
            as further restarts of what has failed. The others are "left out": no steps, nothing reached, NaN
    """
    if replicas_at_once is not None:
        check_integer("replicas_at_once", replicas_at_once, least=1)
    for name, axis in axes.items():
        if not isinstance(axis, Iterable):
            raise InputError(f"the sweep axis {name} must be a list of values, got {axis!r}")
    values = {name: _seeds(name, axis) if name in STREAMS else tuple(axis) for name, axis in axes.items()}
    for name, axis in values.items():
        if not axis:
            raise InputError(f"the sweep axis {name} has no values")
    paths = {name: _find(spec, name) for name in values if name not in STREAMS}
    variants = []
    for settings in itertools.product(*(values[name] for name in paths)):
        varied = spec
        for path, value in zip(paths.values(), settings, strict=True):
            varied = _replaced(varied, path, value)
        variants.append(varied)
    if not any(name in values for name in STREAMS):
        values["seed"] = spec.seeds
    shape = tuple(len(axis) for axis in values.values())
    position = dict(zip(values, np.indices(shape).reshape(len(shape), -1), strict=True))
    # Every point's variant, in the order in which `variants` lists them.
    chosen = np.zeros(math.prod(shape), int)
    for name in paths:
        chosen = chosen * len(values[name]) + position[name]
    asked = _asked(where, shape)
    groups: dict[Any, list[int]] = {}
    for number in np.unique(chosen[asked]):
        groups.setdefault(group_key(variants[number]), []).append(number)
    results, training = [], next(current_workspace().trainings)
    for number, members in enumerate(groups.values()):
        rows = np.flatnonzero(np.isin(chosen, members) & asked)
        seeds = []
        for stream in STREAMS:
            name = stream if stream in values else "seed"
            seeds.append(np.asarray(values[name])[position[name][rows]] if name in values else np.zeros(len(rows)))
        group = make_group([variants[i] for i in members], np.searchsorted(members, chosen[rows]), *seeds)
        label = "training" if training == 1 else f"training {training}"
        if len(groups) > 1:
            label += f", group {number + 1}/{len(groups)}"
        results.append((rows, run_group(group, replicas_at_once, label)))
    data = _dataset(spec, values, results)
    used = data.steps_used.values.ravel()
    samples = np.zeros_like(used)
    for number, varied in enumerate(variants):
        samples[chosen == number] = _samples_used(varied, used[chosen == number])
    data["samples_used"] = (data.steps_used.dims, samples.reshape(data.steps_used.shape))
    return Run(data, spec, tuple(results), values)


# ------------------------------------------------------------------------------------------- helpers


def _seeds(name: str, seeds: Iterable) -> tuple[int, ...]:
    chosen = tuple(check_integer(f"one of the {name}", seed, least=0, most=2**32 - 1) for seed in seeds)
    if not chosen or len(set(chosen)) != len(chosen):
        raise InputError(f"{name} must be at least one number, all different, got {_listed(chosen)}")
    return chosen


def _steps(name: str, steps: Sequence[int], total: int) -> list[int]:
    if not isinstance(steps, Iterable):
        raise InputError(f"{name} must be a list of steps, got {steps!r}")
    marks = sorted({check_integer(f"a step of {name}", s) for s in steps})
    if marks and (marks[0] < 0 or marks[-1] > total):
        raise InputError(f"{name} must lie between 0 and the {total} steps of the run, got {marks[0]} to {marks[-1]}")
    return marks


def _asked(where: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Which of all points are run, flattened."""
    asked = np.ones(shape, bool) if where is None else np.asarray(where)
    if asked.dtype != bool or asked.shape != shape:
        raise InputError(f"where must hold truths of shape {shape}, one a point, got {asked.dtype} {asked.shape}")
    if not asked.any():
        raise InputError("where leaves every point out; ask for one at least")
    return asked.ravel()


def _listed(values: Iterable) -> str:
    return ", ".join(map(str, values)) or "none"


def _fields(module: Any, path: tuple = ()) -> Iterable[tuple]:
    """Paths of all settings below a spec."""
    if isinstance(module, tuple | list):
        for i, item in enumerate(module):
            yield from _fields(item, (*path, i))
    elif dataclasses.is_dataclass(module):
        for f in dataclasses.fields(module):
            yield (*path, f.name)
            value = getattr(module, f.name)
            if isinstance(value, eqx.Module | tuple):
                yield from _fields(value, (*path, f.name))


def _find(spec: Spec, name: str) -> tuple:
    """The one setting that a (dotted) name means."""
    parts = tuple(int(p) if p.isdigit() else p for p in name.split("."))
    if parts[-1] == "steps":
        raise InputError(
            "steps cannot be swept: all cells share their records; record the shorter times, or train apart"
        )
    candidates = [
        path
        for path in _fields(spec)
        if path[0] in ("task", "network", "stages") and path[-1] not in ("learner", "before", "steps") and len(path) > 1
    ]

    def matches(path: tuple) -> bool:
        rest = iter(path)
        return path[-1] == parts[-1] and all(any(part == step for step in rest) for part in parts)

    found = [path for path in candidates if matches(path)]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(".".join(map(str, path)) for path in found)
        raise InputError(f"the sweep axis {name!r} could mean {shown}; write one of these (as **{{'…': values}})")
    options = sorted({str(path[-1]) for path in candidates})
    raise InputError(f"nothing here is called {name!r}{nearest(name, options)}; a sweep may vary {', '.join(options)}")


def _replaced(module: Any, path: tuple, value: Any) -> Any:
    """`module` with the setting at `path` changed; goes through the constructors, so checks run again."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(module, tuple):
        return tuple(_replaced(item, rest, value) if i == head else item for i, item in enumerate(module))
    old = getattr(module, head)
    if not rest and isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not rest and isinstance(value, np.generic):
        value = value.item()
    return dataclasses.replace(module, **{head: _replaced(old, rest, value)})


def _dataset(spec: Spec, axes: dict[str, tuple], results: list[tuple[np.ndarray, Result]]) -> xr.Dataset:
    import xarray as xr

    shape = tuple(len(v) for v in axes.values())
    size = math.prod(shape)
    dims = {name: d for probe in spec.probes for name, d in probe_dims(probe).items()}
    variables = {}
    for name in results[0][1].records:
        parts = [(rows, result.records[name]) for rows, result in results]
        inner = tuple(np.max([part.shape[2:] for _, part in parts], axis=0).astype(int))
        dtype = np.result_type(*(part.dtype for _, part in parts))
        steps = parts[0][1].shape[1]
        whole = np.full((size, steps, *inner), np.nan if np.issubdtype(dtype, np.inexact) else 0, dtype)
        for rows, part in parts:
            whole[(rows, slice(None), *[slice(s) for s in part.shape[2:]])] = part
        names = dims.get(name) or tuple(f"{name}_{i}" for i in range(len(inner)))
        variables[name] = ((*axes, "step", *names), whole.reshape(*shape, steps, *inner))

    def gather(pick: Callable[[Result], np.ndarray], left_out: float) -> np.ndarray:
        whole = np.full(size, left_out, pick(results[0][1]).dtype)
        for rows, result in results:
            whole[rows] = pick(result)
        return whole.reshape(shape)

    status = gather(lambda r: r.status, LEFT_OUT)
    words = np.where(status == REACHED, "reached", "censored" if spec.until else "finished")
    for number, word in ((DIVERGED, "diverged"), (LEFT_OUT, "left out")):
        words = np.where(status == number, word, words)
    variables["status"] = (tuple(axes), words)
    variables["reached"] = (tuple(axes), gather(lambda r: r.reached, np.inf))
    columns = np.array([0, *spec.records])
    used = columns[np.minimum(gather(lambda r: r.alive, 1), len(columns)) - 1]
    variables["steps_used"] = (tuple(axes), used)
    coords = {name: _coordinate(values) for name, values in axes.items()} | {"step": columns}
    data = xr.Dataset(variables, coords)
    data.attrs["replica_steps_asked"] = sum(len(rows) for rows, _ in results) * spec.steps
    data.attrs["replica_steps_computed"] = sum(result.worked for _, result in results)
    return data


def _samples_used(spec: Spec, steps: np.ndarray) -> np.ndarray:
    """Examples seen in so many steps: every fresh one online, the sample of an offline stage; −1 for a domain."""
    total, whole = np.zeros_like(steps), np.zeros(steps.shape, bool)
    for stage in spec.stages:
        here = np.minimum(steps, stage.steps)
        steps = steps - here
        if stage.learner.samples == "all":
            whole |= here > 0
        elif stage.learner.samples is None:
            total = total + here * stage.learner.batch
        else:
            total = total + np.where(here > 0, stage.learner.samples, 0)
    return np.where(whole, -1, total)


def _coordinate(values: tuple) -> np.ndarray:
    if all(isinstance(v, bool | int | float | str | np.generic) for v in values):
        return np.array(values)
    if any(dataclasses.is_dataclass(v) or callable(v) for v in values):
        return np.array([getattr(v, "__name__", None) or repr(v) for v in values])
    return np.arange(len(values)) if any(np.ndim(v) for v in values) else np.array([str(v) for v in values])
