"""Watches a run's losses, keeps a copy of the healthy run, and says when to go back to it and at which rate."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from ...frames import frames_of_ours
from ...rate.restore import Snapshot
from .detector import Detector

_FIRST = 0.1  # share of the rate right after a restart, from which it rises over a window of losses
_LOWERED = 1 / 3  # of the rate at an alarm that has come again
_MOST_EARLY = 10  # restarts in a row that fail within the first quarter of the rise


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


class _Kept(NamedTuple):
    """A copy of the run after an update, with the schedule's averaged loss."""

    update: int
    snapshot: Snapshot
    average: float | None


class Guard:
    """Decides what to do about a loss that rises, under `AdaptiveWarmup` and beside any other schedule.

    All decisions follow from the losses and the numbers of updates, so ranks that share their losses decide alike.
    Unless it ``restores``, it keeps no copies and only notices.
    """

    _SAVED = ("since", "again", "early", "copied")

    def __init__(self, restores: bool, model: nn.Module | None, length: int) -> None:
        self._restores, self._model = restores, model
        self.recoveries: list[Recovery] = []
        self.average: float | None = None  # the schedule's averaged loss, as it was at the copy that was restored
        self.restart(length)

    def restart(self, length: int) -> None:
        """Know nothing of the loss, as in a new run or before other data."""
        self._detector = Detector.over(length)
        self._kept: _Kept | None = None
        self._unproven: _Kept | None = None  # a copy whose weights have had no loss yet: they may be broken
        self._copied: int | None = None  # the update of the last copy
        self._since: int | None = None  # the update of the last restart
        self._again = False  # whether the next alarm lowers the rate
        self._early = 0  # restarts in a row that failed at once

    def resize(self, length: int) -> None:
        """The run has another length now."""
        self._detector.window = Detector.over(length).window

    def __getstate__(self) -> dict[str, Any]:
        # The copy restores the tensors of this run, and not those of a copied one.
        return self.__dict__ | {"_kept": None, "_unproven": None}

    def share(self, updates: int) -> float:
        """The share of the schedule's rate for the next update: below 1 for a while after a restart."""
        gone = 1.0 if self._since is None else (updates - self._since) / self._detector.window
        return min(1.0, _FIRST + (1.0 - _FIRST) * gone)

    def after(
        self, updates: int, at: int, loss: float | None, optimizer: Optimizer, peak: float, average: float | None = None
    ) -> Recovery | None:
        """Take the loss of update ``at``. Keep a copy of the run if it is time for one, or go back to it at an alarm.

        ``peak`` is the first group's peak rate, ``average`` the schedule's averaged loss, which goes back, too. Returns
        what was done at an alarm; None if there was none.
        """
        if loss is None or (self._since is not None and at <= self._since):
            return None  # no loss, or a late one of weights that were replaced
        reason = self._detector.see(loss)
        if reason is not None:
            if self._kept is None and self.recoveries and not self._detector.seen:
                return None  # it has been said, and no loss has been finite since
            found = self._act(updates, reason, optimizer, peak)
            self.recoveries.append(found)
            return found
        if self._unproven is not None and at > self._unproven.update:
            self._kept, self._unproven = self._kept if self._detector.bad[-1] else self._unproven, None
        self._keep(updates, optimizer, average)
        return None

    def warn(self, found: Recovery) -> None:
        """Warn of an alarm, at the line that gave the loss, and say what was done."""
        if found.restored is None:
            done = "nothing was restored" if self._restores else "recover=True would have restored the weights"
        else:
            done = f"weights and optimizer are those of update {found.restored} again, and the run goes on from there"
        if found.peak_after != found.peak_before:
            done += f", at a peak rate of {found.peak_after:.3g} in place of {found.peak_before:.3g}"
        warnings.warn(f"update {found.update}: {found.reason}; {done}", stacklevel=frames_of_ours())

    def _keep(self, updates: int, optimizer: Optimizer, average: float | None) -> None:
        """Copy the run at a new low, and no more often than once in a window; and at once if there is no copy."""
        window = self._detector.window
        if self._detector.at_low and (self._since is None or updates - self._since >= 2 * window):
            self._again = False  # a low at the full rate
        if self._since is not None and updates - self._since > window // 4:
            self._early = 0
        due = self._detector.at_low and (self._copied is None or updates - self._copied >= window)
        # A resumed run has no copy. This one does not count, so that later ones are those of an uninterrupted run.
        extra = self._kept is None and self._detector.is_low()
        if self._restores and (due or extra) and self._unproven is None:
            self._copied = updates if due or self._copied is None else self._copied
            self._unproven = _Kept(updates, Snapshot(optimizer, self._model), average)

    @contextmanager
    def at_copy(self, optimizer: Optimizer) -> Iterator[tuple[int, Any] | None]:
        """Go to the proven copy within this context, and yield its update and averaged loss; None if there is none."""
        if (kept := self._kept) is None:
            yield None
            return
        now = Snapshot(optimizer, self._model)
        kept.snapshot.restore(optimizer)
        yield kept.update, kept.average
        now.restore(optimizer)

    def adopt(self, update: int, snapshot: Snapshot, average: Any) -> None:
        """Keep a copy that was saved beside the state."""
        self._kept = _Kept(update, snapshot, average)

    def keep_added(self, optimizer: Optimizer) -> None:
        """Add groups that have joined to the copies, before their first update."""
        for kept in (self._kept, self._unproven):
            if kept is not None:
                kept.snapshot.keep_added(optimizer)

    def _act(self, updates: int, reason: str, optimizer: Optimizer, peak: float) -> Recovery:
        detector, kept, self._unproven = self._detector, self._kept, None
        gone = math.inf if self._since is None else updates - self._since
        early = gone <= detector.window // 4
        if self._restores and kept is None:
            reason += ", and there is no copy yet to go back to"
        elif early and self._early >= _MOST_EARLY:
            reason += f", {_MOST_EARLY} times in a row right after the weights were restored: it is not the weights"
            kept = None
        elif gone <= detector.window and detector.began_above():
            reason += ", from the first update after the weights were restored: the data have changed"
            kept = None
        if not self._restores or kept is None:
            # The level counts anew from here, so that the same rise raises no second alarm.
            self._detector, self._kept, self._copied = Detector(detector.window), None, None
            self._since, self._again = None, False
            return Recovery(updates, None, reason, peak, peak)
        lowers = self._again and not early
        after = peak * _LOWERED * self.share(updates) if lowers else peak
        kept.snapshot.restore(optimizer)
        self.average = kept.average
        detector.forget()
        self._since, self._again, self._early = updates, True, self._early + 1 if early else 0
        return Recovery(updates, kept.update, reason, peak, after)

    # Saving.

    def state_dict(self) -> list[Any]:
        """Everything but the copy, as plain numbers and text.

        Pairs and no dictionary: `torch.distributed.checkpoint` asks for the same entries in every state.
        """
        counts = [[name, getattr(self, f"_{name}")] for name in self._SAVED]
        return [["detector", self._detector.state_dict()], ["recoveries", [list(x) for x in self.recoveries]], *counts]

    def load_state_dict(self, saved: list[Any]) -> None:
        """Continue from `state_dict`. The copy is made anew once the loss is at its lowest level."""
        state = dict(saved)
        self._detector.load_state_dict(state["detector"])
        for name in self._SAVED:
            setattr(self, f"_{name}", state[name])
        self.recoveries = [Recovery(*one) for one in state["recoveries"]]
        self._kept = self._unproven = None
