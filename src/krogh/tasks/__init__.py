"""What is learned: data distributions with a known answer."""

from krogh.tasks.base import Batch, Task
from krogh.tasks.block_parity import BlockParity
from krogh.tasks.mixtures import GaussianMixture, LinearMargin, orthogonal_mixture, xor_mixture
from krogh.tasks.multi_index import MultiIndex
from krogh.tasks.parity import DisjointParity, LabelNoise, SparseParity

__all__ = [
    "Batch",
    "BlockParity",
    "DisjointParity",
    "GaussianMixture",
    "LabelNoise",
    "LinearMargin",
    "MultiIndex",
    "SparseParity",
    "Task",
    "orthogonal_mixture",
    "xor_mixture",
]
