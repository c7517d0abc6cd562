"""The disjoint-PolyNet under SGD: the theorem's step sizes, and training curves of batch 1 (003 §5.4.2, B.2.4)."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from krogh.errors import InputError
from krogh.lab import all_of, at_least, every, figures, share_at_least
from krogh.systems.hidden_progress import system
from krogh.theory import disjoint_polynet as polynet
from krogh.theory.fourier_gap import product_of_others

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _signs(word: Array, k: int, block: int) -> Float[Array, "k block"]:
    """An input of {±1}^(k block) from the low bits of one 32-bit word."""
    if k * block > 32:
        raise InputError(f"n is {k * block}; an input is drawn as one 32-bit word, so that it can be at most 32.")
    bits = (word >> jnp.arange(k * block, dtype=jnp.uint32)) & 1
    return (1.0 - 2.0 * bits.astype(jnp.float32)).reshape(k, block)


def _descent(w: Float[Array, "k block"], x: Float[Array, "k block"]) -> Float[Array, "k block"]:
    """Minus the gradient of the correlation loss at one example: y prod_{j != i} <w_j, x_j> x_i."""
    return jnp.prod(x[:, 0]) * product_of_others(jnp.sum(w * x, axis=1))[:, None] * x


def _positive(w: Float[Array, "k block"]) -> Float[Array, "k block"]:
    """The weights with the product of the relevant ones made positive, by the sign of the first."""
    return w.at[0, 0].multiply(jnp.sign(jnp.prod(w[:, 0])))


@dataclass(frozen=True)
class Convergence:
    k: int = 2
    block: int = 3
    eps: float = 0.1
    delta: float = 0.1
    batch: int = 1
    records: int = 100
    seeds: int = 20


@system.experiment(
    "thm-5.8",
    "SGD on a disjoint-PolyNet with the theorem's step sizes",
    presets={
        "smoke": Convergence(eps=0.4, delta=0.4, records=10, seeds=4),
        "quick": Convergence(),
        "paper": Convergence(k=3),
    },
)
def convergence(s: Convergence) -> xr.Dataset:
    n = s.k * s.block
    stretch = -(-polynet.sgd_steps(s.block, s.k, s.eps, s.delta) // s.records)
    total = stretch * s.records
    rate = polynet.sgd_rate(total, n, s.delta)
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(0)))(jnp.arange(s.seeds))
    relevant, irrelevant, last = _theorem_sgd(keys, s.k, s.block, s.batch, stretch, s.records, rate)
    step = stretch * np.arange(1, s.records + 1)
    bound = [polynet.relevant_bound(s.block, s.k, total, s.delta, int(t)) for t in step]
    return xr.Dataset(
        {
            "relevant": (("seed", "step"), np.asarray(relevant)),
            "irrelevant": (("seed", "step"), np.asarray(irrelevant)),
            "error": ("seed", [polynet.network_error(w) for w in np.asarray(last, float)]),
            "relevant_bound": ("step", bound),
        },
        coords={"step": step},
        attrs={"k": s.k, "block": s.block, "steps": total},
    )


@partial(jax.jit, static_argnames=("k", "block", "batch", "stretch", "records"))
def _theorem_sgd(
    keys: PRNGKeyArray, k: int, block: int, batch: int, stretch: int, records: int, rate: float
) -> tuple[Float[Array, "seeds records"], Float[Array, "seeds records"], Float[Array, "seeds k block"]]:
    """From ±1 with a positive product: smallest relevant |w|, largest irrelevant |w| so far, and the last weights."""

    def step(carry: tuple[Array, Array], words: Array) -> tuple[tuple[Array, Array], None]:
        w, largest = carry
        direction = jax.vmap(lambda word: _descent(w, _signs(word, k, block)))(words).mean(0)
        w = w + rate / product_of_others(abs(w).sum(1))[:, None] * direction
        return (w, jnp.maximum(largest, abs(w[:, 1:]).max())), None

    def one(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        start_key, key = jax.random.split(key)
        w = _positive(jax.random.rademacher(start_key, (k, block), jnp.float32))

        def record(carry: tuple[Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
            (w, largest), _ = jax.lax.scan(step, carry, jax.random.bits(key, (stretch, batch)))
            return (w, largest), (abs(w[:, 0]).min(), largest)

        (w, _), (relevant, irrelevant) = jax.lax.scan(record, (w, jnp.ones(())), jax.random.split(key, records))
        return relevant, irrelevant, w

    return jax.vmap(one)(keys)


@convergence.claim(
    "14.13",
    "With T from the theorem, in every run with a positive product: irrelevant |w| <= 1.5 throughout, relevant |w| at "
    "least the printed lower bound, and accuracy 1",
    source="Thm 5.8, Claims B.11 and B.12",
)
def theorem_regime(ds: xr.Dataset):
    return all_of(
        irrelevant=every(ds.irrelevant.isel(step=-1) <= 1.5, over="seed"),
        relevant=every((ds.relevant >= ds.relevant_bound).all("step"), over="seed"),
        accuracy=every(ds.error == 0, over="seed"),
    )


@convergence.figure
def plot_convergence(ds: xr.Dataset) -> "Figure":
    figure, ax = figures.new_figure(size=(3.6, 2.6))
    for name in ("relevant", "irrelevant"):
        label = "smallest relevant |w|" if name == "relevant" else "largest irrelevant |w| so far"
        figures.curve_with_spread(ax, ds[name], label=label, band=(0.0, 1.0))
    figures.theory(ax, ds.step, ds.relevant_bound, "Claim B.12, relevant")
    figures.reported(ax, 1.5, "Claim B.11, irrelevant")
    title = f"k = {ds.attrs['k']}, n' = {ds.attrs['block']}, {ds.sizes['seed']} runs"
    ax.set(xlabel="step", ylabel="|w|", yscale="log", title=title, ylim=(0.4, 10 * float(ds.relevant.max())))
    ax.legend(loc="upper left")
    return figure


@dataclass(frozen=True)
class Curves:
    n: int = 30
    k: int = 3
    lr: float = 1e-4
    steps: int = 100_000
    check: int = 100
    validation: int = 8192
    seeds: int = 512
    flows: int = 6
    flow_lr: float = 0.002


@system.experiment(
    "fig-B.1",
    "Training curves of the disjoint-PolyNet: population descent and SGD of batch 1",
    presets={"smoke": Curves(steps=2000, seeds=4, flows=2), "quick": Curves()},
)
def curves(s: Curves) -> xr.Dataset:
    block = s.n // s.k
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(0)))(jnp.arange(s.seeds))
    start = jax.vmap(lambda key: _positive(jax.random.normal(key, (s.k, block))))(keys)
    words = jax.random.bits(jax.random.key(1), (s.validation,))
    x = jax.vmap(partial(_signs, k=s.k, block=block))(words)
    accuracy, relevant = _constant_sgd(keys, start, x, s.steps // s.check, s.check, s.lr)
    accuracy, step = np.asarray(accuracy), s.check * np.arange(1, s.steps // s.check + 1)

    def first(met: np.ndarray) -> np.ndarray:
        return np.where(met.any(axis=1), step[met.argmax(axis=1)], np.inf)

    share = np.linspace(0, 1, 300)
    flow_error, descent_error = np.zeros((2, s.flows, len(share)))
    flow_time = np.zeros((s.flows, len(share)))
    for i, w in enumerate(np.asarray(start[: s.flows], float)):
        grown = (1.1 * abs(w[:, 1:]).sum(axis=1).max()) ** 2
        flow_time[i] = share * polynet.flow_time(grown, w[:, 0])
        flow_error[i] = _errors_along(w, polynet.flow(w[:, 0], flow_time[i]))
        descent_error[i] = _errors_along(w, _population_descent(w[:, 0], flow_time[i], s.flow_lr))
    return xr.Dataset(
        {
            "accuracy": (("seed", "step"), accuracy),
            "relevant": (("seed", "step", "block"), np.asarray(relevant)),
            "reached": ("seed", first(accuracy == 1)),
            "above_chance": ("seed", first(accuracy > 0.55)),
            "start": (("seed", "block"), np.asarray(start[:, :, 0])),
            "flow_time": (("flow", "share"), flow_time),
            "flow_error": (("flow", "share"), flow_error),
            "descent_error": (("flow", "share"), descent_error),
        },
        coords={"step": step},
        attrs={"n": s.n, "k": s.k, "lr": s.lr},
    )


def _errors_along(w: np.ndarray, relevant: np.ndarray) -> list[float]:
    return [polynet.network_error(np.column_stack([v, w[:, 1:]])) for v in relevant]


def _population_descent(v0: np.ndarray, times: np.ndarray, lr: float) -> np.ndarray:
    """Gradient descent on the population loss with step lr, read at multiples of lr nearest below the times."""
    v, path = np.array(v0), [np.array(v0)]
    for _ in range(int(times[-1] / lr) + 1):
        v = v + lr * np.prod(v) / v
        path.append(v)
    return np.array(path)[(times / lr).astype(int)]


@partial(jax.jit, static_argnames=("checks", "check"))
def _constant_sgd(
    keys: PRNGKeyArray,
    start: Float[Array, "seeds k block"],
    x: Float[Array, "m k block"],
    checks: int,
    check: int,
    lr: float,
) -> tuple[Float[Array, "seeds checks"], Float[Array, "seeds checks k"]]:
    """SGD of batch 1 until validation accuracy 1: that accuracy and the relevant weights, every `check` steps."""
    _, k, block = start.shape
    y = jnp.prod(x[:, :, 0], axis=1)

    def one(key: PRNGKeyArray, w: Array) -> tuple[Array, Array]:
        def step(w: Array, word: Array) -> tuple[Array, None]:
            return w + lr * _descent(w, _signs(word, k, block)), None

        def stretch(carry: tuple[Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
            w, done = carry
            moved, _ = jax.lax.scan(step, w, jax.random.bits(key, (check,)))
            w = jnp.where(done, w, moved)
            accuracy = jnp.mean(jnp.prod(jnp.einsum("mkb,kb->mk", x, w), axis=1) * y > 0)
            return (w, done | (accuracy == 1)), (accuracy, w[:, 0])

        return jax.lax.scan(stretch, (w, jnp.zeros((), bool)), jax.random.split(key, checks))[1]

    return jax.vmap(one)(keys, start)


@curves.claim(
    "14.14",
    "SGD of batch 1 at lr 1e-4 from N(0,1) weights with a positive product, n = 30, k = 3: >= 70 % of seeds converge "
    "within 1e5 steps, and the median share t_55/t_c of the plateau is >= 0.65",
    source="Fig B.1",
)
def long_plateau(ds: xr.Dataset):
    converged = np.isfinite(ds.reached)
    share = (ds.above_chance / ds.reached).where(converged, drop=True)
    return all_of(
        converged=share_at_least(converged, 0.7, over="seed"),
        plateau=at_least(share, 0.65, stat="median", over="seed"),
    )


@curves.figure
def plot_curves(ds: xr.Dataset) -> "Figure":
    figure, (left, middle, right) = figures.new_figure(3)
    for i in range(ds.sizes["flow"]):
        cell = ds.isel(flow=i)
        left.plot(cell.flow_time, cell.descent_error, color=figures.COLOURS[i % 8])
        figures.theory(left, cell.flow_time, cell.flow_error, None)
    left.set(xlabel="time (lr × steps)", ylabel="error", title="Population descent, flow dashed")
    shown = ds.isel(seed=slice(0, 8))
    for seed in range(shown.sizes["seed"]):
        middle.plot(ds.step, 1 - shown.accuracy.isel(seed=seed), color=figures.COLOURS[seed % 8], linewidth=0.9)
    middle.set(xlabel="step", ylabel="validation error", title=f"SGD, B = 1, lr = {ds.attrs['lr']:g}", xscale="log")
    one = ds.isel(seed=int(np.argsort(ds.reached.values)[ds.sizes["seed"] // 2]))
    before = one.step <= one.reached
    right.plot(one.step[before], abs(one.relevant[before]), color=figures.COLOURS[1])
    v0 = one.start.values.astype(float)
    time = np.linspace(0, 0.98 * polynet.flow_time(np.inf, v0), 200)
    for column in abs(polynet.flow(v0, time)).T:
        figures.theory(right, time / ds.attrs["lr"], column, None)
    right.set(xlabel="step", ylabel="relevant |w|", title="One run and its flow (dashed)", yscale="log")
    return figure
