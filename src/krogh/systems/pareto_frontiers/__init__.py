"""System 15: data, width, time and luck in learning parities from a fixed sample (003 chapter 6, appendix C)."""

from krogh.lab.system import System

system = System(
    slug="pareto-frontiers",
    number=15,
    title="Pareto frontiers: data, width, time and luck in offline sparse parity",
    question=(
        "A parity of k bits can be learnt from about k log n examples, but gradient descent must pay some n^k for it: "
        "how far can it pay in width, in examples, in steps or in restarts, and do sparse first layers make "
        "the price lower, on parities and on tables?"
    ),
    source="003 chapter 6, appendix C",
    knobs="n, k, sample size, width, sparsity of the first layer, steps, weight decay, learning rate, loss",
)

from krogh.systems.pareto_frontiers import (  # noqa: E402, F401
    frontier,
    lottery,
    one_step,
    tables,
    theory,
)
