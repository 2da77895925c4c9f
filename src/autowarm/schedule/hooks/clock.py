"""Time, as a schedule should count it: the updates an optimizer really made."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer

from ..rule import Observation

__all__ = ["UpdateClock", "hook", "inside", "is_ours"]


def hook(register: Callable[..., Any], owner: object, call: Callable[..., None]) -> None:
    """Register a hook that calls ``call(owner, …)`` and goes with its owner.

    Args:
        register: one of the optimizer's ``register_…_hook``.
        owner: kept by a weak reference.
        call: of the owner and the hook's arguments.
    """
    this = weakref.ref(owner)

    def fire(*args: Any) -> None:
        alive = this()
        if alive is not None:
            call(alive, *args)

    fire.owner = this  # type: ignore[attr-defined]
    handle = register(fire)
    weakref.finalize(owner, handle.remove)


def is_ours(call: Callable[..., Any]) -> bool:
    """Whether a hook was registered by `hook`."""
    return isinstance(getattr(call, "owner", None), weakref.ref)


def inside(optimizer: Optimizer) -> list[Optimizer]:
    """Those that make its updates: the optimizers that it steps (`Together`), or itself."""
    several = getattr(optimizer, "optimizers", None)
    if isinstance(several, list | tuple) and several and all(isinstance(one, Optimizer) for one in several):
        return [inner for one in several for inner in inside(one)]
    return [optimizer]


class UpdateClock:
    """Tells a scheduler, at each of its steps, how many updates were made since the last one.

    `torch.amp.GradScaler` skips updates, and some loops step the scheduler before the optimizer. Watching the optimizer
    settles both: after the update or before it, a schedule's time is the number of updates.

    Where an optimizer steps several others (`Together`), those are watched, and the most that any has made counts. So
    updates are also seen where each is made during the backward pass.

    Args:
        optimizer: watched through step hooks, for as long as this object lives.

    Attributes:
        optimizer: the one watched.
        idle: calls in a row that found no update.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._ever_stepped = False
        self._first_tick: int | None = None
        self.idle = 0
        self.watch(optimizer)

    def watch(self, optimizer: Optimizer) -> None:
        """Watch this one from now on."""
        self.optimizer = optimizer
        self._made: list[int] = []  # since the last tick, by each of those inside
        self._register()

    def _register(self) -> None:
        watched = inside(self.optimizer)
        self._made = self._made or [0] * len(watched)
        made = self._made

        for i, one in enumerate(watched):

            def count(clock: "UpdateClock", *_: Any, i: int = i) -> None:
                if clock._made is made:  # not an optimizer that was watched before
                    made[i] += 1

            hook(one.register_step_post_hook, self, count)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copied optimizer has lost its hooks.
        self.__dict__.update(state)
        self._register()

    @property
    def ahead(self) -> bool:
        """Whether the scheduler is stepped before the optimizer, the order of Algorithm 1: it is one call ahead."""
        return self._first_tick == 0

    def tick(self, observations: Sequence[Observation]) -> int | None:
        """The updates made since the last call; 0 if the first is still to come, None if one was skipped.

        Args:
            observations: the losses since. If none came with a graph they may be made up, to look at the schedule.
        """
        made = self._made[0] if len(self._made) == 1 else max(self._made)
        if self._first_tick is None:
            self._first_tick = 1 if made else 0
            if not made and not self._replayed():
                return 0  # the order of Algorithm 1: the loss first, then the first update
        if made:
            self.restart()
            self._ever_stepped, self.idle = True, 0
            return made
        if self._replayed():
            return 1
        if not self._ever_stepped and not any(seen.traced for seen in observations):
            parameters = (p for group in self.optimizer.param_groups for p in group["params"])
            if all(p.grad is None for p in parameters):
                return 1  # a dry run of the schedule: there is nothing to update
        self.idle += 1
        return None

    def _replayed(self) -> bool:
        """Whether updates may be replays of a captured graph, which Python does not see."""
        return any(group.get("capturable") for group in self.optimizer.param_groups)

    def restart(self) -> None:
        """Forget updates that belong to what came before."""
        self._made[:] = [0] * len(self._made)

    def state_dict(self) -> dict[str, Any]:
        """What has been seen."""
        return {
            "made": max(self._made),
            "ever_stepped": self._ever_stepped,
            "first_tick": self._first_tick,
            "idle": self.idle,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        self._ever_stepped, self._first_tick, self.idle = state["ever_stepped"], state["first_tick"], state["idle"]
        self.restart()
        self._made[0] = state["made"]
