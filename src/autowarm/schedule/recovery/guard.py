"""Watches a run's losses, keeps a copy of the healthy run, and says when to go back to it and at which rate.

An alarm begins a *trial*: the weights are those of the copy again, and the next losses tell whether the weights were at
fault. If the copy does better, the run goes on from there. If not, the data or the objective have changed, and the
weights have followed: the run gets them back, and the new level counts. After two such alarms, only losses that are not
finite count. An alarm that comes again before the run is healthy needs no trial, nor do losses that are not finite.
"""

import math
import statistics
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from ..._torch.frames import frames_of_ours
from ...rate.restore import Snapshot, versions_of_frozen
from ..core import OPEN_HORIZON
from .detector import OPENING, Detector

_FIRST = 0.1  # share of the rate right after a restart, from which it rises over a window of losses, and on trial
_TRIAL = 16  # losses that tell whether the copy's weights are better
_LOWERED = 1 / 3  # of the rate at an alarm that has come again
_LEAST = 1 / 9  # of the rate is left after all alarms
_MOST_EARLY = 10  # restarts in a row that fail at once: while batches are bad, no weights are better
_MOST_BAD = 4  # times that a trial begins anew: by then, ten batches in a row were bad, or the data have changed
_NEVER = 2**62  # updates
_MOST_WRONG = 2  # alarms that blamed the weights wrongly


class Recovery(NamedTuple):
    """What happened at an alarm.

    Attributes:
        update: the number of updates made when it was raised.
        restored: the update to which weights and optimizer went back; None if they stayed.
        reason: what was noticed, in words.
        peak_before, peak_after: the first group's peak rate.
    """

    update: int
    restored: int | None
    reason: str
    peak_before: float
    peak_after: float


class _Copy(NamedTuple):
    """A copy of the run after an update, with the schedule's averaged loss."""

    update: int
    snapshot: Snapshot
    average: float | None


class Action(Enum):
    """What to do about an alarm."""

    NOTHING = 0  # a warning has said it, and no loss has been finite since
    WARN = 1  # there is nothing to go back to
    RESTORE = 2  # go on from the copy
    TRY = 3  # go back to the copy on trial, or begin its trial anew
    LOWER = 4  # go on from the copy, at a lower rate
    ACQUIT = 5  # the weights were not at fault


class History(NamedTuple):
    """What has come before an alarm."""

    has_copy: bool  # that may be restored
    on_trial: bool
    is_known: bool  # whether an alarm was raised before, and no loss has been finite since
    is_early: bool  # whether the last restart was just before
    failures: int  # restarts in a row that failed at once
    lowers: bool  # whether the rate is at fault: the run was not healthy again since the last alarm
    is_lowest: bool  # whether nothing is left to lower


def decide(broken: bool, history: History) -> Action:
    """What to do about an alarm, which is ``broken`` if the losses are not finite."""
    if not history.has_copy:  # a resumed run has none
        return Action.NOTHING if history.is_known else Action.ACQUIT if history.on_trial else Action.WARN
    if history.lowers:
        return Action.ACQUIT if history.is_lowest and not broken else Action.LOWER
    if history.is_early and history.failures >= (_MOST_EARLY if broken else _MOST_BAD):
        return Action.ACQUIT  # restarts have not helped
    return Action.RESTORE if broken else Action.TRY


