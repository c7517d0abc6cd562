"""Transformers that read a sequence from left to right."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from krogh.errors import InputError, nearest
from krogh.nn.attention import (
    Affine,
    Attention,
    Block,
    FeedForward,
    LayerNorm,
    Pool,
    causal,
    dropout_masks,
    layer_norm,
    sinusoidal,
)
from krogh.nn.base import Architecture, Buffer, width_of
from krogh.nn.spanned import after, after_first
from krogh.tasks.base import Task

# Up to so many symbols are picked by products.
FEW = 8
# Up to so many pairs of a place and a symbol have tables of their own.
TABLED = 400
# With so many dimensions in the heads of a layer a few replicas keep a GPU busy; more only cost memory.
WIDE = 1024


class Decoder(eqx.Module):
    """Causal blocks over a sequence of symbols or of vectors, read out after a last layer norm:

        s = √emb · tokens[x] + positions  (symbols)  or  x · tokens + positions  (vectors);  f = LN(blocks(s)) W + b.

    closing   append the last symbol ("=") to every input, of few symbols at few places without lags
    reads     "last": outputs at the last position alone, where the last block is then computed; "all": at every one
    """

    tokens: Float[Array, "symbols emb"]
    positions: Float[Array, "n emb"] | Buffer | None
    blocks: tuple[Block, ...]
    norm: LayerNorm | None
    output: Float[Array, "emb outputs"]
    output_bias: Float[Array, " outputs"] | None = None
    masks: Buffer | None = None
    dropout: float = eqx.field(static=True, default=0.0)
    scale: float = eqx.field(static=True, default=1.0)
    closing: bool = eqx.field(static=True, default=False)
    reads: str = eqx.field(static=True, default="all")

    @property
    def few(self) -> bool:
        """Few symbols are picked by one-hot products, whose gradients need no scatter."""
        return len(self.tokens) <= FEW

    def spanned(self, x: Array) -> bool:
        """Whether inputs are few symbols whose places enter by lags alone, so that few coordinates say everything."""
        symbols = jnp.issubdtype(x.dtype, jnp.integer) and not self.closing
        return symbols and self.few and self.positions is None

    def embedded(self) -> Float[Array, "symbols emb"]:
        """Every symbol as it enters the first block, before its position is added."""
        return self.scale * self.tokens

    def sequence(self, x: Array) -> Float[Array, "n emb"]:
        """One input as it enters the first block."""
        if jnp.issubdtype(x.dtype, jnp.integer):
            symbols = jnp.append(x, len(self.tokens) - 1) if self.closing else x
            if self.few:
                sequence = jax.nn.one_hot(symbols, len(self.tokens)) @ self.embedded()
            else:
                sequence = self.embedded()[symbols]
        else:
            sequence = x @ self.embedded()
        return self._placed(sequence)

    def _placed(self, sequence: Float[Array, "n emb"], first: int = 0) -> Float[Array, "n emb"]:
        """With the positions from `first` on added."""
        if self.positions is None:
            return sequence
        positions = self.positions.value if isinstance(self.positions, Buffer) else self.positions
        return sequence + positions[first : first + len(sequence)]

    def _run(self, x: Array, masks: list[list[Array]] | None) -> Array:
        n = len(x) + self.closing
        tabled = self.closing and not masks and n * len(self.tokens) <= TABLED
        sequence = x if tabled else self.sequence(x)
        if masks:
            sequence = sequence * masks[0][0]
        for i, block in enumerate(self.blocks):
            first = n - 1 if self.reads == "last" and i == len(self.blocks) - 1 else 0
            if i == 0 and tabled:
                sequence = self._first_block(x, first)
            else:
                sequence = block(sequence, first, masks[i + 1]) if masks else block(sequence, first)
        return self._answer((sequence if self.norm is None else self.norm(sequence)) @ self.output)

    def _first_block(self, x: Int[Array, " n"], first: int) -> Float[Array, "queries emb"]:
        """x_1, …, x_n "=" after the first block, the positions from `first` on, by tables over places and symbols.

        A batch shares the tables: projections are made for p n + 1 rows instead of n + 1 an input, and scores for all
        pairs of rows in a product per head, where an input would need a tiny one per head.
        """
        block, symbols = self.blocks[0], len(self.tokens) - 1
        everywhere = jnp.broadcast_to(self.embedded()[:-1], (len(x), *self.embedded()[:-1].shape))
        body = jax.vmap(self._placed, in_axes=1, out_axes=1)(everywhere)
        rows = jnp.concatenate([body.reshape(-1, body.shape[-1]), self._placed(self.embedded()[-1:], len(x))])
        at = jnp.append(jnp.arange(len(x)) * symbols + x, len(rows) - 1)

        seen, asking = block.normed(rows), first * symbols
        query, key, value = (
            jnp.einsum("te,eha->tha", seen[start:], matrix)
            for start, matrix in ((asking, block.attention.query), (0, block.attention.key), (0, block.attention.value))
        )
        scores = jnp.einsum("qha,tha->qth", query, key) / math.sqrt(key.shape[-1])
        scores = jnp.where(causal(len(at), first)[..., None], scores[at[first:, None] - asking, at], -jnp.inf)
        weights = jax.nn.softmax(scores, axis=1)
        if jax.default_backend() == "cpu" and len(weights) == 1:
            mixed = jnp.einsum("qnh,nha->qha", weights, value[at])
        else:  # a sum, because products of matrices this small are slow, above all on GPUs
            mixed = jnp.sum(weights[..., None] * _picked(value, x, at), axis=1)
        return block.fed(rows[at[first:]] + jnp.einsum("qha,hae->qe", mixed, block.attention.out))

    def _on_symbols(self, x: Int[Array, "*batch n"]) -> Array:
        state = after_first(self.blocks[0], self.embedded(), x)
        for i, block in enumerate(self.blocks[1:], 2):
            state = after(block, state, last=self.reads == "last" and i == len(self.blocks))
        return self._answer(jnp.moveaxis(state.normed(self.norm).times(self.output), 0, -1))

    def _answer(self, outputs: Float[Array, "*batch n outputs"]) -> Array:
        if self.output_bias is not None:
            outputs = outputs + self.output_bias
        outputs = outputs[..., -1, :] if self.reads == "last" else outputs
        return outputs[..., 0] if self.output.shape[1] == 1 else outputs

    def __call__(self, x: Array) -> Array:
        return self._on_symbols(x) if self.spanned(x) else self._run(x, None)

    def attention(self, x: Array) -> list[Float[Array, "heads n n"]]:
        """Attention maps of every layer on one input."""
        sequence, maps = self.sequence(x), []
        for block in self.blocks:
            maps.append(block.attention.weights(block.normed(sequence)))
            sequence = block(sequence)
        return maps

    def batch(self, x: Array, key: PRNGKeyArray) -> tuple[Array, "Decoder"]:
        """Outputs with dropout on embeddings, attention weights and residual branches."""
        if self.dropout == 0 or self.masks is None:
            return self._on_symbols(x) if self.spanned(x) else jax.vmap(self)(x), self
        size, n, emb = len(x), x.shape[1] + self.closing, self.tokens.shape[1]
        layers, shapes = [], [(size, n, emb)]
        for i, block in enumerate(self.blocks):
            queries = 1 if self.reads == "last" and i == len(self.blocks) - 1 else n
            branch = (size, queries, emb)
            layers.append([(size, block.attention.key.shape[1], queries, n), branch, branch])
            shapes += layers[-1] if block.mlp is not None else layers[-1][:2]
        # The masks depend on the initialisation too: a restart on the same data has its own.
        drawn = iter(dropout_masks(jax.random.fold_in(key, self.masks.value), self.dropout, *shapes))
        masks = [[next(drawn)]] + [[next(drawn) for _ in range(2 + (b.mlp is not None))] for b in self.blocks]
        return jax.vmap(self._run)(x, masks), self


def _picked(table: Float[Array, "rows *rest"], x: Int[Array, " n"], at: Int[Array, " n1"]) -> Float[Array, "n1 *rest"]:
    """table[at]: of every place's rows the one of its symbol, and the last row of all."""
    if jax.default_backend() == "cpu":
        return table[at]
    # a product, whose gradient is one too: scattered sums over a batch are slow on GPUs
    body = table[:-1].reshape(len(x), -1, *table.shape[1:])
    chosen = jnp.einsum("js,js...->j...", jax.nn.one_hot(x, body.shape[1]), body)
    return jnp.concatenate([chosen, table[-1:]])


