"""The host half of the engine: sizes replica batches, walks through chunks of records, drops replicas
that have stopped, keeps checkpoints and tells the progress."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from krogh.errors import InputError
from krogh.train.checkpoint import Checkpoint, current_workspace
from krogh.train.cost import largest_array, operations
from krogh.train.program import REACHED, RUNNING, Program, Replica, each, own_leaves, stage_task
from krogh.train.spec import Group, fingerprint, group_key

# A step counts by its floating-point operations, in units of one step of a (50, 3)-parity at width 100 and batch 32.
# Unlike seconds they are the same in every run, so that a resumed one goes the same way.
UNIT_STEP = 640_000
# A stage is cut into about so many chunks, each of at least so many (unit) steps of the whole ensemble. More chunks are
# cut where one would take longer than some ten seconds: nothing is told, saved or compacted inside of one.
CHUNKS = 64
LEAST_REPLICA_STEPS = {"cpu": 16_384, "gpu": 200_000}
MOST_REPLICA_STEPS = {"cpu": 2_000_000, "gpu": 1_000_000_000}
LEAST_STEPS = {"cpu": 1, "gpu": 2_000}
# What compiling costs, in unit steps: once stopped replicas have wasted as much, the others are compacted. Programs of
# heavy steps, of more than four units, take a GPU longer to compile and use it better.
WORTH_COMPACTING = {"cpu": 300_000, "gpu": 200_000_000}
HEAVY = 4
HEAVY_IS_WORTH = {"cpu": 1, "gpu": 8}

MANY_SLOTS = 1024

# Bytes of a core's cache. Where the largest arrays of a step do not fit in it side by side, replicas take turns: two
# layers of width 1000 are then 1.6 times faster. Below a sixteenth of it what is gained is lost to smaller products.
# Probes, which look at many examples but seldom, take turns from a quarter of it on.
CACHE = 2**20
CACHE_PROBED = CACHE // 4


@dataclass(frozen=True)
class Chunk:
    """Records dispatched together, of `lengths` steps each; `even` if these are all the same."""

    start: int
    lengths: tuple[int, ...]
    even: bool

    @property
    def steps(self) -> int:
        return sum(self.lengths)

    @property
    def end(self) -> int:
        return self.start + self.steps


def plan(
    begin: int, end: int, records: Sequence[int], cuts: Sequence[int], least_steps: float, most_steps: float
) -> list[Chunk]:
    """Cut a stage into chunks: a function of the spec alone, so that a resumed run takes the same path."""
    marks = [begin, *(r for r in records if begin < r <= end)]
    lengths = [b - a for a, b in zip(marks, marks[1:], strict=False)]
    # A schedule with many different gaps runs in one program whose trip counts are data.
    even = len(set(lengths)) <= 2
    least, most = (int(steps * len(lengths) / (end - begin)) for steps in (least_steps, most_steps))
    per_chunk = max(min(-(-len(lengths) // CHUNKS), most), least, 1)
    chunks, i = [], 0
    while i < len(lengths):
        j = i + 1
        while j < min(len(lengths), i + per_chunk) and marks[j] not in cuts:
            if even and lengths[j] != lengths[i]:
                break
            j += 1
        chunks.append(Chunk(marks[i], tuple(lengths[i:j]), even))
        i = j
    return chunks


def memory_budget() -> float:
    """Bytes one device may use for replicas."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return 0.85 * stats["bytes_limit"]
    return 0.6 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / jax.local_device_count()


class TooLarge(Exception):
    """A program needs more memory than a device may use."""

    def __init__(self, needed: float, budget: float):
        self.needed, self.budget = needed, budget

    @classmethod
    def of(cls, error: Exception) -> "TooLarge":
        """What an exception says about memory; any other is raised again."""
        if isinstance(error, TooLarge):
            return error
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise error
        # Choosing kernels or running took more than there is; how much more is not told.
        return cls(2 * memory_budget(), memory_budget())


