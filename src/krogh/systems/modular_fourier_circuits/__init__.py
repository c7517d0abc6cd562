"""System 03: Fourier circuits for modular addition of k inputs (000 chapter 4, appendix C)."""

from krogh.lab.system import System

system = System(
    slug="modular-fourier-circuits",
    number=3,
    title="Fourier circuits for k-input modular addition: maximum margin, spectra, grokking",
    question=(
        "Which networks add k numbers modulo p with the largest margin, do trained networks and Transformers find the "
        "same single-frequency circuits, and what becomes of grokking as k grows?"
    ),
    source="000 chapter 4, appendix C",
    knobs="k, p, width, penalty and its norm, activation, share of the table seen, heads, weight decay, steps",
)

from krogh.systems.modular_fourier_circuits import (  # noqa: E402, F401
    attention,
    grokking,
    margin,
    spectra,
    theory,
)
