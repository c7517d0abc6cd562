"""Who learns: architectures, which build Equinox networks for a task."""

from krogh.nn import activations
from krogh.nn.base import Architecture, Buffer
from krogh.nn.bit_transformer import OneLayerTransformer
from krogh.nn.decoder import CausalTransformer, SymbolTransformer
from krogh.nn.minimal_induction import MinimalInduction
from krogh.nn.mlp import MLP, DeepMLP
from krogh.nn.polynet import DisjointPolyNet, PolyNet
from krogh.nn.sparse import SparseRows
from krogh.nn.symmetric import SymmetricReLU
from krogh.nn.tables import Lookup
from krogh.nn.transformer import ParityTransformer

__all__ = [
    "MLP",
    "Architecture",
    "Buffer",
    "CausalTransformer",
    "DeepMLP",
    "DisjointPolyNet",
    "Lookup",
    "MinimalInduction",
    "OneLayerTransformer",
    "ParityTransformer",
    "PolyNet",
    "SparseRows",
    "SymbolTransformer",
    "SymmetricReLU",
    "activations",
]
