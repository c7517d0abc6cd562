"""What a result was made with: versions, device and hardware."""

import functools
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

PACKAGES = ("krogh", "jax", "equinox", "optax", "numpy", "scipy", "scikit-learn", "xarray")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@functools.cache
def environment() -> dict[str, Any]:
    """versions {package: version}, device {kind: cpu|gpu, name, count}, hardware {machine, cores, …}."""
    import jax

    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    first, cores = jax.devices()[0], len(os.sched_getaffinity(0))
    kind = "cpu" if first.platform == "cpu" else "gpu"
    name = f"{_processor()}, {cores} cores" if kind == "cpu" else first.device_kind
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "versions": versions,
        "device": {"kind": kind, "name": name, "count": len(jax.devices())},
        "hardware": {"machine": platform.machine(), "cores": cores, "memory_gb": round(memory, 1)},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
