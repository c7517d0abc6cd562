"""What GemFilter must cost (Theorem 9.3), the models it was measured on, and how a needle is scored (000 §9, §G)."""

from __future__ import annotations

from dataclasses import dataclass

NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
QUESTION = "What is the best thing to do in San Francisco?"
ANSWER = "eat a sandwich and sit in Dolores Park on a sunny day."


def needle_score(response: str, expected: str = ANSWER) -> float:
    """|words of the response ∩ words of the answer| / words of the answer; a repeated word counts once above only."""
    words = expected.lower().split()
    return len(set(response.lower().split()) & set(words)) / len(words)


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder-only model that decide its time and memory."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    filter_layer: int
    tied: bool = False

    @property
    def layer_parameters(self) -> int:
        """w: projections, gated MLP, two norms."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def parameters(self) -> int:
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + embeddings + self.hidden

    def prefill_flops(self, n: int, layers: int | None = None) -> tuple[float, float]:
        """(2 P n, 2 n² h d) per layer, times the layers run: the linear and the quadratic part of a prompt."""
        m = self.layers if layers is None else layers
        return 2.0 * m * self.layer_parameters * n, 2.0 * m * n**2 * self.heads * self.head_dim

    def cache_bytes(self, tokens: int, layers: int | None = None, per_query_head: bool = False, width: int = 2) -> int:
        """2 m h_kv t d numbers of `width` bytes; SnapKV's own sets need h in place of h_kv."""
        heads = self.heads if per_query_head else self.kv_heads
        return 2 * (self.layers if layers is None else layers) * heads * tokens * self.head_dim * width

    def prompt_bytes(self, method: str, n: int, k: int, width: int = 2) -> int:
        """Theorem 9.3: full m w + 2 m h n d, snapkv m w + 2 h n d + 2 m h k d, gemfilter r w + 2 h n d, in bytes.

        Weights include the input embedding, and the output head where it is needed.
        """
        embedding = self.vocab * self.hidden
        if method == "gemfilter":
            weights = self.filter_layer * self.layer_parameters + embedding
            return width * weights + self.cache_bytes(n, 1, width=width)
        weights = width * self.parameters
        if method == "full":
            return weights + self.cache_bytes(n, width=width)
        return weights + self.cache_bytes(n, 1, width=width) + self.cache_bytes(k, per_query_head=True, width=width)


LLAMA = Shape("LLaMA 3.1 8B", 32, 4096, 14336, 32, 8, 128, 128256, 13)
NEMO = Shape("Mistral Nemo 12B", 40, 5120, 14336, 32, 8, 128, 131072, 19)
PHI = Shape("Phi 3.5 Mini", 32, 3072, 8192, 32, 32, 96, 32064, 19)
SHAPES = {"llama": LLAMA, "nemo": NEMO, "phi": PHI}
