"""What sets the rate: losses in, a share of the peak rate out. Plain numbers, no optimizer.

During warm-up two things pull the rate up, and the higher one wins:

- the paper's profile η(Δ) of the smoothed loss, calibrated at the first one;
- a *floor*, a ramp in time that reaches the peak by a share of the run. η(Δ) alone can stall: the loss falls only as
  fast as the rate lets it, and nothing in the calibration knows how long the run is.

When the gap has fallen below Δ', or the ramp is through, the decay takes over, once and for good. Without floor and
smoothing this is the paper's Algorithm 1, line by line.

`autowarm.schedule.device` does the same on tensors; this is its plain reference.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from .calibrate import calibrate
from .profile import Profile
from .shapes import Shape

__all__ = ["LEAST_SHARE", "Rule"]

# f* where none is given: this share of f(x0) is still to be lost. On the paper's setup it makes f* = 3.3.
_EXPECTED_FALL = 0.7
# Gaps whose squares are numbers. Outside of them, as for a first loss of 0, there is no profile.
_LEAST_GAP, _MOST_GAP = 1e-100, 1e100
# η(Δ) is positive for every Δ, but underflows where a loss of 10³⁰⁸ comes along.
LEAST_SHARE = 1e-30
STATE = ("share", "ended_by", "warmup_steps", "updates", "target_loss", "smoothed", "weight")


@dataclass
class Rule:
    """The state of a schedule.

    Args:
        lr, div, kappa, sigma_f2: see `autowarm.schedule.calibrate`.
        target: shapes of the customary schedule that Δ' is calibrated to, (warm-up, decay); the second is the decay.
        total_steps: T, updates in the run.
        final_ratio: the decay goes from lr to final_ratio·lr.
        target_loss: f*, or None for f(x0) − 0.7·|f(x0)|.
        peak_gap: Δ', or None to calibrate it.
        floor_steps: updates until the floor reaches the peak, > 0, or None for no floor.
        window: updates over which the loss is averaged (an exponential moving average); 1 for none.

    Attributes:
        share: η/lr for the next update, in (0, 1].
        ended_by: what ended the warm-up, for good: "gap" (Δ fell below Δ') or "floor" (the ramp was through); None
            while it lasts.
        warmup_steps: how many updates were made at warm-up rates, once it has ended.
        profile: η(Δ), from the first loss on. None where the first loss is 0 and f* is not given, or where the first
            gap is beyond all scale (1e±100): then the floor alone sets the rate.
        updates: how many were made.
        smoothed: the loss, averaged.
        weight: of all that is in the average, 1 − (1 − 1/window)ⁿ after n updates.
    """

    lr: float
    div: float
    kappa: float | None
    sigma_f2: float
    target: tuple[Shape, Shape]
    total_steps: int
    final_ratio: float
    target_loss: float | None
    peak_gap: float | None
    floor_steps: float | None
    window: float
    share: float = field(init=False)
    ended_by: str | None = field(init=False, default=None)
    warmup_steps: int = field(init=False, default=0)
    profile: Profile | None = field(init=False, default=None)
    updates: int = field(init=False, default=0)
    smoothed: float = field(init=False, default=0.0)
    weight: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.share = 1.0 / self.div

    def advance(self, updates: int, loss: float | None) -> None:
        """Set the share for the next update.

        Args:
            updates: made so far.
            loss: the last one, or None; one that is not finite is left out.

        Raises:
            ValueError: at the first loss, if it is not above f* or does not suit ``peak_gap``.
        """
        self.updates = updates
        if self.ended_by is None:
            seen = loss if loss is not None and math.isfinite(loss) else None
            if seen is not None and not self.started:
                self._start(seen)
            if self.started or seen is not None:
                pace = self.pace()
                if seen is not None:
                    self._warm_up(seen, pace)
        if self.ended_by is not None:
            self.share = self._decay()

    @property
    def started(self) -> bool:
        """Whether a finite loss has come."""
        return self.weight > 0.0

    @property
    def fstar(self) -> float:
        """f*, given or worked out from the first loss."""
        if self.target_loss is None:
            raise RuntimeError("f* is worked out from the first loss, and none has come yet")
        return self.target_loss

    def pace(self) -> float:
        """One update more: how far the average moves towards its loss. Where there is none, the average stands in."""
        keep = 1.0 - 1.0 / self.window
        self.weight = keep * self.weight + (1.0 - keep)
        return (1.0 - keep) / self.weight

    def floor(self) -> float:
        """The ramp's share at this update; without a ramp, what holds the rate up is η(Δ) alone."""
        start = 1.0 / self.div
        if self.floor_steps is None:
            return 0.0 if self.profile is not None else start
        if self.updates >= self.floor_steps:
            return 1.0
        return start + (1.0 - start) * float(self.target[0](1.0 - self.updates / self.floor_steps))

    def state_dict(self) -> dict[str, Any]:
        """What changes as losses come, as plain numbers."""
        state = {name: getattr(self, name) for name in STATE}
        state["gap0"], state["profile_peak_gap"] = (
            (None, None) if self.profile is None else (self.profile.gap0, self.profile.peak_gap)
        )
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`; the calibration is not done again."""
        for name in STATE:
            setattr(self, name, state[name])
        if state["gap0"] is not None:
            self.profile = Profile(self.lr, self.div, state["gap0"], state["profile_peak_gap"])

    def _warm_up(self, loss: float, pace: float) -> None:
        self.smoothed = loss if pace == 1.0 else self.smoothed + pace * (loss - self.smoothed)
        self.share = self.floor()
        if self.share >= 1.0:
            self.ended_by = "floor"
        elif self.profile is not None:
            gap = self.smoothed - self.fstar
            # Strictly below, as in the algorithm's line 9: at Δ' itself the rate is lr and warm-up lasts.
            if gap < self.profile.peak_gap:
                self.ended_by = "gap"
            else:
                self.share = max(self.share, self.profile(gap) / self.lr, LEAST_SHARE)
        if self.ended_by is not None:
            self.warmup_steps = self.updates

    def _start(self, loss: float) -> None:
        if self.target_loss is None:
            self.target_loss = loss - _EXPECTED_FALL * abs(loss)
            if abs(loss) < _LEAST_GAP:
                return
        gap0 = loss - self.target_loss
        if not gap0 > 0:
            raise ValueError(
                f"the first loss f(x0) = {loss:.6g} is not above the target loss f* = {self.target_loss:.6g}: "
                "give a target_loss that training is to approach from above, or none to have one worked out"
            )
        if not _LEAST_GAP < gap0 < _MOST_GAP:
            return
        if self.peak_gap is not None:
            self.profile = Profile(self.lr, self.div, gap0, self.peak_gap)
        elif self.kappa is not None:
            self.profile = calibrate(
                gap0, lr=self.lr, div=self.div, kappa=self.kappa, sigma_f2=self.sigma_f2, target=self.target
            )

    def _decay(self) -> float:
        left = self.total_steps - self.warmup_steps
        # Update T has the decay's last value; past T it stays there.
        gone = min(self.updates - self.warmup_steps, left - 1)
        kept = float(self.target[1](max(0, gone) / max(1, left)))
        return self.final_ratio + (1.0 - self.final_ratio) * kept
