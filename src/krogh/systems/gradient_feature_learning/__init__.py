"""System 02: gradient features, one account of what two-layer networks learn first (000 chapter 3, appendix B)."""

from krogh.lab.system import System

system = System(
    slug="gradient-feature-learning",
    number=2,
    title="Gradient feature learning: one framework, seven data families",
    question=(
        "Is there one principle behind feature learning by gradient descent: do the directions of the first gradient, "
        "and how often and how sharply they are hit, tell what a two-layer network will learn?"
    ),
    source="000 chapter 3, appendix B",
    knobs="data family, d, r, k, noise, width, threshold of the initialisation, sample size, cone gamma, norm B_G",
)

from krogh.systems.gradient_feature_learning import (  # noqa: E402, F401
    clusters,
    feature_set,
    frozen,
    guarantees,
    linear,
    lottery,
    parities,
    polynomials,
    simplicity,
    uniform_parity,
    width,
)
