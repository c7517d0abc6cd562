"""When a recorded curve first meets a level; inf where it never does."""

import numpy as np
import xarray as xr


def first_time(values: xr.DataArray, level: float) -> xr.DataArray:
    """First recorded step at which `values` is at least `level`, else inf."""
    met = values >= level
    return xr.where(met.any("step"), values.step[met.argmax("step")], np.inf)
