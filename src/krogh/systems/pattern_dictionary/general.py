"""The general setting: incoherent dictionary, input noise, unequal classes (Lemma A.29, Thm A.28; 000 A.8)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, equals
from krogh.nn.fixed_features import ridge_head
from krogh.nn.truncated import PairedTruncated
from krogh.probes.basic import correct
from krogh.probes.dictionary import feature_cosines
from krogh.systems.pattern_dictionary import system
from krogh.tasks.dictionary import ParityDictionary, max_coherence
from krogh.theory.dictionary import (
    constructions,
    constructive_network,
    existence_failure,
    first_step,
    general_guarantee,
    schedule,
    second_step,
)
from krogh.train.seeds import over_seeds


@dataclass(frozen=True)
class General:
    """`coherence` is the length of the random vector added to every orthonormal column before it is made a unit one;
    at 1 the largest |<M_i, M_j>| is about 0.15, against 0.19 of random unit columns (d = 500, D = 100)."""

    d: int = 500
    D: int = 100
    k: int = 5
    m: int = 100
    n: int = 20_000
    negative: float = 0.8
    coherences: tuple[float, ...] = (0.0, 1e-3, 1e-2, 1.0)
    noises: tuple[float, ...] = (0.0, 0.02, 0.1)
    test: int = 5000
    seeds: int = 3

    def task(self, coherence: float, noise: float) -> ParityDictionary:
        return ParityDictionary(
            D=self.D, k=self.k, d=self.d, noise=noise or None, coherence=coherence, negative=self.negative
        )

    def variance(self, noise: float) -> float:
        """sigma~^2 = sum_j Var(phi~_j) + d sigma_zeta^2."""
        with jax.ensure_compile_time_eval():
            return float(self.task(0.0, noise).variance)


SMOKE = General(d=80, D=40, m=40, n=4000, coherences=(0.0, 1.0), noises=(0.0, 0.1), test=1000, seeds=2)


def grid(s: General, measure) -> xr.Dataset:
    """`measure(task, key)` over (coherence, noise, seed), in float64."""
    columns = []
    for coherence in s.coherences:
        for noise in s.noises:

            def one(key, coherence=coherence, noise=noise):
                world, rest = jr.split(key)
                return measure(s.task(coherence, noise).instance(world), rest)

            columns.append(over_seeds(one, s.seeds, double=True))
    shape = (len(s.coherences), len(s.noises), s.seeds)
    stacked = {name: np.stack([c[name] for c in columns]).reshape(shape) for name in columns[0]}
    dims = ("coherence", "noise", "seed")
    return xr.Dataset(
        {name: (dims, values) for name, values in stacked.items()},
        coords={"coherence": list(s.coherences), "noise": list(s.noises)},
    )


@system.experiment(
    "lemma-A.29",
    "The constructed network under coherence and noise: how often y g* falls below one",
    presets={"smoke": SMOKE, "quick": General(), "paper": General(n=50_000, seeds=5)},
)
def existence(s: General) -> xr.Dataset:
    P = range(1, s.k + 1, 2)

    def measure(task, key):
        x, y, _ = task.sample(key, s.n)
        u = float(s.k * (0.25 + 0.5 * (1 - s.negative)))
        net = constructive_network(s.k, P, u, general=True)
        z = jnp.sqrt(task.variance) * x @ task.feature
        g = jnp.clip(net.weight * z[:, None] + net.bias, 0, 1) @ jnp.asarray(net.output)
        return {"failed": jnp.mean(y * g < 1 - 1e-9), "mu": math.sqrt(s.d) * max_coherence(task.dictionary)}

    ds = grid(s, measure)
    bound = [
        [
            existence_failure(s.k, s.D, s.d, 0.5, s.variance(z), float(ds.mu.sel(coherence=c, noise=z).mean()), z)
            for z in s.noises
        ]
        for c in s.coherences
    ]
    first, second = constructions(s.k, P, s.k / 2, general=True)
    return ds.assign(
        bound=(("coherence", "noise"), [[g.bound for g in row] for row in bound]),
        applies=(("coherence", "noise"), [[g.applies for g in row] for row in bound]),
    ).assign_attrs(output_first=np.abs(first.output).max() / s.k, output_second=np.abs(second.output).max() / s.k)


@existence.claim(
    "Lemma A.29",
    "The constructed network never falls below y g* = 1 on an orthonormal noiseless dictionary; |a*| <= 64k holds for "
    "the first variant, the second needs 128k",
    source="Lemma A.29",
    finding="The printed bound |a*| <= 64k is wrong for the shifted variant of the construction, which has 128k.",
)
def construction_survives(ds: xr.Dataset):
    return all_of(
        exact=at_most(ds.failed.sel(coherence=0.0, noise=0.0), 0.0, over="seed"),
        first=equals(ds.output_first, 64.0),
        second=equals(ds.output_second, 128.0),
    )


@system.experiment(
    "thm-A.28",
    "Two class-weighted steps: incoherent dictionary, input noise, 80% negatives (quick: m = 100, n = 20 000)",
    presets={
        "smoke": SMOKE,
        "quick": General(coherences=(0.0, 1e-3, 1.0), noises=(0.0, 0.02)),
        "paper": General(m=300, n=50_000, seeds=5),
    },
)
def general_training(s: General) -> xr.Dataset:
    p_min = min(s.negative, 1 - s.negative)

    def measure(task, key):
        rates = schedule(s.k, s.m, task.gamma, s.variance(task.noise or 0.0), 600, p_min)
        init, data, fresh = jr.split(key, 3)
        x, y, _ = task.sample(data, s.n)
        test = task.sample(fresh, s.test)
        # sigma_w^2 = sigma~^2/poly(Dm) in A.8: the initial weights are made negligible.
        start = PairedTruncated(m=s.m, sigma_w=1e-3).build(task, init)
        one = first_step(start, x, y, rates.general, s.k**-1.5, weighted=True)
        two = second_step(one, x, y, s.k**-1.5, weighted=True)
        head = ridge_head(two.hidden, x, y)
        return {
            "test": jnp.mean(correct(head(two.hidden(test.x)), test.y)),
            "cos": jnp.median(jnp.abs(feature_cosines(two, task))),
            "mu": math.sqrt(s.d) * max_coherence(task.dictionary),
        }

    ds = grid(s, measure)
    text = [
        f"coherence {c:g}, noise {z:g}\n"
        + str(
            general_guarantee(
                s.k,
                s.D,
                s.d,
                s.m,
                s.task(c, z).gamma,
                s.variance(z),
                float(ds.mu.sel(coherence=c, noise=z).mean()),
                z,
                p_min,
            )
        )
        for c in s.coherences
        for z in s.noises
    ]
    return ds.assign_attrs(guarantee="\n\n".join(text))


@general_training.claim(
    "Thm A.28",
    "Near-orthonormal dictionary, no noise, 80% negatives: the class-weighted Two Step head tests at least 0.99",
    source="Thm A.28",
)
def general_learned(ds: xr.Dataset):
    return at_least(ds.test.sel(coherence=ds.coherence <= 1e-3, noise=0.0).min("coherence"), 0.99, over="seed")


@general_training.figure
def plot_general(ds: xr.Dataset):
    from krogh.lab.figures import new_figure

    fig, axes = new_figure(ncols=2)
    for ax, name in zip(axes, ("test", "cos"), strict=True):
        for noise in ds.noise.values:
            ax.plot(
                ds.mu.sel(noise=noise).mean("seed") / ds.mu.max(),
                ds[name].sel(noise=noise).mean("seed"),
                "o-",
                label=f"noise {noise:g}",
            )
        ax.set(xlabel="coherence / largest", ylabel={"test": "test accuracy", "cos": "median |cos|"}[name])
    axes[0].legend()
    return fig
