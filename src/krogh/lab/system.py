"""Systems, their experiments with presets, and the claims on what the experiments return."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from krogh.errors import InputError, check_choice, check_integer
from krogh.lab.claims import Verdict

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

PRESETS = ("smoke", "quick", "paper")


@dataclass(frozen=True)
class Claim:
    """One published statement as a predicate on an experiment's dataset."""

    id: str
    statement: str
    predicate: Callable[[xr.Dataset], Verdict]
    source: str = ""
    presets: tuple[str, ...] = PRESETS
    finding: str | None = None

    def judge(self, dataset: xr.Dataset) -> Verdict:
        return self.predicate(dataset)


@dataclass(eq=False)
class Experiment:
    """One figure, table or theorem check: settings in, dataset out, with its claims and figures."""

    system: System
    id: str
    title: str
    function: Callable[[Any], xr.Dataset]
    presets: Mapping[str, Any]
    stand_in: str | None = None
    claims: list[Claim] = field(default_factory=list)
    figures: list[Callable[[xr.Dataset], Figure]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for preset in self.presets:
            check_choice(f"preset of {self.name}", preset, PRESETS)
        if not {"quick", "paper"} & set(self.presets):
            raise InputError(f"{self.name} needs a quick or a paper preset.")

    @property
    def name(self) -> str:
        return f"{self.system.slug}/{self.id}"

    @property
    def available(self) -> tuple[str, ...]:
        """The presets that can be run: those given, and all of them where `quick` is."""
        return PRESETS if "quick" in self.presets else tuple(p for p in PRESETS if p in self.presets)

    def settings(self, preset: str = "quick", changes: Sequence[str] = (), seeds: int | None = None) -> Any:
        """The preset's settings (else those of `quick`), with `key=value` changes and a number of seeds."""
        check_choice("preset", preset, PRESETS)
        if preset not in self.available:
            raise InputError(f"{self.name} has no preset {preset!r}; it can be {' or '.join(self.available)}.")
        settings = self.presets[preset if preset in self.presets else "quick"]
        return change(settings, changes, seeds, self.name)

    def __call__(self, settings: Any = "quick") -> xr.Dataset:
        """Compute the dataset, from a preset's name or from settings, without the store."""
        return self.function(self.settings(settings) if isinstance(settings, str) else settings)

    def claim(
        self,
        id: str,
        statement: str,
        source: str = "",
        presets: tuple[str, ...] | None = None,
        finding: str | None = None,
    ) -> Callable[[Callable[[xr.Dataset], Verdict]], Claim]:
        """Decorator: a predicate on the dataset, `predicate(ds) -> Verdict`."""
        for preset in presets or ():
            check_choice(f"preset of claim {id}", preset, self.available)
        if any(claim.id == id for claim in self.claims):
            raise InputError(f"{self.name} has two claims {id!r}; join them with all_of.")

        def register(predicate: Callable[[xr.Dataset], Verdict]) -> Claim:
            if not callable(predicate):
                raise InputError(
                    f"claim {id} of {self.name} needs a function of the dataset (of another claim: its .predicate), "
                    f"got a {type(predicate).__name__}."
                )
            self.claims.append(Claim(id, statement, predicate, source, presets or self.available, finding))
            return self.claims[-1]

        return register

    def figure(self, plot: Callable[[xr.Dataset], Figure]) -> Callable[[xr.Dataset], Figure]:
        """Decorator: a plot of the dataset; an experiment may have several."""
        self.figures.append(plot)
        return plot


@dataclass(eq=False)
class System:
    """One chapter's study: its card, its experiments and their claims."""

    slug: str
    number: int
    title: str
    question: str
    source: str
    knobs: str = ""
    experiments: dict[str, Experiment] = field(default_factory=dict)

    def experiment(
        self, id: str, title: str, presets: Mapping[str, Any], stand_in: str | None = None
    ) -> Callable[[Callable[[Any], xr.Dataset]], Experiment]:
        """Decorator: a function from settings to a dataset becomes an experiment of this system."""
        if id in self.experiments:
            raise InputError(f"{self.slug} has two experiments {id!r}.")

        def register(function: Callable[[Any], xr.Dataset]) -> Experiment:
            self.experiments[id] = Experiment(self, id, title, function, presets, stand_in)
            return self.experiments[id]

        return register

    @property
    def claims(self) -> list[tuple[Experiment, Claim]]:
        return [(experiment, claim) for experiment in self.experiments.values() for claim in experiment.claims]


def systems() -> dict[str, System]:
    """Every package under krogh.systems that exposes `system`, by slug, in the order of their numbers."""
    package = importlib.import_module("krogh.systems")
    modules = [
        importlib.import_module(f"krogh.systems.{m.name}") for m in pkgutil.iter_modules(package.__path__) if m.ispkg
    ]
    found = [module.system for module in modules if isinstance(getattr(module, "system", None), System)]
    return {system.slug: system for system in sorted(found, key=lambda s: (s.number, s.slug))}


def find(name: str | None) -> list[Experiment]:
    """The experiments meant by SYSTEM, by SYSTEM/EXPERIMENT, or by nothing (all of them)."""
    known = systems()
    if name is None:
        return [experiment for system in known.values() for experiment in system.experiments.values()]
    slug, _, id = name.partition("/")
    system = known[check_choice("system", slug, known)]
    if "/" not in name:
        return list(system.experiments.values())
    return [system.experiments[check_choice(f"experiment of {slug}", id, system.experiments)]]


def change(settings: Any, changes: Sequence[str], seeds: int | None, name: str) -> Any:
    """The settings with `key=value` texts applied, each read as the type its field declares."""
    fields = [f.name for f in dataclasses.fields(settings)]
    hints = typing.get_type_hints(type(settings))
    new: dict[str, Any] = {}
    for text in changes:
        key, equal, value = (part.strip() for part in text.partition("="))
        if not equal or not key:
            raise InputError(f"--set {text!r} is not of the form key=value, such as {fields[0]}=….")
        new[key] = read(value, hints[check_choice(f"setting of {name}", key, fields)], key)
    if seeds is not None:
        if "seeds" not in fields:
            raise InputError(f"{name} has no seeds to set; its settings are {', '.join(fields)}.")
        if "seeds" in new:
            raise InputError("the number of seeds is given twice, by --seeds and by --set seeds=.")
        new["seeds"] = read(str(seeds), hints["seeds"], "seeds")
    if isinstance(new.get("seeds"), int):
        check_integer("the number of seeds", new["seeds"], least=1)
    return dataclasses.replace(settings, **new)


def part_of(settings: Any, parts: Sequence[str], name: str) -> Any:
    """The settings with `key=value` texts that keep some of the values of a setting that lists several."""
    narrowed = change(settings, parts, None, name)
    for key in (text.partition("=")[0].strip() for text in parts):
        values, kept = getattr(settings, key), getattr(narrowed, key)
        if not isinstance(values, tuple):
            lists = [f.name for f in dataclasses.fields(settings) if isinstance(getattr(settings, f.name), tuple)]
            told = f"those of {name} are {', '.join(lists)}" if lists else f"{name} has none"
            raise InputError(f"{key} of {name} has no parts: only settings that list values have; {told}.")
        if not kept or not set(kept) <= set(values):
            raise InputError(f"a part of {key} must be some of {', '.join(map(str, values))}, got {kept}.")
    return narrowed


def read(text: str, hint: Any, key: str) -> Any:
    """A text as the declared type: int, float, bool, str, None, Literal, tuple, or a union of these."""
    try:
        return _read(text, hint)
    except (ValueError, SyntaxError, TypeError, OverflowError):
        raise InputError(f"{key} cannot be {text!r}; it must be {describe(hint)}.") from None


def _read(text: str, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        # str takes any text, so it is tried last
        for option in sorted(args, key=lambda option: option is str):
            try:
                return _read(text, option)
            except (ValueError, SyntaxError, TypeError):
                continue
        raise ValueError(text)
    if origin is typing.Literal:
        return {str(option): option for option in args}[text] if text in map(str, args) else _refuse(text)
    if origin is tuple or hint is tuple:
        items = _items(text)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_read(item, args[0]) for item in items)
        if args and len(args) != len(items):
            raise ValueError(text)
        return tuple(_read(item, arg) for item, arg in zip(items, args or [Any] * len(items), strict=True))
    if hint is types.NoneType:
        return None if text.lower() in ("none", "null") else _refuse(text)
    if hint is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return words[text.lower()] if text.lower() in words else _refuse(text)
    if hint is int:
        value = float(text) if "e" in text.lower() else int(text)
        return int(value) if value == int(value) else _refuse(text)
    if hint is float:
        value = float(text)
        return value if value == value else _refuse(text)
    if hint is str:
        return text
    if hint is Any:
        return ast.literal_eval(text)
    raise TypeError(hint)


def _items(text: str) -> list[str]:
    """The top-level items of `1,2`, `(1, 2)`, `[(1, 2), (3, 4)]` or `/one/path,/another`, as texts."""
    if not text:
        return []
    source = text if text[0] in "([" else f"({text},)"
    try:
        tree = ast.parse(source, mode="eval").body
    except SyntaxError:  # paths of files, for example
        return [item.strip() for item in text.split(",")]
    nodes = tree.elts if isinstance(tree, (ast.Tuple, ast.List)) else [tree]
    quoted = [isinstance(node, ast.Constant) and isinstance(node.value, str) for node in nodes]
    texts = [ast.get_source_segment(source, node) or "" for node in nodes]
    return [text[1:-1] if quote else text for text, quote in zip(texts, quoted, strict=True)]


def _refuse(text: str) -> Any:
    raise ValueError(text)


def describe(hint: Any) -> str:
    """A declared type in words."""
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        types.NoneType: "none",
    }
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in names:
        return names[hint]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is typing.Literal:
        return " or ".join(map(str, args))
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return f"values separated by commas, each {describe(args[0])}"
    if origin is tuple:
        return f"{len(args)} values separated by commas: {', '.join(map(describe, args))}"
    return "set in Python (it is no plain value)"
