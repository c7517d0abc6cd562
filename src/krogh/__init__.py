"""Krogh: the laboratory for the science of deep learning."""

import os

import jax

# Replicas are spread over JAX devices, so every CPU core is one. Only possible before JAX is in use.
if "jax_num_cpu_devices" in jax.config.values and "XLA_FLAGS" not in os.environ:  # noqa: SIM102
    if not jax._src.xla_bridge.backends_are_initialized():  # type: ignore[attr-defined]
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))

# GPUs multiply single-precision matrices with ten bits unless told otherwise: too few for a least-squares head.
if jax.config.jax_default_matmul_precision is None:  # type: ignore[attr-defined]
    jax.config.update("jax_default_matmul_precision", "highest")

from krogh import nn, probes, tasks  # noqa: E402
from krogh.train import (  # noqa: E402
    SGD,
    Adam,
    Reach,
    Run,
    SignDescent,
    Stage,
    log_spaced,
    spec,
    sweep,
    train,
    workspace,
)

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adam",
    "Reach",
    "Run",
    "SignDescent",
    "Stage",
    "log_spaced",
    "nn",
    "probes",
    "spec",
    "sweep",
    "tasks",
    "train",
    "workspace",
]
