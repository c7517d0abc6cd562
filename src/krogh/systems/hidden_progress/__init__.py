"""System 14: how gradient descent learns sparse parities near the computational limit (003 chapter 5, appendix B)."""

from krogh.lab.system import System

system = System(
    slug="hidden-progress",
    number=14,
    title="Hidden progress: learning sparse parities near the computational limit",
    question=(
        "Why does plain SGD find the k relevant bits of a parity in about n^k steps, at chance for most of them and "
        "then all at once, and what moves while the loss does not?"
    ),
    source="003 chapter 5, appendix B",
    knobs="n, k, architecture, width, activation, batch, lr, initialisation, sample size, weight decay, label noise",
)

from krogh.systems.hidden_progress import (  # noqa: E402, F401
    curves,
    depth,
    generalisation,
    noise,
    progress,
    robustness,
    scaling,
    theory,
    theory_flow,
    theory_limits,
    theory_one_step,
    theory_sgd,
    width,
)
