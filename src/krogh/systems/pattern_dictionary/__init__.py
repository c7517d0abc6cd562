"""System 01: features emerge from structured inputs, and beat fixed ones (000 chapter 2, appendix A; 001)."""

from krogh.lab.system import System

system = System(
    slug="pattern-dictionary",
    number=1,
    title="Pattern dictionary: feature emergence and the advantage over fixed features",
    question=(
        "How do two early gradient steps find the few class-relevant patterns among many, why can no linear model on "
        "fixed features do the same, and what is left when the structure of the inputs is removed?"
    ),
    source="000 chapter 2, appendix A; 001",
    knobs=(
        "d, D, k, label rule, m, n, steps, class share, first-step learning rate, wipe or keep, class weights, "
        "dictionary coherence, input noise, structure on or off"
    ),
)

from krogh.systems.pattern_dictionary import (  # noqa: E402, F401
    bounds,
    existence,
    gaussians,
    general,
    images,
    images_filters,
    pictures,
    steps,
    tables,
    teacher_student,
)
