"""The rule without an optimizer, for the losses of a run that is over, or that is only thought of."""

import math
from dataclasses import fields
from typing import Any

from ..geometry import resolve
from . import core
from .alarms import Alarms
from .arguments import Calibrated, check_horizon, clean
from .calibration import SIGMA_F2
from .shapes import Shape, decay_shape, warmup_shape

_NUMBERS = {field.name for field in fields(core.Plan)} - {"warmup", "decay", "trained"}


def plan_of(
    total_steps: int | None,
    *,
    warmup: str | Shape = "linear",
    decay: str | Shape = "cosine",
    trained: bool | None = None,
    geometry: Any = None,
    kappa: float | None = None,
    sigma_f2: float = SIGMA_F2,
    **numbers: Any,
) -> core.Plan:
    """The plan that these arguments of `AdaptiveWarmup` make; ``geometry`` calibrates Δ', and then needs ``kappa``.

    Raises:
        TypeError: an argument is unknown, or says something about an optimizer.
        ValueError: as for `AdaptiveWarmup`.
    """
    if unknown := numbers.keys() - _NUMBERS:
        known = ", ".join(sorted({*_NUMBERS, "warmup", "decay", "trained", "geometry", "kappa", "sigma_f2"}))
        raise TypeError(f"without an optimizer, AdaptiveWarmup has no {min(unknown)}: give some of {known}")
    cleaned = clean(total_steps=total_steps, kappa=kappa, sigma_f2=sigma_f2, **numbers)
    kappa, sigma_f2 = cleaned.pop("kappa"), cleaned.pop("sigma_f2")
    shapes = warmup_shape(warmup), decay_shape(decay)
    check_horizon(cleaned["total_steps"], shapes[1])
    if geometry is not None and resolve(geometry) and kappa is None and numbers.get("peak_gap") is None:
        raise ValueError(f"geometry={geometry!r} calibrates with the κ of a model, which is not here: give kappa, too")
    if cleaned.get("peak_gap") is None and kappa is not None:
        cleaned["peak_gap"] = Calibrated(kappa, sigma_f2, cleaned.get("div", core.Plan.div), shapes)
    return core.Plan(warmup=shapes[0], decay=shapes[1], trained=trained, **cleaned)


class Rehearsal:
    """Takes losses one by one, and says at which share of the peak rate the next update would be made.

    Args:
        total_steps, options: as for `plan_of`.
        max_nonfinite: as for `AdaptiveWarmup`.
    """

    def __init__(self, total_steps: int | None, *, max_nonfinite: int | None = 20, **options: Any) -> None:
        self._alarms = Alarms(clean(max_nonfinite=max_nonfinite)["max_nonfinite"])
        self.plan = plan_of(total_steps, **options)
        self.state = core.settle(self.plan, core.begin(self.plan), bool(self.plan.trained))

    def step(self, loss: float) -> None:
        """Take the loss of the next update; warn as the scheduler does.

        Raises:
            ValueError: as for `AdaptiveWarmup`.
            RuntimeError: ``max_nonfinite`` is reached.
        """
        before, alarms = self.state, self._alarms
        state = self.state = core.advance(self.plan, before, before.updates + 1, loss)
        if before.ended_by is None:
            alarms.losses(loss, before, state, self.plan)
        if not math.isfinite(loss):
            alarms.warn(
                "nonfinite",
                f"the loss was NaN or infinite at update {state.updates}: the schedule ignores it but counts the "
                "update (said once)",
            )
            if alarms.max_nonfinite is not None and state.failures >= alarms.max_nonfinite:
                raise RuntimeError(f"the loss was not finite {state.failures} times in a row")
        if state.updates == state.total_steps:
            alarms.horizon(self.plan, state, ahead=False)
