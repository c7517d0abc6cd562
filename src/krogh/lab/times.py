"""When a recorded curve first meets a level; inf where it never does."""

import numpy as np
import xarray as xr


def first_time(values: xr.DataArray, level: float, consecutive: int = 1) -> xr.DataArray:
    """First recorded step from which `values` is at least `level` at `consecutive` records in a row, else inf."""
    met = values >= level
    # rolling windows end at the last record of a streak; its first one is the time
    streak = met.rolling(step=consecutive).sum().shift(step=1 - consecutive) >= consecutive
    return xr.where(streak.any("step"), values.step[streak.argmax("step")], np.inf)


def at_time(values: xr.DataArray, time: xr.DataArray) -> xr.DataArray:
    """`values` at the last record not after `time`; NaN where the time is inf."""
    finite = np.isfinite(time)
    found = values.sel(step=time.where(finite, 0), method="ffill").drop_vars("step")
    return found.where(finite)
