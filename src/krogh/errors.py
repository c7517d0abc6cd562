"""The one kind of error a user sees: a sentence that says what is wrong and what is allowed."""

import difflib
import math
from collections.abc import Collection
from typing import Any


class InputError(ValueError):
    """A request that cannot be met; the message is one sentence."""


class StoreError(InputError):
    """A file that cannot be read or written; the message is one sentence."""


class MissingExtra(InputError):
    """Something that needs packages which are not installed; the message is one sentence."""


def nearest(name: object, options: Collection[str]) -> str:
    """`" (did you mean 'x'?)"` for the option closest to a name, or nothing when none is close."""
    lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.5)
    return f" (did you mean {lower[close[0]]!r}?)" if close else ""


def check_choice(what: str, value: Any, options: Collection[str]) -> Any:
    """The value, if it is one of the options."""
    if value in options:
        return value
    listed = list(options)
    rest = f", … ({len(listed)} in all)" if len(listed) > 12 else ""
    allowed = ", ".join(listed[:12]) + rest or "nothing"
    raise InputError(f"unknown {what} {value!r}{nearest(value, options)}; it can be {allowed}.")


def check_integer(what: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """The value as int, if it is whole and within [least, most]."""
    whole = not isinstance(value, bool) and hasattr(value, "__index__")
    if whole and (least is None or value >= least) and (most is None or value <= most):
        return int(value)
    raise InputError(f"{what} is {value!r}; it must be a whole number{_range(least, most)}.")


def check_number(what: str, value: Any, least: float | None = None, most: float | None = None) -> float:
    """The value as float, if it is finite and within [least, most]."""
    number = float(value) if not isinstance(value, (bool, str)) and hasattr(value, "__float__") else math.nan
    if math.isfinite(number) and (least is None or number >= least) and (most is None or number <= most):
        return number
    raise InputError(f"{what} is {value!r}; it must be a number{_range(least, most)}.")


def _range(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" between {least} and {most}"
    return f" of at least {least}" if least is not None else f" of at most {most}" if most is not None else ""
