"""Time, as a schedule should count it: the updates an optimizer really made."""

import weakref
from typing import Any

from torch.optim import Optimizer

__all__ = ["UpdateClock"]


class UpdateClock:
    """Tells a scheduler, at each of its steps, whether an update was made since the last one.

    `torch.amp.GradScaler` skips updates, and some loops step the scheduler before the optimizer. Watching the optimizer
    settles both: after the update or before it, a schedule's time is the number of updates.

    Args:
        optimizer: watched through a step hook, for as long as this object lives.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._stepped = False  # since the last tick
        self._ever_stepped = False
        self._called = False
        this = weakref.ref(self)

        def stepped(*_: Any) -> None:
            clock = this()
            if clock is not None:
                clock._stepped = True

        optimizer.register_step_post_hook(stepped)

    def tick(self) -> int | None:
        """1 if an update was made since the last call, 0 if the first is still to come, None if one was skipped."""
        first_call, self._called = not self._called, True
        if self._stepped:
            self._stepped, self._ever_stepped = False, True
            return 1
        groups = self._optimizer.param_groups
        # A captured graph replays updates without Python seeing them.
        if any(group.get("capturable") for group in groups):
            return 1
        if not self._ever_stepped:
            if first_call:
                return 0  # the order of Algorithm 1: the loss first, then the first update
            if not any(p.grad is not None for group in groups for p in group["params"]):
                return 1  # a dry run of the schedule: there is nothing to update
        return None

    def state_dict(self) -> dict[str, bool]:
        """What has been seen."""
        return {"stepped": self._stepped, "ever_stepped": self._ever_stepped, "called": self._called}

    def load_state_dict(self, state: dict[str, bool]) -> None:
        """Go on from `state_dict`."""
        self._stepped, self._ever_stepped, self._called = state["stepped"], state["ever_stepped"], state["called"]
