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
        self._first_tick: int | None = None
        self._watch()

    def _watch(self) -> None:
        this = weakref.ref(self)

        def stepped(*_: Any) -> None:
            clock = this()
            if clock is not None:
                clock._stepped = True

        handle = self._optimizer.register_step_post_hook(stepped)
        weakref.finalize(self, handle.remove)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copied optimizer has lost its hooks.
        self.__dict__.update(state)
        self._watch()

    @property
    def ahead(self) -> bool:
        """Whether the scheduler is stepped before the optimizer, the order of Algorithm 1: it is one call ahead."""
        return self._first_tick == 0

    def tick(self, *, dry: bool) -> int | None:
        """1 if an update was made since the last call, 0 if the first is still to come, None if one was skipped.

        Args:
            dry: there is no sign of training in the losses, which may be made up to look at the schedule.
        """
        if self._first_tick is None:
            self._first_tick = 1 if self._stepped else 0
            if not self._stepped and not self._replayed():
                return 0  # the order of Algorithm 1: the loss first, then the first update
        if self._stepped:
            self._stepped, self._ever_stepped = False, True
            return 1
        if self._replayed():
            return 1
        parameters = (p for group in self._optimizer.param_groups for p in group["params"])
        if dry and not self._ever_stepped and all(p.grad is None for p in parameters):
            return 1  # a dry run of the schedule: there is nothing to update
        return None

    def _replayed(self) -> bool:
        """Whether updates may be replays of a captured graph, which Python does not see."""
        return any(group.get("capturable") for group in self._optimizer.param_groups)

    def restart(self) -> None:
        """Forget an update that belongs to what came before."""
        self._stepped = False

    def state_dict(self) -> dict[str, Any]:
        """What has been seen."""
        return {"stepped": self._stepped, "ever_stepped": self._ever_stepped, "first_tick": self._first_tick}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        self._stepped, self._ever_stepped = state["stepped"], state["ever_stepped"]
        self._first_tick = state["first_tick"]
