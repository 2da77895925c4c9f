"""What every rule does, and the rule on plain numbers. It is the reference that `DeviceRule` is held to."""

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

# What the dictionary of a state calls what; the rest of it is the formula's.
_STATE = ("share", "ended_by", "warmup_steps", "decay_start", "updates", "weight", "failures")


class Notices(NamedTuple):
    """What a rule tells the scheduler after an update; a device's may be some updates old.

    Attributes:
        updates: as of which update.
        failures: losses in a row that were not finite.
        disagree: whether ranks were found at different steps or with different settings.
        decay_start: after which update the warm-up ended; None while it lasts.
        loss: the last one, where the host knows it.
    """

    updates: int
    failures: int
    disagree: bool
    decay_start: int | None
    loss: float | None = None


class Rule(Protocol):
    """Turns losses into a share of the peak rate.

    Attributes:
        device: where its numbers are; None for the host.
        formula: the schedule.
        share: η/lr for the next update, in (0, 1].
        steady_share: the same for groups without a warm-up: the peak, then the common decay.
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
        """One loss for `advance`, out of those of all micro-batches and ranks; None where no rank has any."""

    def advance(self, updates: int, loss: Any) -> None:
        """Set the shares for the next update, once this many are made."""

    def notices(self) -> Notices:
        """What the scheduler should be told."""

    def on_host(self) -> "HostRule":
        """The same state on plain numbers. A device is waited for."""


class HostRule:
    """The schedule's state, and how a loss moves it.

    Args:
        formula: the schedule.

    Attributes:
        share: η/lr for the next update, in (0, 1].
        ended_by: what ended the warm-up, for good: "gap" (Δ fell below Δ'), "max_warmup" (the ramp was at the peak) or
            "decay_now"; None while it lasts.
        warmup_steps: how many updates were made at warm-up rates, once it has ended.
        decay_start: the update at which the decay began; None in warm-up.
        updates: how many were made.
        opening: the first finite losses, until there are enough for f(x0).
        averages: of the losses since; None during the opening.
        weight: of all that is in the smoothed loss, 1 − (1 − 1/window)ⁿ after n updates.
        failures: losses in a row that were not finite.
        loss: the last one; not saved.
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
        self.opening: list[float] = []
        self.averages: Averages[float] | None = None
        self.weight = 0.0
        self.failures = 0
        self.loss: float | None = None

    @property
    def steady_share(self) -> float:
        """The share of groups without a warm-up."""
        return 1.0 if self.ended_by is None else self.share / self.formula.cut

    @property
    def started(self) -> bool:
        """Whether a finite loss has come."""
        return self.averages is not None or bool(self.opening)

    @property
    def smoothed(self) -> float:
        """The loss, averaged; during the opening, its median."""
        return statistics.median_low(self.opening) if self.averages is None else self.averages.smoothed

    def on_host(self) -> "HostRule":
        """This."""
        return self

    def reduce(self, updates: int, observations: Sequence[Observation], ranks: Ranks) -> float | None:
        """The weighted mean of the finite losses, see `reduce_observations`."""
        return reduce_observations(observations, ranks, updates)

    def advance(self, updates: int, loss: float | None) -> None:
        """Set the share for the next update.

        Args:
            updates: made so far.
            loss: the last one, or None; one that is not finite is left out.

        Raises:
            ValueError: at the first loss, if it is not above f* or does not suit the given Δ'.
        """
        made, self.updates = updates - self.updates, updates
        self.loss = loss
        finite = loss is not None and math.isfinite(loss)
        if loss is not None:
            self.failures = 0 if finite else self.failures + 1
        if self.decay_start is None and (finite or self.started):
            if not self.started:
                assert loss is not None
                self.formula.calibrate(loss)
            pace = self.pace(made)
            if finite:
                assert loss is not None
                self._warm_up(loss, pace)
        if self.decay_start is not None:
            self.share = self.formula.decay_share(updates, self.formula.decay_progress(updates, self.decay_start))

    def notices(self) -> Notices:
        """As of the last update."""
        return Notices(self.updates, self.failures, False, self.decay_start, self.loss)

    def pace(self, made: int) -> float:
        """How far the average moves towards the loss after so many updates more.

        Where there is no loss, the average stands in for it.
        """
        keep = 1.0 - 1.0 / self.formula.window
        if made > 1:
            keep **= made
        self.weight = keep * self.weight + (1.0 - keep)
        return (1.0 - keep) / self.weight

    def _warm_up(self, loss: float, pace: float) -> None:
        if self.averages is not None:
            self.averages = self.averages.after(loss, pace, self.updates - self.formula.origin)
        else:
            self._open(loss)
        self.share, ended = self.formula.warmup_share(self.updates, self.averages)
        if ended:
            self._end(self.formula.ended_by(self.updates))

    def _open(self, loss: float) -> None:
        """Take one of the first losses. The first calibrates; with the last of them, their median does."""
        self.opening.append(loss)
        if len(self.opening) < self.formula.opening:
            return
        first = self.smoothed
        if len(self.opening) > 1:
            with suppress(ValueError):  # the loss is at a given f* already: what it was at first still holds
                self.formula.calibrate(first)
        self.averages, self.opening = Averages.begin(first), []

    def _end(self, why: str) -> None:
        self.ended_by, self.decay_start = why, self.updates
        self.warmup_steps = self.updates - self.formula.origin

    # What a user may change on the way.

    def extend(self, total_steps: int | None) -> None:
        """Go on to another horizon, from the present rate."""
        if total_steps == self.formula.planned_steps == self.formula.total_steps:
            return
        if self.decay_start is not None:
            self.decay_start = self.formula.extend_decay(self.updates, total_steps, self.share, self.decay_start)
            return
        self.formula.extend_warmup(self.updates, total_steps)
        if self.started and self.formula.ramp_share(self.updates) >= 1.0:
            # On the shorter run the ramp would be at the peak by now. The rate does not jump there.
            self._cut("max_warmup")

    def decay_now(self, steps: int, decay: Shape) -> None:
        """Decay from the present rate, over so many updates."""
        if self.decay_start is None:
            self._cut("decay_now")
        self.decay_start = self.updates
        self.formula.decay_from(self.updates, self.share, steps, decay)

    def _cut(self, why: str) -> None:
        self.formula.cut = self.formula.decay_peak = self.share
        self._end(why)

    def rewarm(self, total_steps: int | None, target_loss: float | None) -> None:
        """Begin a new warm-up; what was known of the loss is forgotten."""
        self.formula.begin(self.updates, total_steps, target_loss)
        self._begin()

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """What changes, as plain numbers and text."""
        averages = None if self.averages is None else self.averages.values()
        numbers = {name: getattr(self, name) for name in _STATE}
        return numbers | {"opening": list(self.opening), "averages": averages} | self.formula.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.opening = list(state["opening"])
        self.averages = None if state["averages"] is None else Averages(*state["averages"])
        self.formula.load_state_dict(state)
