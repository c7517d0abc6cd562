"""Two stored results side by side: settings, numbers and curves."""

from pathlib import Path
from typing import Any

import numpy as np

from krogh.errors import InputError
from krogh.lab import figures, statistics
from krogh.lab.store import Result, writing

FORMATS = ("png", "pdf", "svg")


def settings_that_differ(first: Result, second: Result) -> dict[str, tuple[Any, Any]]:
    """{setting: (first, second)}, with the experiment, the preset and the code where these differ too."""
    kinds = ("system", "experiment", "preset", "code")
    one, two = ({k: r.manifest[k] for k in kinds} | r.manifest["settings"] for r in (first, second))
    one, two = (sides | {"code": sides["code"][:8]} for sides in (one, two))
    return {k: (one.get(k), two.get(k)) for k in one | two if one.get(k) != two.get(k)}


def differences(first: Result, second: Result) -> list[dict[str, Any]]:
    """Per common numeric variable: both medians over seeds (at the last step, mean over other axes) and the interval of
    their difference; seeds that both runs have are resampled together."""
    rows = []
    for name in _common(first, second):
        one, two = (_by_seed(result.dataset[name]) for result in (first, second))
        paired = "seed" in one.coords and "seed" in two.coords and np.array_equal(one.seed, two.seed)
        values = [np.asarray(one), np.asarray(two)]
        if paired:
            apart = statistics.bootstrap(values, lambda a, b: np.median(b, axis=1) - np.median(a, axis=1), batched=True)
        else:
            draws = [statistics.bootstrap([a], _medians, seed=i, batched=True) for i, a in enumerate(values)]
            apart = draws[1] - draws[0]
        known = apart[np.isfinite(apart)]
        medians = [float(np.median(a)) for a in values]
        rows.append(
            {
                "variable": name,
                "n": min(map(len, values)),
                "first": medians[0],
                "second": medians[1],
                "interval": statistics.interval(known) if known.size else (np.nan, np.nan),
                "difference": medians[1] - medians[0] if np.isfinite(medians).all() else np.nan,
            }
        )
    return rows


def overlay(first: Result, second: Result, path: Path) -> Path:
    """A panel per variable, curves over steps with their spread or else the distribution over replicas, as a file."""
    path = path if path.suffix or path.is_dir() else path.with_suffix(".png")
    if path.is_dir() or path.suffix[1:] not in FORMATS:
        raise InputError(f"the plot cannot be written to {path}; it must be a file ending in .{', .'.join(FORMATS)}.")
    names = _common(first, second)[:12]
    if not names:
        raise InputError("the two runs have no numeric variable in common.")
    columns = min(3, len(names))
    figure, axes = figures.new_figure(columns, -(-len(names) // columns), squeeze=False)
    with figures.house_style():
        for ax in axes.ravel()[len(names) :]:
            ax.set_visible(False)
        for name, ax in zip(names, axes.ravel(), strict=False):
            for result in (first, second):
                values = result.dataset[name]
                if "step" in values.dims:
                    others = tuple(str(dim) for dim in values.dims if dim != "step")
                    figures.curve_with_spread(ax, values, over=others, label=result.key[:8])
                    ax.set_xlabel("step")
                else:
                    ordered = np.sort(np.asarray(_by_seed(values)))
                    ax.step(ordered, np.arange(1, ordered.size + 1) / ordered.size, label=result.key[:8])
                    ax.set_ylabel("share of replicas")
            ax.set_title(name)
        axes[0, 0].legend()
    with writing(path):
        figures.save(figure, path.with_suffix(""), (path.suffix[1:],))
    return path


def _medians(draws: np.ndarray) -> np.ndarray:
    return np.median(draws, axis=1)


def _common(first: Result, second: Result) -> list[str]:
    numeric = [{str(n) for n, v in r.dataset.data_vars.items() if v.dtype.kind in "fiub"} for r in (first, second)]
    return [str(name) for name in first.dataset.data_vars if name in numeric[0] & numeric[1]]


def _by_seed(values: Any) -> Any:
    """The last record of every seed, mean over all other axes; all values where there are no seeds."""
    values = values.isel(step=-1, drop=True) if "step" in values.dims else values
    values = values.astype(float)
    if "seed" not in values.dims:
        return values.stack(value=values.dims).drop_vars("value") if values.ndim != 1 else values
    return values.mean([dim for dim in values.dims if dim != "seed"])
