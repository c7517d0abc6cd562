"""System 23: chain-of-thought inference by a trained one-layer attention-only transformer (004 chapter 7, app. F)."""

from krogh.lab.system import System

system = System(
    slug="chain-of-thought",
    number=23,
    title="Chain of thought: multi-step reasoning by one trained attention head",
    question=(
        "Why does training on step-supervised prompts give a head that reasons in K steps on new tasks, from examples "
        "with noise and wrong steps, and when does asking for the final answer alone fail?"
    ),
    source="004 chapter 7, appendix F",
    knobs="patterns, steps, share of examples like the query, prompt length, tau, rho, noise, test patterns",
)

from krogh.systems.chain_of_thought import (  # noqa: E402, F401
    dynamics,
    exact,
    guarantees,
    inference,
    layers,
    scaling,
)
