"""The rate as a share of its peak, η/lr: stated here once, for floats and 0-dim tensors alike.

During warm-up the share is the higher of two:

- the paper's profile η(Δ) at the smoothed loss, calibrated from the first losses;
- a *ramp* in time that reaches the peak after ``max_warmup``, or after a tenth of the run if f(x0) shows that the
  weights were trained before. η(Δ) alone can stall, because the loss falls only as fast as the rate lets it.

The gap is Δ = loss − f*; if f* is not given, it is 30 % of f(x0). When the gap has fallen below Δ', or the ramp has
reached the peak, the decay takes over. Without a ramp and without smoothing this is the paper's Algorithm 1, line by
line. With smoothing, f(x0) is the median of the first few losses, and the loss acts only once it has fallen by more
than noise explains.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, overload

import torch
from torch import Tensor

from ..calibrate import calibrate
from ..profile import Profile
from ..shapes import DECAYS, Shape, name_of
from .averages import OPENING, Averages

__all__ = ["LEAST_SHARE", "OPEN_HORIZON", "Formula", "Ramp"]

Number = TypeVar("Number", float, Tensor)

# The length that shares of the run refer to if the end is open. Half of it, the default for the longest warm-up, is
# 2/(1 − β2) updates for Adam's β2 of 0.999: twice the memory of its second moments.
OPEN_HORIZON = 4000
# The loss is averaged over this share of a short run and of a long one (a run of at most, or at least, this many
# updates); in between, the share grows linearly. In long runs of language models the loss falls within a few
# percent of the run, and best is a warm-up of about a tenth: only an average that lags behind the fall allows for it.
_SHORT, _LONG = (4_000, 0.01), (16_000, 0.05)
# If f* is not given, we expect the loss to fall by at most this share of f(x0). In the paper's setup f* is then 3.3.
_EXPECTED_FALL = 0.7
# A first loss below this share of the chance loss comes from trained weights: new ones start at the chance loss or
# above, and those of our fine-tuning study start at half of it.
_TRAINED = 0.75
# The longest warm-up of trained weights, as a share of the run.
_TRAINED_WARMUP = 0.1
# Gaps whose squares neither underflow nor overflow. Outside this range, as for a first loss of 0, there is no profile.
_LEAST_GAP, _MOST_GAP = 1e-100, 1e100
# η(Δ) is positive for every Δ, but underflows for a loss of 10³⁰⁸.
LEAST_SHARE = 1e-30


class Ramp(NamedTuple):
    """A rise in time, from ``share`` at update ``start`` to the peak at update ``end``."""

    start: int
    share: float
    end: float

    def at(self, updates: int, shape: Shape) -> float:
        """The share after this many updates; 1 from ``end`` on."""
        if updates >= self.end:
            return 1.0
        return self.share + (1.0 - self.share) * float(shape(1.0 - (updates - self.start) / (self.end - self.start)))


@dataclass
class Formula:
    """A schedule's settings, and where its warm-up and decay lie in time.

    Args:
        lr: peak rate of the first group whose rate is not 0. η(Δ) is calibrated to it; shares do not depend on it.
        div, kappa, sigma_f2: see `autowarm.schedule.calibrate`.
        given_target_loss: f*, or None for f(x0) − 0.7·|f(x0)|.
        given_peak_gap: Δ', or None to calibrate it.
        warmup, planned_decay: shapes of the ramp and the decay. The calibration's target has the same, over the gap.
        final_ratio: the decay goes from lr to final_ratio·lr.
        max_warmup: length of the ramp, as a share of the run (float) or in updates (int); None for no ramp.
        smoothing: share of the run over which the loss is averaged; None takes it from the length of the run.
        chance_loss: the loss of a model that knows nothing, or None if it is not known.
        planned_steps: T as given or extended; None if the end is open.

    Attributes:
        total_steps: T, or the end that `decay_now` set; None if the end is open.
        decay: the shape of the decay in force.
        origin: the update at which the current warm-up began.
        ramp: the ramp of the current warm-up; None if it has none.
        decay_peak: the share from which the decay falls: 1, unless it was started by hand or the run was shortened.
        cut: the share at which the warm-up ended: 1, unless it was cut short.
        window: updates over which the loss is averaged (an exponential moving average); 1 for none.
        lag: the weight of f(x0) in the average at first. With 0 the average is corrected for its start; with 1 it
            starts from f(x0) and lags behind the loss.
        bound: upper bound on the decay after the run was extended, so that the rate does not jump; None for no bound.
        trained: whether f(x0) is far below the chance loss, so that the ramp takes a tenth of the run at most.
        told: f* as given for the current warm-up, or None.
        target_loss: f*, as given or, from the first loss on, derived from it.
        profile: η(Δ) for that f*, from the first loss on. None if the first loss is 0 and f* is not given, or if the
            first gap is out of scale (below 1e-100 or above 1e100): then the ramp alone sets the rate.
    """

    lr: float
    div: float
    kappa: float | None
    sigma_f2: float
    given_target_loss: float | None
    given_peak_gap: float | None
    warmup: Shape
    planned_decay: Shape
    final_ratio: float
    max_warmup: float | int | None
    smoothing: float | None
    chance_loss: float | None
    planned_steps: int | None
    total_steps: int | None = field(init=False)
    decay: Shape = field(init=False)
    origin: int = field(init=False)
    ramp: Ramp | None = field(init=False)
    decay_peak: float = field(init=False)
    cut: float = field(init=False)
    bound: Ramp | None = field(init=False)
    window: float = field(init=False)
    lag: float = field(init=False)
    trained: bool = field(init=False)
    told: float | None = field(init=False)
    target_loss: float | None = field(init=False)
    profile: Profile | None = field(init=False)

    def __post_init__(self) -> None:
        self.begin(0, self.planned_steps, self.given_target_loss)

    # The formula.

    def ramp_share(self, updates: int) -> float:
        """The ramp's share at this update. Without a ramp: 0, or 1/div if there is no profile to follow either."""
        if self.ramp is None:
            return 0.0 if self.profile is not None else 1.0 / self.div
        return self.ramp.at(updates, self.warmup)

    @property
    def opening(self) -> int:
        """How many first losses f(x0) is the median of; without smoothing, f(x0) is the first loss itself."""
        return 1 if self.smoothing == 0.0 else OPENING

    def warmup_share(self, updates: int, seen: "Averages[Number] | None") -> "tuple[Number | float, Tensor | bool]":
        """max(ramp, η(Δ)/lr) at the smoothed loss, and whether the warm-up is over.

        Args:
            updates: the number of updates so far.
            seen: statistics of the losses; None during the opening, when only the ramp counts.
        """
        ramp = self.ramp_share(updates)
        if ramp >= 1.0:
            return 1.0, True
        waiting = max(ramp, 1.0 / self.div)
        if self.profile is None or seen is None:
            return waiting, False
        fallen = self.smoothing == 0.0 or seen.has_fallen(self.fstar + self.profile.gap0)
        if fallen is False:
            return waiting, False
        low = ramp if ramp > LEAST_SHARE else LEAST_SHARE
        gap = seen.smoothed - self.fstar
        share = self.profile.share(gap)
        # Strictly below, as in the algorithm's line 9: at Δ' itself the rate is lr and warm-up goes on.
        ended = gap < self.profile.peak_gap
        if isinstance(share, Tensor):
            share, ended = share.clamp(min=low), ended & fallen
            return share if fallen is True else torch.where(fallen, share, waiting), ended
        return max(low, share), ended

    @property
    def length(self) -> int:
        """The number of updates in the current warm-up and its decay, which shares of the run refer to."""
        return OPEN_HORIZON if self.total_steps is None else max(1, self.total_steps - self.origin)

    def ended_by(self, updates: int) -> str:
        """What ended a warm-up that ended at this update. If both the ramp and the gap did, it is the ramp."""
        return "max_warmup" if self.ramp is not None and updates >= self.ramp.end else "gap"

    @overload
    def decay_progress(self, updates: int, start: int) -> float: ...

    @overload
    def decay_progress(self, updates: int, start: Tensor) -> Tensor: ...

    def decay_progress(self, updates: int, start: Tensor | int) -> Tensor | float:
        """The share of the decay that has passed, 0 at the update where it started."""
        if self.total_steps is None:
            return torch.zeros_like(start) if isinstance(start, Tensor) else 0.0
        # Update T has the decay's last value; past T it stays there.
        gone = (updates if updates < self.total_steps else self.total_steps - 1) - start
        if isinstance(gone, Tensor):
            p = gone / (self.total_steps - start)
            return p.clamp(min=0.0) if updates >= self.total_steps else p  # < 0: warm-up ended at T
        return max(0, gone) / max(1, self.total_steps - start)

    def decay_share(self, updates: int, p: Number) -> Number:
        """The share of the peak rate when the share p of the decay has passed."""
        kept = self.decay(p)
        if not isinstance(p, Tensor):
            kept = float(kept)
        end = min(self.final_ratio, self.decay_peak)
        if end > 0.0 or self.decay_peak < 1.0:
            kept = end + (self.decay_peak - end) * kept
        if self.bound is not None and updates < self.bound.end:
            most = self.bound.at(updates, self.warmup)
            kept = kept.clamp(max=most) if isinstance(kept, Tensor) else min(kept, most)
        return kept

    def steady(self, share: Number) -> Number:
        """The share, in the decay, of groups without a warm-up: they fall from 1 while the others fall from `cut`."""
        if self.cut == 1.0:
            return share
        end = min(self.final_ratio, self.cut)
        return share / self.cut if end == self.cut else end + (1.0 - end) * (share - end) / (self.cut - end)

    @property
    def fstar(self) -> float:
        """f*, as given or derived from the first loss."""
        if self.target_loss is None:
            raise RuntimeError("f* depends on the first loss, and there has been none yet")
        return self.target_loss

    def calibrate(self, loss: float, updates: int) -> None:
        """Fix η(Δ) from f(x0), and f* if none is given. Shorten the ramp if f(x0) shows that the weights were trained.

        Args:
            loss: f(x0), as far as it is known.
            updates: the number of updates so far, from which the ramp continues.

        Raises:
            ValueError: the loss is not above f*, or exceeds it by the given Δ' or less.
        """
        trained = self.chance_loss is not None and loss < _TRAINED * self.chance_loss
        if trained != self.trained:
            self.trained = trained
            self.extend_warmup(updates, self.planned_steps)
        target = self.told
        if target is None:
            target = loss - _EXPECTED_FALL * abs(loss)
            if abs(loss) < _LEAST_GAP:
                self.target_loss, self.profile = target, None
                return
        gap0 = loss - target
        if not gap0 > 0:
            raise ValueError(
                f"the first loss f(x0) = {loss:.6g} is not above the target loss f* = {target:.6g}: "
                "give a target_loss that the loss will approach from above, or none to have it derived from f(x0)"
            )
        if not _LEAST_GAP < gap0 < _MOST_GAP:
            profile = None
        elif self.given_peak_gap is not None:
            profile = Profile(self.lr, self.div, gap0, self.given_peak_gap)
        else:
            assert self.kappa is not None
            shapes = self.warmup, self.planned_decay
            profile = calibrate(gap0, lr=self.lr, div=self.div, kappa=self.kappa, sigma_f2=self.sigma_f2, target=shapes)
        self.target_loss, self.profile = target, profile

    # Where warm-up and decay lie in time.

    def begin(self, updates: int, total_steps: int | None, target_loss: float | None) -> None:
        """Begin a warm-up at this update, with nothing known about the loss."""
        self.origin, self.planned_steps, self.total_steps = updates, total_steps, total_steps
        self.decay, self.decay_peak, self.cut, self.bound = self.planned_decay, 1.0, 1.0, None
        self.told = self.target_loss = target_loss
        self.profile = None
        self.trained = False
        self._warm_up_from(updates, 1.0 / self.div)

    def extend_warmup(self, updates: int, total_steps: int | None) -> None:
        """Change T during warm-up: the ramp continues from its current share to its end on the new horizon."""
        share = 1.0 / self.div if self.ramp is None else self.ramp.at(updates, self.warmup)
        self.planned_steps = self.total_steps = total_steps
        self._warm_up_from(updates, share)

    def extend_decay(self, updates: int, total_steps: int | None, share: float, start: int) -> int:
        """Change T during the decay: climb to the decay over a longer run, or decay over the rest of a shorter one.

        Returns:
            The update at which the decay starts.
        """
        self.planned_steps = self.total_steps = total_steps
        self.bound = None
        new = self.decay_share(updates, self.decay_progress(updates, start))
        if new > share:
            left = OPEN_HORIZON if total_steps is None else total_steps - updates
            self.bound = self._ramp_from(updates, share, updates, left)
        elif new < share:
            self.decay_peak, start = share, updates
        return start

    def decay_from(self, updates: int, share: float, steps: int, decay: Shape) -> None:
        """Begin a decay at this update, from this share."""
        self.total_steps, self.decay, self.decay_peak, self.bound = updates + steps, decay, share, None

    def _warm_up_from(self, updates: int, share: float) -> None:
        self.ramp = self._ramp_from(updates, share, self.origin, self.length)
        smoothing, self.lag = self.smoothing, 0.0
        if smoothing is None:
            (short, least), (long, most) = _SHORT, _LONG
            self.lag = min(1.0, max(0.0, (self.length - short) / (long - short)))
            smoothing = least + (most - least) * self.lag
        self.window = max(1.0, smoothing * self.length)

    def _ramp_from(self, updates: int, share: float, origin: int, length: int) -> Ramp | None:
        """The ramp from a share at this update to the peak, which is ``max_warmup`` of the length after ``origin``."""
        limits = (self.max_warmup, _TRAINED_WARMUP if self.trained else None)
        longest = [min(x, length) if isinstance(x, int) else x * length for x in limits if x is not None]
        return Ramp(updates, share, origin + min(longest)) if longest else None

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes during a run, as plain numbers and text."""
        return {
            "planned_steps": self.planned_steps,
            "total_steps": self.total_steps,
            "decay": None if self.decay is self.planned_decay else name_of(self.decay),
            "origin": self.origin,
            "ramp": None if self.ramp is None else list(self.ramp),
            "decay_peak": self.decay_peak,
            "cut": self.cut,
            "bound": None if self.bound is None else list(self.bound),
            "window": self.window,
            "trained": self.trained,
            "told": self.told,
            "target_loss": self.target_loss,
            "gap0": None if self.profile is None else self.profile.gap0,
            "peak_gap": None if self.profile is None else self.profile.peak_gap,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, without calibrating again."""
        for name in ("planned_steps", "total_steps", "origin", "decay_peak", "cut", "trained", "told", "target_loss"):
            setattr(self, name, state[name])
        self.decay = self.planned_decay if state["decay"] is None else DECAYS[state["decay"]]
        for name in ("ramp", "bound"):
            setattr(self, name, None if state[name] is None else Ramp(*state[name]))
        self.window = state["window"]
        gap0 = state["gap0"]
        self.profile = None if gap0 is None else Profile(self.lr, self.div, gap0, state["peak_gap"])
