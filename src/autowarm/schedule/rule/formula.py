"""The rate as a share of its peak, η/lr: stated here once, for floats and 0-dim tensors alike.

During warm-up the share is the higher of two:

- the paper's profile η(Δ) at the smoothed loss, calibrated from the first losses;
- a *ramp* in time that reaches the peak after ``max_warmup``, or after a tenth of the run if f(x0) shows that the
  weights were trained before. η(Δ) alone can stall, because the loss falls only as fast as the rate lets it.

``min_warmup`` bounds it from above by a steeper ramp: a loss that falls early neither raises the rate above that ramp
nor ends the warm-up before the ramp is at the peak.

The gap is Δ = loss − f*; if f* is not given, it is 30 % of f(x0). When the gap has fallen below Δ', or the ramp has
reached the peak, the decay takes over. Without a ramp and without smoothing this is the paper's Algorithm 1, line by
line. With smoothing, f(x0) is the median of the first few losses, and the loss acts only once it has fallen by more
than noise explains.
"""

import math
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


def _updates(limit: float | int, length: int) -> float:
    """A limit on the warm-up in updates: an int is a number of updates, and a float is a share of the length."""
    return min(limit, length) if isinstance(limit, int) else limit * length


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
        min_warmup: length of the steeper ramp above it, likewise; None for no such bound.
        smoothing: share of the run over which the loss is averaged.
        chance_loss: the loss of a model that knows nothing, or None if it is not known.
        planned_steps: T as given or extended; None if the end is open.

    Attributes:
        total_steps: T, or the end that `decay_now` set; None if the end is open.
        decay: the shape of the decay in force.
        origin: the update at which the current warm-up began.
        ramp: the ramp of the current warm-up; None if it has none.
        ceiling: the ramp that the current warm-up stays below; None if there is none.
        decay_peak: the share from which the decay falls: 1, unless it was started by hand or the run was shortened.
        cut: the share at which the warm-up ended: 1, unless it was cut short.
        window: updates over which the loss is averaged (an exponential moving average); 1 for none.
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
    min_warmup: float | int | None
    smoothing: float
    chance_loss: float | None
    planned_steps: int | None
    total_steps: int | None = field(init=False)
    decay: Shape = field(init=False)
    origin: int = field(init=False)
    ramp: Ramp | None = field(init=False)
    ceiling: Ramp | None = field(init=False)
    decay_peak: float = field(init=False)
    cut: float = field(init=False)
    bound: Ramp | None = field(init=False)
    window: float = field(init=False)
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
        return OPENING if self.smoothing > 0.0 else 1

    def warmup_share(
        self, updates: int, losses: int, seen: "Averages[Number] | None"
    ) -> "tuple[Number | float, Tensor | bool]":
        """max(ramp, η(Δ)/lr), at most the ceiling, at the smoothed loss; and whether the warm-up is over.

        Args:
            updates: the number of updates so far.
            losses: the number of losses since the warm-up began.
            seen: statistics of the losses; None during the opening, when only the ramp counts.
        """
        ramp = self.ramp_share(updates)
        if ramp >= 1.0:
            return 1.0, True
        waiting = max(ramp, 1.0 / self.div)
        if self.profile is None or seen is None:
            return waiting, False
        fallen = self.smoothing == 0.0 or seen.has_fallen(self.fstar + self.profile.gap0, losses)
        if fallen is False:
            return waiting, False
        low = ramp if ramp > LEAST_SHARE else LEAST_SHARE
        ceiling = 1.0 if self.ceiling is None else self.ceiling.at(updates, self.warmup)
        gap, peak_gap = seen.smoothed - self.fstar, self.profile.peak_gap
        # Strictly below, as in the algorithm's line 9: at Δ' itself the rate is lr and warm-up goes on.
        ended: Tensor | bool = gap < peak_gap
        if ceiling < 1.0:  # the rate waits there, and η(Δ) must not fall meanwhile
            gap, ended = gap.clamp(min=peak_gap) if isinstance(gap, Tensor) else max(gap, peak_gap), False
        share = self.profile.share(gap)
        if isinstance(share, Tensor):
            share, ended = share.clamp(min=low, max=ceiling), ended & fallen
            return share if fallen is True else torch.where(fallen, share, waiting), ended
        return min(max(low, share), ceiling), ended

    @property
    def length(self) -> int:
        """The number of updates in the current warm-up and its decay, which shares of the run refer to."""
        return OPEN_HORIZON if self.total_steps is None else max(1, self.total_steps - self.origin)

    def ended_by(self, updates: int) -> str:
        """What ended a warm-up that ended at this update: the ramp, the ceiling if it just reached the peak, or Δ."""
        if self.ramp is not None and updates >= self.ramp.end:
            return "max_warmup"
        return "min_warmup" if self.ceiling is not None and updates < self.ceiling.end + 1.0 else "gap"

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
        self.ramp = self.ceiling = None
        self._warm_up_from(updates)

    def extend_warmup(self, updates: int, total_steps: int | None) -> None:
        """Change T during warm-up: the ramp continues from its current share to its end on the new horizon."""
        self.planned_steps = self.total_steps = total_steps
        self._warm_up_from(updates)

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
            longest = self._longest(left)
            self.bound = None if longest is None else Ramp(updates, share, updates + longest)
        elif new < share:
            self.decay_peak, start = share, updates
        return start

    def decay_from(self, updates: int, share: float, steps: int, decay: Shape) -> None:
        """Begin a decay at this update, from this share."""
        self.total_steps, self.decay, self.decay_peak, self.bound = updates + steps, decay, share, None

    def _warm_up_from(self, updates: int) -> None:
        low, high = (1.0 / self.div if x is None else x.at(updates, self.warmup) for x in (self.ramp, self.ceiling))
        longest = self._longest(self.length)
        latest = math.inf if longest is None else self.origin + longest
        self.ramp = None if longest is None else Ramp(updates, low, latest)
        if self.min_warmup is not None:
            end = self.origin + _updates(self.min_warmup, self.length)
            if self.ceiling is not None:  # on a shorter run the rate must not jump
                end = max(end, self.ceiling.end)
            self.ceiling = Ramp(updates, high, min(end, latest))
        self.window = max(1.0, self.smoothing * self.length)

    def _longest(self, length: int) -> float | None:
        """The longest warm-up in a run of this length, in updates; None for no limit."""
        limits = (self.max_warmup, _TRAINED_WARMUP if self.trained else None)
        return min((_updates(x, length) for x in limits if x is not None), default=None)

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes during a run, as plain numbers and text."""
        return {
            "planned_steps": self.planned_steps,
            "total_steps": self.total_steps,
            "decay": None if self.decay is self.planned_decay else name_of(self.decay),
            "origin": self.origin,
            "ramp": None if self.ramp is None else list(self.ramp),
            "ceiling": None if self.ceiling is None else list(self.ceiling),
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
        for name in ("ramp", "ceiling", "bound"):
            setattr(self, name, None if state[name] is None else Ramp(*state[name]))
        self.window = state["window"]
        gap0 = state["gap0"]
        self.profile = None if gap0 is None else Profile(self.lr, self.div, gap0, state["peak_gap"])
