"""What the numbers of a schedule must be. Neither torch nor numpy is needed."""

import math
import operator
from collections.abc import Callable
from typing import Any

from .shapes import Shape, is_flat


def _whole(x: Any) -> int:
    if isinstance(x, bool):
        raise TypeError
    return int(x) if isinstance(x, float) and x.is_integer() else operator.index(x)  # also 1e4


def _longest(x: Any) -> float | int | str:
    """An int is a number of updates and a float a share of the run, except that 1 means the whole run, like 1.0."""
    if x == "auto" or isinstance(x, bool | str):
        return x
    return float(x) if isinstance(x, float) or x == 1 else operator.index(x)


# What an argument must be: the conversion to a plain number, the condition on it, and that condition in words.
_Need = tuple[Callable[[Any], Any], Callable[[Any], bool], str]
_POSITIVE: _Need = (float, lambda x: x > 0 and math.isfinite(x), "must be positive and finite")
_NEEDS: dict[str, _Need] = {
    "total_steps": (
        _whole, lambda x: x >= 1, "must be a whole number of updates ≥ 1; a run whose length is not known takes "
        'total_steps=None and decay="wso", and ends by decay_now(steps)'
    ),
    "steps": (_whole, lambda x: x >= 1, "must be a whole number ≥ 1"),
    **dict.fromkeys(("kappa", "sigma_f2", "peak_gap", "chance_loss", "peak"), _POSITIVE),
    "target_loss": (float, math.isfinite, "must be finite"),
    "div": (float, lambda x: x > 1 and math.isfinite(x), "must be greater than 1 and finite"),
    "final_ratio": (float, lambda x: 0 <= x <= 1, "must be in [0, 1]"),
    "max_warmup": (
        _longest, lambda x: x == "auto" or (x >= 2 if isinstance(x, int) else 0 < x <= 1),
        'is a share of the run, in (0, 1], a whole number of updates ≥ 2, "auto", or None',
    ),
    "smoothing": (float, lambda x: 0 <= x < 1, "is a share of the run, in [0, 1)"),
    "max_nonfinite": (_whole, lambda x: x >= 1, "must be at least 1, or None"),
}  # fmt: skip
_OPTIONAL = {"total_steps", "target_loss", "kappa", "peak_gap", "max_warmup", "max_nonfinite", "chance_loss", "peak"}


def clean(**given: Any) -> dict[str, Any]:
    """Return the arguments as plain numbers; ValueError names the first that is none or out of range."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        convert, holds, need = _NEEDS[name]
        try:
            checked[name] = None if value is None and name in _OPTIONAL else convert(value)
            if checked[name] is not None and (isinstance(checked[name], bool) or not holds(checked[name])):
                raise ValueError
        except (TypeError, ValueError, OverflowError):  # float(10**400)
            got = repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
            raise ValueError(f"{name} {need}, got {got}") from None
    return checked


def check_horizon(total_steps: int | None, decay: Shape, updates: int = 0) -> None:
    """Raise ValueError if the decay needs an end and there is none, or if the end is over."""
    if total_steps is None and not is_flat(decay):
        raise ValueError(
            "total_steps=None leaves the run's end open, which needs a flat decay: give total_steps, or use "
            'decay="wso" and call decay_now(steps) when the run should end'
        )
    if total_steps is not None and total_steps < updates:
        raise ValueError(f"total_steps={total_steps} is over: {updates} updates were made already")