POSITIONS = ("learned", "relative", "sinusoidal", "none")


class CausalTransformer(Architecture):
    """A decoder on the symbols (`task.elements` of them) or the vectors of a task.

    mlp         width of the feed-forward part; None for attention alone
    attn        dimension of a head; None for emb/heads
    positions   "learned" (added to the tokens), "relative" (added to the keys), "sinusoidal" or "none"
    norm        pre-norms in every block and a last one
    projection  output projections of attention; without them heads are as wide as the sequence
    reads       "all" or "last" position
    scale       every matrix starts as N(0, scale²), the output projections of attention with half of that

    Linear maps have no biases except in the feed-forward part, where they start at zero.
    """

    layers: int = eqx.field(static=True, default=2)
    heads: int = eqx.field(static=True, default=1)
    emb: int = eqx.field(static=True, default=16)
    attn: int | None = eqx.field(static=True, default=None)
    mlp: int | None = eqx.field(static=True, default=None)
    positions: str = eqx.field(static=True, default="relative")
    norm: bool = eqx.field(static=True, default=True)
    dropout: float = eqx.field(static=True, default=0.0)
    reads: str = eqx.field(static=True, default="all")
    scale: float = 0.02
    projection: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        width_of(layers=self.layers, heads=self.heads, emb=self.emb, attn=self.attn or 1, mlp=self.mlp or 1)
        if self.positions not in POSITIONS:
            allowed = ", ".join(POSITIONS)
            raise InputError(
                f"positions must be one of {allowed}, got {self.positions!r}{nearest(self.positions, POSITIONS)}"
            )
        if self.reads not in ("all", "last"):
            raise InputError(f"reads must be 'all' or 'last', got {self.reads!r}")
        if not self.projection and self.attn not in (None, self.emb):
            raise InputError(f"without projection attn must be emb={self.emb}, got {self.attn}")
        if self.attn is None and self.projection and self.emb % self.heads:
            raise InputError(f"emb={self.emb} cannot be divided by heads={self.heads}; set attn")

    def build(self, task: Task, key: PRNGKeyArray) -> Decoder:
        n, symbols = task.in_shape[0], task.in_shape[1] if len(task.in_shape) == 2 else task.elements  # type: ignore[attr-defined]
        emb, heads, mlp = self.emb, self.heads, self.mlp or 0
        attn = self.attn or (emb // heads if self.projection else emb)
        relative = n if self.positions == "relative" else 0
        learned = n if self.positions == "learned" else 0
        a_layer = heads * attn * ((3 + self.projection) * emb + relative) + 2 * emb * mlp
        number_key, mask_key = jax.random.split(key)
        total = emb * (symbols + learned + task.outputs) + self.layers * a_layer
        pool = Pool(self.scale * jax.random.normal(number_key, (total,)))

        def block() -> Block:
            query, key, value = (pool.take(emb, heads, attn) for _ in range(3))
            out = pool.take(heads, attn, emb) / 2 if self.projection else None
            attention = Attention(query, key, value, out, pool.take(n, heads, attn) if relative else None)
            inner = Affine(pool.take(emb, mlp), jnp.zeros(mlp))
            return Block(
                attention,
                layer_norm(emb) if self.norm else None,
                FeedForward(inner, Affine(pool.take(mlp, emb), jnp.zeros(emb))) if mlp else None,
                layer_norm(emb) if self.norm and mlp else None,
            )

        places = {"learned": lambda: pool.take(n, emb), "sinusoidal": lambda: Buffer(sinusoidal(n, emb))}
        return Decoder(
            tokens=pool.take(symbols, emb),
            positions=places.get(self.positions, lambda: None)(),
            blocks=tuple(block() for _ in range(self.layers)),
            norm=layer_norm(emb) if self.norm else None,
            output=pool.take(emb, task.outputs),
            masks=Buffer(jax.random.bits(mask_key)) if self.dropout else None,
            dropout=self.dropout,
            reads=self.reads,
        )


class SymbolTransformer(Architecture):
    """A transformer that reads x_1, …, x_n "=" and answers at "=" (000 §4.5); √emb multiplies the tokens.

    Embeddings start as N(0, 1), matrices as U[−1/√fan_in, 1/√fan_in], biases at zero. A head's dimension
    `attn` does not depend on how many there are.
    """

    layers: int = eqx.field(static=True, default=1)
    heads: int = eqx.field(static=True, default=160)
    emb: int = eqx.field(static=True, default=128)
    attn: int = eqx.field(static=True, default=32)
    mlp: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        width_of(layers=self.layers, heads=self.heads, emb=self.emb, attn=self.attn, mlp=self.mlp or 1)

    @property
    def at_once(self) -> int | None:
        wide = self.heads * self.attn >= WIDE
        return 8 if wide and jax.default_backend() != "cpu" else None

    def build(self, task: Task, key: PRNGKeyArray) -> Decoder:
        symbols, places = task.elements + 1, task.in_shape[0] + 1  # type: ignore[attr-defined]
        embedding_key, output_key, *keys = jax.random.split(key, 2 + self.layers)
        embeddings = jax.random.normal(embedding_key, (symbols + places, self.emb))
        bound = 1 / math.sqrt(self.emb)
        return Decoder(
            tokens=embeddings[:symbols],
            positions=embeddings[symbols:],
            blocks=tuple(self._block(key) for key in keys),
            norm=layer_norm(self.emb),
            output=jax.random.uniform(output_key, (self.emb, task.outputs), minval=-bound, maxval=bound),
            output_bias=jnp.zeros(task.outputs),
            scale=math.sqrt(self.emb),
            closing=True,
            reads="last",
        )

    def _block(self, key: PRNGKeyArray) -> Block:
        emb, heads, attn, mlp = self.emb, self.heads, self.attn, self.mlp or 4 * self.emb
        total = emb * (4 * heads * attn + 2 * mlp)
        pool = Pool(jax.random.uniform(key, (total,), minval=-1.0, maxval=1.0))

        def matrix(fan_in: int, *shape: int) -> Array:
            return pool.take(*shape) / math.sqrt(fan_in)

        query, key_matrix, value = (matrix(emb, emb, heads, attn) for _ in range(3))
        attention = Attention(query, key_matrix, value, matrix(heads * attn, heads, attn, emb))
        inner = Affine(matrix(emb, emb, mlp), jnp.zeros(mlp))
        outer = Affine(matrix(mlp, mlp, emb), jnp.zeros(emb))
        return Block(attention, layer_norm(emb), FeedForward(inner, outer), layer_norm(emb))
