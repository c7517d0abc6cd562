"""From a gradient to a network: recovering S, the constructed head, one big step (003 §B.2.1, B.2.2)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.errors import InputError
from krogh.lab import all_of, at_least, at_most, every, figures, share_at_least
from krogh.systems.hidden_progress import system
from krogh.theory import majority, one_step
from krogh.theory.fourier_gap import leads, recovery_samples, sign_neuron_gradient

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Recovery:
    cases: tuple[tuple[int, int], ...] = ((31, 2), (21, 4))
    divisors: tuple[int, ...] = (1, 5, 20, 100)
    delta: float = 0.05
    seeds: int = 100


@system.experiment(
    "prop-B.7",
    "Recovering S from a sampled gradient of one ReLU neuron",
    presets={"smoke": Recovery(cases=((15, 2), (9, 4)), seeds=10), "quick": Recovery()},
)
def recovery(s: Recovery) -> xr.Dataset:
    budgets = [recovery_samples(majority.gap(n, k) / 2, n, s.delta) for n, k in s.cases]
    found = np.zeros((len(s.cases), len(s.divisors), s.seeds), dtype=bool)
    for row, ((n, k), budget) in enumerate(zip(s.cases, budgets, strict=True)):
        for column, divisor in enumerate(s.divisors):
            keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(column)))(jnp.arange(s.seeds))
            found[row, column] = leads(np.asarray(_sign_neuron_samples(keys, n, k, budget // divisor)), k)
    return xr.Dataset(
        {"recovered": (("case", "divisor", "seed"), found), "samples": ("case", budgets)},
        coords={"case": [f"n={n}, k={k}" for n, k in s.cases], "divisor": list(s.divisors)},
    )


@partial(jax.jit, static_argnames=("n", "k", "samples"))
def _sign_neuron_samples(
    keys: PRNGKeyArray, n: int, k: int, samples: int, chunk: int = 8192
) -> Float[Array, "seeds n"]:
    """mean(y x 1[w.x > 0]) over `samples` inputs drawn as packed bits, for one random sign vector w per key."""
    if n > 32:
        raise InputError(f"n is {n}; an input is drawn as one 32-bit word, so that it can be at most 32.")
    coordinate = jnp.arange(n, dtype=jnp.uint32)

    def one(key: PRNGKeyArray) -> Array:
        w_key, x_key = jax.random.split(key)
        w = jax.random.bits(w_key)
        full, support = jnp.uint32(2**n - 1), jnp.uint32(2**k - 1)

        def add(total: Array, index: Array) -> tuple[Array, None]:
            word = jax.random.bits(jax.random.fold_in(x_key, index), (chunk,))
            fires = 2 * jax.lax.population_count((word ^ w) & full) < n
            used = fires & (index * chunk + jnp.arange(chunk) < samples)
            y = 1.0 - 2.0 * (jax.lax.population_count(word & support) & 1).astype(jnp.float32)
            x = 1.0 - 2.0 * ((word[:, None] >> coordinate) & 1).astype(jnp.float32)
            return total + jnp.where(used, y, 0.0) @ x, None

        return jax.lax.scan(add, jnp.zeros(n), jnp.arange(-(-samples // chunk)))[0] / samples

    return jax.lax.map(one, keys)


@recovery.claim(
    "14.7",
    "B = 8/gamma^2 ln(2n/delta) samples recover S in >= 95 % of trials; B/20 fail in >= 50 %",
    source="Prop. B.7",
)
def recovers(ds: xr.Dataset):
    full = {c: share_at_least(ds.recovered.sel(case=c, divisor=1), 0.95, over="seed") for c in ds.case.values}
    few = {
        f"{c}, B/20": share_at_least(~ds.recovered.sel(case=c, divisor=20), 0.5, over="seed") for c in ds.case.values
    }
    return all_of(**full, **few)


@recovery.figure
def plot_recovery(ds: xr.Dataset) -> "Figure":
    figure, ax = figures.new_figure(size=(3.6, 2.6))
    for case in ds.case.values:
        share = ds.recovered.sel(case=case).mean("seed")
        budget = int(ds.samples.sel(case=case))
        ax.semilogx(1 / ds.divisor, share, "o-", label=f"{case}, B = {budget:,}")
    figures.theory(ax, [1, 1], [0, 1], "Prop. B.7's B")
    ax.set(xlabel="samples / B", ylabel="share of trials that name S", title="S read off a sampled gradient")
    ax.legend()
    return figure


@dataclass(frozen=True)
class Heads:
    ks: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)


@system.experiment("lemma-B.4", "The constructed head, corrected and as printed", presets={"quick": Heads()})
def heads(s: Heads) -> xr.Dataset:
    values = np.full((len(s.ks), 2, max(s.ks) + 1), np.nan)
    for row, k in enumerate(s.ks):
        # f depends on x only through the number of -1s among the k relevant bits
        x = 1.0 - 2.0 * (np.arange(k)[None, :] < np.arange(k + 1)[:, None])
        for column, head in enumerate((one_step.constructed_head(k), one_step.printed_head(k))):
            values[row, column, : k + 1] = head(x) * x.prod(axis=1)
    return xr.Dataset(
        {"margin": (("k", "head", "minus_ones"), values)},
        coords={"k": list(s.ks), "head": ["corrected", "printed"], "minus_ones": np.arange(max(s.ks) + 1)},
    )


@heads.claim(
    "14.9",
    "The corrected head of k + 1 neurons gives y f = 2 on all inputs for k = 2..8; the printed head of k neurons does "
    "so for no k",
    source="Lemma B.4, Claim 5",
    finding="As printed (k neurons, even k) y f is -2 on every value of sum x but the last, where it is 6: the sign is "
    "flipped and the end point needs a neuron more.",
)
def head_is_exact(ds: xr.Dataset):
    corrected, printed = ds.margin.sel(head="corrected"), ds.margin.sel(head="printed")
    wrong = (abs(printed - 2) > 1e-6).where(printed.notnull(), False).any("minus_ones")
    return all_of(
        corrected=at_most(float(abs(corrected - 2).max()), 1e-9),
        printed_is_wrong=every(wrong),
    )


@heads.figure
def plot_heads(ds: xr.Dataset) -> "Figure":
    figure, ax = figures.new_figure(size=(3.6, 2.6))
    for place, head in enumerate(ds["head"].values):
        for k in ds.k[ds.k % 2 == 0].values:
            values = ds.margin.sel(head=head, k=k).dropna("minus_ones")
            position = values.minus_ones / k
            label = f"{head}" if k == 2 else None
            ax.plot(position, values, "os"[place] + "-", color=figures.COLOURS[place], alpha=0.6, label=label)
    figures.theory(ax, [0, 1], [2, 2], "y f = 2")
    ax.set(xlabel="share of −1 among the relevant bits", ylabel="y f(x)", title="The head of Claim 5, even k")
    ax.legend()
    return figure


@dataclass(frozen=True)
class OneStep:
    """Cases are (n, k, width, batch of the first step; 0 for the exact gradient, steps of the head)."""

    cases: tuple[tuple[int, int, int, int, int], ...] = (
        (51, 2, 64, 100_000, 2_000),
        (101, 4, 256, 0, 5_000),
        (21, 4, 256, 2_000_000, 20_000),
    )
    head_batch: int = 128
    head_lr: float = 0.3
    seeds: int = 8


@system.experiment(
    "thm-5.5",
    "One big step finds the features, then the head learns",
    presets={
        "smoke": OneStep(cases=((21, 2, 32, 20_000, 500), (31, 4, 64, 0, 500)), seeds=2),
        "quick": OneStep(),
    },
)
def one_big_step(s: OneStep) -> xr.Dataset:
    widest = max(case[0] for case in s.cases)
    shape = len(s.cases), s.seeds
    leading, accuracy = np.zeros(shape), np.zeros((*shape, 50))
    relevant, irrelevant = np.zeros(shape), np.zeros(shape)
    measured, closed = np.full((2, len(s.cases), widest), np.nan)
    conditions = []
    for row, (n, k, width, batch, steps) in enumerate(s.cases):
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(row)))(jnp.arange(s.seeds))
        w, b, u = jax.vmap(lambda key, n=n, k=k, r=width: one_step.initial(key, n, k, r))(keys)
        flat = np.asarray(w, float).reshape(-1, n), np.asarray(u, float).reshape(-1)
        exact = sign_neuron_gradient(*flat, k)[0].reshape(s.seeds, width, n)
        if batch:
            first = jax.vmap(partial(jax.random.fold_in, data=1))(keys)
            sampled = jax.vmap(partial(one_step.sampled_gradient, k=k, batch=batch))
            g, gamma = sampled(first, w, b, u)
        else:
            g, gamma = jnp.asarray(exact, jnp.float32), jnp.zeros((s.seeds, width))
        w, b = jax.vmap(partial(one_step.first_step, k=k))(g, gamma, b)
        second = jax.vmap(partial(jax.random.fold_in, data=2))(keys)
        train = partial(one_step.train_head, k=k, steps=steps, batch=s.head_batch, lr=s.head_lr)
        _, accuracy[row] = jax.vmap(train)(second, w, b)
        leading[row] = leads(np.asarray(g), k).mean(axis=1)
        relevant[row] = abs(np.asarray(w[:, :, :k])).mean(axis=(1, 2)) * 2 * k
        irrelevant[row] = abs(np.asarray(w[:, :, k:])).max(axis=(1, 2)) * 2 * k
        measured[row, :n], closed[row, :n] = np.asarray(g)[0, 0], exact[0, 0]
        asked = one_step.Thresholds(n, k, eps=0.1)
        told = asked.report(width, batch or math.inf, steps)
        rate = f"head's step size = {s.head_lr:g}, the theorem's {asked.head_lr(width, steps):.3g}"
        conditions.append(f"n = {n}, k = {k}\n{told}\n{rate}")
    return xr.Dataset(
        {
            "leading": (("case", "seed"), leading),
            "accuracy": (("case", "seed", "progress"), accuracy),
            "relevant": (("case", "seed"), relevant),
            "irrelevant": (("case", "seed"), irrelevant),
            "gradient": (("case", "coordinate"), measured),
            "closed_form": (("case", "coordinate"), closed),
            "conditions": ("case", conditions),
        },
        coords={
            "case": [f"n={n}, k={k}, " + (f"B={batch:,}" if batch else "exact") for n, k, _, batch, _ in s.cases],
            "k": ("case", [case[1] for case in s.cases]),
            "steps": ("case", [case[4] for case in s.cases]),
            "progress": np.linspace(0.02, 1.0, 50),
            "coordinate": np.arange(widest),
        },
    )


@one_big_step.claim(
    "14.8",
    "n = 51, k = 2, B = 1e5 and n = 101, k = 4 with the exact gradient: every neuron's top-k gradient coordinates are "
    "S and training only u then reaches >= 99 % accuracy; n = 21, k = 4, B = 2e6: >= 97 %",
    source="Thm 5.5",
)
def one_step_suffices(ds: xr.Dataset):
    final = ds.accuracy.isel(progress=-1)
    parts = {f"{case}: features": every(ds.leading.sel(case=case) == 1, over="seed") for case in ds.case.values[:2]}
    for case, bound in zip(ds.case.values, (0.99, 0.99, 0.97), strict=False):
        parts[f"{case}: accuracy"] = at_least(final.sel(case=case), bound, over="seed")
    return all_of(**parts)


@one_big_step.figure
def plot_one_step(ds: xr.Dataset) -> "Figure":
    figure, axes = figures.new_figure(ds.sizes["case"], 2)
    for (top, bottom), case in zip(axes.T, ds.case.values, strict=True):
        cell = ds.sel(case=case).dropna("coordinate")
        relevant = cell.coordinate < cell.k
        for chosen, colour, label in ((relevant, 1, "relevant"), (~relevant, 0, "irrelevant")):
            part = cell.sel(coordinate=chosen)
            top.plot(part.coordinate + 1, abs(part.gradient), "o", color=figures.COLOURS[colour], label=label)
            figures.theory(top, part.coordinate + 1, abs(part.closed_form), None if colour else "Lemma B.3")
        top.set(xlabel="coordinate", ylabel="|gradient| of one neuron", title=case)
        curve = cell.accuracy.assign_coords(progress=cell.progress * int(cell.steps))
        figures.curve_with_spread(bottom, curve, x="progress", label="head only")
        bottom.set(xlabel="step of the head", ylabel="accuracy", ylim=(0.45, 1.02), xscale="log")
    axes[0, 0].legend()
    return figure
