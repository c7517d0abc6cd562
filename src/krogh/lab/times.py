"""When something is first met along a recorded curve; inf where it never is."""

import numpy as np
import xarray as xr


def first_time(met: xr.DataArray, consecutive: int = 1) -> xr.DataArray:
    """First recorded step from which `met` is true at `consecutive` records in a row, else inf."""
    # rolling windows end at the last record of a streak; its first one is the time
    streak = met.rolling(step=consecutive).sum().shift(step=1 - consecutive) >= consecutive
    return met.step.where(streak, np.inf).min("step")


def at_time(values: xr.DataArray, time: xr.DataArray) -> xr.DataArray:
    """`values` at the last record not after `time`; NaN where the time is inf."""
    finite = np.isfinite(time)
    found = values.sel(step=time.where(finite, 0), method="ffill").drop_vars("step")
    return found.where(finite)
