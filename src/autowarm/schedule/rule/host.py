"""The interface of a rule, and the rule in plain numbers, which is the reference for `DeviceRule`."""

import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..shapes import Shape
from .averages import Averages
from .formula import Formula
from .reduce import Observation, Ranks, reduce_observations

__all__ = ["HostRule", "Notices", "Rule"]

# The attributes that a state saves as they are.
_STATE = ("share", "ended_by", "warmup_steps", "decay_start", "updates", "losses", "weight", "failures")


class Notices(NamedTuple):
    """What a rule tells the scheduler after an update. Notices from a device may be some updates old.

    Attributes:
        updates: the update that the notices describe.
        failures: how many losses in a row were not finite.
        disagree: whether ranks were found at different steps or with different settings.
        decay_start: the update after which warm-up ended; None until it ends.
    """

    updates: int
    failures: int
    disagree: bool
    decay_start: int | None


class Rule(Protocol):
    """Turns losses into a share of the peak rate.

    Attributes:
        device: where the rule's numbers are; None for the host.
        formula: the schedule.
        share: η/lr for the next update, in (0, 1].
        steady_share: the same for groups without a warm-up, which stay at the peak until the common decay.
    """

    @property
    def device(self) -> torch.device | None: ...

    @property
    def formula(self) -> Formula: ...

    @property
    def share(self) -> float | Tensor: ...

    @property
    def steady_share(self) -> float | Tensor: ...

    def reduce(self, updates: int, observations: Sequence[Observation], ranks: Ranks) -> Any:
        """Combine the losses of all micro-batches and ranks into one for `advance`; None if no rank has any."""

    def advance(self, updates: int, loss: Any) -> None:
        """Set the shares for the next update, after this many updates."""

    def notices(self) -> Notices:
        """What the scheduler needs to know."""

    def on_host(self) -> "HostRule":
        """The same state in plain numbers. Waits for the device, if there is one."""


