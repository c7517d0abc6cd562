"""Pretraining of linear attention of limited rank on regression prompts (000 §5.4.1, §D.2.1)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, between, equals
from krogh.lab.figures import curve_with_spread, new_figure, theory
from krogh.nn.linear_attention import InContextRegressor, RankLimited
from krogh.probes.basic import probe
from krogh.systems.icl_model_scale import system
from krogh.systems.icl_model_scale.sampling import SPECTRUM, Prompts
from krogh.tasks.regression_prompts import RegressionPrompts
from krogh.theory.linear_attention import (
    label_moment,
    optimal_loss,
    optimal_values,
    pretraining_gap,
    pretraining_gradient,
    pretraining_loss,
)
from krogh.train import Adam, spec, sweep
from krogh.train.schedules import LinearDecay
from krogh.train.seeds import over_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _covariance(spectrum: tuple[float, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Λ = Q D Qᵀ and Q, for a random Q."""
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(spectrum),) * 2))[0]
    return (Q * np.array(spectrum)) @ Q.T, Q


# ------------------------------------------------------------------------------------------- Lemma 5.1


@dataclass(frozen=True)
class Population:
    spectrum: tuple[float, ...] = SPECTRUM
    N: int = 20
    draws: int = 5
    prompts: int = 2_000_000
    sigma: float = 0.5


@system.experiment(
    "lemma-5.1",
    "The population loss of linear attention, and the moments behind it",
    presets={
        "smoke": Population(prompts=20_000),
        "quick": Population(),
        "paper": Population(prompts=20_000_000),
    },
)
def population(s: Population) -> xr.Dataset:
    d = len(s.spectrum)
    task = RegressionPrompts(s.spectrum, s.N, rotated=True).instance(jax.random.key(0))
    Q = np.asarray(task.basis, float)
    covariance = (Q * np.array(s.spectrum)) @ Q.T
    rng = np.random.default_rng(0)
    U, u = rng.standard_normal((s.draws, d, d)) / d, rng.standard_normal(s.draws)
    w = rng.standard_normal(d)
    noisy = RegressionPrompts(s.spectrum, 1, jnp.asarray(Q.T @ w, jnp.float32), s.sigma, basis=task.basis)
    batches, size = Prompts(s.prompts).split((s.N + 1) * d)

    def measure(key):
        batch = task.sample(key, size)
        guess = jax.vmap(lambda U, u: jax.vmap(InContextRegressor(U.T, u))(batch.x))(
            jnp.asarray(U, jnp.float32), jnp.asarray(u, jnp.float32)
        )
        x, y = jnp.split(noisy.sample(jax.random.fold_in(key, 1), size).x[:, 0], [d], axis=1)
        return jnp.mean((guess - batch.y) ** 2, axis=1) / 2, (y * x).T @ (y * x) / size

    loss, moment = over_seeds(measure, batches)
    closed = [pretraining_loss(U[i], float(u[i]), covariance, s.N) + np.trace(covariance) / 2 for i in range(s.draws)]
    # a basis in single precision is not quite orthonormal: the covariance has eigenvalues of its own
    unrestricted = optimal_loss(np.linalg.eigvalsh(covariance)[::-1], s.N, d)
    above = [pretraining_gap(U[i], float(u[i]), covariance, s.N) for i in range(s.draws)]
    return xr.Dataset(
        {
            "sampled": (("batch", "draw"), loss),
            "closed": ("draw", closed),
            "gap": ("draw", above),
            "unrestricted": unrestricted + np.trace(covariance) / 2,
            "moment": (("batch", "i", "j"), moment),
            "label_moment": (("i", "j"), label_moment(w, covariance, s.sigma)),
            "printed_moment": (("i", "j"), label_moment(w, covariance, s.sigma, printed=True)),
        }
    )


@population.claim(
    "04.1",
    "The sampled loss at 5 random (U, u) is within 1 % of l~(U, u) + tr(Lambda)/2; l~ exceeds its minimum by Lemma "
    "D.1's square exactly",
    source="Lemma 5.1, Lemma D.1",
)
def population_loss(ds: xr.Dataset):
    ratio = ds.sampled / ds.closed
    parts = {f"draw_{i}": between(ratio.sel(draw=i), 0.99, 1.01, over="batch") for i in range(ds.sizes["draw"])}
    return all_of(**parts, gap=equals((ds.closed - ds.unrestricted) / ds.gap, 1.0, 1e-9))


