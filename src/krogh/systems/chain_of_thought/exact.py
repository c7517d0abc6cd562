"""What needs no training: Example 1 and the gradient (004 Figure 7.1, §F.5.1)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from krogh.lab import all_of, at_least, at_most, equals
from krogh.lab.figures import COLOURS, new_figure
from krogh.nn.query_attention import QueryReader
from krogh.systems.chain_of_thought import system
from krogh.systems.chain_of_thought.learning import half_squares
from krogh.tasks.chain_of_thought import ChainPrompts
from krogh.theory import reasoning_chains as rc

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ------------------------------------------------------------------------------------------- Figure 7.1


@dataclass(frozen=True)
class Example:
    """Example 1: f_1 = identity, f_2 = swap."""

    a: float = 0.6
    w: float = 0.6
    s: float = 0.8


@system.experiment("fig-7.1", "Example 1: right at every step, wrong at the end", presets={"quick": Example()})
def example(s: Example) -> xr.Dataset:
    maps = np.array([[0, 1], [1, 0]])
    A = rc.paired(maps, s.a, (s.w, 1 - s.w), (s.s, 1 - s.s))
    return xr.Dataset(
        {
            "A": (("k", "given", "answer"), A),
            "maps": (("k", "given"), maps),
            "B": (("given", "answer"), rc.composed(A)),
            "condition": ("given", rc.condition(maps, A)),
            "tau": rc.tau(maps, A),
            "tau_o": rc.tau_o(A),
            "rho": rc.primacy(maps, A),
            "rho_o": rc.primacy_o(A),
        }
    )


@example.claim(
    "23.1",
    "Example 1: B = [[.56,.44],[.64,.36]], tau = .36, tau_o = .56, Condition 7.3.2 is violated for mu'_1 and holds for "
    "mu'_2 (to 1e-12); derived: rho = 1/3, rho_o = 1 - .44/.56",
    source="Example 1, Fig 7.1",
)
def example_numbers(ds: xr.Dataset):
    return all_of(
        B=equals(ds.B, [[0.56, 0.44], [0.64, 0.36]], 1e-12),
        tau=equals(ds.tau, 0.36, 1e-12),
        tau_o=equals(ds.tau_o, 0.56, 1e-12),
        rho=equals(ds.rho, 1 / 3, 1e-12),
        rho_o=equals(ds.rho_o, 1 - 0.44 / 0.56, 1e-12),
        condition=equals(ds.condition, [0, 1]),
    )


@example.figure
def plot_example(ds: xr.Dataset) -> "Figure":
    figure, (left, right) = new_figure(2, size=(6.4, 2.6), width_ratios=(1.5, 1))
    for k in range(2):
        for given in range(2):
            for answer in range(2):
                p = float(ds.A[k, given, answer])
                correct = int(ds.maps[k, given]) == answer
                left.plot(
                    [k, k + 1],
                    [-given, -answer],
                    color="black" if correct else COLOURS[1],
                    lw=4 * p,
                    linestyle="-" if correct else "--",
                )
                at = 0.25
                left.text(k + at, -given + at * (given - answer), f"{p:g}", fontsize=7, va="bottom", ha="center")
    for k in range(3):
        for i in range(2):
            left.text(k, -i, f"$μ'_{i + 1}$", ha="center", va="center", bbox={"boxstyle": "circle", "fc": "white"})
    left.set(xlim=(-0.3, 2.3), ylim=(-1.4, 0.5), title="steps: right (solid), wrong (dashed)")
    left.set_axis_off()
    right.set_axis_off()
    rows = [
        [r"$B$ row 1", ".56 .44"],
        [r"$B$ row 2", ".64 .36"],
        ["τ", ".36"],
        ["$τ_o$", ".56"],
        ["ρ", "–"],
        ["$ρ_o$", "–"],
    ]
    ours = [*(" ".join(f"{b:.2f}"[1:] for b in row) for row in ds.B.values)]
    ours += [f"{float(ds[name]):.4g}" for name in ("tau", "tau_o", "rho", "rho_o")]
    cells = [[*row, value] for row, value in zip(rows, ours, strict=True)]
    right.table(cells, colLabels=["", "reported", "computed"], loc="center", edges="horizontal")
    return figure


# ------------------------------------------------------------------------------------------- (F.66), (F.71)–(F.73)


@dataclass(frozen=True)
class Gradient:
    """`scale` of a random W, at which the two forms of (F.66) differ visibly."""

    M: int = 20
    K: int = 3
    d: int = 30
    examples: int = 20
    scale: float = 0.3
    prompts: int = 16


@system.experiment(
    "eq-F.66",
    "The gradient, printed and corrected",
    presets={"smoke": Gradient(6, 3, 10, 5, prompts=4), "quick": Gradient()},
)
def gradient(s: Gradient) -> xr.Dataset:
    with jax.enable_x64(True):
        task = ChainPrompts(s.M, s.K, s.d, s.examples, columns=s.K * s.examples + 1).instance(jax.random.key(0))
        x, z, latents = task.sample(jax.random.key(1), s.prompts)
        W = s.scale * jax.random.normal(jax.random.key(2), (2 * s.d, 2 * s.d))

        def forms(x: jax.Array, z: jax.Array) -> dict[str, jax.Array]:
            automatic = jax.grad(lambda W: half_squares(QueryReader(W)(x), z))(W)
            by_hand = {"corrected": rc.gradient(W, x[:-1], x[-1], z), "printed": rc.gradient(W, x[:-1], x[-1], z, True)}
            return {name: jnp.abs(form - automatic).max() for name, form in by_hand.items()}

        errors = jax.vmap(forms)(x, z)
        expected = sum((latents[name] == latents[name][:, -1:]) * 1.0 for name in ("pattern", "step"))  # type: ignore[index]
        products = jnp.einsum("bnw,bw->bn", x, x[:, -1])
        errors["inner"] = jnp.abs(products - expected).max(axis=1)
    return xr.Dataset({name: ("prompt", np.asarray(values)) for name, values in errors.items()})


@gradient.claim(
    "23.19",
    "dL/dW = sum_i s_i ((F - z)' W_V p_i)(p_i - sum_r s_r p_r) p_query' equals automatic differentiation to 1e-6; the "
    "printed inner softmax(p_r' W p_i) does not (largest error >= 1e-3)",
    source="(F.66)",
    finding="(F.66) prints p_i where p_query belongs; with p_query it is exact.",
)
def gradient_form(ds: xr.Dataset):
    return all_of(corrected=at_most(float(ds.corrected.max()), 1e-6), printed=at_least(float(ds.printed.max()), 1e-3))


@gradient.claim(
    "23.19b",
    "p_i . p_query = 1[same pattern] + 1[same step] for every column of a training prompt (to 1e-6)",
    source="(F.71)",
)
def inner_products(ds: xr.Dataset):
    return at_most(float(ds.inner.max()), 1e-6)


@gradient.figure
def plot_gradient(ds: xr.Dataset) -> "Figure":
    figure, ax = new_figure(size=(3.6, 2.5))
    for name, colour in (("corrected", COLOURS[0]), ("printed", COLOURS[1])):
        ax.semilogy(ds.prompt, ds[name], "o", color=colour, label=name)
    ax.axhline(1e-6, color="black", linestyle="--", linewidth=1, label="bound")
    ax.set(xlabel="prompt", ylabel="largest error of an entry", ylim=(1e-18, 10))
    ax.legend()
    return figure
