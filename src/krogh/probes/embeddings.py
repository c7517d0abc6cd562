"""Probes of the Fourier content of a Transformer's embeddings and attention (000 §4.5), and of whole tables."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from krogh.nn.decoder import Decoder
from krogh.probes.basic import probe
from krogh.probes.margins import margins, neuron_norms
from krogh.probes.spectra import frequency_power
from krogh.tasks.modular import ROUNDS, ModularAddition, permuted

ROWS_AT_ONCE = 4096


def attention_maps(network: Decoder) -> Float[Array, "heads p p"]:
    """S_h = X K_h (X Q_h)ᵀ of the first block, X the layer-normed embeddings of the p numbers: W^{KQ} on tokens."""
    block = network.blocks[0]
    x = block.normed(network.embedded()[:-1])
    keys, queries = (jnp.einsum("pe,eha->hpa", x, w) for w in (block.attention.key, block.attention.query))
    return keys @ queries.swapaxes(1, 2)


def closing_scores(network: Decoder) -> Float[Array, "heads p"]:
    """s_h(a) = X_a K_h (X_= Q_h)ᵀ: how much "=" looks at each number, all of W^{KQ} that a single layer uses."""
    block = network.blocks[0]
    x = block.normed(network.embedded())
    query = jnp.einsum("e,eha->ha", x[-1], block.attention.query)
    return jnp.einsum("pe,eha,ha->hp", x[:-1], block.attention.key, query)


def folded_power(maps: Float[Array, "... p p"]) -> Float[Array, "... f f"]:
    """Shares of the 2-D power of doubly centred maps at the frequency pairs (|f_1|, |f_2|), 1 ≤ f ≤ p/2."""
    p = maps.shape[-1]
    centred = maps - maps.mean(axis=-1, keepdims=True) - maps.mean(axis=-2, keepdims=True)
    power = (jnp.abs(jnp.fft.fft2(centred)) ** 2)[..., 1:, 1:]
    folded = power + power[..., ::-1, :]
    folded = folded + folded[..., ::-1]
    half = p // 2
    shares = folded[..., :half, :half]
    return shares / jnp.sum(shares, axis=(-2, -1), keepdims=True)


@probe(
    dims={
        "pair_share": ("head",),
        "closing_share": ("head",),
        "embedding_power": ("frequency",),
    }
)
def attention_spectra(network: Decoder) -> dict[str, Array]:
    """For every head the largest share of a frequency pair in S_h, and of a frequency in the scores of "="; and the
    embeddings' power at each frequency 1, …, p/2 as a share of the whole but the mean."""
    power = jnp.sum(jnp.abs(jnp.fft.rfft(network.tokens[:-1], axis=0)) ** 2, axis=1)[1:]
    scores = closing_scores(network)
    return {
        "pair_share": jnp.max(folded_power(attention_maps(network)), axis=(1, 2)),
        "closing_share": jnp.max(frequency_power(scores - scores.mean(axis=1, keepdims=True)), axis=1),
        "embedding_power": power / jnp.sum(power),
    }


@dataclass(frozen=True)
class TableMargin:
    """min over rows of f[y] − max_{c≠y} f[c] at θ/‖θ‖_{2,k+1}, and the share of rows classified correctly.

    Rows are read in blocks of 4096. Of a table with more than `rows` of them as many are drawn, the same for every
    replica: the minimum is then an upper bound.
    """

    rows: int = 2**17
    name: str = "table"

    def __call__(self, network: Any, task: ModularAddition) -> dict[str, Float[Array, ""]]:
        count = min(self.rows, task.rows)
        words = jax.random.bits(jax.random.key(0), (ROUNDS,), jnp.uint32)

        def block(start):
            # the last block reads its last row again and again
            numbers = jnp.minimum(start + jnp.arange(min(ROWS_AT_ONCE, count)), count - 1).astype(jnp.uint32)
            batch = task.row(numbers if count == task.rows else permuted(numbers, task.rows, words))
            found = margins(jax.vmap(network)(batch.x), batch.y)
            new = jnp.arange(len(numbers)) + start < count
            return jnp.min(found), jnp.sum((found > 0) & new)

        lowest, right = lax.map(block, jnp.arange(0, count, ROWS_AT_ONCE))
        scale = jnp.sum(neuron_norms(network) ** (task.k + 1))
        return {"margin": jnp.min(lowest) / scale, "table_accuracy": jnp.sum(right) / count}
