"""System 13: what a bounded-norm attention head can represent and how many samples it needs (003 chapter 4)."""

from krogh.lab.system import System

system = System(
    slug="variable-creation",
    number=13,
    title="Variable creation: attention heads select few of many inputs",
    question=(
        "Which functions does self-attention prefer, and why do the samples needed to find s relevant bits grow only "
        "like the logarithm of the context length?"
    ),
    source="003 chapter 4, appendix A",
    knobs="context length, sample size, gate, heads, embedding, dropout, restarts, norms of the heads, coherence",
)

from krogh.systems.variable_creation import (  # noqa: E402, F401
    attention,
    capacity,
    conjunctions,
    constructions,
    controls,
    parities,
)
