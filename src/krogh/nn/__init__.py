"""Who learns: architectures, which build Equinox networks for a task."""

from krogh.nn import activations
from krogh.nn.base import Architecture, Buffer
from krogh.nn.mlp import MLP, DeepMLP
from krogh.nn.polynet import DisjointPolyNet, PolyNet
from krogh.nn.symmetric import SymmetricReLU, neurons, relu_network
from krogh.nn.transformer import ParityTransformer

__all__ = [
    "MLP",
    "Architecture",
    "Buffer",
    "DeepMLP",
    "DisjointPolyNet",
    "ParityTransformer",
    "PolyNet",
    "SymmetricReLU",
    "activations",
    "neurons",
    "relu_network",
]
