"""Checking what a user passed."""

import math
import operator
from collections.abc import Callable
from typing import Any

__all__ = ["clean"]


def clean(**given: Any) -> dict[str, Any]:
    """The arguments as plain numbers; ValueError for the first that is none or is out of range."""

    def whole(x: Any) -> int:
        if isinstance(x, bool):
            raise TypeError
        return operator.index(x)

    def positive(x: float) -> bool:
        return x > 0 and math.isfinite(x)

    rules: dict[str, tuple[Callable[[Any], Any], Callable[[Any], bool], str]] = {
        "total_steps": (whole, lambda x: x >= 1, "must be a whole number ≥ 1"),
        "target_loss": (float, math.isfinite, "must be finite"),
        "kappa": (float, positive, "must be positive and finite"),
        "div": (float, lambda x: x > 1 and math.isfinite(x), "must be greater than 1 and finite"),
        "sigma_f2": (float, positive, "must be positive and finite"),
        "peak_gap": (float, positive, "must be positive and finite"),
        "final_ratio": (float, lambda x: 0 <= x <= 1, "must be in [0, 1]"),
        "floor": (float, lambda x: 0 < x <= 1, "is a share of the run, in (0, 1], or None"),
        "smoothing": (float, lambda x: 0 <= x < 1, "is a share of the run, in [0, 1)"),
        "patience": (whole, lambda x: x >= 1, "must be at least 1, or None"),
    }
    optional = {"target_loss", "kappa", "peak_gap", "floor", "patience"}
    checked: dict[str, Any] = {}
    for name, value in given.items():
        convert, holds, need = rules[name]
        if value is None and name in optional:
            checked[name] = None
            continue
        try:
            checked[name] = convert(value)
        except (TypeError, ValueError):
            raise ValueError(f"{name} {need}, got {value!r}") from None
        if not holds(checked[name]):
            raise ValueError(f"{name} {need}, got {value!r}")
    return checked
