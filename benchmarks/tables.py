"""The step on a table of modular addition against loops written by hand, in JAX and in PyTorch.

k = 4 numbers modulo p = 47, 2944 neurons z^4, batches of 1024 rows of the seen half of 47^4, Adam, cross-entropy plus
5e-3 ‖θ‖_{2,5}: the training of 000 Figs 4.1 and 4.2. By hand, the seen half is an array of row numbers.
"""

import json as json_format
from importlib.util import find_spec

from krogh.lab.timing import Readings, seconds_per_step

K, P, WIDTH, BATCH, LR, PENALTY = 4, 47, 2944, 1024, 5e-3, 5e-3
ROWS = P**K
# Output product, its two gradients, and the powers; picked rows cost memory and no arithmetic.
FLOPS = 3 * 2 * BATCH * WIDTH * P
SAMPLING_LIMIT = 2**20


def engine(steps: int, replicas: int = 1) -> float:
    """Steps per second and replica of `krogh.train` on `ModularAddition`."""
    from krogh.nn.tables import Lookup
    from krogh.systems.modular_fourier_circuits.training import MarginAdam
    from krogh.tasks.modular import ModularAddition
    from krogh.train import train

    learner = MarginAdam(lr=LR, batch=BATCH, b2=0.98, penalty=PENALTY)

    def run(length: int):
        train(ModularAddition(P, K), Lookup(WIDTH), learner, length, seeds=replicas, every=length, networks=False)

    return replicas / seconds_per_step(run, steps)


def by_hand(steps: int) -> float:
    """Steps per second of the loop a JAX user writes: a shuffled half of the table, a scan, optax."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax import lax

    half = jax.random.permutation(jax.random.key(0), ROWS)[: ROWS // 2]
    places = jnp.array([P**j for j in range(K - 1, -1, -1)])
    adam = optax.adam(LR, b2=0.98)
    keys = jax.random.split(jax.random.key(1))
    start = {
        "u": P**-0.5 * jax.random.normal(keys[0], (K, P, WIDTH)),
        "w": P**-0.5 * jax.random.normal(keys[1], (WIDTH, P)),
    }

    def loss(theta, x, y):
        hidden = sum(theta["u"][j][x[:, j]] for j in range(K)) ** K
        cost = optax.softmax_cross_entropy_with_integer_labels(hidden @ theta["w"], y).mean()
        squares = jnp.sum(theta["u"] ** 2, axis=(0, 1)) + jnp.sum(theta["w"] ** 2, axis=1)
        return cost + PENALTY * jnp.sum(squares ** ((K + 1) / 2)) ** (1 / (K + 1))

    def step(state, key):
        theta, memory = state
        rows = half[jax.random.randint(key, (BATCH,), 0, len(half))]
        x = rows[:, None] // places % P
        gradient = jax.grad(loss)(theta, x, x.sum(1) % P)
        update, memory = adam.update(gradient, memory)
        return (optax.apply_updates(theta, update), memory), None

    @jax.jit
    def train(keys):
        return lax.scan(step, (start, adam.init(start)), keys)[0]

    def run(length: int):
        with jax.default_matmul_precision("highest"):
            jax.block_until_ready(train(jax.random.split(jax.random.key(2), length)))

    return 1 / seconds_per_step(run, steps)


def torch_loop(steps: int) -> float:
    """Steps per second of the loop a PyTorch user writes."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    half = torch.randperm(ROWS, device=device)[: ROWS // 2]
    places = torch.tensor([P**j for j in range(K - 1, -1, -1)], device=device)
    u = (P**-0.5 * torch.randn(K, P, WIDTH, device=device)).requires_grad_()
    w = (P**-0.5 * torch.randn(WIDTH, P, device=device)).requires_grad_()
    adam = torch.optim.Adam([u, w], lr=LR, betas=(0.9, 0.98))

    def run(length: int):
        for _ in range(length):
            x = half[torch.randint(len(half), (BATCH,), device=device)][:, None] // places % P
            hidden = sum(u[j][x[:, j]] for j in range(K)) ** K
            cost = torch.nn.functional.cross_entropy(hidden @ w, x.sum(1) % P)
            squares = (u**2).sum((0, 1)) + (w**2).sum(1)
            adam.zero_grad()
            (cost + PENALTY * (squares ** ((K + 1) / 2)).sum() ** (1 / (K + 1))).backward()
            adam.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return 1 / seconds_per_step(run, steps)


def sampling_memory() -> int:
    """Bytes that drawing a replica's split and a batch of it take: the hand-written half of the table takes 9.8 MB."""
    import jax

    from krogh.tasks.modular import ModularAddition

    def draw(key):
        return ModularAddition(P, K).instance(key).sample(key, BATCH)

    memory = jax.jit(draw).lower(jax.random.key(0)).compile().memory_analysis()
    return memory.temp_size_in_bytes + memory.output_size_in_bytes


def main(json: bool = False, record: bool = False) -> None:
    """Measure, print a table (or JSON), and with `record` write the ledger's rows for this machine."""
    import jax

    on_cpu = jax.default_backend() == "cpu"
    steps = 40 if on_cpu else 2000
    readings = Readings(record)
    ours = readings.rate("krogh.train, one replica", engine(steps))
    theirs = readings.rate("by hand in JAX", by_hand(steps))
    readings.note("tables-speed", "step at p = 47, k = 4 against a JAX loop", ours / theirs, at_least=0.9)
    memory = sampling_memory()
    readings.note("tables-memory", "bytes to draw a split of 47^4 rows and a batch", memory, at_most=SAMPLING_LIMIT)
    readings.rate("krogh.train, 4 replicas", engine(steps, 4))
    if find_spec("torch"):
        torch = readings.rate("by hand in PyTorch", torch_loop(40 if on_cpu else 200))
        readings.note("tables-torch", "step at p = 47, k = 4 against a PyTorch loop", ours / torch, at_least=1)
    device = jax.devices()[0].device_kind
    if json:
        result = {"device": device, "steps_per_second": readings.rates, "sampling_bytes": memory}
        print(json_format.dumps(result, indent=1))
        return
    print(f"steps per second on {device}, {jax.local_device_count()} device(s); p = {P}, k = {K}, {WIDTH} neurons")
    for name, rate in readings.rates.items():
        print(f"{name:28} {rate:10.2f} {rate * FLOPS / 1e9:10.1f} GFLOP/s")
    print(f"bytes to draw a split and a batch: {memory:,}")


if __name__ == "__main__":
    main()
