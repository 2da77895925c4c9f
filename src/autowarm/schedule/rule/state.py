"""Everything about a schedule that changes during a run."""

from dataclasses import dataclass
from typing import Any, Self

from ..profile import Profile
from .saved import (
    boolean,
    check,
    checks_of,
    count,
    finite,
    from_plain,
    list_of,
    optional,
    positive_share,
    saved,
    to_plain,
)
from .timeline import Plan, Timeline


@dataclass
class State:
    """The state of a schedule, in plain numbers.

    There is no profile if the first losses have no scale to derive f* from, or if the first gap is out of scale (below
    1e-100 or above 1e100): then the ramp alone sets the rate.
    """

    timeline: Timeline
    profile: Profile | None = None  # η(Δ), from the first loss on
    share: float = saved(positive_share, 1.0)  # η/lr for the next update
    # What ended the warm-up, for good: Δ fell below Δ', the ramp was at the peak, a user, or a second alarm.
    ended_by: str | None = saved(lambda x: x in (None, "loss", "clock", "decay_now", "alarm"))
    warmup_steps: int = saved(count, 0)  # updates made at warm-up rates, once warm-up has ended
    decay_start: int | None = saved(optional(count))  # the update at which the decay began
    updates: int = saved(count, 0)  # so far
    failures: int = saved(count, 0)  # how many losses in a row were not finite
    opening: list[float] = saved(list_of(finite), [])  # the first finite losses, until there are enough for f(x0)
    smoothed: float | None = saved(optional(finite))  # the averaged loss; in the opening, what f(x0) would be
    last_seen: int = saved(count, 0)  # the update of the last finite loss
    weights_trained: bool | None = saved(optional(boolean))  # before the run; None until someone has looked
    given_target_loss: float | None = saved(optional(finite))  # f* as given for the current warm-up
    target_loss: float | None = saved(optional(finite))  # f*, as given or, from the first loss on, derived from f(x0)

    @classmethod
    def begin(cls, plan: Plan, updates: int, total_steps: int | None, target_loss: float | None) -> Self:
        """A warm-up that begins at this update, with nothing known about the loss."""
        targets: dict[str, Any] = {"given_target_loss": target_loss, "target_loss": target_loss}
        return cls(Timeline.begin(plan, updates, total_steps), share=1.0 / plan.div, updates=updates, **targets)

    @property
    def plan(self) -> Plan:
        """The settings."""
        return self.timeline.plan

    @property
    def started(self) -> bool:
        """Whether there has been a finite loss."""
        return self.smoothed is not None

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes during a run, as plain numbers and text."""
        known = self.profile
        gaps = {"gap0": None if known is None else known.gap0, "peak_gap": None if known is None else known.peak_gap}
        return to_plain(self.timeline) | to_plain(self) | gaps

    @classmethod
    def of(cls, plan: Plan, state: dict[str, Any]) -> Self:
        """Continue from `state_dict`, without calibrating again. The state has passed `check`."""
        gap0 = state["gap0"]
        profile = None if gap0 is None else Profile(plan.lr, plan.div, gap0, state["peak_gap"])
        return cls(Timeline(plan, **from_plain(Timeline, state)), profile, **from_plain(cls, state))

    @classmethod
    def check(cls, state: Any) -> None:
        """Raise ValueError if a saved state is damaged."""
        gaps = {"gap0": optional(finite), "peak_gap": optional(finite)}
        check(state, checks_of(Timeline) | checks_of(State) | gaps, "rule.")
        damaged = "the saved schedule is damaged: "
        if (state["ended_by"] is None) != (state["decay_start"] is None):
            raise ValueError(f"{damaged}'rule.ended_by' and 'rule.decay_start' contradict each other")
        if state["gap0"] is not None and not (state["peak_gap"] is not None and 0 < state["peak_gap"] < state["gap0"]):
            raise ValueError(f"{damaged}'rule.peak_gap' is not between 0 and 'rule.gap0'")
        if state["gap0"] is not None and (state["smoothed"] is None or state["target_loss"] is None):
            missing = "smoothed" if state["smoothed"] is None else "target_loss"
            raise ValueError(f"{damaged}'rule.{missing}' is missing after the first loss")
