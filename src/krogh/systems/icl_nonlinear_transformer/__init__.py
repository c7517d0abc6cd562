"""System 22: in-context learning by a one-layer Transformer with softmax attention and a ReLU MLP (004 chapter 6)."""

from krogh.lab.system import System

system = System(
    slug="icl-nonlinear-transformer",
    number=22,
    title="In-context learning by a nonlinear Transformer, with pruning",
    question=(
        "How does SGD on prompts from a few tasks make one layer of softmax attention and a ReLU perceptron solve new "
        "tasks in and out of domain, and what does deleting neurons do to it?"
    ),
    source="004 chapter 6, appendix E",
    knobs="patterns M1 and M2, alpha, context length, K, beta, delta, output weights, width, heads, lr, batch, tasks",
)

from krogh.systems.icl_nonlinear_transformer import (  # noqa: E402, F401
    baselines,
    generalisation,
    lemmas,
    mechanism,
    pruning,
    requirements,
)
