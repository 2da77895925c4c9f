"""The plan that a user's arguments make. Neither torch nor numpy is needed, except for a calibration."""

from dataclasses import fields
from typing import Any, NamedTuple

from .checks import check_horizon, clean
from .core import Plan
from .shapes import Shape, decay_shape, warmup_shape

_NUMBERS = {field.name for field in fields(Plan)} - {"warmup", "decay", "trained"}


class Calibrated(NamedTuple):
    """Δ' as a function of Δ0, as the paper calibrates it."""

    kappa: float
    sigma_f2: float
    div: float
    target: tuple[Shape, Shape]

    def __call__(self, gap0: float) -> float:
        from .calibration import calibrate

        return calibrate(
            gap0, lr=1.0, div=self.div, kappa=self.kappa, sigma_f2=self.sigma_f2, target=self.target
        ).peak_gap


def plan_of(
    total_steps: int | None,
    *,
    warmup: str | Shape = "linear",
    decay: str | Shape = "cosine",
    trained: bool | None = None,
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
    kappa = cleaned.pop("kappa")
    shapes = warmup_shape(warmup), decay_shape(decay)
    check_horizon(cleaned["total_steps"], shapes[1])
    if (geometry, kappa, sigma_f2) != (None, None, None):  # these need torch, which takes seconds to import
        from ..geometry import resolve
        from .calibration import SIGMA_F2

        variance = clean(sigma_f2=SIGMA_F2 if sigma_f2 is None else sigma_f2)["sigma_f2"]
        if geometry is not None and resolve(geometry) and kappa is None and cleaned.get("peak_gap") is None:
            raise ValueError(
                f"geometry={geometry!r} calibrates with the κ of a model, which is not here: give kappa, too"
            )
        if kappa is None and variance != SIGMA_F2:
            raise ValueError("sigma_f2 belongs to the calibration of Δ': give the geometry to calibrate for, too")
        if cleaned.get("peak_gap") is None and kappa is not None:
            cleaned["peak_gap"] = Calibrated(kappa, variance, cleaned.get("div", Plan.div), shapes)
    return Plan(warmup=shapes[0], decay=shapes[1], trained=trained, **cleaned)
