"""Warnings and errors about what can go wrong during a run. A loop that does what the documentation says sees none."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._torch.frames import frames_of_ours
from ..optim.step.nonfinite import Diverged
from . import core
from .clock import UpdateClock
from .groups import GroupRates

# Calls in a row without an update before a warning. A GradScaler skips a few while it looks for its scale.
MOST_IDLE = 10
UNSTEPPED = 30  # updates without a call of step(), or without a gradient, before a warning
# A value that is no loss rises: each of the last ten of the first thirty is above each of the first ten, and their
# median by this share. A loss that does so diverges.
FIRST, _RISE = 30, 0.2

WORDS = {
    "idle": (
        "step() was called {calls} times in a row, but {optimizer}, which the schedule watches, made no update, so the "
        "rates stay as they are. For another optimizer make a new scheduler; for several that step in the backward "
        "pass, one for autowarm.optim.Together(*optimizers). With micro-batches, call observe(loss) for each and "
        "step() once an update. A GradScaler skips every update if no gradient is finite any more"
    ),
    "micro-batches": (
        "step() was called between {calls} of the first {updates} updates, as for each micro-batch, but updates count: "
        "call observe(loss) for each micro-batch and step() once an update, and give total_steps in updates"
    ),
    "outside": (
        "the rate was changed from outside in {row} updates in a row, the last time to {rate:g}, where the schedule "
        "had written {written:g}. The schedule owns the rates and writes its own at each step: delete the other "
        "warm-up, cap or scheduler, or this one. base_lrs holds the peak rates, which you may change"
    ),
    "unsettled": (
        "an earlier scheduler or a loaded state has left lr={lr:g} and initial_lr={peak:g}: {peak:g} is the peak, as "
        "for PyTorch's schedulers. If it is {lr:g}, delete the groups' initial_lr before you make the schedule"
    ),
    "unobserved": (
        "step() was called without a loss, so time alone sets the warm-up's rate: call step(loss), or observe(loss) "
        "before step(). If a trainer calls step(), autowarm.integrations passes it the loss"
    ),
    "scale": (
        "no target loss follows from these losses: the first ones differ too much, or some are not positive. So time "
        "alone sets the warm-up. Pass target_loss, chance_loss (that of an untrained model), or larger batches"
    ),
    "rising": (
        "the values given as the loss have risen from {low:.4g} to {high:.4g} in {count} updates. step() takes the "
        "loss, which falls, and no accuracy or reward; if it is the loss, the peak rate is too high"
    ),
    "unstepped": (
        "{updates} updates were made since the schedule's last step (or its construction), all at one rate: call "
        "step(loss) after every optimizer.step(). total_steps counts updates, too, not epochs"
    ),
    "resumed": (
        "the optimizer has made {updates} updates by its state, and this schedule begins a warm-up at lr/div. If a run "
        "goes on, load the schedule's own state, too (load_state_dict); trained=True says that a new warm-up is meant"
    ),
    "no gradient": (
        "no tensor of {optimizer} had a gradient in {updates} updates, so they changed nothing: it holds other tensors "
        "than the model that computes the loss. Make optimizer and scheduler after copying the model, moving it to "
        "another device, or load_state_dict(assign=True)"
    ),
    "nonfinite": (
        "the loss was NaN or infinite at or shortly before update {updates}: the schedule ignores it but counts the "
        "update. An optimizer that has made it may have NaN weights: skip it there, or pass recover=True"
    ),
    "peak limit": (
        "the peak rate is lowered from {lr:g} to {peak:.2g}: at {lr:g} one update moves the weights by {moves:g}% of "
        "their norm, and {updates:,} updates bear {bears:g}% each (peak_limit=None keeps {lr:g})"
    ),
    "stalled": "the run of total_steps={total} ends still in warm-up: {why}",
    "overrun": (
        "more than total_steps={total} updates were made: the rate stays where it is. total_steps counts updates, not "
        "epochs; extend(total_steps) moves the end"
    ),
}
DIVERGED = (
    "the loss was not finite {failures} times in a row, up to step {updates}: {why}. max_nonfinite=None turns this off"
)
BROKEN = "the run has diverged, for weights are not finite. Lower the peak rate or clip gradients"
RECOVERY = "; recover=True goes back to healthy weights by itself"
EMPTY = (
    "all weights are finite, and the last gradients are {gradients}: the batches give no finite loss. Look for batches "
    "without a label (all of them masked), and for an overflow in the loss"
)
NO_LOSS = "no finite loss was observed{when}. Call step(loss) at each update"
NO_SCALE = "no f* can be derived from the first losses, and there is no ramp. Give target_loss, or a max_warmup"
NO_FALL = (
    "the gap to target_loss={fstar:.4g} never fell below peak_gap={peak_gap:.4g}. Use the default max_warmup, or raise "
    "peak_gap or target_loss"
)


class Alarms:
    """Warns once about each kind of trouble, at the line that called ``step``, and raises if the run is lost."""

    def __init__(self, max_nonfinite: int | None) -> None:
        self.max_nonfinite = max_nonfinite
        self.warned: set[str] = set()
        self._first: list[float] = []  # losses of a new run
        self.begun = False  # whether an update was made
        self.early = True  # whether the first losses are still looked at
        self._without = 0  # updates in a row without a gradient, until there was one

    def warn(self, kind: str, **values: Any) -> None:
        """Warn, unless a warning of this kind was given before."""
        if kind not in self.warned:
            self.warned.add(kind)
            warnings.warn(WORDS[kind].format(**values), stacklevel=frames_of_ours())

    def idle(self, clock: UpdateClock) -> None:
        """Warn of calls that find no update."""
        if clock.idle >= MOST_IDLE:
            self.warn("idle", calls=clock.idle, optimizer=type(clock.optimizer).__name__)

    def look(
        self, before: core.State, state: core.State, readings: list[tuple[int, float | None]], clock: UpdateClock, *,
        recovers: bool,
    ) -> None:  # fmt: skip
        """Raise, or warn once, if something is wrong after a step."""
        if before.ended_by is None:
            for _, loss in readings:
                if loss is None:
                    self.warn("unobserved")
                elif math.isfinite(loss) and len(self._first) < FIRST:
                    self._first.append(loss)
            early, late = sorted(self._first[:10]), sorted(self._first[20:])
            if len(self._first) == FIRST and late[0] > early[-1] and late[5] - early[5] > _RISE * abs(early[5]):
                self.warn("rising", low=early[5], high=late[5], count=FIRST)
            if state.average is not None and not (state.opening or state.short) and state.target_loss is None:
                self.warn("scale")
            if state.updates <= FIRST < 2 * clock.interrupted and "idle" not in self.warned:
                self.warn("micro-batches", calls=clock.interrupted, updates=state.updates)
        first = state.opening or len(self._first) < FIRST or state.updates <= FIRST
        self.early = state.ended_by is None and bool(first)
        if state.failures > before.failures:
            self.nonfinite(state, clock.optimizer, recovers)
        if state.updates + 1 >= (state.total_steps or math.inf):
            self.horizon(state, clock.ahead)

    def before_update(self, clock: UpdateClock, groups: GroupRates, *, known: bool, training: bool) -> None:
        """Look at what is about to be updated: ``known`` whether its weights were trained, in ``training`` for sure."""
        optimizer, update = clock.optimizer, clock.updates + 1
        # A loop that has stepped the schedule all along, or sets the rates by another one now, knows what it does.
        if update == UNSTEPPED and clock.ticks < UNSTEPPED and groups.untouched:
            self.warn("unstepped", updates=update)
        if not self.begun and groups.unsettled:
            self.warn("unsettled", **groups.unsettled)
        elif not (self.begun or known):
            steps = (state.get("step", 0) for state in optimizer.state.values() if isinstance(state, dict))
            before = max((int(x) for x in steps if not isinstance(x, Tensor) or x.device.type == "cpu"), default=0)
            if before > 1:  # the step that makes a state for a checkpoint may count
                self.warn("resumed", updates=before)
        self.begun = True
        if training and self._without >= 0:
            params = (p for group in optimizer.param_groups for p in group["params"])
            self._without = -1 if any(p.grad is not None for p in params) else self._without + 1
            if self._without == UNSTEPPED - 5:
                self.warn("no gradient", updates=self._without, optimizer=type(optimizer).__name__)

    def nonfinite(self, state: core.State, optimizer: Optimizer, recovers: bool) -> None:
        """Warn of a loss that was not finite; raise `Diverged` where there were ``max_nonfinite`` in a row."""
        self.warn("nonfinite", updates=state.updates)
        if self.max_nonfinite is None or state.failures < self.max_nonfinite:
            return
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if all(bool(torch.isfinite(p.detach()).all()) for p in params):
            gradients = all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in params)
            why = EMPTY.format(gradients="finite" if gradients else "not")
        else:
            why = BROKEN + ("" if recovers else RECOVERY)
        raise Diverged(DIVERGED.format(failures=state.failures, updates=state.updates, why=why))

    def horizon(self, state: core.State, ahead: bool) -> None:
        """Warn at the end of a run that is still in warm-up, and past it."""
        total, calls = state.total_steps, state.updates + ahead  # in the order of Algorithm 1 one call comes later
        if total is None or calls < total:
            return
        # At the last call of that order, if the ramp takes all of T.
        rising = state.ramp is not None and state.updates < state.ramp.end
        if calls == total and not rising and state.ended_by is None:
            why = NO_SCALE if state.gap0 is None else NO_FALL
            if state.average is None or (state.gap0 is not None and state.ramp is not None):
                why = NO_LOSS
            when = " after the ramp" * (state.average is not None)
            why = why.format(when=when, fstar=state.target_loss, peak_gap=state.peak_gap)
            self.warn("stalled", total=total, why=why)
        if calls > total + 1:  # some loops make one update more than planned
            self.warn("overrun", total=total)
