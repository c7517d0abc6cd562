"""The store: every result under an address made of its experiment, its settings and the code it used.

    <store>/<system>/<experiment>/<key>.nc         the dataset, NetCDF
    <store>/<system>/<experiment>/<key>.json       the manifest: checksum, settings, versions, device
    <store>/<system>/<experiment>/<key>.partial/   checkpoints of unfinished work
    <store>/locks/<key>, <store>/damaged/          one lock per key; files whose checksum did not match
    <store>/programs/                              what was compiled for GPUs; may be deleted at any time

A result counts only when both files are there and the checksum in the manifest is that of the dataset.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import io
import json
import os
import shlex
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from krogh import files
from krogh.errors import InputError, MissingExtra, StoreError, nearest
from krogh.lab.environment import environment, now
from krogh.lab.system import PRESETS, Experiment, find, part_of
from krogh.lab.version import code_version

if TYPE_CHECKING:
    import xarray as xr

    from krogh.train.checkpoint import Progress


@dataclass(frozen=True)
class Result:
    """A stored dataset with its manifest."""

    path: Path
    manifest: dict[str, Any]
    dataset: xr.Dataset
    reused: bool = True

    @property
    def key(self) -> str:
        return self.path.stem


def settings_dict(settings: Any) -> dict[str, Any]:
    """Settings in plain types; what JSON cannot hold is told by its name."""

    def name(value: Any) -> str:
        return getattr(value, "__qualname__", None) or repr(value)

    fields = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return json.loads(json.dumps(fields, default=name))


def address(experiment: Experiment, settings: Any) -> str:
    """The key of a result: 16 hexadecimal digits."""
    parts = [
        experiment.system.slug,
        experiment.id,
        settings_dict(settings),
        code_version(experiment.function),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def command(experiment: Experiment, preset: str, changes: Sequence[str] = (), seeds: int | None = None) -> str:
    """The command line that makes a result."""
    options = [f"--set {shlex.quote(change)}" for change in changes]
    options += [f"--seeds {seeds}"] if seeds is not None else []
    return " ".join([f"krogh run {experiment.name} --preset {preset}", *options])


class Store:
    """Results on disk; `say` hears what the user should know (a damaged file, a wait for another process)."""

    def __init__(self, root: Path | str | None = None, say: Callable[[str], None] = warnings.warn):
        self.root = Path(root or os.environ.get("KROGH_HOME") or "runs")
        self.say = say

    def path(self, experiment: Experiment, key: str) -> Path:
        return self.root / experiment.system.slug / experiment.id / f"{key}.nc"

    def obtain(
        self,
        experiment: Experiment,
        preset: str = "quick",
        changes: Sequence[str] = (),
        seeds: int | None = None,
        fresh: bool = False,
        progress: Progress | None = None,
    ) -> Result:
        """The stored result, or else the computed one; of two processes asking at once one computes."""
        settings = experiment.settings(preset, changes, seeds)
        key = address(experiment, settings)
        path = self.path(experiment, key)
        with self._locked(key):
            stored = None if fresh else self._read(path)
            if stored is not None:
                return stored
            for left in path.parent.glob(f".{key}.*.tmp"):
                left.unlink(missing_ok=True)
            made = environment()
            start = time.perf_counter()
            dataset = self._compute(experiment, settings, path.with_suffix(".partial"), fresh, progress)
            manifest = {
                "system": experiment.system.slug,
                "experiment": experiment.id,
                "key": key,
                "preset": preset,
                "settings": settings_dict(settings),
                "changes": list(changes),
                "seeds": getattr(settings, "seeds", None),
                "stand_in": experiment.stand_in,
                "code": code_version(experiment.function),
                **made,
                "seconds": round(time.perf_counter() - start, 2),
                "date": now(),
                "command": command(experiment, preset, changes, seeds),
            }
            self._write(path, dataset, manifest)
            shutil.rmtree(path.with_suffix(".partial"), ignore_errors=True)
            written = self._read(path)
            assert written is not None
            return dataclasses.replace(written, reused=False)

    def contribute(
        self,
        experiment: Experiment,
        parts: Sequence[str],
        preset: str = "quick",
        changes: Sequence[str] = (),
        seeds: int | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Train for some of the values that a setting lists, and keep it beside the result to come.

        Several processes may do so at once, each for a part; `obtain` then trains what is missing and puts all
        together. What is shared must be trained alike in the part and in the whole: widths or contexts that are
        compiled apart, or cases that are trained one after the other.
        """
        settings = experiment.settings(preset, changes, seeds)
        narrowed = part_of(settings, parts, experiment.name)
        path = self.path(experiment, address(experiment, settings))
        if self.read(path) is not None:
            return path
        folder = path.with_suffix(".partial")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._compute(experiment, narrowed, folder, False, progress)
        return folder

    def stored(self, experiment: Experiment, preset: str = "quick") -> Result | None:
        """The result of a preset, if it is there and nobody is just writing it."""
        if preset not in experiment.available:
            return None
        return self.read(self.path(experiment, address(experiment, experiment.settings(preset))))

    def read(self, path: Path) -> Result | None:
        if not path.exists():
            return None
        with self._locked(path.stem, wait=False) as mine:
            return self._read(path) if mine else None

    def manifests(self) -> list[dict[str, Any]]:
        """The manifests of all results, oldest first."""
        if self.root.exists() and not self.root.is_dir():
            raise StoreError(f"the store {self.root} is a file; point KROGH_HOME at a folder.")
        found = [_json(path) for path in self.root.glob("*/*/*.json") if path.with_suffix(".nc").exists()]
        return sorted(filter(_complete, found), key=_age)

    def find(self, run: str) -> Result:
        """The result meant by the beginning of a key or by SYSTEM/EXPERIMENT[@PRESET]."""
        if "/" in run:
            name, _, preset = run.partition("@")
            experiment = find(name)[0]
            settings = experiment.settings(preset or "quick")
            path = self.path(experiment, address(experiment, settings))
            missing = f"{name} has no result at {preset or 'quick'} for the present code; make it with: "
            missing += command(experiment, preset or "quick") + "."
        else:
            known = {m["key"]: m for m in self.manifests()}
            matches = [key for key in known if key.startswith(run)]
            if len(run) < 4 or len(matches) != 1:
                raise InputError(_which(run, matches, list(known), self.root))
            row = known[matches[0]]
            path = self.root / row["system"] / row["experiment"] / f"{row['key']}.nc"
            missing = f"the result {run} could not be read; make it again with: {row.get('command')}."
        result = self.read(path)
        if result is None:
            raise InputError(missing)
        return result

    def _keep_programs(self) -> None:
        """On GPUs compiled programs outlast the process, unless the user keeps them elsewhere: choosing the kernels of
        a transformer takes a minute, and a resumed run should go on with the same ones."""
        import jax

        if jax.default_backend() != "cpu" and not jax.config.values["jax_compilation_cache_dir"]:
            jax.config.update("jax_compilation_cache_dir", str((self.root / "programs").absolute()))

    def _compute(
        self, experiment: Experiment, settings: Any, partial: Path, fresh: bool, progress: Progress | None
    ) -> xr.Dataset:
        import xarray as xr

        from krogh.train.checkpoint import workspace
        from krogh.train.engine import forget_programs

        if fresh:
            shutil.rmtree(partial, ignore_errors=True)
        self._keep_programs()
        try:
            with workspace(checkpoints=partial, progress=progress):
                dataset = experiment.function(settings)
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "transformers"):
                raise
            raise MissingExtra(f"{experiment.name} needs PyTorch and Transformers: pip install 'krogh[llm]'.") from None
        finally:
            forget_programs()
        if not isinstance(dataset, xr.Dataset):
            raise TypeError(f"{experiment.name} returned {type(dataset).__name__}, not an xarray Dataset")
        return dataset

    def _write(self, path: Path, dataset: xr.Dataset, manifest: dict[str, Any]) -> None:
        content = netcdf(storable(dataset, manifest))
        manifest = manifest | {"sha256": hashlib.sha256(content).hexdigest()}
        with whole(path) as temporary:
            temporary.write_bytes(content)
            # a kill between the two renames leaves a manifest alone, which counts as nothing
            path.unlink(missing_ok=True)
            with whole(path.with_suffix(".json")) as text:
                text.write_text(json.dumps(manifest, indent=1) + "\n")

    def _read(self, path: Path) -> Result | None:
        import xarray as xr

        if not path.exists():
            return None
        manifest = _json(path.with_suffix(".json"))
        try:
            if not _complete(manifest):
                raise ValueError("it has no complete manifest with a checksum")
            if checksum(path) != manifest["sha256"]:
                raise ValueError("its checksum is not the one in its manifest")
            return Result(path, manifest, xr.load_dataset(path, engine="h5netcdf"))
        except PermissionError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}.") from error
        except (ValueError, OSError, KeyError) as error:
            aside = self.root / "damaged"
            with writing(aside):
                aside.mkdir(parents=True, exist_ok=True)
                for file in (path, path.with_suffix(".json")):
                    if file.exists():
                        os.replace(file, aside / f"{path.parent.parent.name}_{path.parent.name}_{file.name}")
            self.say(f"{path} is damaged ({error}): set aside in {aside}.")
            return None

    @contextlib.contextmanager
    def _locked(self, key: str, wait: bool = True) -> Iterator[bool]:
        """Hold the key's lock; without waiting, yields False where another process has it."""
        try:
            with writing(self.root):
                (self.root / "locks").mkdir(parents=True, exist_ok=True)
                lock = open(self.root / "locks" / key, "w")  # noqa: SIM115
        except StoreError:
            if wait:
                raise
            yield True  # reading from a store that cannot be written needs no lock
            return
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                if not wait:
                    yield False
                    return
                self.say(f"another process is making {key}; waiting for it.")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield True


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.ENOSPC:
            why = "no space is left on the disk"
        raise StoreError(f"cannot write {path}: {why}; nothing was half-written.") from error


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """`files.whole`, with a failure of the file system told in one sentence."""
    with writing(path), files.whole(path) as temporary:
        yield temporary


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def netcdf(dataset: xr.Dataset) -> memoryview:
    """The dataset as the bytes of a NetCDF file; in memory, because HDF5 does not survive a full disk."""
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        dataset.dump_to_store(H5NetCDFStore(file))
    return buffer.getbuffer()


