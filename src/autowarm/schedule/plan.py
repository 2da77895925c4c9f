"""A schedule's settings, and what each of them must be. Neither torch nor numpy is needed."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from .shapes import Shape, cosine, is_flat, linear


class Need(NamedTuple):
    """What a setting must be: the conversion to a plain number, the condition on it, and that condition in words."""

    convert: Callable[[Any], Any]
    holds: Callable[[Any], bool]
    words: str


def _whole(x: Any) -> int:
    if isinstance(x, bool):
        raise TypeError
    return int(x) if isinstance(x, float) and x.is_integer() else operator.index(x)  # also 1e4


def _longest(x: Any) -> float | int | str:
    """An int is a number of updates and a float a share of the run, except that 1 means the whole run, like 1.0."""
    if x == "auto" or isinstance(x, bool | str):
        return x
    return float(x) if isinstance(x, float) or x == 1 else operator.index(x)


_POSITIVE = Need(float, lambda x: x > 0 and math.isfinite(x), "must be positive and finite")
_UPDATES = (
    "must be a whole number of updates ≥ 1; a run whose length is not known takes total_steps=None and "
    'decay="wso", and ends by decay_now(steps)'
)
_LONGEST = 'is a share of the run, in (0, 1], a whole number of updates ≥ 2, "auto", or None'


@dataclass(frozen=True)
class Plan:
    """A schedule's settings, as `AdaptiveWarmup` describes them."""

    total_steps: Annotated[int | None, Need(_whole, lambda x: x >= 1, _UPDATES)]
    div: Annotated[float, Need(float, lambda x: x > 1 and math.isfinite(x), "must be greater than 1 and finite")] = 10.0
    target_loss: Annotated[float | None, Need(float, math.isfinite, "must be finite")] = None
    # Δ', or a function of Δ0 that calibrates it
    peak_gap: Annotated[float | Callable[[float], float] | None, _POSITIVE] = None
    warmup: Shape = linear
    decay: Shape = cosine
    final_ratio: Annotated[float, Need(float, lambda x: 0 <= x <= 1, "must be in [0, 1]")] = 0.0
    max_warmup: Annotated[
        float | int | Literal["auto"] | None,
        Need(_longest, lambda x: x == "auto" or (x >= 2 if isinstance(x, int) else 0 < x <= 1), _LONGEST),
    ] = "auto"
    trained: bool | None = None
    chance_loss: Annotated[float | None, _POSITIVE] = None
    smoothing: Annotated[float, Need(float, lambda x: 0 <= x < 1, "is a share of the run, in [0, 1)")] = 0.05


class _Others:
    """Numbers that users give, and that no plan keeps."""

    kappa: Annotated[float | None, _POSITIVE]
    sigma_f2: Annotated[float, _POSITIVE]
    peak: Annotated[float | None, _POSITIVE]
    steps: Annotated[int, Need(_whole, lambda x: x >= 1, "must be a whole number ≥ 1")]
    max_nonfinite: Annotated[int | None, Need(_whole, lambda x: x >= 1, "must be at least 1, or None")]


_FIELDS: dict[str, Any] = Plan.__annotations__ | _Others.__annotations__


def clean(**given: Any) -> dict[str, Any]:
    """Return the arguments as plain numbers; ValueError names the first that is none or out of range."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        kinds, need = get_args(_FIELDS[name])
        try:
            number = checked[name] = None if value is None and type(None) in get_args(kinds) else need.convert(value)
            if number is not None and (isinstance(number, bool) or not need.holds(number)):
                raise ValueError
        except (TypeError, ValueError, OverflowError):  # float(10**400)
            raise ValueError(f"{name} {need.words}, got {value!r}") from None
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
