"""Sequences: `krogh.train` on Markov chains in context against loops written by hand, in JAX and in PyTorch.

Two attention-only layers with relative positions and layer norms, k = 3 symbols, t = 100, d = 16, batches of 64 fresh
chains, AdamW: the training of 003 Fig 8.3. By hand, chains are drawn token by token.
"""

import json as json_format
import math
from importlib.util import find_spec
from typing import Any

from krogh.lab.timing import Readings, seconds_per_step

K, T, D, LAYERS, BATCH, LR, BETAS, DECAY = 3, 100, 16, 2, 64, 5e-4, (0.9, 0.95), 0.1
# Products of queries with keys and lags and of weights with values, forwards and backwards, in both layers.
FLOPS = 3 * LAYERS * 3 * 2 * BATCH * T * T * D
REPLICAS = {"cpu": (1, 16), "gpu": (1, 256, 16)}
BARS = {1: 1_500, 256: 20_000}


def engine(replicas: int, steps: int, **learner: Any) -> float:
    """Replica-steps per second of `krogh.train`."""
    from krogh.nn.decoder import CausalTransformer
    from krogh.tasks.markov import MarkovChains
    from krogh.train import Adam, train
    from krogh.train.losses import mean_cross_entropy

    adam = Adam(
        **{"lr": LR, "batch": BATCH, "loss": mean_cross_entropy, "b1": BETAS[0], "b2": BETAS[1]} | learner,
        weight_decay=DECAY,
        decay="decoupled",
        decay_matrices=True,
    )

    def run(length: int):
        train(
            MarkovChains(K, T), CausalTransformer(LAYERS, emb=D), adam, length, seeds=replicas, every=length,
            networks=False,
        )  # fmt: skip

    return replicas / seconds_per_step(run, steps)