def storable(dataset: xr.Dataset, manifest: dict[str, Any]) -> xr.Dataset:
    """The dataset with NumPy arrays, and attributes and objects that NetCDF has no type for as text."""
    import numpy as np

    def attributes(attrs: dict[Any, Any]) -> dict[str, Any]:
        simple = (str, int, float, np.ndarray, np.number)
        return {
            str(k): v if isinstance(v, simple) and not isinstance(v, bool) else json.dumps(v, default=str)
            for k, v in attrs.items()
        }

    def array(variable: Any) -> Any:
        data = np.asarray(variable.data)
        if data.dtype.kind == "O":
            data = np.array([str(item) for item in data.ravel()], dtype=object).reshape(data.shape)
        elif data.dtype.kind == "V":  # bfloat16
            data = data.astype(np.float32)
        return variable.copy(data=data)

    copied = dataset.assign({name: array(variable) for name, variable in dataset.data_vars.items()})
    for variable in copied.variables.values():
        variable.attrs = attributes(variable.attrs)
    copied.attrs = attributes(dataset.attrs) | {"krogh": json.dumps(manifest)}
    return copied


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


TEXTS = ("system", "experiment", "key", "preset", "command", "code", "sha256", "date")
PARTS = {"settings": dict, "changes": list, "device": dict, "seconds": (int, float)}


def _complete(manifest: dict[str, Any]) -> bool:
    """Whether all is there that a reader of a manifest relies on."""
    kinds = dict.fromkeys(TEXTS, str) | PARTS
    return all(isinstance(manifest.get(name), kind) for name, kind in kinds.items()) and "name" in manifest["device"]


def _age(manifest: dict[str, Any]) -> tuple[str, str]:
    return manifest["date"], manifest["key"]


def _which(run: str, matches: list[str], known: list[str], root: Path) -> str:
    forms = f"a run is SYSTEM/EXPERIMENT[@{'|'.join(PRESETS)}] or at least 4 characters of a key (krogh runs)"
    if len(run) >= 4 and matches:
        return f"{run!r} begins {len(matches)} keys ({', '.join(matches[:4])}); give more of it."
    return f"no run {run!r} in {root}{nearest(run, known)}; {forms}."
