"""The linear looped transformer: one attention layer applied again and again to a prompt (000 §8.3.3)."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from krogh.errors import InputError, nearest
from krogh.nn.attention import earlier
from krogh.nn.base import Architecture, width_of
from krogh.nn.linear_attention import LinearAttention
from krogh.tasks.base import Task

Step = Callable[[Float[Array, "n1 d1"]], Float[Array, ""]]


def query_only(n: int) -> Bool[np.ndarray, "n1 n1"]:
    """The mask M: the closing row sees the n examples, nobody else sees anyone (000 Def 8.6)."""
    return np.vstack([np.zeros((n, n + 1), bool), earlier(n)])


def inverse_smoothness(z: Float[Array, "n1 d1"]) -> Float[Array, ""]:
    """1/L, L = λ_max(XᵀX): the document's step, which is told the prompt's spectrum."""
    x = z[:-1, :-1]
    return 1 / jnp.linalg.eigvalsh(x.T @ x)[-1]


def inverse_trace(z: Float[Array, "n1 d1"]) -> Float[Array, ""]:
    """1/tr(XᵀX) ≤ 1/L: a step that needs no spectrum."""
    return 1 / jnp.sum(z[:-1, :-1] ** 2)


def inverse_answers(z: Float[Array, "n1 d1"]) -> Float[Array, ""]:
    """1/‖y‖²: the step with which one loop from q = 0 gives α Xᵀy/‖y‖², a right answer whatever X is."""
    return 1 / jnp.sum(z[:-1, -1] ** 2)


class LoopedNetwork(eqx.Module):
    """Z ← Z − η (M ∘ Z Q Zᵀ) Z P, `loops` times; the output is −Z[n+1, 1:d] (000 Def 8.7).

    step   η as a function of the prompt, the same in every loop
    """

    query_key: Float[Array, "d1 d1"]
    value_out: Float[Array, "d1 d1"]
    loops: int = eqx.field(static=True)
    step: Step = eqx.field(static=True)

    def attention(
        self, z: Float[Array, "n1 d1"], first: int = 0, visible: Bool[Any, "n1 n1"] | None = None
    ) -> Float[Array, "rows d1"]:
        """(M ∘ Z Q Zᵀ) Z P in the rows from `first` on; `visible` replaces M."""
        seen = (query_only(len(z) - 1) if visible is None else visible)[first:]
        return LinearAttention(self.query_key, self.value_out)(z, first, seen)

    def states(
        self,
        z: Float[Array, "n1 d1"],
        eta: Float[Array, " loops"],
        first: int = -1,
        visible: Bool[Any, "n1 n1"] | None = None,
    ) -> Float[Array, "loops1 rows d1"]:
        """The rows from `first` on of Z⁰, Z¹, … with residual weights η⁰, η¹, …; the mask moves the last row only."""

        def loop(z, eta):
            z = z.at[first:].add(-eta * self.attention(z, first, visible))
            return z, z[first:]

        return jnp.concatenate([z[None, first:], jax.lax.scan(loop, z, eta)[1]])

    def __call__(self, z: Float[Array, "n1 d1"]) -> Float[Array, " d"]:
        return -self.states(z, jnp.full(self.loops, self.step(z)))[-1, 0, :-1]


def gradient_steps(d: int, loops: int, step: Step = inverse_smoothness) -> LoopedNetwork:
    """Q = I and P = diag(I_d, 0): every loop is a step of gradient descent on ½‖y − Xθ‖², θ = −q/α (000 Lemma 8.13)."""
    return LoopedNetwork(jnp.eye(d + 1), jnp.eye(d + 1).at[-1, -1].set(0.0), loops, step)


def answer_steps(d: int, loops: int, step: Step = inverse_answers) -> LoopedNetwork:
    """Q = diag(0, 1) and P = I: every loop moves q along Xᵀy and takes what ⟨−q, θ*⟩ gains from α.

    Rows (x_i, y_i) are orthogonal to (θ*, −1), so that with P = I, whatever Q is, α⁰ − ⟨TF, θ*⟩ is the α left in the
    prompt: α⁰ ∏_t (1 − ηᵗ‖y‖²) here. Ours; training finds it.
    """
    return LoopedNetwork(jnp.zeros((d + 1, d + 1)).at[-1, -1].set(1.0), jnp.eye(d + 1), loops, step)


class LoopedTransformer(Architecture):
    """Builds a `LoopedNetwork` for a prompt task of shape (n + 1, d + 1).

    init    "construction": Q = I, P = diag(I_d, 0); "gaussian": entries N(0, scale²)
    step    η as a function of the prompt: `inverse_trace`, `inverse_smoothness` or one's own
    """

    loops: int = eqx.field(static=True, default=4)
    init: str = eqx.field(static=True, default="construction")
    scale: float = 0.3
    step: Step = eqx.field(static=True, default=inverse_trace)

    def __check_init__(self):
        width_of(loops=self.loops)
        if self.init not in (options := ("construction", "gaussian")):
            raise InputError(
                f"init must be one of {', '.join(options)}, got {self.init!r}{nearest(self.init, options)}"
            )

    def build(self, task: Task, key: PRNGKeyArray) -> LoopedNetwork:
        d1 = task.in_shape[1]
        if self.init == "construction":
            return gradient_steps(d1 - 1, self.loops, self.step)
        query_key, value_out = self.scale * jax.random.normal(key, (2, d1, d1))
        return LoopedNetwork(query_key, value_out, self.loops, self.step)
