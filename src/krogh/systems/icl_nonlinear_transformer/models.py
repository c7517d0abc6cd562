"""The prompts and the training that all experiments of the chapter share (004 §6.5)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from krogh.nn.prompt_transformer import PromptTransformer
from krogh.tasks.pattern_prompts import PatternPrompts, pattern_prompts, shifted_patterns
from krogh.train import SGD, Spec, spec


@dataclass(frozen=True)
class Training:
    """The document's data; m, delta, lr, batch and steps are not stated there.

    length    examples in a training prompt, l_tr
    prompts   test prompts per replica and case
    """

    M1: int = 6
    M2: int = 24
    alpha: float = 0.8
    length: int = 20
    K: float = 0.5
    beta: float = 3.0
    width: int = 100
    heads: int = 1
    delta: float = 0.1
    lr: float = 1.0
    batch: int = 100
    steps: int = 400
    prompts: int = 4096
    seeds: int = 16


def prompts_of(s: Training, **fields: Any) -> PatternPrompts:
    """The training prompts: M1 tasks in a cycle, so that every pattern has both labels once."""
    return pattern_prompts(s.M1, s.M2, **({"length": s.length, "alpha": s.alpha, "K": s.K, "beta": s.beta} | fields))


def training(
    s: Training,
    task: PatternPrompts | None = None,
    network: PromptTransformer | None = None,
    probes: tuple[Callable, ...] = (),
    **settings: Any,
) -> Spec:
    """SGD on the hinge loss with fresh prompts every step; validation is on unseen tasks."""
    return spec(
        prompts_of(s) if task is None else task,
        PromptTransformer(s.width, s.heads, delta=s.delta) if network is None else network,
        SGD(lr=s.lr, batch=s.batch),
        s.steps,
        **({"seeds": s.seeds, "probes": probes, "every": s.steps} | settings),
    )


def out_of_domain(task: PatternPrompts, sum_1: float = 1.28, K: float = 5.0) -> PatternPrompts:
    """The document's three new patterns, S_1 = sum_1 and S_2 = S_3 = √2; a = b = 0.64 is sum_1 = 1.28."""
    return task.shifted(jnp.asarray(shifted_patterns(sum_1, len(task.relevant)), jnp.float32), K)


def smallest_length(errors: np.ndarray, lengths: np.ndarray) -> float:
    """The first length at which the seeds' mean error (seed, length) is at most 0.05; inf if none."""
    enough = errors.mean(axis=0) <= 0.05
    return float(lengths[enough.argmax()]) if enough.any() else np.inf
