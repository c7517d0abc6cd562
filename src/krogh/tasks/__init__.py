"""What is learned: data distributions with a known answer."""

from krogh.tasks.base import Batch, Task
from krogh.tasks.groups import GroupComposition
from krogh.tasks.labels import TwoClasses
from krogh.tasks.parity import DisjointParity, LabelNoise, SparseParity

__all__ = ["Batch", "DisjointParity", "GroupComposition", "LabelNoise", "SparseParity", "Task", "TwoClasses"]