class Meter:
    """Counts replica-steps for the workspace's progress."""

    def __init__(self, label: str, total: int):
        self.label, self.total, self.base, self.worked = label, total, 0, 0
        self.began = time.monotonic()

    def tell(self, covered: int, worked: int = 0) -> None:
        """`covered` replica-steps lie behind us; `worked` more were really computed."""
        self.worked += worked
        rate = self.worked / max(time.monotonic() - self.began, 1e-9)
        current_workspace().tell(self.label, self.base + covered, self.total, rate)


@dataclass
class Journal:
    """Everything a batch of replicas has to show so far; saved as it is.

    stage, chunk   where to go on; chunk 0 means that the stage has not been entered
    replicas       the `Replica`s in the slots; a list of their leaves when saved
    rows           which replica each slot of the compiled program holds; −1 fills up to the device count
    alive          number of records each replica was still running for
    """

    rows: np.ndarray
    status: np.ndarray
    reached: np.ndarray
    alive: np.ndarray
    stage: int = 0
    chunk: int = 0
    replicas: Any = None
    records: dict[str, np.ndarray] = field(default_factory=dict)
    networks: list[np.ndarray] | None = None
    snapshots: dict[int, list[np.ndarray]] = field(default_factory=dict)
    worked: int = 0
    wasted: float = 0.0


_programs: dict[tuple, Any] = {}
# Compiled code takes address space that the system limits, so only the latest programs are kept.
PROGRAMS = 64


def forget_programs() -> None:
    """Let go of everything compiled so far: an experiment's programs are of no use to the next."""
    _programs.clear()
    jax.clear_caches()


