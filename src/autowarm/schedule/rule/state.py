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

    Attributes:
        timeline: where warm-up and decay lie.
        profile: η(Δ), from the first loss on. None if the first losses have no scale to derive f* from, or if the first
            gap is out of scale (below 1e-100 or above 1e100): then the ramp alone sets the rate.
        share: η/lr for the next update, in (0, 1].
        ended_by: what ended the warm-up, for good: "loss" (Δ fell below Δ'), "clock" (the ramp was at the peak),
            "decay_now" or "alarm" (the loss rose again after a restart); None until it ends.
        warmup_steps: the number of updates made at warm-up rates, once warm-up has ended.
        decay_start: the update at which the decay began; None during warm-up.
        updates: the number of updates so far.
        failures: how many losses in a row were not finite.
        opening: the first finite losses, until there are enough for f(x0).
        smoothed: the averaged loss; in the opening, what f(x0) would be. None before the first finite loss.
        last_seen: the update of the last finite loss.
        weights_trained: whether the weights were trained before the run; None until someone has looked.
        given_target_loss: f* as given for the current warm-up, or None.
        target_loss: f*, as given or, from the first loss on, derived from f(x0); None if it cannot be.
    """

    timeline: Timeline
    profile: Profile | None = None
    share: float = saved(positive_share, 1.0)
    ended_by: str | None = saved(lambda x: x in (None, "loss", "clock", "decay_now", "alarm"))
    warmup_steps: int = saved(count, 0)
    decay_start: int | None = saved(optional(count))
    updates: int = saved(count, 0)
    failures: int = saved(count, 0)
    opening: list[float] = saved(list_of(finite), [])
    smoothed: float | None = saved(optional(finite))
    last_seen: int = saved(count, 0)
    weights_trained: bool | None = saved(optional(boolean))
    given_target_loss: float | None = saved(optional(finite))
    target_loss: float | None = saved(optional(finite))

    @classmethod
    def begin(cls, plan: Plan, updates: int, total_steps: int | None, target_loss: float | None) -> Self:
        """A warm-up that begins at this update, with nothing known about the loss."""
        timeline = Timeline.begin(plan, updates, total_steps)
        return cls(
            timeline,
            share=1.0 / plan.div,
            updates=updates,
            given_target_loss=target_loss,
            target_loss=target_loss,
        )

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