@population.claim(
    "04.D2",
    "E[y^2 x x^T] = (sigma^2 + |w|^2_Lambda) Lambda + 2 Lambda w w^T Lambda within 2 % of its norm",
    source="Lemma D.2",
    finding="The proof's entries Lambda_i^T w w^T Lambda_j give this matrix. 'Lambda w^T w Lambda', as lemma and proof "
    "then write it, is |w|^2 Lambda^2 when read as it stands: off by 2.4 times the norm at the w drawn here.",
)
def fourth_moment(ds: xr.Dataset):
    size = np.linalg.norm(ds.label_moment)

    def distance(moments: np.ndarray, other: xr.DataArray) -> float:
        return float(np.linalg.norm(moments.mean(axis=0) - other.values) / size)

    return all_of(
        corrected=at_most(ds.moment, 0.02, lambda m: distance(m, ds.label_moment), over="batch"),
        printed_differs=at_least(ds.moment, 0.02, lambda m: distance(m, ds.printed_moment), over="batch"),
    )


@population.figure
def plot_population(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = new_figure(2)
    ratio = ds.sampled / ds.closed
    error = 1.96 * ratio.std("batch") / np.sqrt(ds.sizes["batch"])
    left.errorbar(ds.draw + 1, ratio.mean("batch"), error, fmt="o", label="sampled, 95 %")
    theory(left, ds.draw + 1, np.ones(ds.sizes["draw"]), "Lemma 5.1")
    left.set(xlabel="random (U, u)", ylabel="loss / closed form", ylim=(0.98, 1.02))
    left.legend()
    sampled = ds.moment.mean("batch").values.ravel()
    right.plot(ds.label_moment.values.ravel(), sampled, "o", label="corrected")
    right.plot(ds.printed_moment.values.ravel(), sampled, "x", color="0.5", label="printed")
    theory(right, sampled, sampled, None)
    right.set(xlabel="Lemma D.2", ylabel="sampled E[y² x xᵀ]")
    right.legend()
    return figure


# ------------------------------------------------------------------------------------------- Theorem 5.4.1


@dataclass(frozen=True)
class Minimiser:
    spectrum: tuple[float, ...] = SPECTRUM
    N: int = 200
    restarts: int = 5


@system.experiment(
    "thm-5.4.1",
    "The best linear attention of rank r keeps the top r directions",
    presets={"smoke": Minimiser(restarts=1), "quick": Minimiser()},
)
def minimiser(s: Minimiser) -> xr.Dataset:
    """L-BFGS on ℓ~(AᵀB, 1) from N(0, 1) factors, for every rank."""
    from scipy.optimize import minimize

    d = len(s.spectrum)
    covariance, Q = _covariance(s.spectrum)
    square = covariance @ covariance
    rng = np.random.default_rng(1)
    found = np.zeros((d, s.restarts, d, d))
    for r in range(1, d + 1):

        def loss(flat: np.ndarray, r: int = r) -> tuple[float, np.ndarray]:
            A, B = flat.reshape(2, r, d)
            U = A.T @ B
            gradient = pretraining_gradient(U, covariance, s.N)
            # ℓ~ is quadratic: ℓ~(U, 1) = ½ ⟨∂ℓ~/∂U − Λ², U⟩
            return np.sum((gradient - square) * U) / 2, np.stack([B @ gradient.T, A @ gradient]).ravel()

        for restart in range(s.restarts):
            options = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-16, "gtol": 1e-11}
            start = rng.standard_normal(2 * r * d)
            A, B = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x.reshape(2, r, d)
            found[r - 1, restart] = A.T @ B
    ranks = range(1, d + 1)
    best = np.stack([(Q * optimal_values(s.spectrum, s.N, r)) @ Q.T for r in ranks])
    losses = [[pretraining_loss(U, 1.0, covariance, s.N) for U in row] for row in found]
    return xr.Dataset(
        {
            "loss": (("rank", "restart"), losses),
            "best_loss": ("rank", [optimal_loss(s.spectrum, s.N, r) for r in ranks]),
            "distance": (
                ("rank", "restart"),
                np.linalg.norm(found - best[:, None], axis=(2, 3)) / np.linalg.norm(best, axis=(1, 2))[:, None],
            ),
            "U": (("rank", "i", "j"), Q.T @ found[np.arange(d), np.argmin(losses, axis=1)] @ Q),
            "values": (("rank", "i"), [optimal_values(s.spectrum, s.N, r) for r in ranks]),
        },
        coords={"rank": list(ranks)},
    )