class Ensemble:
    """One batch of replicas of a group, from initialisation to its last record."""

    def __init__(self, group: Group, meter: Meter):
        self.group, self.spec, self.meter = group, group.spec, meter
        self.platform = "cpu" if jax.local_devices()[0].platform == "cpu" else "gpu"
        self.columns = {0: 0} | {step: i + 1 for i, step in enumerate(self.spec.records)}
        self.key = group_key(self.spec)
        self.structures: list[Any] = []
        self.replica_structures: list[Any] = []
        self.steps: list[Callable[[], Jaxpr]] = []
        self.programs = self._trace()

    def _trace(self) -> list[Program]:
        """One program per stage; the networks' static parts are found by abstract evaluation."""
        programs, net_static = [], None
        replica = jax.tree.map(lambda a: jnp.asarray(a[0]), self._blank())
        for stage in range(len(self.spec.stages)):
            found: list[Any] = []
            own = own_leaves(stage_task(self.spec, stage))
            entering = Program(self.group.static, stage, net_static, own, self.platform == "gpu")

            def enter(replica, program=entering, found=found):
                replica, static = program.enter(replica, self.group.shared)
                found.append(static)
                return replica

            replica = jax.eval_shape(enter, replica)
            program = replace(entering, net_static=found[0])
            self.steps.append(cache(partial(self._step, program, replica)))
            programs.append(self._with_turns(program, replica))
            self.structures.append(jax.tree.structure(replica.network))
            self.replica_structures.append(jax.tree.structure(replica))
            net_static = found[0]
        return programs

    def _step(self, program: Program, replica: Any) -> Jaxpr:
        """One step of one replica, not compiled for any device."""
        plain, t = replace(program, on_gpu=False), jax.ShapeDtypeStruct((), jnp.int32)
        return jax.make_jaxpr(lambda r, t: plain.advance(r, self.group.shared, t, 1, t, 1))(replica, t).jaxpr

    def _with_turns(self, program: Program, replica: Any) -> Program:
        """On CPUs: whether replicas that step, or are probed, together would leave a core's cache."""
        if self.platform != "cpu" or self.group.size <= jax.local_device_count():
            return program
        t = jax.ShapeDtypeStruct((), jnp.int32)
        probed = jax.make_jaxpr(lambda r, t: program.measure(r, self.group.shared, t))(replica, t).jaxpr
        largest = largest_array(self.steps[program.stage]())
        together = largest * self.group.size / jax.local_device_count()
        return replace(
            program,
            in_turn=largest >= CACHE // 16 and together >= 2 * CACHE,
            measured_in_turn=largest_array(probed) >= CACHE_PROBED,
        )

    def network(self, leaves: list[np.ndarray], step: int) -> Any:
        """The networks as they were after `step` steps, from their flattened arrays."""
        ends = np.cumsum([stage.steps for stage in self.spec.stages])
        stage = int(np.searchsorted(ends, step))
        return eqx.combine(jax.tree.unflatten(self.structures[stage], leaves), self.programs[stage].net_static)

    def _blank(self) -> Replica:
        group, size = self.group, self.group.size
        fate = [np.zeros(size, np.int32) for _ in range(3)]
        return Replica(group.numbers, group.init_seed, group.data_seed, None, None, None, None, *fate)

    def _mesh(self, slots: int) -> Mesh:
        devices = jax.local_devices()
        return Mesh(np.array(devices[: min(len(devices), slots)]), ("replica",))

    def _pad(self, rows: np.ndarray) -> np.ndarray:
        """Rows filled up with −1 to a multiple of the devices in use."""
        devices = min(jax.local_device_count(), len(rows))
        return np.concatenate([rows, np.full(-len(rows) % devices, -1)])

    def _compiled(self, name: str, function: Callable, arguments: tuple, form: tuple) -> Any:
        """`function(replicas, *rest) -> replicas, records`, compiled for these shapes, split over the devices."""
        slots = arguments[0].status.shape[0]
        mesh = self._mesh(slots)
        key = (name, self.key, slots, mesh, jnp.zeros(()).dtype, form)
        if key not in _programs:
            across = PartitionSpec("replica")
            mapped = function
            if mesh.size > 1:
                mapped = jax.shard_map(
                    function,
                    mesh=mesh,
                    in_specs=(across, *[PartitionSpec()] * (len(arguments) - 1)),
                    out_specs=(across, PartitionSpec(None, "replica")),
                    check_vma=False,
                )
            program = jax.jit(mapped, donate_argnums=0).lower(*arguments).compile(self._options(name, slots))
            memory = program.memory_analysis()
            if memory is not None:
                needed = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
                if needed - memory.alias_size_in_bytes > memory_budget():
                    raise TooLarge(needed - memory.alias_size_in_bytes, memory_budget())
            if len(_programs) >= PROGRAMS:
                del _programs[next(iter(_programs))]
            _programs[key] = program
        return _programs[key](*arguments)

    def _options(self, name: str, slots: int) -> dict[str, Any]:
        """How XLA compiles: what runs once is not worth optimising (on CPUs 0.6 s instead of 2), and on GPUs
        full-precision products of thousands of small matrices are faster by the vendor's library than by generated
        kernels (14.2 against 13.4 million replica-steps/s at 4096 on an H200), of a few they are slower."""
        if self.platform == "cpu":
            return {"xla_backend_optimization_level": 1} if name == "enter" else {}
        exact = self.spec.precision == "highest"
        return {"xla_gpu_enable_triton_gemm": False} if exact and slots >= MANY_SLOTS else {}

    def _place(self, replicas: Any, slots: int) -> Any:
        return jax.device_put(replicas, NamedSharding(self._mesh(slots), PartitionSpec("replica")))

    def _shared(self, slots: int) -> Any:
        return jax.device_put(self.group.shared, NamedSharding(self._mesh(slots), PartitionSpec()))

    # --- the walk

    def run(self, journal: Journal | None, save: Callable[[Journal], None]) -> Journal:
        """Train all replicas, going on from `journal` where one was saved."""
        size, width = self.group.size, len(self.columns)
        if journal is None:
            fate = np.zeros(size, np.int32), np.full(size, np.inf), np.full(size, 1)
            journal = Journal(self._pad(np.arange(size)), *fate)
            journal.replicas = jax.tree.map(lambda a: a[np.maximum(journal.rows, 0)], self._blank())
        elif journal.replicas is not None:
            journal.replicas = jax.tree.unflatten(self.replica_structures[journal.stage], journal.replicas)
        with jax.default_matmul_precision(self.spec.precision):
            begin = 0
            for index, stage in enumerate(self.spec.stages):
                end = begin + stage.steps
                if index >= journal.stage and journal.replicas is not None:
                    self._stage(journal, index, begin, end, save)
                begin = end
        if journal.replicas is not None:
            self._retire(journal, journal.rows >= 0)
        journal.replicas = None
        for name, values in journal.records.items():
            last = np.minimum(np.arange(width), journal.alive[:, None] - 1)
            filled = np.take_along_axis(values, last.reshape(*last.shape, *[1] * (values.ndim - 2)), axis=1)
            late = np.arange(width) >= journal.alive[:, None]
            keeps = ~late | (journal.status == REACHED)[:, None]
            # A counted number or a truth of a replica that diverged is unknown too, hence no longer whole.
            if not keeps.all():
                filled = np.where(keeps.reshape(*keeps.shape, *[1] * (values.ndim - 2)), filled, np.float32(np.nan))
            journal.records[name] = filled
        return journal

    def _stage(self, journal: Journal, index: int, begin: int, end: int, save: Callable[[Journal], None]) -> None:
        slots = len(journal.rows)
        journal.replicas = self._place(journal.replicas, slots)
        shared = self._shared(slots)
        program = self.programs[index]
        if index != journal.stage or journal.chunk == 0:
            entering = program if index == 0 else replace(program, net_static=self.programs[index - 1].net_static)

            def enter(replicas, shared):
                entered = each(lambda r: entering.enter(r, shared)[0], replicas)
                if index > 0:
                    return _stopped_kept(replicas, entered), {}
                out = each(lambda r: program.measure(r, shared, jnp.zeros((), jnp.int32)), entered)
                return entered, jax.tree.map(lambda a: a[None], out)

            journal.replicas, out = self._compiled("enter", enter, (journal.replicas, shared), (index,))
            journal.stage, journal.chunk = index, 0
            if index == 0:
                out = jax.device_get(out)
                out["loss"] = np.full((1, slots), np.nan, np.float32)
                out["_moved"] = np.zeros((1, slots), bool)
                self._record(journal, out, [0])
            if index == 0 and 0 in self.spec.snapshots:
                self._snapshot(journal, 0)
        cost = max(1.0, operations(self.steps[index]()) / UNIT_STEP)
        least = max(LEAST_STEPS[self.platform], LEAST_REPLICA_STEPS[self.platform] // self.group.size)
        # light steps keep long chunks: another dispatch would cost more than an earlier look is worth
        least = int(least / cost) if cost > HEAVY else least
        most = MOST_REPLICA_STEPS[self.platform] / (cost * self.group.size)
        chunks = plan(begin, end, self.spec.records, self.spec.snapshots, least, most)
        worth = WORTH_COMPACTING[self.platform] * (HEAVY_IS_WORTH[self.platform] if cost > HEAVY else 1)
        for number in range(journal.chunk, len(chunks)):
            chunk = chunks[number]
            if not self._compact(journal, worth):
                self.meter.tell(self.group.size * self.spec.steps)
                return
            if len(journal.rows) != slots:
                slots, shared = len(journal.rows), self._shared(len(journal.rows))
            running = int(np.sum(journal.status[journal.rows[journal.rows >= 0]] == RUNNING))
            self._dispatch(journal, program, shared, chunk, begin)
            journal.wasted += (slots - running) * chunk.steps * cost
            journal.chunk = number + 1
            if chunk.end in self.spec.snapshots:
                self._snapshot(journal, chunk.end)
            self.meter.tell(self.group.size * chunk.end, slots * chunk.steps)
            save(journal)

    def _dispatch(self, journal: Journal, program: Program, shared: Any, chunk: Chunk, begin: int) -> None:
        count, length = len(chunk.lengths), chunk.lengths[0]

        def run(replicas, shared, t, begin, lengths):
            return program.chunk(replicas, shared, t, begin, (count, length) if chunk.even else lengths)

        lengths = np.asarray(chunk.lengths, np.int32)
        form = (program.stage, count, length if chunk.even else None)
        arguments = (journal.replicas, shared, np.int32(chunk.start), np.int32(begin), lengths)
        journal.replicas, out = self._compiled("chunk", run, arguments, form)
        journal.worked += len(journal.rows) * chunk.steps
        steps = chunk.start + np.cumsum(chunk.lengths)
        self._record(journal, jax.device_get(out), [self.columns[step] for step in steps.tolist()])
        real = journal.rows >= 0
        rows = journal.rows[real]
        status, reached = jax.device_get((journal.replicas.status, journal.replicas.reached))
        journal.status[rows] = status[real]
        journal.reached[rows] = np.where(status[real] == REACHED, reached[real], np.inf)

    def _record(self, journal: Journal, out: dict[str, np.ndarray], columns: list[int]) -> None:
        """Write records, given as (record, slot, …), into the rows of the replicas they belong to."""
        real = journal.rows >= 0
        rows = journal.rows[real]
        moved = out.pop("_moved")[:, real]
        journal.alive[rows] += np.sum(moved, axis=0)
        for name, values in out.items():
            values = np.moveaxis(values[:, real], 0, 1)
            if name not in journal.records:
                blank = np.nan if np.issubdtype(values.dtype, np.inexact) else 0
                shape = (self.group.size, len(self.columns), *values.shape[2:])
                journal.records[name] = np.full(shape, blank, values.dtype)
            journal.records[name][rows[:, None], np.asarray(columns)] = values

    def _compact(self, journal: Journal, worth: float) -> bool:
        """Drop stopped replicas once they have wasted what is worth it; False when none is left."""
        running = (journal.rows >= 0) & (journal.status[journal.rows] == RUNNING)
        live = int(np.sum(running))
        slots = len(journal.rows)
        if live == 0:
            for step in set(self.spec.snapshots) - journal.snapshots.keys():
                self._snapshot(journal, step)
            self._retire(journal, journal.rows >= 0)
            journal.replicas = None
            return False
        # Eight sizes to a doubling, so that programs can be used again.
        grain = 1 << max(0, live.bit_length() - 4)
        target = -(-live // grain) * grain
        if target >= slots or journal.wasted < worth:
            return True
        self._retire(journal, (journal.rows >= 0) & ~running)
        keep = np.flatnonzero(running)
        chosen = self._pad(np.concatenate([journal.rows[keep], np.full(target - live, -1)]))
        source = np.concatenate([keep, np.full(len(chosen) - live, keep[0])])
        journal.replicas = self._place(jax.tree.map(lambda a: a[source], journal.replicas), len(chosen))
        journal.rows, journal.wasted = chosen, 0.0
        return True

    def _arrays(self, journal: Journal, chosen: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(a)[chosen] for a in jax.tree.leaves(journal.replicas.network)]

    def _retire(self, journal: Journal, chosen: np.ndarray) -> None:
        """Keep the networks of these slots as final."""
        if not self.spec.networks:
            return
        arrays = self._arrays(journal, chosen)
        if journal.networks is None:
            journal.networks = [np.zeros((self.group.size, *a.shape[1:]), a.dtype) for a in arrays]
        for final, values in zip(journal.networks, arrays, strict=True):
            final[journal.rows[chosen]] = values

    def _snapshot(self, journal: Journal, step: int) -> None:
        real = journal.rows >= 0
        arrays = self._arrays(journal, real)
        kept = [
            np.full((self.group.size, *a.shape[1:]), np.nan if np.issubdtype(a.dtype, np.inexact) else 0, a.dtype)
            for a in arrays
        ]
        for whole, values in zip(kept, arrays, strict=True):
            whole[journal.rows[real]] = values
        if journal.networks is not None:
            gone = np.setdiff1d(np.arange(self.group.size), journal.rows[real])
            for whole, final in zip(kept, journal.networks, strict=True):
                whole[gone] = final[gone]
        journal.snapshots[step] = kept


def _stopped_kept(before: Replica, entered: Replica) -> Replica:
    """The replicas that enter a stage; one that has stopped keeps its network, where the stage has not reshaped it."""

    def keep(new, old):
        return jnp.where((before.status == RUNNING).reshape(-1, *[1] * (new.ndim - 1)), new, old)

    same = [a.shape for a in jax.tree.leaves(before.network)] == [a.shape for a in jax.tree.leaves(entered.network)]
    if not same or jax.tree.structure(before.network) != jax.tree.structure(entered.network):
        return entered
    kept = jax.tree.map(keep, entered.network, before.network)
    return eqx.tree_at(lambda r: r.network, entered, kept)


@dataclass
class Result:
    """A group's outcome, replica axis first: records, fate, networks and snapshots by step."""

    records: dict[str, np.ndarray]
    status: np.ndarray
    reached: np.ndarray
    alive: np.ndarray
    networks: Any
    snapshots: dict[int, Any]
    worked: int


def run_group(group: Group, replicas_at_once: int | None, label: str) -> Result:
    """Train a group in as many batches of replicas as memory asks for, going on from a checkpoint."""
    checkpoint = Checkpoint(fingerprint(group))
    wished = replicas_at_once or getattr(group.spec.network, "at_once", None) or group.size
    saved = checkpoint.load() or {"batches": [], "at_once": wished, "journal": None}
    batches, at_once, journal = saved["batches"], min(saved["at_once"], group.size), saved["journal"]
    meter = Meter(label, group.size * group.spec.steps)
    while (done := sum(len(batch.status) for batch in batches)) < group.size:
        meter.base = done * group.spec.steps

        def save(journal: Journal, done: bool = False, at_once: int = at_once) -> None:
            if done or checkpoint.due():
                leaves = jax.device_get(jax.tree.leaves(journal.replicas))
                unfinished = None if done else replace(journal, replicas=leaves)
                checkpoint.save({"batches": batches, "at_once": at_once, "journal": unfinished})

        try:
            batch = Ensemble(group.part(slice(done, done + at_once)), meter).run(journal, save)
        except (TooLarge, jax.errors.JaxRuntimeError) as error:
            large = TooLarge.of(error)
            if at_once <= jax.local_device_count() or replicas_at_once:
                raise InputError(
                    f"{at_once} replicas at once need {large.needed / 2**30:.1f} GiB on each device, which may use "
                    f"{large.budget / 2**30:.1f} GiB: make the network, batch or sample smaller"
                    " or set replicas_at_once lower"
                ) from None
            at_once = max(jax.local_device_count(), int(0.9 * at_once * large.budget / large.needed))
            journal = None
            continue
        batches.append(batch)
        journal = None
        save(batch, done=True)
    meter.base = 0
    meter.tell(meter.total)
    return _joined(group, batches, meter)


def _joined(group: Group, batches: list[Journal], meter: Meter) -> Result:
    shape = Ensemble(group.part(slice(0, 1)), meter)

    def network(parts: list[list[np.ndarray]], step: int) -> Any:
        return shape.network([np.concatenate(leaf) for leaf in zip(*parts, strict=True)], step)

    return Result(
        records={n: np.concatenate([b.records[n] for b in batches]) for n in batches[0].records},
        status=np.concatenate([b.status for b in batches]),
        reached=np.concatenate([b.reached for b in batches]),
        alive=np.concatenate([b.alive for b in batches]),
        networks=network([b.networks or [] for b in batches], group.spec.steps) if group.spec.networks else None,
        snapshots={step: network([b.snapshots[step] for b in batches], step) for step in batches[0].snapshots},
        worked=sum(b.worked for b in batches),
    )
