"""Training the head, and asking trained heads many questions at once (004 §7.2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from krogh.nn.query_attention import QueryAttention, QueryReader
from krogh.probes.basic import outputs_on, probe
from krogh.probes.chain_of_thought import KINDS, infer
from krogh.tasks.base import Batch
from krogh.tasks.chain_of_thought import ChainPrompts, ErroneousChains, rotated
from krogh.train import SGD, Spec, spec, sweep
from krogh.train.cells import Cells


@dataclass(frozen=True)
class Training:
    """The document's sizes (§7.5); examples, batch, eta, steps and xi are not stated. Only eta t matters."""

    M: int = 20
    K: int = 3
    d: int = 30
    examples: int = 20
    alpha: float = 0.4
    xi: float = 0.01
    eta: float = 10.0
    batch: int = 100
    steps: int = 600
    seeds: int = 16


@dataclass(frozen=True)
class Testing(Training):
    """How trained heads are asked: on M' patterns, with prompts of these lengths, `at_once` queries in memory."""

    test_patterns: int = 10
    lengths: tuple[int, ...] = (5, 10, 20, 40, 80)
    queries: int = 256
    at_once: int = 64


SMOKE: dict[str, Any] = {"M": 6, "d": 10, "examples": 10, "batch": 30, "steps": 60, "seeds": 2}
SMOKE_TEST = SMOKE | {"test_patterns": 4, "lengths": (5, 10), "queries": 16, "at_once": 16}


def half_squares(output: Array, y: Array) -> Float[Array, ""]:
    """½‖y − f‖² (7.3)."""
    return 0.5 * jnp.sum((y - output) ** 2)


def error(network: Any, validation: Batch) -> Float[Array, ""]:
    """Mean of ½‖z − F‖² on fresh training prompts."""
    return jnp.mean(jax.vmap(half_squares)(outputs_on(network, validation.x), validation.y))


@probe(dims=("vector", "coordinate"))
def frame(task: ChainPrompts) -> Float[Array, "vectors d"]:
    """The replica's patterns and step vectors."""
    return task.frame


def head_run(s: Training, **settings: Any) -> Spec:
    """SGD on W alone (F.1), for all seeds."""
    return spec(
        ChainPrompts(s.M, s.K, s.d, s.examples, s.alpha),
        QueryAttention(s.xi),
        SGD(lr=s.eta, batch=s.batch, loss=half_squares),
        s.steps,
        seeds=s.seeds,
        **settings,
    )


@dataclass(frozen=True)
class Heads:
    """Trained heads, one per seed, with the vectors they were trained on."""

    weights: Float[Array, "seeds width width"]
    patterns: Float[Array, "seeds M d"]
    steps: Float[Array, "seeds K d"]


def trained(s: Training) -> Heads:
    run = sweep(head_run(s, probes=[frame], record=[s.steps]))
    vectors = jnp.asarray(run.data.frame.isel(step=-1).transpose("seed", "vector", "coordinate").values)
    return Heads(jnp.asarray(run.networks.weights), vectors[:, : s.M], vectors[:, s.M :])


def ask(
    heads: Heads,
    s: Testing,
    maps: np.ndarray,
    A: Sequence[np.ndarray],
    alpha: Sequence[float],
    noise: float | Sequence[float] = 0.2,
    patterns: Sequence[Float[Array, "seeds M d"]] | None = None,
) -> xr.Dataset:
    """What `infer` measures, for every case (rows of A, alpha, noise, patterns) and seed.

    A[case] holds each seed's transition matrices (seeds, K, M', M'). Test patterns are rotations in the span of the
    training patterns unless given.
    """
    cases, seeds, blocks = len(A), len(heads.weights), -(-s.queries // s.at_once)
    keys = jax.random.split(jax.random.key(0), (2, seeds))
    shown = rotated(keys[0], s.test_patterns, heads.patterns)
    noises = np.broadcast_to(noise, cases)
    # cases share their random numbers, so that they differ by what is asked alone
    numbers = jnp.arange(seeds * blocks, dtype=jnp.uint32)
    asked = _in_turn(
        lambda weights, patterns, steps, A, alpha, noise, key: infer(
            QueryReader(weights),
            ErroneousChains(patterns, steps, jnp.asarray(maps), A, alpha, noise, max(s.lengths)),
            jax.random.fold_in(jax.random.key(1), key),
            s.at_once,
            s.lengths,
        )
    )

    def answers(case: int) -> dict[str, np.ndarray]:
        own = [
            heads.weights,
            shown if patterns is None else patterns[case],
            heads.steps,
            jnp.asarray(A[case], jnp.float32),
            jnp.full(seeds, alpha[case], jnp.float32),
            jnp.full(seeds, noises[case], jnp.float32),
        ]
        found = asked(*(jnp.repeat(values, blocks, axis=0) for values in own), numbers)
        return {name: np.asarray(v).reshape(seeds, blocks, *v.shape[1:]).mean(1) for name, v in found.items()}

    cells = Cells(cases)
    by_case = [cells(f"asking, case {case + 1}", partial(answers, case)) for case in range(cases)]
    means = {name: np.stack([found[name] for found in by_case]) for name in by_case[0]}
    dims = ("case", "seed", "length", "k", "kind")
    data = xr.Dataset(
        {name: (dims[: v.ndim], v) for name, v in means.items()},
        coords={"length": list(s.lengths), "k": np.arange(1, len(maps) + 1), "kind": list(KINDS)},
    )
    steps = data[["cot", "cot_vote"]].rename(cot="cot_steps", cot_vote="cot_vote_steps")
    return data.assign(cot=data.cot.mean("k"), cot_vote=data.cot_vote.mean("k"), **steps)


def _in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of every row of its arguments, one after the other on each device."""

    @jax.jit
    def mapped(*columns: Array) -> Any:
        count, devices = len(columns[0]), jax.local_devices()
        used = max(n for n in range(1, len(devices) + 1) if count % n == 0)
        rows = PartitionSpec("row")
        return jax.shard_map(
            lambda *part: jax.lax.map(lambda row: function(*row), part),
            mesh=Mesh(np.array(devices[:used]), ("row",)),
            in_specs=rows,
            out_specs=rows,
            check_vma=False,
        )(*columns)

    return mapped
