"""The fifteen robust configurations (i)–(xv) and the three fragile ones (*i)–(*iii) (003 §5.3.1, §B.4.1)."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from krogh.nn.activations import Activation, OfDegree, oscillating_polynomial, power, sinusoid, triangle_wave, zigzag
from krogh.nn.base import Architecture
from krogh.nn.mlp import MLP
from krogh.nn.polynet import PolyNet
from krogh.nn.transformer import ParityTransformer
from krogh.probes.basic import accuracy
from krogh.tasks.parity import SparseParity
from krogh.train import SGD, Adam, Learner, Reach, Spec, spec

ROBUST = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii", "xiii", "xiv", "xv")
FRAGILE = ("*i", "*ii", "*iii")


class Configuration(NamedTuple):
    """`learner` is the document's for the figures in which the configuration is shown."""

    name: str
    network: Architecture
    learner: Learner


def configurations(k: int = 3, init: str = "uniform", freq_scale: float = 1.0) -> dict[str, Configuration]:
    """Every configuration by its numeral, for parities of k bits.

    `freq_scale` is s in the sinusoid σ(s z); the Transformer keeps its own initialisation.
    """
    neurons = {
        "k-zigzag": OfDegree(zigzag),
        "oscillating polynomial": OfDegree(oscillating_polynomial),
        "∞-zigzag": OfDegree(triangle_wave),
        "sinusoid": OfDegree(sinusoid if freq_scale == 1.0 else _scaled_sinusoid(freq_scale)),
    }
    rates = {"i": 0.5, "ii": 0.1, "iii": 0.1, "iv": 0.05, "v": 0.01, "vi": 0.01, "vii": 0.2, "viii": 0.01, "ix": 0.2}
    rates |= {"x": 0.05, "xi": 0.1, "xii": 0.1, "xiii": 0.1, "xiv": 0.01, "xv": 0.07, "*i": 0.1, "*ii": 0.01}

    table: dict[str, tuple[str, Architecture]] = {}
    for id, width in zip(("i", "ii", "iii", "*i"), (10, 100, 1000, k), strict=True):
        table[id] = f"ReLU, width {width}", MLP(width, init=init)
    for id, width in zip(("iv", "v", "vi", "*ii"), (10, 100, 1000, k), strict=True):
        table[id] = f"z^{k}, width {width}", MLP(width, OfDegree(power), init)
    for id, (name, activation) in zip(("vii", "viii", "ix", "x"), neurons.items(), strict=True):
        table[id] = f"{name} neuron", MLP(1, activation, init)
    for id, (name, activation) in zip(("xi", "xii", "xiii", "xiv"), neurons.items(), strict=True):
        table[id] = f"{name} neuron, u = 1", MLP(1, activation, init, head=False)
    table["xv"] = "PolyNet", PolyNet(init)
    found = {id: Configuration(*table[id], SGD(lr=rates[id])) for id in (*ROBUST, "*i", "*ii")}
    return found | {"*iii": Configuration("Parity Transformer", ParityTransformer(), Adam(lr=3e-4))}


@cache
def _scaled_sinusoid(scale: float) -> Callable[[int], Activation]:
    def family(k: int) -> Activation:
        return sinusoid(k, scale)

    family.__name__ = f"sinusoid, s = {scale:g}"
    return family


def parity_run(
    configuration: Configuration,
    n: int,
    k: int,
    steps: int,
    *,
    every: int,
    seeds: int | range,
    validation: int | str = 128,
    confirm: int | None = 8192,
    probes: tuple[Callable, ...] = (accuracy,),
    **learner: Any,
) -> Spec:
    """A configuration on the (n, k)-parity until it classifies everything; `learner` changes its default one.

    t_c is the first check with 100 % on the validation sample (003 §B.4.2), by default a small one whose verdict is
    confirmed on 8192 fresh examples.
    """
    return spec(
        SparseParity(n, k),
        configuration.network,
        replace(configuration.learner, **learner),
        steps,
        seeds=seeds,
        probes=probes,
        every=every,
        until=Reach("accuracy", 1.0, confirm=confirm),
        validation=validation,
        networks=False,
    )
