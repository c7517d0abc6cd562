"""System 07: a linear looped transformer that runs gradient descent in context (000 chapter 8)."""

from krogh.lab.system import System

system = System(
    slug="looped-transformer",
    number=7,
    title="Linear looped transformer: multi-step gradient descent in context",
    question=(
        "Must a looped linear transformer see exponentially many examples before it can run T steps of gradient "
        "descent in its forward pass, and does the task it is given need gradient descent at all?"
    ),
    source="000 chapter 8",
    knobs="n, d, loops T, residual weights (1/L, 1/trace, 1/|y|^2), mask, start q, initialisation of trained Q and P",
)

from krogh.systems.looped_transformer import (  # noqa: E402, F401
    conditioning,
    convergence,
    exactness,
    extensions,
)
