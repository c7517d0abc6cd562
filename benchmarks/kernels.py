"""The kernels that GPUs train in against the same training operation by operation: are they right, what do they gain?

Wide two-layer networks (n = 200, width 10,000, batch 32: 003 Fig C.1) and transformers on conjunctions under dropout
(200 examples of T = 300 bits, of which 150 carry weight: 003 Fig 4.2), by plain gradient descent, which shows a wrong
gradient in its own size.
"""

import json as json_format
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from krogh.errors import InputError
from krogh.lab.timing import Readings, seconds_per_step

# Relative to how far the parameter that moved most has moved. A neuron whose pre-activation is a tie goes either way.
ALLOWED, TIES = 1e-4, 1e-3
# So many wide networks take the kernel as the grids do, several to a multiprocessor.
COMPARED = 256


def cases() -> dict[str, tuple[Any, Any, Any, int, int]]:
    """Task, network, learner, replicas and steps to be timed."""
    from krogh.nn import MLP, OneLayerTransformer
    from krogh.systems.variable_creation.conjunctions import weighted_loss
    from krogh.tasks import SparseBoolean, SparseParity
    from krogh.tasks.sparse_boolean import balanced_bias
    from krogh.train import SGD

    hinge = SGD(lr=0.1, batch=32, loss="hinge", weight_decay=0.01)
    whole = SGD(lr=1.0, batch=None, samples=200, objective=weighted_loss)
    conjunction = SparseBoolean(300, bias=balanced_bias(3), m=150.0)
    return {
        "wide": (SparseParity(200, 3), MLP(10_000), hinge, 528, 512),
        "dropped": (conjunction, OneLayerTransformer(), whole, 256, 64),
    }


@contextmanager
def kernels(on: bool) -> Iterator[None]:
    """Training with the kernels where they apply, or without them."""
    from krogh.nn import dropped_attention
    from krogh.train import fused
    from krogh.train.engine import forget_programs

    own = fused.applies, dropped_attention.applies
    if not on:
        fused.applies = dropped_attention.applies = lambda *_: False
    forget_programs()
    try:
        yield
    finally:
        fused.applies, dropped_attention.applies = own


def moves(case: tuple, steps: int, replicas: int) -> list[np.ndarray]:
    """How far every parameter moves from its start."""
    import jax

    from krogh.train import train

    task, network, learner, *_ = case
    run = train(task, network, learner, steps, seeds=replicas, every=steps, snapshots=[0])
    start, end = (jax.tree.leaves(tree) for tree in (run.snapshots[0], run.networks))
    return [b - a for a, b in zip(start, end, strict=True) if isinstance(a, np.ndarray) and a.dtype == np.float32]


def rate(case: tuple) -> float:
    """Replica-steps per second."""
    from krogh.train import train

    task, network, learner, replicas, steps = case

    def run(length: int):
        train(task, network, learner, length, seeds=replicas, every=length, networks=False)

    return replicas / seconds_per_step(run, steps)


def off(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The share of numbers that differ by more than is allowed."""
    most = max(np.abs(move).max() for move in theirs)
    wrong = sum(int(np.sum(~(np.abs(a - b) <= ALLOWED * most))) for a, b in zip(ours, theirs, strict=True))
    return wrong / sum(move.size for move in theirs)


def main(json: bool = False, record: bool = False) -> None:
    """Measure, print a table (or JSON), and with `record` write the ledger's rows for this machine."""
    import jax

    if jax.default_backend() == "cpu":
        raise InputError("the kernels run on GPUs, and JAX finds none here.")
    readings, result = Readings(record), {}
    for name, case in cases().items():
        with kernels(True):
            ours, fast = moves(case, 16, COMPARED), readings.rate(f"{name}, kernel", rate(case))
        with kernels(False):
            theirs, slow = moves(case, 16, COMPARED), readings.rate(f"{name}, by operations", rate(case))
        wrong = off(ours, theirs)
        result[name] = {"kernel": fast, "operations": slow, "times": fast / slow, "off": wrong}
        readings.note(f"kernel-{name}-right", f"share of parameters off after 16 steps ({name})", wrong, at_most=TIES)
        readings.note(
            f"kernel-{name}", f"training in the kernel against by operations ({name})", fast / slow, at_least=1
        )
    if json:
        print(json_format.dumps({"device": jax.devices()[0].device_kind, "cases": result}, indent=1))
        return
    print(f"replica-steps per second on {jax.devices()[0].device_kind}")
    for name, found in result.items():
        print(
            f"{name:10} kernel {found['kernel']:12.0f}   by operations {found['operations']:12.0f}   "
            f"{found['times']:5.1f} times; {found['off']:.1e} of the parameters off"
        )


if __name__ == "__main__":
    main()