class HostRule:
    """The state of a schedule, and how each loss changes it.

    Args:
        formula: the schedule.

    Attributes:
        share: η/lr for the next update, in (0, 1].
        ended_by: what ended the warm-up, for good: "gap" (Δ fell below Δ'), "max_warmup" (the ramp was at the peak) or
            "decay_now"; None until it ends.
        warmup_steps: the number of updates made at warm-up rates, once warm-up has ended.
        decay_start: the update at which the decay began; None during warm-up.
        updates: the number of updates so far.
        losses: the number of losses since the warm-up began, finite or not.
        opening: the first finite losses, until there are enough for f(x0).
        averages: statistics of the losses since f(x0) was known; None during the opening.
        weight: total weight of the losses in the smoothed loss, 1 − (1 − lag)·(1 − 1/window)ⁿ after n updates.
        failures: how many losses in a row were not finite.
    """

    def __init__(self, formula: Formula) -> None:
        self.device: torch.device | None = None
        self.formula = formula
        self.updates = 0
        self._begin()

    def _begin(self) -> None:
        self.share: float = 1.0 / self.formula.div
        self.ended_by: str | None = None
        self.warmup_steps = 0
        self.decay_start: int | None = None
        self.losses = 0
        self.opening: list[float] = []
        self.averages: Averages[float] | None = None
        self.weight = self.formula.lag
        self.failures = 0

    @property
    def steady_share(self) -> float:
        """The share of groups without a warm-up."""
        return 1.0 if self.ended_by is None else self.formula.steady(self.share)

    @property
    def started(self) -> bool:
        """Whether there has been a finite loss."""
        return self.averages is not None or bool(self.opening)

    @property
    def smoothed(self) -> float:
        """The averaged loss; during the opening, the median of the losses so far."""
        return statistics.median_low(self.opening) if self.averages is None else self.averages.smoothed

    def on_host(self) -> "HostRule":
        """This rule itself."""
        return self

    def reduce(self, updates: int, observations: Sequence[Observation], ranks: Ranks) -> float | None:
        """The weighted mean of the finite losses, see `reduce_observations`."""
        return reduce_observations(observations, ranks, updates)

    def advance(self, updates: int, loss: float | None) -> None:
        """Set the share for the next update.

        Args:
            updates: the number of updates so far.
            loss: the last loss, or None; a loss that is not finite is ignored.

        Raises:
            ValueError: at the first loss, if it is not above f*, or exceeds it by the given Δ' or less.
        """
        made, self.updates = updates - self.updates, updates
        finite = loss is not None and math.isfinite(loss)
        if loss is not None:
            self.losses += 1
            self.failures = 0 if finite else self.failures + 1
        if self.decay_start is None and (finite or self.started):
            if not self.started:
                assert loss is not None
                self.formula.calibrate(loss, updates)
            pace = self.pace(made)
            if finite:
                assert loss is not None
                self._warm_up(loss, pace)
        if self.decay_start is not None:
            self.share = self.formula.decay_share(updates, self.formula.decay_progress(updates, self.decay_start))

    def notices(self) -> Notices:
        """The notices as of the last update."""
        return Notices(self.updates, self.failures, False, self.decay_start)

    def pace(self, made: int) -> float:
        """The share of the way that the average moves towards the next loss, after this many more updates.

        For an update without a loss, the average stands in for the loss.
        """
        keep = 1.0 - 1.0 / self.formula.window
        if made > 1:
            keep **= made
        self.weight = keep * self.weight + (1.0 - keep)
        return (1.0 - keep) / self.weight

    def _warm_up(self, loss: float, pace: float) -> None:
        if self.averages is not None:
            self.averages = self.averages.after(loss, pace)
        else:
            self._open(loss)
        self.share, ended = self.formula.warmup_share(self.updates, self.averages)
        if ended:
            self._end(self.formula.ended_by(self.updates))

    def _open(self, loss: float) -> None:
        """Take one of the first losses. The first one calibrates; the last one calibrates again, with their median."""
        self.opening.append(loss)
        if len(self.opening) < self.formula.opening:
            return
        first = self.smoothed
        if len(self.opening) > 1:
            with suppress(ValueError):  # the median is already at a given f*: the first calibration stays
                self.formula.calibrate(first, self.updates)
        self.averages, self.opening = Averages.begin(first), []

    def _end(self, why: str) -> None:
        self.ended_by, self.decay_start = why, self.updates
        self.warmup_steps = self.updates - self.formula.origin

    # What a user may change during the run.

    def extend(self, total_steps: int | None) -> None:
        """Change the length of the run; the current rate stays."""
        if total_steps == self.formula.planned_steps == self.formula.total_steps:
            return
        if self.decay_start is not None:
            self.decay_start = self.formula.extend_decay(self.updates, total_steps, self.share, self.decay_start)
            return
        self.formula.extend_warmup(self.updates, total_steps)
        # As far as a run of the new length lags, so does the average from now on.
        self.weight = max(self.weight, self.formula.lag) if self.started else self.formula.lag
        if self.started and self.formula.ramp_share(self.updates) >= 1.0:
            # On the shorter run the ramp would already be at the peak, but the rate must not jump there.
            self._cut("max_warmup")

    def decay_now(self, steps: int, decay: Shape) -> None:
        """Decay from the current rate, over this many updates."""
        if self.decay_start is None:
            self._cut("decay_now")
        self.decay_start = self.updates
        self.formula.decay_from(self.updates, self.share, steps, decay)

    def _cut(self, why: str) -> None:
        self.formula.cut = self.formula.decay_peak = self.share
        self._end(why)

    def rewarm(self, total_steps: int | None, target_loss: float | None) -> None:
        """Begin a new warm-up, and forget what was known about the loss."""
        self.formula.begin(self.updates, total_steps, target_loss)
        self._begin()

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes during a run, as plain numbers and text."""
        averages = None if self.averages is None else self.averages.values()
        numbers = {name: getattr(self, name) for name in _STATE}
        return numbers | {"opening": list(self.opening), "averages": averages} | self.formula.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.opening = list(state["opening"])
        self.averages = None if state["averages"] is None else Averages(*state["averages"])
        self.formula.load_state_dict(state)
