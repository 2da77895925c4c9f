"""Warnings and errors about what can go wrong during a run. A loop that does what the documentation says sees none."""

import math
import warnings
from itertools import combinations

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..frames import frames_of_ours
from ..optim.step.nonfinite import Diverged
from . import core
from .clock import UpdateClock
from .groups import OUTSIDE

# Calls in a row without an update before a warning. A GradScaler skips a few while it looks for its scale.
MOST_IDLE = 10
UNSTEPPED = 30  # updates without a call of step(), or without a gradient, before a warning
# A value that is no loss rises: each of the last ten of the first thirty is above each of the first ten, and their
# median by this share. A loss that does so diverges.
FIRST, _RISE = 30, 0.2
_ABOVE_CHANCE = 1.2  # a first loss above this multiple of the chance loss is worth a warning


class Alarms:
    """Warns once about each kind of trouble, at the line that called ``step``, and raises if the run is lost."""

    def __init__(self, max_nonfinite: int | None) -> None:
        self.max_nonfinite = max_nonfinite
        self.said: set[str] = set()
        self._first: list[float] = []  # losses of a new run
        self._begun = False  # whether an update was made
        self._without = 0  # updates in a row without a gradient, until there was one

    def warn(self, kind: str, message: str) -> None:
        """Warn, unless a warning of this kind was given before."""
        if kind not in self.said:
            self.said.add(kind)
            warnings.warn(message, stacklevel=frames_of_ours())

    def idle(self, clock: UpdateClock) -> None:
        """A step found no update."""
        if clock.idle >= MOST_IDLE:
            self.warn(
                "idle",
                f"step() was called {clock.idle} times in a row, but {type(clock.optimizer).__name__}, which the "
                "schedule watches, made no update, so the rates stay as they are. If you replaced the optimizer, make "
                "a new scheduler for it. If updates happen during the backward pass, make the scheduler for "
                "autowarm.optim.Together(*optimizers). With several micro-batches to an update, call observe(loss) for "
                "each, and step() once. A GradScaler skips every update if no gradient is finite any more",
            )

    def outside(self, row: int, rate: float, written: float, peak: float) -> None:
        """Others have set the rates of this many updates in a row, or one above ours."""
        above = rate > written * (1 + 1e-6)
        if row >= OUTSIDE or (above and row):
            often = f"in {row} updates in a row" if row > 1 else "once"
            kept = "it holds while that lasts, and leaves nothing behind" if row > 1 else "it held for one update"
            self.warn(
                "outside",
                f"the rate was changed from outside {often}, by another scheduler or by your loop: to {rate:g}, where "
                f"the schedule had written {written:g}; {kept}. The peak given is still {peak:g}. Delete the other "
                "warm-up, cap or scheduler, or this one; for another peak use rewarm(peak=...), and for the product of "
                "two schedules torch.optim.lr_scheduler.ChainedScheduler",
            )

    def losses(self, loss: float | None, before: core.State, state: core.State, plan: core.Plan) -> None:
        """Look at a warm-up's loss, above all at the first ones, and at whether f* follows from them."""
        if loss is None:
            self.warn(
                "unobserved",
                "step() was called without a loss, so time alone sets the warm-up's rate: call step(loss), or "
                "observe(loss) before step(). If a trainer calls step(), autowarm.integrations passes it the loss",
            )
        if loss is None or not math.isfinite(loss):
            return
        chance = plan.chance_loss
        if before.average is None and chance is not None and loss > _ABOVE_CHANCE * chance:
            self.warn(
                "chance",
                f"the first loss, {loss:.4g}, is above chance_loss={chance:.4g}, so f(x0) is taken as that. Is the "
                "embedding or the head initialised with too large weights?",
            )
        if before.opening and not state.opening and state.gap0 is None and _scatter([*before.opening, loss]):
            first = ", ".join(f"{x:.3g}" for x in (*before.opening, loss))
            self.warn(
                "scale",
                f"no target loss f* can be derived from the first losses ({first}), which differ too much among "
                "themselves. So time alone sets the warm-up, up to max_warmup. Give target_loss; pass observe() the "
                "number of tokens or samples as weight where micro-batches differ in size, and leave out batches "
                "without a label",
            )
        if len(self._first) < FIRST:
            self._first.append(loss)
            if len(self._first) == FIRST:
                self._look_for_a_rise()

    def _look_for_a_rise(self) -> None:
        early, late = sorted(self._first[:10]), sorted(self._first[-10:])
        low, high = early[5], late[5]
        if late[0] > early[-1] and high - low > _RISE * abs(low):
            self.warn(
                "rising",
                f"the values given as the loss have risen from {low:.4g} to {high:.4g} in {FIRST} updates. step() "
                "takes the loss, which falls, and no accuracy or reward; if it is the loss, the peak rate is too high",
            )

    def before_update(self, clock: UpdateClock, *, told: bool, training: bool) -> None:
        """Look at what is about to be updated: ``told`` whether its weights were trained, in ``training`` for sure."""
        optimizer, made = clock.optimizer, clock.made + 1
        if made == UNSTEPPED:
            self.warn(
                "unstepped",
                f"{made} updates were made since the schedule's last step (or its construction), all at one rate: call "
                "step(loss) after every optimizer.step(). total_steps counts updates, too, not epochs",
            )
        if not (self._begun or told):
            steps = (state.get("step", 0) for state in optimizer.state.values() if isinstance(state, dict))
            before = max((int(x) for x in steps if not isinstance(x, Tensor) or x.device.type == "cpu"), default=0)
            if before > 1:  # the step that makes a state for a checkpoint may count
                self.warn(
                    "resumed",
                    f"the optimizer has made {before} updates by its state, and this schedule begins a warm-up at "
                    "lr/div. If a run goes on, load the schedule's own state with load_state_dict, too; if a new "
                    "warm-up is meant, trained=True says so",
                )
        self._begun = True
        if training and self._without >= 0:
            params = (p for group in optimizer.param_groups for p in group["params"])
            self._without = -1 if any(p.grad is not None for p in params) else self._without + 1
            if self._without == UNSTEPPED - 5:
                self.warn(
                    "no gradient",
                    f"no tensor of {type(optimizer).__name__} had a gradient in {self._without} updates, so they "
                    "changed nothing: the optimizer holds other tensors than the model that computes the loss, as "
                    "after a copy, model.to() on another device, or load_state_dict(assign=True). Make optimizer and "
                    "scheduler after that",
                )

    def nonfinite(self, state: core.State, optimizer: Optimizer, recovers: bool) -> None:
        """Warn of a loss that was not finite; raise `Diverged` where there were ``max_nonfinite`` in a row."""
        self.warn(
            "nonfinite",
            f"the loss was NaN or infinite at or shortly before update {state.updates}: the schedule ignores it but "
            "counts the update (warned once)",
        )
        if self.max_nonfinite is None or state.failures < self.max_nonfinite:
            return
        params = [p for group in optimizer.param_groups for p in group["params"]]
        healthy = all(bool(torch.isfinite(p.detach()).all()) for p in params)
        gradients = all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in params)
        why = (
            "the run has diverged, for weights are not finite. Lower the peak rate or clip gradients"
            + ("" if recovers else "; recover=True goes back to healthy weights by itself")
            if not healthy
            else f"all weights are finite, and the last gradients are {'finite' if gradients else 'not'}: the batches "
            "give no finite loss. Look for batches without a label (all of them masked), and for an overflow in the "
            "loss"
        )
        raise Diverged(
            f"the loss was not finite {state.failures} times in a row, up to step {state.updates}: {why}. "
            "max_nonfinite=None turns this error off"
        )

    def horizon(self, plan: core.Plan, state: core.State, ahead: bool) -> None:
        """Warn at the end of a run that is still in warm-up, and past it."""
        total, calls = state.total_steps, state.updates + ahead  # in the order of Algorithm 1 one call comes later
        if total is None or calls < total:
            return
        # At the last call of that order, if the ramp takes all of T.
        rising = state.ramp is not None and state.updates < state.ramp.end
        if calls == total and not rising and state.ended_by is None:
            self.warn("stalled", f"the run of total_steps={total} ends still in warm-up: {_stalled(state)}")
        if calls > total + 1:  # some loops make one update more than planned
            self.warn(
                "overrun",
                f"more than total_steps={total} updates were made: the rate stays where it is. total_steps counts "
                "updates, not epochs; extend(total_steps) moves the end",
            )


def _scatter(losses: list[float]) -> bool:
    """Whether losses differ for no good reason: they do not fall, and their zero is no arbitrary one."""
    rises = sum(later > earlier for earlier, later in combinations(losses, 2))
    return min(losses) >= 0.0 and (4 * rises > 3 * len(losses) or max(losses) == 0.0)


def _stalled(state: core.State) -> str:
    if state.average is None:
        return "no finite loss was observed. Call step(loss) with the loss of each update"
    if state.gap0 is None:
        return "no f* can be derived from the first losses, and there is no ramp. Give target_loss, or a max_warmup"
    if state.ramp is not None:
        return "no finite loss was observed after the ramp. Call step(loss) at each update"
    return (
        f"the gap to target_loss={state.fstar:.4g} never fell below peak_gap={state.peak_gap:.4g}. Use the "
        "default max_warmup, or raise peak_gap or target_loss"
    )
