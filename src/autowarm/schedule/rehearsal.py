"""The rule without an optimizer, for the losses of a run that is over, or that is only thought of."""

import math
from typing import Any

from . import core
from .alarms import Alarms
from .planning import clean, plan_of


class Rehearsal:
    """Takes losses one by one, and says at which share of the peak rate the next update would be made."""

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
            alarms.losses(loss, before, state)
        if not math.isfinite(loss):
            alarms.warn("nonfinite", when="at", updates=state.updates)
            if alarms.max_nonfinite is not None and state.failures >= alarms.max_nonfinite:
                raise RuntimeError(f"the loss was not finite {state.failures} times in a row")
        if state.updates == state.total_steps:
            alarms.horizon(state, ahead=False)