class Guard:
    """Decides what to do about a loss that rises, under `AdaptiveWarmup` and beside any other schedule.

    All decisions follow from the losses and the numbers of updates, so ranks that share their losses decide alike.
    ``recover`` is True, a model whose buffers are restored too, or "warn": then it keeps no copies and only notices.
    """

    _SAVED = ("since", "again", "early", "copied", "lowered", "climbs", "fell", "wrong", "idle", "bar", "span")

    def __init__(self, recover: Any, length: int | None, optimizer: Optimizer | None = None) -> None:
        self._restores, self._model = recover != "warn", recover if isinstance(recover, nn.Module) else None
        self._frozen = {} if optimizer is None else versions_of_frozen(optimizer, self._model)
        self._recoveries: list[Recovery] = []
        self.average: float | None = None  # the schedule's averaged loss, as it was at the copy that was restored
        self._idle = False  # whether it has been said that this loss cannot be judged
        self._fell = 0  # how many updates passed between the copy and the last alarm
        self.restart(length)

    def restart(self, length: int | None) -> None:
        """Know nothing of the loss, as in a new run or before other data."""
        self._wrong = 0
        self._lowered = 1.0  # what is left of the schedule's rate after the alarms so far
        self._climbs: int | None = None  # the update from which the rate climbs back
        self._anew(Detector.over(length or OPEN_HORIZON).window)

    def _anew(self, window: int) -> None:
        """The level counts anew, so that the same rise raises no second alarm."""
        self._detector = Detector(window)
        self._copy: _Copy | None = None
        self._unproven: _Copy | None = None  # a copy whose weights have had no loss yet: they may be broken
        self._copied: int | None = None  # the update of the last copy
        self._since: int | None = None  # the update of the last restart
        self._span = window  # how many updates the rate rises over after it
        self._again = False  # whether the next alarm lowers the rate
        self._early = 0  # restarts in a row that failed at once
        self._trial: Recovery | None = None  # the alarm that is on trial
        self._bar = math.inf  # the weights were at fault if the copy's losses are lower
        self._before: Snapshot | None = None  # the run as it was at the alarm; None if that is broken

    def resize(self, length: int | None) -> None:
        """The run has another length now."""
        self._detector.window = Detector.over(length or OPEN_HORIZON).window

    def __getstate__(self) -> dict[str, Any]:
        # The copies restore the tensors of this run, and not those of a copied one.
        return self.__dict__ | {"_copy": None, "_unproven": None, "_before": None, "_frozen": {}}

    @property
    def recoveries(self) -> list[Recovery]:
        """What happened at each alarm, the one on trial included."""
        return self._recoveries if self._trial is None else [*self._recoveries, self._trial]

    def share(self, updates: int) -> float:
        """The share of the schedule's rate for the next update: below 1 for a while after a restart."""
        if self._trial is not None:
            return self._left(updates) * _FIRST
        gone = 1.0 if self._since is None else (updates - self._since) / self._span
        return self._left(updates) * min(1.0, _FIRST + (1.0 - _FIRST) * gone)

    def _left(self, updates: int) -> float:
        """What the alarms have left of the rate. It climbs back by one lowering, over two windows."""
        if self._climbs is None or updates <= self._climbs:
            return self._lowered
        done = (updates - self._climbs) / (2 * self._span)
        return min(1.0, self._lowered * (1 / _LOWERED) ** min(1.0, done))

    def after(
        self, updates: int, at: int, loss: float | None, optimizer: Optimizer, peak: float, average: float | None = None
    ) -> Recovery | None:
        """Take the loss of update ``at``. Keep a copy of the run if it is time for one, or go back to it at an alarm.

        ``peak`` is the first group's peak rate, ``average`` the schedule's averaged loss, which goes back, too. Returns
        what was done about an alarm, once that is settled; None until then.
        """
        if loss is None or (self._since is not None and at <= self._since):
            return None  # no loss, or a late one of weights that were replaced
        # An alarm, unless two have blamed the weights wrongly, or the copy on trial does better.
        detector = self._detector
        reason = detector.see(loss)
        broken, recent = not all(map(math.isfinite, detector.last)), detector.recent
        # On trial, the copy's losses may be far above the first, and yet far below those of the run.
        does_better = self._trial is not None and bool(recent) and 3 * statistics.median(recent) <= self._bar
        if reason is not None and (broken or (self._wrong < _MOST_WRONG and not does_better)):
            return self._alarm(updates, reason, broken, optimizer, peak)
        if self._trial is not None:
            return self._judge(optimizer) if len(recent) >= _TRIAL else None
        if len(recent) == OPENING and self._since is not None and at - self._since < _TRIAL and detector.is_lost():
            self._anew(detector.window)  # an old copy, or other data as well: the lowest level is no measure any more
            detector = self._detector
        if detector.idle and not self._idle:
            self._idle = True
            warnings.warn(
                f"recovery is idle: {detector.idle}, so a rise may be success; a fall by a tenth of the first level, "
                "without a loss below zero, would show otherwise. Losses that are not finite still count",
                stacklevel=frames_of_ours(),
            )
        # This loss is the first one at the weights of the last copy: it proves them, or shows that they are broken.
        if self._unproven is not None and at > self._unproven.update:
            self._copy, self._unproven = self._copy if detector.bad[-1] else self._unproven, None
        # A low at the full rate: the run is healthy again.
        window = detector.window
        if detector.at_low and (self._since is None or updates - self._since >= 2 * window):
            self._again = detector.wary = False
            self._early = 0
            if self._climbs is None and self._lowered < 1.0:
                self._climbs = updates + self._fell
        # Copy the run at a new low, and no more often than once in a window; and at once if there is no copy, as in a
        # resumed run. That one does not count, so that later ones are those of an uninterrupted run.
        due = detector.at_low and (self._copied is None or updates - self._copied >= window)
        extra = self._copy is None and detector.is_low()
        if self._restores and (due or extra) and self._unproven is None:
            self._copied = updates if due or self._copied is None else self._copied
            self._unproven = _Copy(updates, Snapshot(optimizer, self._model, self._frozen), average)
        return None

    @contextmanager
    def at_copy(self, optimizer: Optimizer) -> Iterator[tuple[int, Any] | None]:
        """Go to the proven copy within this context, and yield its update and averaged loss; None if there is none."""
        if (copy := self._copy) is None:
            yield None
            return
        now = Snapshot(optimizer, self._model, self._frozen)
        copy.snapshot.restore(optimizer)
        yield copy.update, copy.average
        now.restore(optimizer)

    def adopt(self, update: int, snapshot: Snapshot, average: Any) -> None:
        """Keep a copy that was saved beside the state."""
        self._copy = _Copy(update, snapshot, average)

    def keep_added(self, optimizer: Optimizer) -> None:
        """Add groups that have joined to the copies, before their first update."""
        copies = [one.snapshot for one in (self._copy, self._unproven) if one is not None]
        for snapshot in (*copies, *([] if self._before is None else [self._before])):
            snapshot.keep_added(optimizer)

    def _alarm(self, updates: int, reason: str, broken: bool, optimizer: Optimizer, peak: float) -> Recovery | None:
        """Do what `decide` says, and warn of it. Returns None while a trial has not told."""
        copy, self._unproven, before = self._copy, None, peak * self._left(updates)
        # What the alarm follows on.
        elapsed = math.inf if self._since is None else updates - self._since
        early = self._trial is not None or elapsed <= self._detector.window // 4
        recovery = self._trial or Recovery(updates, None if copy is None else copy.update, reason, before, before)
        history = History(
            has_copy=self._restores and copy is not None, on_trial=self._trial is not None,
            is_known=bool(self._recoveries) and not self._detector.count, is_early=early, failures=self._early,
            lowers=self._again and not early, is_lowest=self._left(updates) <= _LEAST * (1 + 1e-9),
        )  # fmt: skip
        if history.has_copy:
            self._early = self._early + 1 if early else 0
        # What follows from it. Three actions end here, and three go on from the copy.
        match action := decide(broken, history):
            case Action.NOTHING:
                return None
            case Action.ACQUIT:
                return self._acquit(updates, reason, before, optimizer)
            case Action.WARN:
                done = "nothing was restored" if self._restores else "recover=True would have restored the weights"
                reason += ", and there is no copy yet to go back to" if self._restores else ""
                self._anew(self._detector.window)
                return self._settled(Recovery(updates, None, reason, before, before), done)
            case Action.TRY:
                how = f", for {_TRIAL} losses on trial at {_FIRST:g} of the rate"
                if self._trial is None:
                    self._trial, self._bar, self._early = recovery, self._detector.bar(), 0
                    self._before = Snapshot(optimizer, self._model, self._frozen)
            case Action.LOWER:
                after = max(_LEAST * peak, before * _LOWERED * min(1.0, elapsed / self._detector.window))
                how = f", at a peak rate of {after:.3g} in place of {before:.3g}" if after != before else ""
                recovery = recovery._replace(peak_after=after)
            case Action.RESTORE:
                how = ""
        # Back to the copy: its losses count anew, and the rate rises from a tenth again.
        assert copy is not None
        copy.snapshot.restore(optimizer)
        self.average, self._since = copy.average, updates
        self._detector.forget()
        done = f"weights and optimizer are those of update {copy.update} again, and the run goes on from there{how}"
        self._warn(updates, reason, f'{done}. To undo it, load a checkpoint and pass recover="warn"')
        return None if action is Action.TRY else self._restarted(recovery)

    def _judge(self, optimizer: Optimizer) -> Recovery:
        """Settle the trial by the copy's losses."""
        assert self._trial is not None
        if statistics.median(self._detector.recent[:_TRIAL]) > self._bar:
            reason = f"{self._trial.reason}, and the weights of update {self._trial.restored} do no better now"
            return self._acquit(self._trial.update, reason, self._trial.peak_before, optimizer)
        is_lost, recovery = self._detector.is_lost(), self._restarted(self._trial)
        if is_lost:
            self._anew(self._detector.window)
        return recovery

    def _restarted(self, recovery: Recovery) -> Recovery:
        """The weights were at fault: the run goes on from the copy."""
        self._trial = self._before = None
        self._again, self._fell = True, recovery.update - (recovery.restored or 0)
        self._span = self._detector.window
        self._detector.wary = True
        self._detector.forget()  # the losses of a copy that stood still would look like a new low
        if recovery.peak_after != recovery.peak_before:
            self._lowered = self._left(recovery.update) * recovery.peak_after / recovery.peak_before
            self._climbs = None if self._climbs is None else _NEVER
        self._recoveries.append(recovery)
        return recovery

    def _acquit(self, updates: int, reason: str, peak: float, optimizer: Optimizer) -> Recovery:
        """The weights were not at fault: the run goes on with those that it had, if they are whole."""
        trial, restored, done = self._trial, None, "nothing was restored"
        if trial is not None and self._before is not None:
            self._before.restore(optimizer)
            done = f"the run has its own weights of update {trial.update} again"
        elif trial is not None:  # nothing can put them back in a resumed run, which stays with the copy
            restored = trial.restored
            done = f"the run, which was resumed, stays with those of update {restored}"
        self._wrong += 1
        self._anew(self._detector.window)
        last = "; from now on, only losses that are not finite count" if self._wrong >= _MOST_WRONG else ""
        reason += f": the data or the objective have changed{last}"
        return self._settled(Recovery(updates, restored, reason, peak, peak), done)

    def _settled(self, recovery: Recovery, done: str) -> Recovery:
        self._warn(recovery.update, recovery.reason, done)
        self._recoveries.append(recovery)
        return recovery

    def _warn(self, update: int, reason: str, done: str) -> None:
        """Warn of an alarm, at the line that gave the loss, and say what was done."""
        warnings.warn(f"update {update}: {reason}; {done}", stacklevel=frames_of_ours())

    # Saving.

    def state_dict(self) -> list[Any]:
        """Everything but the copies, as plain numbers and text.

        Pairs and no dictionary: `torch.distributed.checkpoint` asks for the same entries in every state.
        """
        counts = [["average", self.average], *([name, getattr(self, f"_{name}")] for name in self._SAVED)]
        trial = None if self._trial is None else list(self._trial)
        recoveries = [list(one) for one in self._recoveries]
        return [["detector", self._detector.state_dict()], ["recoveries", recoveries], ["trial", trial], *counts]

    def load_state_dict(self, saved: list[Any]) -> None:
        """Continue from `state_dict`. The copy is made anew once the loss is at its lowest level."""
        state = dict(saved)
        self._detector.load_state_dict(state["detector"])
        for name in self._SAVED:
            setattr(self, f"_{name}", state[name])
        self.average = state.get("average")  # not kept by earlier states
        self._trial = None if state["trial"] is None else Recovery(*state["trial"])
        self._recoveries = [Recovery(*one) for one in state["recoveries"]]
        self._copy = self._unproven = self._before = None
