"""Warnings and errors about what can go wrong during a run."""

import warnings

from ...frames import frames_of_ours
from ...losses import Ranks
from ...optim.step.nonfinite import Diverged
from ..rule import HostRule, Notices, Phase
from .clock import UpdateClock

# Calls in a row without an update before a warning. A GradScaler skips a few while it looks for its scale.
MOST_IDLE = 10
FOREIGN = 3  # updates in a row at others' rates before a warning


class Alarms:
    """Warns once about each kind of trouble, at the line that called ``step``, and raises if the run is lost."""

    def __init__(self, max_nonfinite: int | None) -> None:
        self.max_nonfinite = max_nonfinite
        self.said: set[str] = set()

    def check(
        self, notices: Notices, phase: Phase, clock: UpdateClock, ranks: Ranks, *, skipped: bool, observed: bool
    ) -> None:
        """Check the outcome of a scheduler's step; RuntimeError if ranks disagree or ``max_nonfinite`` is reached."""
        updates = phase.updates
        if notices.disagree:
            raise RuntimeError(
                "ranks disagree: AdaptiveWarmup has different steps or settings on them, at or shortly before step "
                f"{updates}; this rank's settings are {ranks.settings}"
            )
        if skipped:
            self._idle(clock)
            return
        if not observed and notices.decay_start in (None, updates):
            searching = "the search for the peak rate stands still"
            self.warn(
                "unobserved",
                "step() was called without a loss, so "
                + (searching if phase.name == "search" else "time alone sets the warm-up's rate")
                + ": call step(loss), or observe(loss) before step(). If a trainer calls step(), "
                "autowarm.integrations passes it the loss",
            )
        if notices.failures:
            self._nonfinite(notices, updates)
        self._horizon(updates, clock.ahead, phase)

    def other_scheduler(self, ours: str, others: list[str]) -> None:
        """Warn of schedulers that set the rates beside ours."""
        self.warn(
            "other scheduler",
            f"{' and '.join(others)} sets the rates of this optimizer too, so its updates do not use the rates of "
            + (f"either {ours}: keep one of them" if ours in others else f"{ours}: delete it")
            + ", or step both through torch.optim.lr_scheduler.ChainedScheduler if their product is wanted",
        )

    def foreign(self) -> None:
        """Warn of a loop that sets rates itself, or changes ours, before each of `FOREIGN` updates in a row."""
        self.warn(
            "foreign",
            f"code that is no scheduler changed the rates before each of the last {FOREIGN} updates, so they are not "
            "those of this schedule. If the loop sets group['lr'] by itself, delete these lines, or the AdaptiveWarmup",
        )

    def zero(self) -> None:
        """Warn of a run that others have put to rest before its first update."""
        self.warn(
            "zero",
            "every parameter group's lr was set to 0 from outside the schedule before the first update, so nothing is "
            "trained until it is raised again",
        )

    def _idle(self, clock: UpdateClock) -> None:
        if clock.idle >= MOST_IDLE:
            self.warn(
                "idle",
                f"step() was called {clock.idle} times in a row, but {type(clock.optimizer).__name__}, which the "
                "schedule watches, made no update, so the rates stay as they are. If you replaced the optimizer, make "
                "a new scheduler for it. If updates happen during the backward pass, make the scheduler for "
                "autowarm.optim.Together(*optimizers). With several micro-batches to an update, call observe(loss) for "
                "each, and step() once. A GradScaler skips every update if no gradient is finite any more",
            )

    def _nonfinite(self, notices: Notices, updates: int) -> None:
        when = f"at {'' if notices.updates == updates else 'or shortly before '}step {updates}"
        self.warn(
            "nonfinite",
            f"the loss was NaN or infinite {when}: the schedule ignores it but counts the step (warned once)",
        )
        if self.max_nonfinite is not None and notices.failures >= self.max_nonfinite:
            raise Diverged(
                f"the loss was not finite {notices.failures} times in a row, up to step {updates}: the run has "
                "diverged. Lower the peak rate or clip gradients; max_nonfinite=None turns this error off"
            )

    def _horizon(self, updates: int, ahead: bool, phase: Phase) -> None:
        total, ramp = phase.timeline.total_steps, phase.timeline.ramp
        calls = updates + ahead  # in the order of Algorithm 1 the last update is one call later
        if total is None or calls < total:
            return
        rising = ramp is not None and updates < ramp.end  # at the last call of that order, if the ramp takes all of T
        if calls == total and not rising and (host := phase.on_host()).ended_by is None:
            self.warn("stalled", f"the run of total_steps={total} ends still in warm-up: {_stalled(host)}")
        if calls > total + 1:  # some loops make one update more than planned
            self.warn(
                "overrun",
                f"more than total_steps={total} updates were made: the rate stays where it is. total_steps counts "
                "updates, not epochs; extend(total_steps) moves the end",
            )

    def warn(self, kind: str, message: str) -> None:
        """Warn, unless a warning of this kind was given before."""
        if kind not in self.said:
            self.said.add(kind)
            warnings.warn(message, stacklevel=frames_of_ours())


def _stalled(rule: HostRule) -> str:
    profile, ramp = rule.profile, rule.timeline.ramp
    if profile is None and not (rule.started and ramp is None):
        return "no finite loss was observed. Call step(loss) with the loss of each update"
    if profile is None:
        return "no f* can be derived from the first losses, and there is no ramp. Give target_loss, or a max_warmup"
    if ramp is not None:
        return "no finite loss was observed after the ramp. Call step(loss) at each update"
    return (
        f"the gap to target_loss={rule.fstar:.4g} never fell below peak_gap={profile.peak_gap:.4g}. Use the "
        "default max_warmup, or raise peak_gap or target_loss"
    )