def by_hand(steps: int) -> float:
    """Steps per second of the loop a JAX user writes: a scan over tokens, optax, jit(scan)."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax import lax

    def normal(key, *shape):
        return 0.02 * jax.random.normal(key, shape)

    def start(key):
        keys = iter(jax.random.split(key, 2 + 5 * LAYERS))
        norm = {"scale": jnp.ones(D), "shift": jnp.zeros(D)}
        layers = [
            {name: normal(next(keys), D, D) for name in ("q", "k", "v", "o")}
            | {"r": normal(next(keys), T, D), "n": norm}
            for _ in range(LAYERS)
        ]
        return {"e": normal(next(keys), K, D), "layers": layers, "n": norm, "p": normal(next(keys), D, K)}

    def chains(key):
        row_key, start_key, *keys = jax.random.split(key, 2 + T)
        rows = jax.random.dirichlet(row_key, jnp.ones(K), (BATCH, K))
        system = jnp.swapaxes(rows, 1, 2) - jnp.eye(K)
        system = system.at[:, -1].set(1.0)
        pi = jnp.linalg.solve(system, jnp.broadcast_to(jnp.eye(K)[-1][:, None], (BATCH, K, 1)))[..., 0]
        first = jax.random.categorical(start_key, jnp.log(jnp.clip(pi, 1e-9)))

        def following(x, key):
            x = jax.random.categorical(key, jnp.log(rows[jnp.arange(BATCH), x]))
            return x, x

        rest = lax.scan(following, first, jnp.stack(keys))[1]
        return jnp.concatenate([first[None], rest]).T

    def norm(p, z):
        z = z - z.mean(-1, keepdims=True)
        return z / jnp.sqrt((z**2).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["shift"]

    lag = jnp.arange(T)[:, None] - jnp.arange(T)

    def logits(p, x):
        z = p["e"][x]
        for layer in p["layers"]:
            s = norm(layer["n"], z)
            q, k, v = (s @ layer[name] for name in ("q", "k", "v"))
            positions = jnp.take_along_axis(q @ layer["r"].T, jnp.broadcast_to(jnp.abs(lag), (BATCH, T, T)), axis=2)
            scores = jnp.where(lag >= 0, (q @ jnp.swapaxes(k, 1, 2) + positions) / math.sqrt(D), -jnp.inf)
            z = z + jax.nn.softmax(scores) @ v @ layer["o"]
        return norm(p["n"], z) @ p["p"]

    def loss(p, x):
        return optax.softmax_cross_entropy_with_integer_labels(logits(p, x[:, :-1]), x[:, 1:]).mean()

    adam = optax.adamw(LR, *BETAS, weight_decay=DECAY, mask=lambda p: jax.tree.map(lambda leaf: leaf.ndim > 1, p))

    def step(state, key):
        p, memory = state
        update, memory = adam.update(jax.grad(loss)(p, chains(key)), memory, p)
        return (optax.apply_updates(p, update), memory), None

    @jax.jit
    def train(keys):
        p = start(jax.random.key(0))
        return lax.scan(step, (p, adam.init(p)), keys)[0]

    def run(length: int):
        with jax.default_matmul_precision("highest"):
            jax.block_until_ready(train(jax.random.split(jax.random.key(2), length)))

    return 1 / seconds_per_step(run, steps)


def torch_loop(steps: int) -> float:
    """Steps per second of the loop a PyTorch user writes; seeds follow each other."""
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    lag = (torch.arange(T)[:, None] - torch.arange(T)).to(device)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(D)
            self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
            self.lags = nn.Parameter(0.02 * torch.randn(T, D))

        def forward(self, z):
            q, k, v = self.qkv(self.norm(z)).chunk(3, dim=-1)
            positions = (q @ self.lags.T).gather(2, lag.abs().expand(len(z), T, T))
            scores = ((q @ k.transpose(1, 2) + positions) / math.sqrt(D)).masked_fill(lag < 0, -math.inf)
            return z + self.out(scores.softmax(-1) @ v)

    net = nn.Sequential(
        nn.Embedding(K, D), *(Layer() for _ in range(LAYERS)), nn.LayerNorm(D), nn.Linear(D, K, bias=False)
    ).to(device)
    adam = torch.optim.AdamW(net.parameters(), LR, BETAS, weight_decay=DECAY)

    def chains():
        rows = torch.distributions.Dirichlet(torch.ones(K, device=device)).sample((BATCH, K))
        system = rows.transpose(1, 2) - torch.eye(K, device=device)
        system[:, -1] = 1
        pi = torch.linalg.solve(system, torch.eye(K, device=device)[-1].expand(BATCH, K)[..., None])[..., 0]
        x = [torch.multinomial(pi.clamp(min=0), 1)[:, 0]]
        for _ in range(T):
            x.append(torch.multinomial(rows[torch.arange(BATCH, device=device), x[-1]], 1)[:, 0])
        return torch.stack(x, dim=1)

    def run(length: int):
        for _ in range(length):
            x = chains()
            adam.zero_grad()
            nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
            adam.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return 1 / seconds_per_step(run, steps)


def main(json: bool = False, record: bool = False) -> None:
    """Measure, print a table (or JSON), and with `record` write the ledger's rows for this machine."""
    import jax

    on_cpu = jax.default_backend() == "cpu"
    replicas = REPLICAS["cpu" if on_cpu else "gpu"]
    steps = {r: max(8, (160 if on_cpu else 4000) // max(1, r // 4)) for r in replicas}
    readings = Readings(record)
    many = {r: f"{r} replica{'s' if r > 1 else ''}" for r in replicas}
    ours = {}
    for r in replicas:
        ours[r] = readings.rate(f"krogh.train, {many[r]}", engine(r, steps[r]))
        if not on_cpu and r in BARS:
            what = "replica-steps per second on Markov chains in context"
            readings.note(f"sequences-rate-{r}", what, ours[r], at_least=BARS[r])
    theirs = readings.rate("by hand in JAX", by_hand(40 if on_cpu else 2000))
    if on_cpu:
        for r, rate in ours.items():
            what = f"Markov chains in context at {many[r]} against a JAX loop"
            readings.note(f"sequences-jax-{r}", what, rate / theirs, at_least=1)
    if find_spec("torch"):
        torch = readings.rate("by hand in PyTorch", torch_loop(12 if on_cpu else 100))
        what = "Markov chains in context at 16 replicas against a PyTorch loop over seeds"
        readings.note("sequences-torch-16", what, ours[16] / torch, at_least=10)
    drawn_once = engine(16, steps[16], batch=None, samples=BATCH)
    share = 1 - ours[16] / readings.rate("krogh.train, 16, drawn once", drawn_once)
    readings.note("sequences-sampling", "share of a step spent on drawing Markov chains", share)
    device = jax.devices()[0].device_kind
    if json:
        result = {"device": device, "replica_steps_per_second": readings.rates, "sampling": share}
        print(json_format.dumps(result, indent=1))
        return
    print(f"replica-steps per second on {device}, {jax.local_device_count()} device(s); k = {K}, t = {T}, d = {D}")
    for name, rate in readings.rates.items():
        print(f"{name:28} {rate:10.1f} {rate / theirs:8.2f} x JAX {rate * FLOPS / 1e9:10.1f} GFLOP/s")
    print(f"share of a step spent on drawing chains: {share:.1%}")


if __name__ == "__main__":
    main()
