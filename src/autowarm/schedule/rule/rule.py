"""The rule that turns losses into a share of the peak rate, η/lr, in plain numbers; the reference for `DeviceRule`.

During warm-up the share is the higher of two:

- the paper's profile η(Δ) at the averaged loss;
- a *ramp* in time, which reaches the peak at the longest warm-up. η(Δ) alone can stall, because the loss falls only
  as fast as the rate lets it.

The warm-up ends when the gap Δ = loss − f* falls below Δ', or when the ramp reaches the peak. f(x0) is the second
lowest of the first ten losses, f* is 30 % of it, and Δ' is half of the first gap Δ0: the loss has then fallen to 65 %.
Losses are clipped to [f*, f(x0)], so that no outlier counts, and averaged over 5 % of the run, from f(x0) on.

With a geometry, Δ' is calibrated as in the paper. Without a ramp and without smoothing as well, this is the paper's
Algorithm 1, line by line.
"""

import math
import statistics
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from torch import Tensor

from ...frames import frames_of_ours
from ...losses import is_broken, mean_loss
from ..calibrate import calibrate
from ..profile import Number, Profile
from .saved import a_share, boolean, check, checks_of, count, finite, list_of, optional, saved, saved_fields
from .timeline import Plan, Timeline

if TYPE_CHECKING:
    from ..search import PeakSearch
    from .device import DeviceRule

Phase: TypeAlias = "PeakSearch | HostRule | DeviceRule"
"""A part of a run: the search for the peak rate, or warm-up and decay, on the host or on a device.

`reduce` combines the losses of all micro-batches and ranks into one for `advance`, None if no rank has any; `is_broken`
tells whether that is not finite. `advance` sets `share`, η/lr for the next update, in (0, 1] except in a search, and
`steady_share`, the same for groups without a warm-up, which stay at the peak until the common decay. `state_dict` gives
the entries "rule" and "search" of a saved schedule. On a device, `is_broken`, `name`, `on_host` and `state_dict` wait.
"""

# If f* is not given, we expect the loss to fall by at most this share of f(x0). In the paper's setup f* is then 3.3.
_EXPECTED_FALL = 0.7
# Δ' as a share of Δ0. The paper's calibration gives 0.31 for Muon and a LLaMA of 124M parameters, and 0.07 for AdamW,
# where the warm-up would end with the run. Half lets the loss end the warm-up on more of the public curves that we
# replay than 0.31 does, and costs runs of ours less than 0.2 % of their progress.
_PEAK_GAP = 0.5
# First losses whose median is more than this many times f(x0) have no scale from which f* could be derived.
_SCALELESS = 1.5
# A first loss below this share of the chance loss comes from trained weights: new ones start at the chance loss or
# above, and those of our fine-tuning study start at half of it.
_TRAINED = 0.75
# A first loss above this multiple of the chance loss is worth a warning.
_ABOVE_CHANCE = 1.2
# Gaps whose squares neither underflow nor overflow. Outside this range, as for a first loss of 0, there is no profile.
_LEAST_GAP, _MOST_GAP = 1e-100, 1e100
# η(Δ) is positive for every Δ, but underflows for a loss of 10³⁰⁸.
LEAST_SHARE = 1e-30


class Notices(NamedTuple):
    """What the scheduler learns after an update. Notices from a device may be some updates old."""

    updates: int  # the update that the notices describe
    failures: int  # how many losses in a row were not finite
    disagree: bool  # whether ranks were found at different steps or with different settings
    decay_start: int | None  # the update after which warm-up ended; None until it ends


