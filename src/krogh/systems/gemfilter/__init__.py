"""System 08: early layers of a language model as a filter of its prompt (000 chapter 9, appendix G)."""

from krogh.lab.system import System

system = System(
    slug="gemfilter",
    number=8,
    title="GemFilter: the gems of a long prompt are found in early layers",
    question=(
        "Does the last query of an early layer already point at the tokens that answer it, so that a long prompt needs "
        "only the first layers and the answer only a thousandth of the tokens?"
    ),
    source="000 chapter 9, appendix G",
    knobs="filter layer, kept tokens, pooling, row of the scores, prompt length, depth of the needle, model",
)

from krogh.systems.gemfilter import cost, exact, needle, planted, retrieval, tables  # noqa: E402, F401
