"""Everything about a schedule that changes during a run."""

from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from torch import Tensor

from ..profile import Profile
from ..saved import (
    boolean,
    check,
    checks_of,
    count,
    finite,
    from_plain,
    list_of,
    number,
    optional,
    positive_share,
    saved,
    to_plain,
)
from .timeline import Plan, Timeline

__all__ = ["Averages", "State"]

# A fall counts once it exceeds this many standard deviations of the difference between two successive losses.
_EVIDENCE = 3.0
# After this many differences, we double the estimate of their variance (earlier, we raise it more): a few differences
# say little, as in Student's t.
_DOUBT = 20

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class Averages(Generic[Number]):
    """Running statistics of the loss since a warm-up began; floats on the host, 0-dim tensors on a device.

    Attributes:
        smoothed: exponential moving average over a share of the run.
        last: the latest loss.
        scatter: sum of squared differences between successive losses. Half their mean estimates the variance of the
            noise, whatever the trend (von Neumann's mean square successive difference).
        count: number of losses in these statistics. A loss that is not finite is no evidence and does not count.
    """

    smoothed: Number
    last: Number
    scatter: Number
    count: Number

    @classmethod
    def begin(cls, loss: Number) -> "Averages[Number]":
        """The statistics of a run in which every loss was this one."""
        return cls(loss, loss, 0.0 * loss, 0.0 * loss)

    def values(self) -> list[Number]:
        """The statistics, in the order of the attributes."""
        return [self.smoothed, self.last, self.scatter, self.count]

    def after(self, loss: Number, pace: float) -> "Averages[Number]":
        """The statistics after one more loss.

        Args:
            loss: the new loss; it must be finite.
            pace: the share of the way that `smoothed` moves towards the new loss.
        """
        step = loss - self.last
        return Averages(
            loss if pace == 1.0 else self.smoothed + pace * (loss - self.smoothed),
            loss,
            self.scatter + step * step,
            self.count + 1.0,
        )

    def has_fallen(self, first: float) -> "Tensor | bool":
        """Whether the smoothed loss is below the first loss, f(x0), by more than noise explains."""
        fall, n = first - self.smoothed, self.count
        return fall * abs(fall) * (n * n / (n + _DOUBT)) > _EVIDENCE**2 * self.scatter


def _are_averages(x: Any) -> bool:
    # The scatter of losses such as 1e300 overflows to infinity.
    if not (isinstance(x, list | tuple) and len(x) == 4):
        return False
    return all(map(finite, x[:2])) and all(number(n) and n >= 0 for n in x[2:])


@dataclass
class State:
    """The state of a schedule, in plain numbers.

    Attributes:
        timeline: where warm-up and decay lie.
        profile: η(Δ), from the first loss on. None if the first loss is 0 and f* is not given, or if the first gap is
            out of scale (below 1e-100 or above 1e100): then the ramp alone sets the rate.
        share: η/lr for the next update, in (0, 1].
        ended_by: what ended the warm-up, for good: "gap" (Δ fell below Δ'), "max_warmup" (the ramp was at the peak) or
            "decay_now"; None until it ends.
        warmup_steps: the number of updates made at warm-up rates, once warm-up has ended.
        decay_start: the update at which the decay began; None during warm-up.
        updates: the number of updates so far.
        failures: how many losses in a row were not finite.
        opening: the first finite losses, until there are enough for f(x0).
        averages: statistics of the losses since f(x0) was known; None during the opening.
        weight: total weight of the losses in the smoothed loss, 1 − (1 − lag)·(1 − 1/window)ⁿ after n updates.
        weights_trained: whether the weights were trained before the run; None until someone has looked.
        given_target_loss: f* as given for the current warm-up, or None.
        target_loss: f*, as given or, from the first loss on, derived from it.
    """

    timeline: Timeline
    profile: Profile | None = None
    share: float = saved(positive_share, 1.0)
    ended_by: str | None = saved(lambda x: x in (None, "gap", "max_warmup", "decay_now"))
    warmup_steps: int = saved(count, 0)
    decay_start: int | None = saved(optional(count))
    updates: int = saved(count, 0)
    failures: int = saved(count, 0)
    opening: list[float] = saved(list_of(finite), [])
    averages: Averages[float] | None = saved(
        optional(_are_averages), write=Averages.values, read=lambda x: Averages(*x)
    )
    weight: float = saved(lambda x: finite(x) and 0 <= x <= 1 + 1e-9, 0.0)
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
            weight=timeline.lag,
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
        return self.averages is not None or bool(self.opening)

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
        if (state["opening"] or state["averages"] is not None) and state["target_loss"] is None:
            raise ValueError(f"{damaged}'rule.target_loss' is missing after the first loss")
