"""A schedule's settings, and what each of them must be. Neither torch nor numpy is needed, but for a calibration."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple, get_args

from .shapes import Shape, cosine, decay_shape, is_flat, linear, warmup_shape


def _whole(x: Any) -> int:
    if isinstance(x, bool):
        raise TypeError
    return int(x) if isinstance(x, float) and x.is_integer() else operator.index(x)  # also 1e4


def _longest(x: Any) -> float | int | str:
    """An int is a number of updates and a float a share of the run, except that 1 means the whole run, like 1.0."""
    if x == "auto" or isinstance(x, bool | str):
        return x
    return float(x) if isinstance(x, float) or x == 1 else operator.index(x)


# What a number must be: the conversion to a plain one, the condition on it, and that condition in words.
_POSITIVE = (float, lambda x: x > 0 and math.isfinite(x), "must be positive and finite")
_UPDATES = (
    "must be a whole number of updates ≥ 1; a run whose length is not known takes total_steps=None and "
    'decay="wso", and ends by decay_now(steps)'
)
_LONGEST = 'is a share of the run, in (0, 1], a whole number of updates ≥ 2, "auto", or None'


_AVERAGE = 'is a share of the run, in [0, 1), or "auto"'


@dataclass(frozen=True)
class Plan:
    """A schedule's settings, as `AdaptiveWarmup` describes them."""

    total_steps: Annotated[int | None, (_whole, lambda x: x >= 1, _UPDATES)]
    div: Annotated[float, (float, lambda x: x > 1 and math.isfinite(x), "must be greater than 1 and finite")] = 10.0
    target_loss: Annotated[float | None, (float, math.isfinite, "must be finite")] = None
    # Δ', or a function of Δ0 that calibrates it
    peak_gap: Annotated[float | Callable[[float], float] | None, _POSITIVE] = None
    warmup: Shape = linear
    decay: Shape = cosine
    final_ratio: Annotated[float, (float, lambda x: 0 <= x <= 1, "must be in [0, 1]")] = 0.0
    max_warmup: Annotated[
        float | int | Literal["auto"] | None,
        (_longest, lambda x: x == "auto" or (x >= 2 if isinstance(x, int) else 0 < x <= 1), _LONGEST),
    ] = "auto"
    trained: bool | None = None
    chance_loss: Annotated[float | None, _POSITIVE] = None
    smoothing: Annotated[
        float | Literal["auto"],
        (lambda x: x if x == "auto" else float(x), lambda x: x == "auto" or 0 <= x < 1, _AVERAGE),
    ] = "auto"
    profile: Callable[[float], float] | None = None  # η(Δ) of one's own, highest at ``peak_gap``


class _Others:
    """Numbers that users give, and that no plan keeps."""

    kappa: Annotated[float | None, _POSITIVE]
    sigma_f2: Annotated[float, _POSITIVE]
    peak: Annotated[float | None, _POSITIVE]
    steps: Annotated[int, (_whole, lambda x: x >= 1, "must be a whole number ≥ 1")]
    max_nonfinite: Annotated[int | None, (_whole, lambda x: x >= 1, "must be at least 1, or None")]


_FIELDS: dict[str, Any] = Plan.__annotations__ | _Others.__annotations__
_NUMBERS = {field.name for field in fields(Plan)} - {"warmup", "decay", "trained", "profile"}


def clean(**given: Any) -> dict[str, Any]:
    """Return the arguments as plain numbers; ValueError names the first that is none or out of range."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        kinds, (convert, holds, words) = get_args(_FIELDS[name])
        try:
            number = checked[name] = None if value is None and type(None) in get_args(kinds) else convert(value)
            if number is not None and (isinstance(number, bool) or not holds(number)):
                raise ValueError
        except (TypeError, ValueError, OverflowError):  # float(10**400)
            got = repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
            raise ValueError(f"{name} {words}, got {got}") from None
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


class Calibrated(NamedTuple):
    """Δ' as a function of Δ0, as the paper calibrates it."""

    kappa: float
    sigma_f2: float
    div: float
    target: tuple[Shape, Shape]

    def __call__(self, gap0: float) -> float:
        from .calibration import calibrate  # which needs numpy

        return calibrate(gap0, lr=1.0, **self._asdict()).peak_gap


def plan_of(
    total_steps: int | None,
    *,
    warmup: str | Shape = "linear",
    decay: str | Shape = "cosine",
    trained: bool | None = None,
    profile: Callable[[float], float] | None = None,
    geometry: Any = None,
    kappa: float | None = None,
    sigma_f2: float | None = None,
    **numbers: Any,
) -> Plan:
    """The plan that these arguments of `AdaptiveWarmup` make; ``geometry`` calibrates Δ', and then needs ``kappa``.

    Raises:
        TypeError: an argument is unknown, or says something about an optimizer.
        ValueError: as for `AdaptiveWarmup`.
    """
    if unknown := numbers.keys() - _NUMBERS:
        known = ", ".join(sorted({*_NUMBERS, "warmup", "decay", "trained", "geometry", "kappa", "sigma_f2"}))
        raise TypeError(f"without an optimizer, AdaptiveWarmup has no {min(unknown)}: give some of {known}")
    cleaned = clean(total_steps=total_steps, kappa=kappa, **numbers)
    shapes, kappa = (warmup_shape(warmup), decay_shape(decay)), cleaned.pop("kappa")
    check_horizon(cleaned["total_steps"], shapes[1])
    if (geometry, kappa, sigma_f2) != (None, None, None):  # these need torch, which takes seconds to import
        from ..geometry import resolve
        from .calibration import SIGMA_F2

        variance = clean(sigma_f2=SIGMA_F2 if sigma_f2 is None else sigma_f2)["sigma_f2"]
        if geometry is not None and resolve(geometry) and kappa is None and cleaned.get("peak_gap") is None:
            known = f"geometry={geometry!r} calibrates with the κ of a model, which is not here"
            raise ValueError(f"{known}: give kappa, too")
        if kappa is None and variance != SIGMA_F2:
            raise ValueError("sigma_f2 belongs to the calibration of Δ': give the geometry to calibrate for, too")
        if cleaned.get("peak_gap") is None and kappa is not None and profile is None:
            cleaned["peak_gap"] = Calibrated(kappa, variance, cleaned.get("div", Plan.div), shapes)
    if profile is not None:
        cleaned["peak_gap"] = _peak_of(profile, kappa, cleaned.get("peak_gap"))
    return Plan(warmup=shapes[0], decay=shapes[1], trained=trained, profile=profile, **cleaned)


def _peak_of(profile: Any, kappa: float | None, peak_gap: float | None) -> float:
    """Δ' of a profile of one's own: as given, or its own."""
    if not callable(profile):
        raise ValueError(f"a profile is a function of the gap Δ, got {profile!r}")
    if kappa is not None:
        raise ValueError("geometry and kappa calibrate the paper's profile: leave them out, or leave out profile")
    found = peak_gap or getattr(profile, "peak_gap", None)
    if found is None:
        raise ValueError("a profile of your own needs peak_gap, the gap at which it is highest and the warm-up ends")
    return float(found)
