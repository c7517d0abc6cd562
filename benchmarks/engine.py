"""The ensemble engine against a plain `jit(vmap(scan))` and a PyTorch loop over seeds.

(50, 3)-parity, two-layer ReLU network of width 100, batch 32, hinge loss, SGD: the design's yardstick.
"""

import json as json_format
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from typing import Any

from krogh.lab.timing import Readings, best_of

N, K, WIDTH, BATCH, LR = 50, 3, 100, 32, 0.1
# Forward product and weight gradient; everything else is small beside them.
FLOPS = 2 * 2 * BATCH * N * WIDTH
BARS = {1: 1.3, 16: 1.3, 64: 1.3, 256: 1.1}
GPU_BARS = {1: 90e3, 4096: 15e6}


def plain(replicas: int, steps: int) -> float:
    """Replica-steps per second of the loop a JAX user writes: fresh signs each step, vmapped scan."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def start(key):
        keys = jax.random.split(key, 4)
        a, c = N**-0.5, WIDTH**-0.5
        return {
            "w": jax.random.uniform(keys[0], (N, WIDTH), minval=-a, maxval=a),
            "b": jax.random.uniform(keys[1], (WIDTH,), minval=-a, maxval=a),
            "u": jax.random.uniform(keys[2], (WIDTH,), minval=-c, maxval=c),
            "c": jax.random.uniform(keys[3], (), minval=-c, maxval=c),
        }

    def loss(p, x, y):
        out = jax.nn.relu(x @ p["w"] + p["b"]) @ p["u"] + p["c"]
        return jnp.mean(jax.nn.relu(1 - y * out))

    def train(key):
        def step(p, t):
            x = jax.random.rademacher(jax.random.fold_in(key, t), (BATCH, N), dtype=jnp.float32)
            value, gradient = jax.value_and_grad(loss)(p, x, jnp.prod(x[:, :K], axis=1))
            return jax.tree.map(lambda a, g: a - LR * g, p, gradient), value

        return lax.scan(step, start(key), jnp.arange(steps))

    program = jax.jit(jax.vmap(train))
    keys = jax.random.split(jax.random.key(0), replicas)
    with jax.default_matmul_precision("highest"):
        return replicas * steps / best_of(lambda: jax.block_until_ready(program(keys)))


def engine(replicas: int, steps: int, watched: bool = False, **learner: Any) -> float:
    """Replica-steps per second of `kr.train`; `watched` adds progress and an accuracy on 1024 every 500 steps."""
    import krogh as kr
    from krogh.train import workspace

    settings: dict[str, Any] = {"every": steps, "probes": []}
    if watched:
        settings = {"every": 500, "probes": [kr.probes.accuracy]}

    def run():
        with workspace(progress=(lambda *_: None) if watched else None):
            kr.train(
                kr.tasks.SparseParity(n=N, k=K),
                kr.nn.MLP(width=WIDTH),
                kr.SGD(**{"lr": LR, "batch": BATCH, "loss": "hinge"} | learner),
                steps,
                seeds=replicas,
                # By hand, too, the trained networks stay on the device.
                networks=False,
                **settings,
            )

    return replicas * steps / best_of(run)


def torch_loop(steps: int) -> float:
    """Steps per second of a PyTorch loop that trains one seed after another."""
    import torch

    weights = torch.empty(N, WIDTH).uniform_(-(N**-0.5), N**-0.5).requires_grad_()
    bias = torch.zeros(WIDTH, requires_grad=True)
    head = torch.empty(WIDTH).uniform_(-(WIDTH**-0.5), WIDTH**-0.5).requires_grad_()
    optimizer = torch.optim.SGD([weights, bias, head], lr=LR)

    def run():
        for _ in range(steps):
            x = torch.randint(0, 2, (BATCH, N)).float() * 2 - 1
            y = x[:, :K].prod(1)
            optimizer.zero_grad()
            torch.relu(1 - y * (torch.relu(x @ weights + bias) @ head)).mean().backward()
            optimizer.step()

    return steps / best_of(run)


def sampling_share(replicas: int, steps: int) -> float:
    """Share of a training step spent on drawing its batch: the same training on one batch drawn once needs none."""
    return 1 - engine(replicas, steps) / engine(replicas, steps, batch=None, samples=BATCH)


def peak() -> float:
    """Floating-point operations per second of a large single-precision matrix product."""
    import jax
    import jax.numpy as jnp

    size = 2048 if jax.default_backend() == "cpu" else 8192
    a = jax.random.normal(jax.random.key(0), (size, size))
    with jax.default_matmul_precision("highest"):
        product = jax.jit(jnp.matmul)
        return 2 * size**3 / best_of(lambda: product(a, a).block_until_ready(), 5)


def start_up(*command: str) -> float:
    """Seconds of a warm start: compiled modules are kept even where the environment asks Python not to write them."""
    with tempfile.TemporaryDirectory() as folder:
        warm = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        warm["PYTHONPYCACHEPREFIX"] = folder
        return best_of(lambda: subprocess.run(command, check=True, capture_output=True, env=warm))


def main(json: bool = False, record: bool = False) -> None:
    """Measure, print a table (or JSON), and with `record` write the ledger's rows for this machine."""
    import jax

    on_cpu = jax.default_backend() == "cpu"
    budget = 300_000 if on_cpu else 40_000_000
    ceiling = peak() / FLOPS
    readings, lines = Readings(record), []

    for replicas in (1, 16, 64, 256) if on_cpu else (1, 256, 4096):
        steps = 500 * max(4, min(200, budget // replicas // 500))
        by_hand = readings.rate(f"by hand, {replicas}", plain(replicas, steps // 4))
        ours = readings.rate(f"engine, {replicas}", engine(replicas, steps))
        watched = readings.rate(f"engine with probes and progress, {replicas}", engine(replicas, steps, watched=True))
        lines.append((replicas, by_hand, ours, ours / by_hand, ours / ceiling, 1 - watched / ours))
        if on_cpu:
            what = "engine against jit(vmap(scan))"
            readings.note(f"speed-{replicas}", what, ours / by_hand, at_least=BARS[replicas])
            readings.note(f"watched-{replicas}", "cost of probes and progress", 1 - watched / ours, at_most=0.1)
        else:
            readings.note(f"rate-{replicas}", "replica-steps per second", ours, at_least=GPU_BARS.get(replicas))
    extra: dict[str, float] = {"matrix-product peak, GFLOP/s": ceiling * FLOPS / 1e9}
    if on_cpu:
        share = sampling_share(64, 2000)
        extra["sampling share of a step"] = share
        readings.note("sampling", "share of a training step spent on Boolean sampling", share, at_most=0.1)
    if on_cpu and find_spec("torch"):
        loop = torch_loop(500)
        ratio = engine(64, 2000) / loop
        extra["64 seeds against a PyTorch loop"] = ratio
        readings.note("torch-64", "engine at 64 seeds against a PyTorch loop over seeds", ratio, at_least=10)
    if on_cpu:
        seconds = start_up(sys.executable, "-c", "import krogh") - start_up(sys.executable, "-c", "pass")
        extra["import krogh, s"] = seconds
        readings.note("import", "seconds of `import krogh`", seconds, at_most=1.5)
        seconds = start_up(sys.executable, "-m", "krogh.cli", "list")
        extra["krogh list, s"] = seconds
        readings.note("list", "seconds of `krogh list`", seconds, at_most=2)
    if json:
        names = ("replicas", "by_hand", "engine", "ratio", "share_of_peak", "watching_costs")
        table = [dict(zip(names, line, strict=True)) for line in lines]
        print(json_format.dumps({"device": jax.devices()[0].device_kind, "table": table, **extra}, indent=1))
        return
    print(f"replica-steps per second on {jax.devices()[0].device_kind}, {jax.local_device_count()} device(s)")
    print(f"{'replicas':>8} {'by hand':>12} {'engine':>12} {'ratio':>6} {'of peak':>8} {'watched':>8}")
    for replicas, by_hand, ours, ratio, part, cost in lines:
        print(f"{replicas:8d} {by_hand:12,.0f} {ours:12,.0f} {ratio:6.2f} {part:8.0%} {cost:+8.1%}")
    for name, value in extra.items():
        print(f"{name}: {value:,.3g}")


if __name__ == "__main__":
    main()
