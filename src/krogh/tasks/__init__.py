"""What is learned: data distributions with a known answer."""

from krogh.tasks.base import Batch, Task
from krogh.tasks.block_parity import BlockParity
from krogh.tasks.groups import GroupComposition
from krogh.tasks.labels import TwoClasses
from krogh.tasks.markov import MarkovChains
from krogh.tasks.mixtures import GaussianMixture, LinearMargin, orthogonal_mixture, xor_mixture
from krogh.tasks.modular import ModularAddition
from krogh.tasks.multi_index import MultiIndex
from krogh.tasks.offline import OfflineParity
from krogh.tasks.parity import DisjointParity, LabelNoise, SparseParity
from krogh.tasks.sparse_boolean import SparseBoolean

__all__ = [
    "Batch",
    "BlockParity",
    "DisjointParity",
    "GaussianMixture",
    "GroupComposition",
    "LabelNoise",
    "LinearMargin",
    "MarkovChains",
    "ModularAddition",
    "MultiIndex",
    "OfflineParity",
    "SparseBoolean",
    "SparseParity",
    "Task",
    "TwoClasses",
    "orthogonal_mixture",
    "xor_mixture",
]
