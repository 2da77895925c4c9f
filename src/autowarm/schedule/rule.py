"""What sets the rate during warm-up: losses in, a share of the peak rate out. Plain numbers, no optimizer.

Two pieces, and the larger one wins:

- the paper's profile η(Δ) of the smoothed loss, calibrated at the first one;
- a *floor*, a ramp in time that reaches the peak by a share of the run. η(Δ) alone can stall: the loss falls only as
  fast as the rate lets it, and nothing in the calibration knows how long the run is.

Without floor and smoothing this is the paper's Algorithm 1, line by line.
"""

from dataclasses import dataclass, field
from typing import Any

from .calibrate import calibrate
from .profile import Profile
from .shapes import Shape

__all__ = ["WarmupRule"]

# f* where none is given: this share of f(x0) is still to be lost. On the paper's setup it makes f* = 3.3.
_EXPECTED_FALL = 0.7
# η(Δ) is positive for every Δ, but underflows where a loss of 10³⁰⁸ comes along.
_LEAST_SHARE = 1e-30
_STATE = ("share", "ended_by", "updates", "target_loss", "_mean", "_weight")


@dataclass
class WarmupRule:
    """The state of a warm-up.

    Args:
        lr, div, kappa, sigma_f2: see `autowarm.schedule.calibrate`.
        target: shapes of the customary schedule that Δ' is calibrated to, (warm-up, decay).
        target_loss: f*, or None for f(x0) − 0.7·|f(x0)|.
        peak_gap: Δ', or None to calibrate it.
        floor_steps: updates until the floor reaches the peak, > 0, or None for no floor.
        window: updates over which the loss is averaged (an exponential moving average); 1 for none.

    Attributes:
        share: η/lr for the next update, in (0, 1].
        ended_by: what ended the warm-up, for good: "gap" (Δ fell below Δ') or "floor" (the ramp was through); None
            while it lasts.
        profile: η(Δ), from the first loss on. None where the first loss is 0 and f* is not given: then the floor alone
            sets the rate.
        updates: how many were made.
    """

    lr: float
    div: float
    kappa: float | None
    sigma_f2: float
    target: tuple[Shape, Shape]
    target_loss: float | None
    peak_gap: float | None
    floor_steps: float | None
    window: float
    share: float = field(init=False)
    ended_by: str | None = field(init=False, default=None)
    profile: Profile | None = field(init=False, default=None)
    updates: int = field(init=False, default=0)
    _mean: float = field(init=False, default=0.0)
    _weight: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.share = 1.0 / self.div

    def observe(self, loss: float) -> None:
        """Take a finite loss and set the share for the next update.

        Raises:
            ValueError: at the first loss, if it is not above f* or does not suit ``peak_gap``.
        """
        if self._weight == 0.0:
            self._start(loss)
        keep = 1.0 - 1.0 / self.window
        self._mean = keep * self._mean + (1.0 - keep) * loss
        self._weight = keep * self._weight + (1.0 - keep)
        self.share = self._floor()
        if self.share >= 1.0:
            self.ended_by = "floor"
        elif self.profile is not None:
            gap = self._mean / self._weight - self.fstar
            # Strictly below, as in the algorithm's line 9: at Δ' itself the rate is lr and warm-up lasts.
            if gap < self.profile.peak_gap:
                self.ended_by, self.share = "gap", 1.0
            else:
                self.share = max(self.share, self.profile(gap) / self.lr, _LEAST_SHARE)

    def state_dict(self) -> dict[str, Any]:
        """What changes as losses come, as plain numbers."""
        state = {name: getattr(self, name) for name in _STATE}
        state["gap0"], state["profile_peak_gap"] = (
            (None, None) if self.profile is None else (self.profile.gap0, self.profile.peak_gap)
        )
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`; the calibration is not done again."""
        for name in _STATE:
            setattr(self, name, state[name])
        if state["gap0"] is not None:
            self.profile = Profile(self.lr, self.div, state["gap0"], state["profile_peak_gap"])

    @property
    def fstar(self) -> float:
        """f*, given or worked out from the first loss."""
        if self.target_loss is None:
            raise RuntimeError("f* is worked out from the first loss, and none has come yet")
        return self.target_loss

    def _start(self, loss: float) -> None:
        if self.target_loss is None:
            self.target_loss = loss - _EXPECTED_FALL * abs(loss)
            if loss == 0.0:
                return
        gap0 = loss - self.target_loss
        if not gap0 > 0:
            raise ValueError(
                f"the first loss f(x0) = {loss:.6g} is not above the target loss f* = {self.target_loss:.6g}: "
                "give a target_loss that training is to approach from above, or none to have one worked out"
            )
        if self.peak_gap is not None:
            self.profile = Profile(self.lr, self.div, gap0, self.peak_gap)
        elif self.kappa is not None:
            self.profile = calibrate(
                gap0, lr=self.lr, div=self.div, kappa=self.kappa, sigma_f2=self.sigma_f2, target=self.target
            )

    def _floor(self) -> float:
        start = 1.0 / self.div
        if self.floor_steps is None:
            return 0.0 if self.profile is not None else start
        if self.updates >= self.floor_steps:
            return 1.0
        return start + (1.0 - start) * float(self.target[0](1.0 - self.updates / self.floor_steps))
