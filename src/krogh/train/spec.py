"""What a run is made of: its spec, and groups of replicas that one program can serve."""

import dataclasses
import hashlib
import inspect
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from krogh.errors import InputError
from krogh.nn.base import Architecture
from krogh.tasks.base import Task
from krogh.train.learners import Stage
from krogh.train.success import Reach


class Spec(eqx.Module):
    """All that determines a run; numbers in it may differ between replicas."""

    task: Task
    network: Architecture | Callable
    stages: tuple[Stage, ...]
    seeds: tuple[int, ...] = eqx.field(static=True)
    probes: tuple[Callable, ...] = eqx.field(static=True)
    records: tuple[int, ...] = eqx.field(static=True)
    until: Reach | None = eqx.field(static=True)
    validation: int | str = eqx.field(static=True)
    snapshots: tuple[int, ...] = eqx.field(static=True)
    precision: str = eqx.field(static=True)
    networks: bool = eqx.field(static=True)

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)


PROBE_INPUTS = ("network", "start", "task", "validation", "sample", "key", "step")


def probe_name(probe: Callable) -> str:
    return getattr(probe, "name", None) or probe.__name__


def probe_inputs(probe: Callable) -> tuple[str, ...]:
    """The parameter names of a probe: they say what it is given."""
    wanted = []
    for name, parameter in inspect.signature(probe).parameters.items():
        if name in PROBE_INPUTS:
            wanted.append(name)
        elif parameter.default is inspect.Parameter.empty:
            raise InputError(
                f"probe {probe_name(probe)} asks for {name!r}; a probe may ask for {', '.join(PROBE_INPUTS)}"
            )
    return tuple(wanted)


def _array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _number(leaf: Any) -> bool:
    return isinstance(leaf, float) or (_array(leaf) and leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.inexact))


@dataclass(frozen=True)
class Group:
    """Replicas that share code and shapes: `numbers` have a replica axis, `shared` arrays do not."""

    static: Any
    shared: Any
    numbers: Any
    init_seed: np.ndarray
    data_seed: np.ndarray

    @property
    def size(self) -> int:
        return len(self.init_seed)

    @property
    def spec(self) -> Spec:
        """The first replica's spec: every static field is the group's."""
        return eqx.combine(jax.tree.map(lambda a: np.asarray(a[0]), self.numbers), self.shared, self.static)

    def part(self, rows: slice) -> "Group":
        return Group(
            self.static,
            self.shared,
            jax.tree.map(lambda a: a[rows], self.numbers),
            self.init_seed[rows],
            self.data_seed[rows],
        )


def group_key(spec: Spec) -> tuple:
    """Equal for specs that one program can serve."""
    rest, _ = eqx.partition(spec, lambda leaf: not (_number(leaf) or _array(leaf)))
    shapes = tuple((a.shape, str(a.dtype)) for a in jax.tree.leaves(eqx.filter(spec, _array)) if not _number(a))
    leaves, treedef = jax.tree.flatten(rest)
    return jax.tree.structure(spec), treedef, tuple(leaves), shapes


def make_group(
    specs: Sequence[Spec], chosen: Int[np.ndarray, " replicas"], init_seed: np.ndarray, data_seed: np.ndarray
) -> Group:
    """One group from specs that differ in numbers or in arrays of equal shape; `chosen` is each replica's spec."""
    numeric = [eqx.filter(spec, lambda leaf: _number(leaf) or _array(leaf)) for spec in specs]
    columns = zip(*(jax.tree.leaves(tree) for tree in numeric), strict=True)
    treedef = jax.tree.structure(numeric[0])
    dtype = jnp.zeros(()).dtype
    shared, numbers = [], []
    for column in columns:
        first = column[0]
        if _number(first):
            shared.append(None)
            numbers.append(np.asarray(column, dtype)[chosen])
        elif all(value is first for value in column):
            shared.append(first)
            numbers.append(None)
        else:
            shared.append(None)
            numbers.append(np.stack([np.asarray(value) for value in column])[chosen])
    static = eqx.filter(specs[0], lambda leaf: not (_number(leaf) or _array(leaf)))
    return Group(
        static,
        jax.tree.unflatten(treedef, shared),
        jax.tree.unflatten(treedef, numbers),
        np.asarray(init_seed, np.uint32),
        np.asarray(data_seed, np.uint32),
    )


def fingerprint(group: Group) -> str:
    """Names a group's checkpoint: equal for equal specs and seeds on an equal set of devices."""
    platform = f"{jax.__version__} {[d.device_kind for d in jax.local_devices()]} {jnp.zeros(()).dtype}"
    parts = (group.static, group.shared, group.numbers, group.init_seed, group.data_seed)
    return hashlib.sha256(f"{platform} {_described(parts)}".encode()).hexdigest()[:20]


def _described(value: Any) -> str:
    """A value in words that are the same in another process; functions by their code and what they enclose."""
    if _array(value):
        content = np.asarray(value)
        return f"{content.dtype}{content.shape}{hashlib.sha256(content.tobytes()).hexdigest()}"
    if isinstance(value, tuple | list):
        if all(type(item) is int for item in value):
            return repr(tuple(value))
        return f"({', '.join(map(_described, value))})"
    if isinstance(value, dict):
        return f"({', '.join(f'{key}: {_described(item)}' for key, item in value.items())})"
    if isinstance(value, types.FunctionType):
        enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
        code = hashlib.sha256(value.__code__.co_code).hexdigest()
        constants = [c for c in value.__code__.co_consts if not isinstance(c, types.CodeType)]
        return f"{value.__module__}.{value.__qualname__} {code} {_described((constants, value.__defaults__, enclosed))}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return f"{type(value).__qualname__}{_described(fields)}"
    if (inner := getattr(value, "__wrapped__", None)) is not None:
        return _described(inner)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