@dataclass
class HostRule:
    """A schedule's state, in plain numbers, and how each loss changes it.

    There is no profile if the first losses have no scale to derive f* from, or if the first gap is out of scale (below
    1e-100 or above 1e100): then the ramp alone sets the rate.
    """

    timeline: Timeline
    profile: Profile | None = None  # η(Δ), from the first loss on
    share: float = saved(a_share, 1.0)  # η/lr for the next update
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

    device = None
    reduce, is_broken = staticmethod(mean_loss), staticmethod(is_broken)

    @classmethod
    def begin(cls, plan: Plan, updates: int, total_steps: int | None, target_loss: float | None) -> Self:
        """A warm-up that begins at this update, with nothing known about the loss."""
        targets: dict[str, Any] = {"given_target_loss": target_loss, "target_loss": target_loss}
        return cls(Timeline.begin(plan, updates, total_steps), share=1.0 / plan.div, updates=updates, **targets)

    @property
    def plan(self) -> Plan:
        return self.timeline.plan

    @property
    def started(self) -> bool:
        """Whether there has been a finite loss."""
        return self.smoothed is not None

    @property
    def name(self) -> str:
        return "warmup" if self.ended_by is None else "decay"

    @property
    def steady_share(self) -> float:
        return 1.0 if self.ended_by is None else self.timeline.steady(self.share)

    @property
    def fstar(self) -> float:
        """f*, as given or derived from the first losses. Where there is a profile, there is one."""
        assert self.target_loss is not None
        return self.target_loss

    def on_host(self) -> "HostRule":
        return self

    def advance(self, updates: int, loss: float | None) -> None:
        """Set the share for the next update. Without a loss, the ramp goes on alone; a non-finite one changes none."""
        self.updates = updates
        finite = loss is not None and math.isfinite(loss)
        if loss is not None:
            self.failures = 0 if finite else self.failures + 1
        if self.decay_start is None:
            if finite:
                assert loss is not None
                if self.smoothed is None or self.opening:
                    self._open(loss)
                else:
                    self.smoothed = self.averaged(self.smoothed, loss, updates - self.last_seen)
                self.last_seen = updates
            if finite or loss is None:
                self.share, ended = self.warmup_share(updates, None if self.opening else self.smoothed)
                if ended:
                    self._end(self.what_ended(updates))
        if self.decay_start is not None:
            self.share = self.timeline.decay_share(updates, self.timeline.decay_progress(updates, self.decay_start))

    def warmup_share(self, updates: int, smoothed: Number | None) -> "tuple[Number | float, Tensor | bool]":
        """max(ramp, η(Δ)/lr) at the averaged loss, and whether the warm-up is over.

        It is a function of what changes during a warm-up, so that a device can pass a tensor. In the opening there is
        no averaged loss, and only the ramp counts.
        """
        timeline, profile, target = self.timeline, self.profile, self.target_loss
        ramp = timeline.ramp_share(updates)
        if ramp >= 1.0:
            return 1.0, True
        if profile is None or target is None or smoothed is None:
            return max(ramp, 1.0 / timeline.plan.div), False
        gap, low = smoothed - target, max(ramp, LEAST_SHARE)
        share = profile.share(gap)
        # Strictly below, as in the algorithm's line 9: at Δ' itself the rate is lr and warm-up goes on.
        return share.clamp(min=low) if isinstance(share, Tensor) else max(low, share), gap < profile.peak_gap

    def averaged(self, smoothed: Number, loss: Number, updates: Number | int) -> Number:
        """The moving average after one more loss, this many updates after the last one."""
        if self.timeline.plan.smoothing == 0.0:
            return loss
        if self.profile is not None and self.target_loss is not None:
            low, high = self.target_loss, self.target_loss + self.profile.gap0
            loss = loss.clamp(low, high) if isinstance(loss, Tensor) else min(max(loss, low), high)
        kept = (1.0 - 1.0 / self.timeline.window) ** updates
        return kept * smoothed + (1.0 - kept) * loss

    def what_ended(self, updates: int) -> str:
        """What ended a warm-up that ended at this update. If both the ramp and the gap did, it is the ramp."""
        ramp = self.timeline.ramp
        return "clock" if ramp is not None and updates >= ramp.end else "loss"

    def notices(self) -> Notices:
        return Notices(self.updates, self.failures, False, self.decay_start)

    def _open(self, loss: float) -> None:
        """Take one of the first losses. The first one calibrates; the last one calibrates again, with f(x0)."""
        chance = self.plan.chance_loss
        if chance is not None and loss > chance:
            if not self.opening and loss > _ABOVE_CHANCE * chance:
                warnings.warn(
                    f"the first loss, {loss:.4g}, is above chance_loss={chance:.4g}, so f(x0) is taken as that. Is the "
                    "embedding or the head initialised with too large weights?",
                    stacklevel=frames_of_ours(),
                )
            loss = chance
        self.opening.append(loss)
        if len(self.opening) == 1:
            self._calibrate(loss)
        self.smoothed = sorted(self.opening)[:2][-1]
        if len(self.opening) < self.plan.opening:
            return
        if len(self.opening) > 1:
            try:
                self._calibrate(self.smoothed)
            except ValueError:  # f(x0) is already at a given f*: the first calibration stays
                self.smoothed = self.opening[0]
        self.opening = []

    def _calibrate(self, loss: float) -> None:
        """Fix η(Δ) from f(x0), and f* if none is given. Shorten the ramp if the losses are those of trained weights."""
        plan = self.plan
        usual = statistics.median(self.opening)
        chance = plan.chance_loss if plan.trained is None else None
        self._shorten(bool(self.weights_trained) or (chance is not None and usual < _TRAINED * chance))
        target = self.given_target_loss
        if target is None:
            if loss < _LEAST_GAP or usual > _SCALELESS * loss:
                self.target_loss = self.profile = None
                return
            target = loss - _EXPECTED_FALL * loss
        gap0 = loss - target
        if not gap0 > 0:
            raise ValueError(
                f"the first loss f(x0) = {loss:.6g} is not above the target loss f* = {target:.6g}: "
                "give a target_loss that the loss will approach from above, or none to have it derived from f(x0)"
            )
        if not _LEAST_GAP < gap0 < _MOST_GAP:
            profile = None
        elif plan.peak_gap is not None or plan.kappa is None:
            peak_gap = _PEAK_GAP * gap0 if plan.peak_gap is None else plan.peak_gap
            profile = Profile(plan.lr, plan.div, gap0, peak_gap)
        else:
            shapes = plan.warmup, plan.decay
            profile = calibrate(gap0, lr=plan.lr, div=plan.div, kappa=plan.kappa, sigma_f2=plan.sigma_f2, target=shapes)
        self.target_loss, self.profile = target, profile

    def settle(self, trained: bool) -> None:
        """Settle whether the weights were trained before: if they were, the ramp takes a tenth of the run at most."""
        self.weights_trained = trained
        self._shorten(trained)

    def _shorten(self, trained: bool) -> None:
        timeline = self.timeline
        if trained != timeline.trained and self.decay_start is None:
            changed = replace(timeline, trained=trained)
            self.timeline = changed.extended_in_warmup(self.updates, timeline.planned_steps)

    def _end(self, why: str) -> None:
        self.ended_by, self.decay_start = why, self.updates
        self.warmup_steps = self.updates - self.timeline.origin

    # What a user may change during the run.

    def extend(self, total_steps: int | None) -> None:
        """Change the length of the run; the current rate stays."""
        timeline = self.timeline
        if total_steps == timeline.planned_steps == timeline.total_steps:
            return
        if self.decay_start is not None:
            self.timeline, self.decay_start = timeline.extended_in_decay(
                self.updates, total_steps, self.share, self.decay_start
            )
            return
        self.timeline = timeline = timeline.extended_in_warmup(self.updates, total_steps)
        if self.started and timeline.ramp is not None and timeline.ramp_share(self.updates) >= 1.0:
            # On the shorter run the ramp would already be at the peak, but the rate must not jump there.
            self._cut_short("clock")

    def decay_now(self, steps: int, decay: str) -> None:
        """Decay from the current rate, over this many updates."""
        if self.decay_start is None:
            self._cut_short("decay_now")
        self.decay_start = self.updates
        self.timeline = self.timeline.decaying(self.updates, self.share, steps, decay)

    def lower(self, peak: float) -> None:
        """Go on from this peak rate, at the same share of it; a warm-up ends here."""
        self.timeline = replace(self.timeline, plan=self.plan.at(peak))
        if self.profile is not None:
            self.profile = replace(self.profile, lr=peak)
        if self.decay_start is None:
            self._cut_short("alarm")

    def begun_again(self, total_steps: int | None, target_loss: float | None, peak: float | None) -> Self:
        """A new warm-up from here, with nothing known about the loss, to this peak rate if one is given."""
        plan = self.plan if peak is None else self.plan.at(peak)
        new = self.begin(plan, self.updates, total_steps, target_loss)
        if self.weights_trained is not None:
            new.settle(self.weights_trained)
        return new

    def _cut_short(self, why: str) -> None:
        self.timeline = replace(self.timeline, cut=self.share, decay_peak=self.share)
        self._end(why)

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        gaps = {name: getattr(self.profile, name, None) for name in ("gap0", "peak_gap")}
        rule = saved_fields(Timeline, vars(self.timeline)) | saved_fields(HostRule, vars(self)) | gaps
        return {"rule": rule, "search": None}

    @classmethod
    def of(cls, plan: Plan, state: dict[str, Any]) -> Self:
        """Continue from the rule of a state, which has passed `check`, without calibrating again."""
        gap0 = state["gap0"]
        profile = None if gap0 is None else Profile(plan.lr, plan.div, gap0, state["peak_gap"])
        return cls(Timeline.of(plan, state), profile, **saved_fields(HostRule, state))

    @staticmethod
    def check(state: Any) -> None:
        """Raise ValueError if the rule of a saved state is damaged."""
        gaps = {"gap0": optional(finite), "peak_gap": optional(finite)}
        check(state, checks_of(Timeline) | checks_of(HostRule) | gaps, "rule.")
        damaged = "the saved schedule is damaged: "
        if (state["ended_by"] is None) != (state["decay_start"] is None):
            raise ValueError(f"{damaged}'rule.ended_by' and 'rule.decay_start' contradict each other")
        if state["gap0"] is not None and not (state["peak_gap"] is not None and 0 < state["peak_gap"] < state["gap0"]):
            raise ValueError(f"{damaged}'rule.peak_gap' is not between 0 and 'rule.gap0'")
        if state["gap0"] is not None and (state["smoothed"] is None or state["target_loss"] is None):
            missing = "smoothed" if state["smoothed"] is None else "target_loss"
            raise ValueError(f"{damaged}'rule.{missing}' is missing after the first loss")
