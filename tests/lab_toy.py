"""A tiny system, discovered like the real ones, with a store and a ledger of its own."""

import importlib
import sys
from pathlib import Path

import pytest

import krogh.systems
from krogh.lab import version

CARD = '''"""Toy."""
from krogh.lab import System

system = System("toy-coins", 99, "Toy coins", "Is a coin fair?", "nowhere", knobs="p, seeds")

from krogh.systems.toy import experiments  # noqa: E402, F401
'''

PARTS = '''"""Parts."""
import numpy as np

SCALE = 1.0


def toss(p, seeds):
    """Tosses."""
    return SCALE * (np.random.default_rng(0).random(seeds) < p)


def unused():
    return 1
'''

EXPERIMENTS = '''"""Experiments."""
import os
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr

from krogh.errors import InputError
from krogh.lab import at_least, share_at_least, share_at_most
from krogh.lab.figures import new_figure
from krogh.systems.toy import system
from krogh.systems.toy.parts import toss

OFFSET = 0.0


@dataclass(frozen=True)
class Settings:
    p: float = 0.9
    seeds: int = 200
    name: str = "a"
    deep: bool = False
    sizes: tuple[int, ...] = (1, 2)
    limit: int | None = None
    kind: Literal["fair", "loaded"] = "fair"
    wait: float = 0.0

    def __post_init__(self):
        if not 0 <= self.p <= 1:
            raise InputError(f"p is {self.p}; it must lie between 0 and 1.")


def shifted(x):
    return x + OFFSET


PRESETS = {"smoke": Settings(seeds=2), "quick": Settings(), "paper": Settings(seeds=400)}


@system.experiment("fig-1", "Coins", presets=PRESETS)
def coins(s):
    """Tosses of one coin."""
    if "TOY_CALLS" in os.environ:
        with open(os.environ["TOY_CALLS"], "a") as calls:
            calls.write("x")
    time.sleep(s.wait)
    heads = shifted(toss(s.p, s.seeds)) > 0.5
    curve = np.cumsum(np.ones((s.seeds, 5)), axis=1) * heads[:, None]
    side = np.where(heads, "head", "tail")
    return xr.Dataset(
        {"heads": ("seed", heads), "side": ("seed", side), "curve": (("seed", "step"), curve)},
        coords={"seed": np.arange(s.seeds), "step": np.arange(5)},
        attrs={"sizes": s.sizes, "deep": s.deep, "limit": s.limit},
    )


@coins.claim("99.1", "Mostly heads", source="Fig 1")
def mostly(ds):
    return share_at_least(ds.heads, 0.5, over="seed")


@coins.claim("99.2", "Mostly <tails>", finding="The coin is loaded.")
def rarely(ds):
    return share_at_most(ds.heads, 0.5, over="seed")


@coins.claim("99.3", "About nine in ten")
def about(ds):
    return share_at_least(ds.heads, float(ds.heads.mean()), over="seed")


@coins.claim("99.4", "Only at paper size", presets=("paper",))
def large(ds):
    return at_least(ds.sizes["seed"], 400)


@coins.figure
def curves(ds):
    figure, ax = new_figure()
    ax.plot(ds.step, ds.curve.T)
    return figure


@system.experiment("fig-2", "Only on paper", presets={"paper": Settings(seeds=3)}, stand_in="a coin for a die")
def dice(s):
    return xr.Dataset({"x": ("seed", np.ones(s.seeds))})


@dice.claim("99.5", "Ones")
def ones(ds):
    return at_least(ds.x, 1, over="seed")
'''


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("krogh.systems.toy")]:
        del sys.modules[name]
    for cached in (version.code_version, version._source, version._tree, version._definitions):
        cached.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder of the toy system's package; nothing else is discovered."""
    folder = tmp_path / "systems" / "toy"
    folder.mkdir(parents=True)
    for name, text in {"__init__": CARD, "parts": PARTS, "experiments": EXPERIMENTS}.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setattr(krogh.systems, "__path__", [str(folder.parent)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("KROGH_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("KROGH_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("TOY_CALLS", str(tmp_path / "calls"))
    monkeypatch.chdir(tmp_path)
    forget()
    yield folder
    forget()
