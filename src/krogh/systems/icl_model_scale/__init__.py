"""System 04: why larger models learn differently in context (000 chapter 5, appendix D)."""

from krogh.lab.system import System

system = System(
    slug="icl-model-scale",
    number=4,
    title="In-context learning at different scales: small models keep the important features, large ones all of them",
    question=(
        "Why are larger models more easily distracted by noise in their context, and smaller ones more robust? Linear "
        "attention whose rank or number of heads is limited, in closed form, sampled and trained; flipped labels in "
        "the prompts of a language model."
    ),
    source="000 chapter 5, appendix D",
    knobs="rank, heads, spectrum, examples per prompt, label noise, flipped labels, task mixture, size of a decoder, "
    "language models and their depth",
)

from krogh.systems.icl_model_scale import (  # noqa: E402, F401
    evaluation,
    flips,
    language,
    minimality,
    parity,
    regression,
    sentiment,
)
