"""System 17: statistical induction heads, Markov chains learned in context (003 chapter 8, appendix E)."""

from krogh.lab.system import System

system = System(
    slug="statistical-induction-heads",
    number=17,
    title="Statistical induction heads: Markov chains learned in context",
    question=(
        "How does a two-layer attention-only transformer come to predict a Markov chain that it meets for the first "
        "time, why does it stop at counting symbols on the way, and does that detour help or delay it?"
    ),
    source="003 chapter 8, appendix E",
    knobs="k, t, n-grams, prior over chains, layers, heads, form (public, thesis), dropout, positions, lr, steps",
)

from krogh.systems.statistical_induction_heads import (  # noqa: E402, F401
    minimal,
    priors,
    theory,
    transformer,
    trigrams,
)
