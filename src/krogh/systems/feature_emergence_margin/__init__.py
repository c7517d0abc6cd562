"""System 16: features of algebraic tasks from margin maximisation (003 chapter 7, appendix D)."""

from krogh.lab.system import System

system = System(
    slug="feature-emergence-margin",
    number=16,
    title="Feature emergence via margin maximisation: modular addition, parities, finite groups",
    question=(
        "Why do trained networks add with Fourier features and compose group elements with irreducible "
        "representations, when many other circuits fit the data? Does the largest margin alone decide it?"
    ),
    source="003 chapter 7, appendix D",
    knobs=(
        "group (Z_n, S_n, A_n, D_n, Q_8), n and k of the parity, width, activation, norm, regularisation, schedule of "
        "the lr"
    ),
)

from krogh.systems.feature_emergence_margin import (  # noqa: E402, F401
    cases,
    certificates,
    constructions,
    cyclic,
    groups,
    parity,
)
