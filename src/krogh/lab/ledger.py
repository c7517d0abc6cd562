"""The ledger: the committed record of every claim's last verdict per preset and kind of device.

One file per system, ledger/<system>.json (or under $KROGH_LEDGER): sorted, one row a line, so that a diff
shows which verdicts changed.
"""

import contextlib
import fcntl
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from krogh.errors import InputError
from krogh.lab.claims import Verdict
from krogh.lab.environment import environment, now
from krogh.lab.store import whole, writing
from krogh.lab.system import PRESETS, Claim, Experiment

Row = dict[str, Any]
IDENTITY = ("experiment", "claim", "preset", "device_kind")
ROW = {*IDENTITY, "system", "verdict", "measured", "bound", "interval", "n", "device", "date"}
# two runs of the same code always differ in these; they alone are no news
INCIDENTAL = ("date", "seconds")


def root() -> Path:
    return Path(os.environ.get("KROGH_LEDGER") or "ledger")


def row(experiment: Experiment, claim: Claim, preset: str, verdict: Verdict, manifest: dict[str, Any]) -> Row:
    """One verdict with where it came from; device, versions and date are those of the result it judges."""
    return {
        "system": experiment.system.slug,
        "experiment": experiment.id,
        "claim": claim.id,
        "statement": claim.statement,
        "source": claim.source,
        "preset": preset,
        **verdict.as_dict(),
        "finding": claim.finding,
        "stand_in": experiment.stand_in,
        "settings": manifest["settings"],
        "seconds": manifest["seconds"],
        "device": manifest["device"]["name"],
        "device_kind": manifest["device"]["kind"],
        "versions": manifest["versions"],
        "date": manifest["date"],
    }


def measurement(
    name: str, what: str, measured: float, bound: str, holds: bool | None, preset: str = "quick", **more: Any
) -> Row:
    """A benchmark number of the engine as a ledger row of this machine (system `engine`)."""
    here = environment()
    verdict = "undecided" if holds is None else "holds" if holds else "fails"
    return {
        "system": "engine",
        "experiment": name,
        "claim": what,
        "statement": what,
        "preset": preset,
        "verdict": verdict,
        "measured": measured,
        "bound": bound,
        "interval": None,
        "n": 1,
        "stand_in": None,
        **more,
        "device": here["device"]["name"],
        "device_kind": here["device"]["kind"],
        "versions": here["versions"],
        "date": now(),
    }


def record_rows(rows: Iterable[Row], known: Collection[tuple[str, str, str]] | None = None) -> int:
    """Merge rows into the ledger; returns how many are new or changed.

    With `known` (experiment, claim, preset) triples, rows of those systems for what is no longer judged are dropped.
    """
    systems: dict[str, list[Row]] = {}
    for new in rows:
        systems.setdefault(new["system"], []).append(json.loads(json.dumps(new)))
    changed = 0
    for system, news in systems.items():
        path = root() / f"{system}.json"
        with _locked(path):
            old = {_identity(r): r for r in _load(path)}
            merged = {k: r for k, r in old.items() if known is None or k[:3] in known}
            for new in news:
                before = merged.get(_identity(new))
                if before is None or _news(before) != _news(new):
                    merged[_identity(new)] = new
                    changed += 1
            if merged != old:
                ordered = [merged[key] for key in sorted(merged, key=_order)]
                with whole(path) as temporary:
                    lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in ordered)
                    temporary.write_text(f"[\n{lines}\n]\n")
    return changed


def rows(system: str | None = None) -> list[Row]:
    """All rows, or those of one system."""
    if root().exists() and not root().is_dir():
        raise InputError(f"the ledger {root()} is a file; point KROGH_LEDGER at a folder.")
    paths = [root() / f"{system}.json"] if system else sorted(root().glob("*.json"))
    return [r for path in paths for r in _load(path)]


def counts(rows: Sequence[Row], claims: Collection[tuple[str, str]]) -> dict[str, int]:
    """Of the (experiment, claim) pairs: how many hold, fail, are undecided, or have not been judged yet."""
    verdicts = {(r["experiment"], r["claim"]): r["verdict"] for r in rows}
    found = Counter(verdicts.get(pair, "not yet") for pair in claims)
    return {name: found[name] for name in ("holds", "fails", "undecided", "not yet")}


def _identity(row: Row) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in IDENTITY)


def _order(identity: tuple[str, ...]) -> tuple[Any, ...]:
    experiment, claim, preset, device = identity
    return claim, experiment, PRESETS.index(preset) if preset in PRESETS else 9, device


def _news(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in INCIDENTAL}


def _load(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, list) or not all(isinstance(r, dict) and r.keys() >= ROW for r in found):
            raise ValueError
        if not {r["verdict"] for r in found} <= {"holds", "fails", "undecided"}:
            raise ValueError
        return found
    except ValueError as error:
        raise InputError(f"{path} is not a ledger file; restore it or move it away.") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time; the folder itself is what is locked, so that no lock file is left in it."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
