"""How it learns: learners and stages, the ensemble engine, sweeps."""

from krogh.train.checkpoint import workspace
from krogh.train.learners import SGD, Adam, Learner, SignDescent, Stage
from krogh.train.losses import correlation, cross_entropy, hinge, logistic, square
from krogh.train.spec import Spec
from krogh.train.success import Reach, log_spaced
from krogh.train.sweep import Run, spec, sweep, train

__all__ = [
    "SGD",
    "Adam",
    "Learner",
    "Reach",
    "Run",
    "SignDescent",
    "Spec",
    "Stage",
    "correlation",
    "cross_entropy",
    "hinge",
    "log_spaced",
    "logistic",
    "spec",
    "square",
    "sweep",
    "train",
    "workspace",
]
