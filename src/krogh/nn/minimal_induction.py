"""The minimal model of a statistical induction head (003 §8.2.3)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from krogh.nn.attention import by_lag, causal, softmax_weights
from krogh.nn.base import Architecture
from krogh.tasks.base import Task


class MinimalInductionNetwork(eqx.Module):
    """f(E) = mask(E W (M E)ᵀ) E on one-hot codes E, M lower triangular with M_ij = v_{i−j+1} (003 eq. 8.8).

    Unlike a transformer: no softmax, no values, no residual stream; the first layer is one vector v of weights by lag,
    the second one matrix W. f_{p,i} = Σ_{t'≤p} 1{x_t' = i} Σ_{s≤t'} v_{t'−s+1} W[x_p, x_s] is a cumulative sum over
    t', so that no matrix of positions by positions is needed for it.

    normalised   rows of M are softmax over the visible lags of v, as in the authors' public code
    """

    match: Float[Array, "k k"]
    lags: Float[Array, " t"]
    normalised: bool = eqx.field(static=True, default=False)

    def lag_matrix(self, n: int) -> Float[Array, "{n} {n}"]:
        """M for sequences of length n."""
        laid_out = by_lag(jnp.broadcast_to(self.lags[:n], (n, n)))
        return softmax_weights(laid_out, causal(n)) if self.normalised else jnp.where(causal(n), laid_out, 0.0)

    def __call__(self, x: Int[Array, " t"]) -> Float[Array, "t k"]:
        code = jax.nn.one_hot(x, len(self.match))
        looked = self.lag_matrix(len(x)) @ code
        found = jnp.cumsum(code[:, :, None] * looked[:, None, :], axis=0)
        return jnp.einsum("pil,pl->pi", found, code @ self.match)


class MinimalInduction(Architecture):
    """The minimal model with W = `match` 11ᵀ and v = `lag` 1 at the start; `lag` is 1/t where it is None."""

    match: float = 0.0
    lag: float | None = None
    normalised: bool = eqx.field(static=True, default=False)

    def build(self, task: Task, key: PRNGKeyArray) -> MinimalInductionNetwork:
        t, k = task.in_shape[0], task.outputs
        lag = 1 / t if self.lag is None else self.lag
        return MinimalInductionNetwork(jnp.full((k, k), self.match), jnp.full((t,), lag), self.normalised)