@minimiser.claim(
    "04.2",
    "L-BFGS over U = A^T B reaches -1/2 sum_{i<=r} lambda_i^2/T_i within 1e-8 and U* within 1e-4, r = 1..8",
    source="Thm 5.4.1",
)
def truncation(ds: xr.Dataset):
    best = ds.loss.argmin("restart")
    return all_of(
        loss=equals(ds.loss.isel(restart=best), ds.best_loss, 1e-8),
        weights=at_most(float(ds.distance.isel(restart=best).max(skipna=False)), 1e-4),
    )


@minimiser.figure
def plot_minimiser(ds: xr.Dataset) -> "Figure":
    figure, axes = new_figure(4, 2, size=(8.4, 4.2))
    largest = float(abs(ds.U).max())
    for ax, r in zip(axes.ravel(), ds["rank"].values, strict=False):
        ax.imshow(abs(ds.U.sel(rank=r)), vmin=0, vmax=largest, cmap="Blues")
        ax.set(title=f"rank {r}", xticks=[], yticks=[])
    figure.suptitle("|Qᵀ U Q| of the minimiser found")
    return figure


@minimiser.figure
def plot_values(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = new_figure(2)
    place = np.arange(1, ds.sizes["i"] + 1)
    for r in ds["rank"].values[1::2]:
        left.plot(place, np.diagonal(ds.U.sel(rank=r)), "o", label=f"r = {r}")
    theory(left, place, ds["values"].sel(rank=ds["rank"].max()), "N/((N+1)λ_i + tr D)")
    left.set(xlabel="direction i", ylabel="(Qᵀ U Q)_ii")
    left.legend()
    right.plot(ds["rank"], ds.loss, ".", color="0.6")
    right.plot(ds["rank"], ds.loss.min("restart"), "o", label="best restart")
    theory(right, ds["rank"], ds.best_loss, "−½ Σ λ_i²/T_i")
    right.set(xlabel="rank r", ylabel="ℓ~")
    right.legend()
    return figure


# ------------------------------------------------------------------------------------------- pretraining by Adam


@dataclass(frozen=True)
class Pretraining:
    """`long_ranks` train for `long_steps`: their last direction has a small eigenvalue and is slow to learn."""

    spectrum: tuple[float, ...] = SPECTRUM
    N: int = 40
    ranks: tuple[int, ...] = (2, 4)
    steps: int = 8000
    long_ranks: tuple[int, ...] = (8,)
    long_steps: int = 40_000
    lr: float = 5e-3
    batch: int = 512
    records: int = 20
    seeds: int = 8


@probe(dims=("i", "j"))
def along_eigenvectors(network: InContextRegressor, task: RegressionPrompts) -> jax.Array:
    """Qᵀ U Q."""
    across = task.rotate(jnp.eye(len(task.spectrum)))
    return across @ network.U @ across.T


@system.experiment(
    "thm-5.4.1-trained",
    "Adam on sampled prompts finds the optimal model of its rank",
    presets={
        "smoke": Pretraining(steps=50, long_steps=100, batch=16, seeds=2),
        "quick": Pretraining(batch=64),
        "paper": Pretraining(),
    },
)
def pretraining(s: Pretraining) -> xr.Dataset:
    def trained(ranks: tuple[int, ...], steps: int) -> xr.DataArray:
        adam = Adam(lr=s.lr, batch=s.batch, loss="square", schedule=LinearDecay(steps))
        task = RegressionPrompts(s.spectrum, s.N, rotated=True)
        record = np.linspace(0, steps, s.records + 1).round().astype(int)[1:]
        run = spec(task, RankLimited(), adam, steps, seeds=s.seeds, probes=[along_eigenvectors], record=record)
        moved = sweep(run, rank=ranks).data.along_eigenvectors
        return moved.rename(step="share").assign_coords(share=np.linspace(0, 1, s.records + 1))

    U = xr.concat([trained(s.ranks, s.steps), trained(s.long_ranks, s.long_steps)], "rank")
    D = np.diag(np.array(s.spectrum))
    numbers = np.zeros((4, *U.shape[:-2]))
    for place in np.ndindex(*U.shape[:-2]):
        r, one = int(U["rank"][place[0]]), U.values[place].astype(float)
        best = np.diag(optimal_values(s.spectrum, s.N, r))
        least = optimal_loss(s.spectrum, s.N, r)
        numbers[0][place] = np.sum(one * best) / (np.linalg.norm(one) * np.linalg.norm(best))
        numbers[1][place] = (pretraining_loss(one, 1.0, D, s.N) - least) / (np.trace(D) / 2 + least)
        left = np.linalg.svd(one)[0][:, :r]
        numbers[2][place] = np.degrees(np.arcsin(min(1.0, np.linalg.norm(left[r:], 2)))) if r < len(D) else 0.0
        numbers[3][place] = one[r - 1, r - 1] / best[r - 1, r - 1]
    names = ("cosine", "excess", "angle", "slowest")
    return xr.Dataset(
        {"U": U, "best": ("i", optimal_values(s.spectrum, s.N, len(s.spectrum)))}
        | {name: (U.dims[:-2], values) for name, values in zip(names, numbers, strict=True)},
    )


@pretraining.claim(
    "04.3",
    "d = 8, N = 40, lr 5e-3 to 0: cosine(U, U*) >= .98 and excess loss <= 1 % for r = 2, 4 after 8000 steps and r = 8 "
    "after 40,000",
    source="Thm 5.4.1",
)
def trained_optimum(ds: xr.Dataset):
    end = ds.isel(share=-1)
    cosine = {f"cosine_r{r}": at_least(end.cosine.sel(rank=r), 0.98, over="seed") for r in ds["rank"].values}
    excess = {f"excess_r{r}": at_most(end.excess.sel(rank=r), 0.01, over="seed") for r in ds["rank"].values}
    return all_of(**cosine, **excess)


@pretraining.claim(
    "04.4",
    "The top r left singular vectors of the trained U are within 10 degrees of the top r eigenvectors, r = 2, 4",
    source="Thm 5.4.1, 'what hidden features does the model pay attention to'",
)
def hidden_features(ds: xr.Dataset):
    return all_of(**{f"r{r}": at_most(ds.angle.isel(share=-1).sel(rank=r), 10.0, over="seed") for r in (2, 4)})


@pretraining.figure
def plot_pretraining(ds: xr.Dataset) -> "Figure":
    figure, (left, middle, right) = new_figure(3)
    for r in ds["rank"].values:
        curve_with_spread(left, ds.excess.sel(rank=r), x="share", label=f"r = {r}")
        if r < ds.sizes["i"]:
            curve_with_spread(middle, ds.angle.sel(rank=r), x="share", label=f"r = {r}")
        end = ds.U.isel(share=-1).sel(rank=r)
        diagonal = np.diagonal(end.values, axis1=-2, axis2=-1)
        right.errorbar(np.arange(1, ds.sizes["i"] + 1), diagonal.mean(0), diagonal.std(0), fmt="o", label=f"r = {r}")
    left.set(yscale="log", xlabel="share of the steps", ylabel="excess loss", title="claimed: below 1 %")
    left.axhline(0.01, color="0.5", linestyle=":")
    middle.set(xlabel="share of the steps", ylabel="largest principal angle (degrees)")
    middle.axhline(10, color="0.5", linestyle=":")
    theory(right, np.arange(1, ds.sizes["i"] + 1), ds.best, "v*")
    right.set(xlabel="direction i", ylabel="(Qᵀ U Q)_ii at the end")
    for ax in (left, middle, right):
        ax.legend()
    return figure
