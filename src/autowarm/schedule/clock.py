"""The schedule's clock: it counts the updates that an optimizer really made."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .._torch.devices import is_capturing
from ..optim.ranks.dtensors import local
from ..others.wrapped import hook, inside


def only_makes_state(optimizer: Optimizer) -> bool:
    """Whether a step that is about to begin is no update: at rate 0, without a gradient, of an optimizer without state.

    PyTorch's `torch.distributed.checkpoint.state_dict` makes such a step to create the state. It puts even a tensor
    rate on the host, so no device is asked for a rate.
    """
    if optimizer.state:
        return False
    for group in optimizer.param_groups:
        rate = group["lr"]
        if (isinstance(rate, Tensor) and rate.device.type != "cpu") or rate != 0:
            return False
    params = (p for group in optimizer.param_groups for p in group["params"])
    return all(p.grad is None or not local(p.grad).any() for p in params)


class UpdateClock:
    """Tells a scheduler, at each of its steps, how many updates were made since its last step.

    `torch.amp.GradScaler` skips updates, and some loops step the scheduler before the optimizer: watching the optimizer
    settles both. Of several inside one (`Together`), which may step one by one in the backward pass, the one with the
    most updates counts.

    Attributes:
        optimizer: the watched optimizer; its step hooks live as long as this object.
        ever_stepped: whether there was an update.
        first_tick: whether there had been one at the first tick, as 0 or 1; None until then.
        idle: calls in a row that found no update.
        ticks: calls that found one, in this process.
        interrupted: updates among them that came after a call that found none.
        pretended: whether the steps made now are no updates.
    """

    SAVED = ("updates", "ever_stepped", "first_tick", "idle")
    pretended, ticks, interrupted = False, 0, 0

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.ever_stepped = False
        self.first_tick: int | None = None
        self.idle = 0
        self._updates = [0] * len(inside(optimizer))  # updates since the last tick, by each optimizer inside
        self._register()

    def _register(self) -> None:
        watched = inside(self.optimizer)
        entered = [False] * len(watched)

        for i, one in enumerate(watched):
            # A class whose step calls its parent's runs the hooks of both, one inside the other: that is one update,
            # which the inner one ends.
            def enter(clock: "UpdateClock", *_: Any, i: int = i) -> None:
                entered[i] = True

            def count(clock: "UpdateClock", stepped: Optimizer, *_: Any, i: int = i) -> None:
                inner, entered[i] = entered[i], False
                # A GradScaler steps a fused optimizer even if gradients overflowed: its kernels read ``found_inf``.
                flag: Tensor | None = getattr(stepped, "found_inf", None)
                overflowed = flag is not None and not is_capturing(flag.device) and bool(flag)
                if inner and not clock.pretended and not overflowed:
                    clock._updates[i] += 1

            hook(one.register_step_pre_hook, self, enter)
            hook(one.register_step_post_hook, self, count)

        def forget(clock: "UpdateClock", *_: Any) -> None:
            if clock.first_tick is None:  # a state that is loaded ends a rate finder's trials
                clock.updates = 0

        hook(self.optimizer.register_load_state_dict_post_hook, self, forget)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copied optimizer has lost its hooks.
        self.__dict__.update(state)
        self._register()

    @property
    def updates(self) -> int:
        """The number of updates since the last tick."""
        return max(self._updates)

    @updates.setter
    def updates(self, updates: int) -> None:
        self._updates = [updates] + [0] * (len(self._updates) - 1)

    @property
    def ahead(self) -> bool:
        """Whether the loop steps the scheduler first, as in Algorithm 1, so that it is one call ahead."""
        return self.first_tick == 0

    def tick(self, training: bool) -> int | None:
        """The number of updates since the last call; 0 if the first is still to come, None if an update was skipped.

        Unless this is ``training``, because a loss came with a graph, the losses may be made up, for a dry run of the
        schedule.
        """
        updates = max(self._updates)
        if self.first_tick is None:
            self.first_tick = 1 if updates else 0
            if not updates and not self._replayed():
                return 0  # the order of Algorithm 1: the loss first, then the first update
        if updates:
            # After calls without one, this was a step for each micro-batch, or a GradScaler has skipped some.
            self._updates = [0] * len(self._updates)
            self.interrupted += self.idle > 0
            self.ever_stepped, self.idle, self.ticks = True, 0, self.ticks + 1
            return updates
        if self._replayed():
            return 1  # a call for each replay
        if not self.ever_stepped and not training:
            parameters = (p for group in self.optimizer.param_groups for p in group["params"])
            if all(p.grad is None for p in parameters):
                return 1  # a dry run of the schedule: there is nothing to update
        self.idle += 1  # a GradScaler has skipped it, or another optimizer steps
        return None

    def _replayed(self) -> bool:
        """Whether updates may be replays of a captured graph, which Python does not see."""
        return any(group.get("capturable") for group in self.optimizer.param_groups)

    def state_dict(self) -> dict[str, Any]:
        """The counts so far, as plain numbers."""
        return {name: getattr(self, name) for name in self.SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        for name in self.SAVED:
            setattr(self, name, state[name])
