"""The numbers of Tables A.1 to A.6 as printed (000 A.7.1-A.7.3); columns as in `COLUMNS`, accuracies in percent."""

import numpy as np
import xarray as xr

COLUMNS = ("network", "tangent", "random", "one step", "two steps", "network without structure")
NA = np.nan

PARITY = {
    "train": (100.0, 84.0, 74.7, 51.3, 100.0, 100.0),
    "test": (100.0, 86.4, 76.0, 52.2, 100.0, 52.0),
    "cos": (0.997, NA, 0.114, 0.848, 0.997, 0.253),
}
INTERVAL = {
    "train": (100.0, 100.0, 76.4, 44.1, 100.0, 100.0),
    "test": (100.0, 100.0, 73.2, 41.0, 100.0, 100.0),
    "cos": (1.00, NA, 0.153, 0.901, 0.994, 0.965),
}
DIMENSION = {
    100: {
        "train": (100.0, 83.1, 78.9, 53.0, 100.0, 100.0),
        "test": (100.0, 81.5, 78.3, 51.1, 100.0, 51.0),
        "cos": (1.000, NA, 0.354, 0.967, 1.000, 0.331),
    },
    2000: {
        "train": (100.0, 75.6, 80.0, 50.22, 100.0, 100.0),
        "test": (100.0, 75.4, 77.0, 50.01, 100.0, 52.5),
        "cos": (0.998, NA, 0.056, 0.560, 0.998, 0.309),
    },
}
NEGATIVE = {
    0.8: {
        "train": (100.0, 62.9, 72.7, 78.3, 100.0, 100.0),
        "test": (100.0, 82.7, 70.4, 75.7, 100.0, 61.7),
        "cos": (0.999, NA, 0.293, 0.950, 0.999, 0.218),
    },
    0.9: {
        "train": (100.0, 84.0, 73.6, 92.3, 100.0, 100.0),
        "test": (100.0, 81.7, 72.4, 89.2, 100.0, 71.8),
        "cos": (0.997, NA, 0.296, 0.956, 0.997, 0.286),
    },
}
SAMPLES = {
    25_000: {
        "train": (100.0, 84.0, 78.6, 50.6, 100.0, 100.0),
        "test": (100.0, 84.1, 74.7, 50.0, 100.0, 50.2),
        "cos": (0.997, NA, 0.105, 0.851, 0.997, 0.230),
    },
    10_000: {
        "train": (100.0, 73.9, 71.6, 50.7, 100.0, 100.0),
        "test": (100.0, 75.0, 74.3, 50.3, 100.0, 52.2),
        "cos": (0.995, NA, 0.096, 0.974, 0.994, 0.176),
    },
}
# Table A.6: d, k and sigma_r of the three cluster experiments, and the epochs shown in Fig A.12.
CLUSTERS = {1: (100, 4, 1.0, (0, 50, 80)), 2: (25, 4, 0.7, (0, 30, 50)), 3: (100, 5, 1.0, (0, 50, 80))}


def beside(ds: xr.Dataset, printed: dict[str, tuple[float, ...]]) -> xr.Dataset:
    """A six-methods dataset with its table: `measured` and `published` over (row, column), and the seeds' `spread`."""
    last = ds.isel(step=-1)
    pick = [("with", name) for name in COLUMNS[:-1]] + [("without", "network")]
    scale = {"train": 100, "test": 100, "cos": 1}
    cells = [[scale[row] * last[row].sel(structure=a, learner=b) for a, b in pick] for row in scale]
    dims = ("row", "column")
    return ds.assign(
        measured=(dims, [[float(cell.mean()) for cell in row] for row in cells]),
        spread=(dims, [[float(cell.std()) for cell in row] for row in cells]),
        published=(dims, [list(printed[row]) for row in scale]),
    ).assign_coords(row=list(scale), column=list(COLUMNS))
