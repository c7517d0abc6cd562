"""What a run is made of: its spec, and groups of replicas that one program can serve."""

import dataclasses
import functools
import hashlib
import inspect
import re
import sys
import sysconfig
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


# Names of a dataset's own variables and coordinates, which no probe may use.
RESERVED = ("loss", "status", "reached", "steps_used", "samples_used", "step", "seed")


def probe_name(probe: Callable) -> str:
    if isinstance(probe, functools.partial):
        return probe_name(probe.func)
    return getattr(probe, "name", None) or getattr(probe, "__name__", None) or type(probe).__name__


def probe_dims(probe: Callable) -> dict[str, tuple[str, ...]]:
    """Names of the axes of what a probe records, where it declares them."""
    dims = getattr(probe, "dims", ())
    return dims if isinstance(dims, dict) else {probe_name(probe): tuple(dims)} if dims else {}


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
    return digest(group.static, group.shared, group.numbers, group.init_seed, group.data_seed)


def digest(*parts: Any) -> str:
    """Names what is computed from these values, code included, on this set of devices."""
    platform = f"{jax.__version__} {[d.device_kind for d in jax.local_devices()]} {jnp.zeros(()).dtype}"
    return hashlib.sha256(f"{platform} {_described(parts)}".encode()).hexdigest()[:20]


def _described(value: Any, above: tuple[int, ...] = ()) -> str:
    """A value in words that are the same in another process; functions and a user's classes by their code and by what
    that uses. `above` are the values it lies in, which are not described again."""
    if id(value) in above:
        return "…"
    above = (*above, id(value))

    def told(item: Any) -> str:
        return _described(item, above)

    if _array(value):
        is_key = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        content = np.asarray(jax.random.key_data(value) if is_key else value)
        return f"{content.dtype}{content.shape}{hashlib.sha256(content.tobytes()).hexdigest()}"
    if isinstance(value, tuple | list):
        if all(type(item) is int for item in value):
            return repr(tuple(value))
        return f"({', '.join(map(told, value))})"
    if isinstance(value, set | frozenset):
        return f"({', '.join(sorted(map(told, value)))})"
    if isinstance(value, dict):
        return f"({', '.join(f'{key}: {told(item)}' for key, item in value.items())})"
    if isinstance(value, types.CodeType):
        return f"{hashlib.sha256(value.co_code).hexdigest()}{value.co_names}{told(value.co_consts)}"
    if isinstance(value, functools.partial):
        return told((value.func, value.args, value.keywords))
    if isinstance(value, types.MethodType):
        return told((value.__func__, value.__self__))
    if isinstance(value, types.FunctionType):
        used = [value.__code__, value.__defaults__, value.__kwdefaults__, _enclosed(value)]
        if _of_user(value.__module__):
            # in order: sets have another one in every process
            names = sorted(_names(value.__code__) & value.__globals__.keys())
            used.append({name: value.__globals__[name] for name in names})
        return f"{value.__module__}.{value.__qualname__} {told(used)}"
    if isinstance(value, type):
        own = {n: v for n, v in vars(value).items() if isinstance(v, types.FunctionType)}
        return f"{value.__module__}.{value.__qualname__} {told(own) if _of_user(value.__module__) else ''}"
    if isinstance(value, types.ModuleType):
        return value.__name__
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return f"{told(type(value))}{told(fields)}"
    if (inner := getattr(value, "__wrapped__", None)) is not None:
        return told(inner)
    if hasattr(value, "__dict__"):
        return f"{told(type(value))}{told(vars(value))}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _of_user(module: str) -> bool:
    """Whether a module's code may change from one run to the next: it is neither Krogh's nor an installed one."""
    file = getattr(sys.modules.get(module), "__file__", None)
    installed = file is None or "site-packages" in file or file.startswith(sysconfig.get_paths()["stdlib"])
    return module == "__main__" or not (installed or module.partition(".")[0] == "krogh")


def _enclosed(function: types.FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}


def _names(code: types.CodeType) -> set[str]:
    """Every global or attribute that a function or one defined inside it names."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
