"""Checking what a user passed."""

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["UNSET", "clean", "renamed"]


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"  # help() shows it as a default


UNSET: Any = _Unset()


def _whole(x: Any) -> int:
    if isinstance(x, bool):
        raise TypeError
    return operator.index(x)


def _share_or_updates(x: Any) -> float | int:
    """1 is the whole run, as 1.0 is."""
    try:
        updates = _whole(x)
    except TypeError:
        if isinstance(x, bool):
            raise
        return float(x)
    return 1.0 if updates == 1 else updates


def _positive(x: float) -> bool:
    return x > 0 and math.isfinite(x)


# How to make it a plain number, what must hold, and the words for that.
_RULES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], bool], str]] = {
    "total_steps": (_whole, lambda x: x >= 1, "must be a whole number ≥ 1"),
    "target_loss": (float, math.isfinite, "must be finite"),
    "kappa": (float, _positive, "must be positive and finite"),
    "div": (float, lambda x: x > 1 and math.isfinite(x), "must be greater than 1 and finite"),
    "sigma_f2": (float, _positive, "must be positive and finite"),
    "peak_gap": (float, _positive, "must be positive and finite"),
    "final_ratio": (float, lambda x: 0 <= x <= 1, "must be in [0, 1]"),
    "max_warmup": (
        _share_or_updates,
        lambda x: x >= 2 if isinstance(x, int) else 0 < x <= 1,
        "is a share of the run, in (0, 1], a whole number of updates ≥ 2, or None",
    ),
    "smoothing": (float, lambda x: 0 <= x < 1, "is a share of the run, in [0, 1)"),
    "max_nonfinite": (_whole, lambda x: x >= 1, "must be at least 1, or None"),
    "steps": (_whole, lambda x: x >= 1, "must be a whole number ≥ 1"),
}
_OPTIONAL = {"total_steps", "target_loss", "kappa", "peak_gap", "max_warmup", "max_nonfinite"}


def clean(**given: Any) -> dict[str, Any]:
    """The arguments as plain numbers; ValueError for the first that is none or is out of range."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        convert, holds, need = _RULES[name]
        if value is None and name in _OPTIONAL:
            checked[name] = None
            continue
        try:
            checked[name] = convert(value)
        except (TypeError, ValueError):
            raise ValueError(f"{name} {need}, got {value!r}") from None
        if not holds(checked[name]):
            raise ValueError(f"{name} {need}, got {value!r}")
    return checked


def renamed(**names: Any) -> Any:
    """The value of an argument that has a new name, with a `DeprecationWarning` if it came by the old one.

    Args:
        names: the value by the old name (`UNSET` if not given), then by the new one.
    """
    (old, former), (new, value) = names.items()
    if former is UNSET:
        return value
    warnings.warn(f"{old} is now called {new}", DeprecationWarning, stacklevel=3)
    return former
