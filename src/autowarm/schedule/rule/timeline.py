"""Where a run's warm-up and decay lie in time, and the share of the peak rate that time alone sets.

A `Plan` holds what a user gave, a `Timeline` what follows from it. Both are frozen: extending a run, or ending it
early, makes a new timeline.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from ..profile import Number
from ..shapes import DECAYS, Shape, name_of
from .saved import a_share, boolean, count, finite, optional, row_of, saved, saved_fields

# The length that shares of the run refer to if the end is open. Half of it, the default for the longest warm-up, is
# 2/(1 − β2) updates for Adam's β2 of 0.999: twice the memory of its second moments.
OPEN_HORIZON = 4000
# f(x0) is the second lowest of this many first losses. If it happened to be high, every later loss would count as a
# fall; and one loss alone must not decide it.
OPENING = 10
# The longest warm-up of new weights: half of a short run, these many updates of a middling one, a fifth of a long one;
# and that of weights that were trained before, as a share of the run.
_SHORT, _MIDDLING, _LONG = 0.5, 2_000, 0.2
_TRAINED_WARMUP = 0.1


@dataclass(frozen=True)
class Plan:
    """A schedule's settings, as `AdaptiveWarmup` was given them."""

    lr: float  # of the first group whose rate is not 0; η(Δ) is calibrated to it, and shares do not depend on it
    div: float
    kappa: float | None
    sigma_f2: float
    target_loss: float | None
    peak_gap: float | None
    warmup: Shape  # the calibration's target has the same shapes, over the gap
    decay: Shape
    final_ratio: float
    max_warmup: float | int | Literal["auto"] | None
    smoothing: float
    chance_loss: float | None
    trained: bool | None = None  # as given; None to look at the weights and the first losses

    @property
    def opening(self) -> int:
        """How many first losses f(x0) is taken from; without smoothing, f(x0) is the first loss itself."""
        return 1 if self.smoothing == 0.0 else OPENING

    def at(self, lr: float, kappa: float | None = None) -> Self:
        """The same plan at another peak rate; and with another κ, if one is given."""
        return replace(self, lr=lr, kappa=self.kappa if kappa is None else kappa)


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


@dataclass(frozen=True)
class Timeline:
    """The warm-up and decay of a run.

    The decay falls from `decay_peak`, which is 1 unless it was started by hand or the run was shortened, and the
    warm-up ended at the share `cut`, which is 1 unless it was cut short. After the run was extended, `bound` limits the
    decay, so that the rate does not jump.
    """

    plan: Plan
    planned_steps: int | None = saved(optional(count))  # T as given or extended; None if the end is open
    total_steps: int | None = saved(optional(count))  # the same, or the end that `AdaptiveWarmup.decay_now` set
    origin: int = saved(count, 0)  # the update at which the current warm-up began
    ramp: Ramp | None = saved(optional(row_of(count, finite, finite)))
    trained: bool = saved(boolean, False)  # whether the weights were, so that the ramp takes a tenth of the run at most
    decay: str | None = saved(lambda x: x is None or x in DECAYS)  # its name; None for the plan's
    decay_peak: float = saved(a_share, 1.0)
    cut: float = saved(a_share, 1.0)
    bound: Ramp | None = saved(optional(row_of(count, finite, finite)))

    @classmethod
    def begin(cls, plan: Plan, updates: int, total_steps: int | None) -> Self:
        """A warm-up that begins at this update."""
        return cls(plan, total_steps, total_steps, origin=updates)._with_ramp(updates, 1.0 / plan.div)

    @classmethod
    def of(cls, plan: Plan, state: dict[str, Any]) -> Self:
        """The timeline of a saved rule."""
        known = saved_fields(Timeline, state)
        ramps = {name: None if known[name] is None else Ramp(*known[name]) for name in ("ramp", "bound")}
        return cls(plan, **known | ramps)

    @property
    def length(self) -> int:
        """The number of updates in the current warm-up and its decay, which shares of the run refer to."""
        return OPEN_HORIZON if self.total_steps is None else max(1, self.total_steps - self.origin)

    @cached_property
    def window(self) -> float:
        """Updates over which the loss is averaged (an exponential moving average); 1 for none."""
        return max(1.0, self.plan.smoothing * self.length)

    @cached_property
    def decay_shape(self) -> Shape:
        """The shape of the decay in force."""
        return self.plan.decay if self.decay is None else DECAYS[self.decay]

    # The shares that time sets.

    def ramp_share(self, updates: int) -> float:
        """The ramp's share at this update; 0 without a ramp."""
        return 0.0 if self.ramp is None else self.ramp.at(updates, self.plan.warmup)

    def decay_progress(self, updates: int, start: Number) -> Number:
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
        kept = self.decay_shape(p)
        if not isinstance(p, Tensor):
            kept = float(kept)
        end = min(self.plan.final_ratio, self.decay_peak)
        if end > 0.0 or self.decay_peak < 1.0:
            kept = end + (self.decay_peak - end) * kept
        if self.bound is not None and updates < self.bound.end:
            most = self.bound.at(updates, self.plan.warmup)
            kept = kept.clamp(max=most) if isinstance(kept, Tensor) else min(kept, most)
        return kept

    def steady(self, share: Number) -> Number:
        """The share, in the decay, of groups without a warm-up: they fall from 1 while the others fall from `cut`."""
        if self.cut == 1.0:
            return share
        end = min(self.plan.final_ratio, self.cut)
        return share / self.cut if end == self.cut else end + (1.0 - end) * (share - end) / (self.cut - end)

    # Other timelines, for what users change during the run.

    def extended_in_warmup(self, updates: int, total_steps: int | None) -> Self:
        """Another T: the ramp continues from its current share to its end on the new horizon."""
        share = 1.0 / self.plan.div if self.ramp is None else self.ramp_share(updates)
        return replace(self, planned_steps=total_steps, total_steps=total_steps)._with_ramp(updates, share)

    def extended_in_decay(self, updates: int, total_steps: int | None, share: float, start: int) -> tuple[Self, int]:
        """Another T, and where the decay starts: climb to that of a longer run, or fall over the rest of a shorter."""
        new = replace(self, planned_steps=total_steps, total_steps=total_steps, bound=None)
        then = new.decay_share(updates, new.decay_progress(updates, start))
        if then > share:
            left = OPEN_HORIZON if total_steps is None else total_steps - updates
            return replace(new, bound=new._ramp_from(updates, share, updates, left)), start
        return (replace(new, decay_peak=share), updates) if then < share else (new, start)

    def decaying(self, updates: int, share: float, steps: int, decay: str) -> Self:
        """A decay that begins at this update, from this share, over this many updates."""
        name = None if DECAYS[decay] is self.plan.decay else name_of(decay)
        return replace(self, total_steps=updates + steps, decay=name, decay_peak=share, bound=None)

    def _with_ramp(self, updates: int, share: float) -> Self:
        return replace(self, ramp=self._ramp_from(updates, share, self.origin, self.length))

    def _ramp_from(self, updates: int, share: float, origin: int, length: int) -> Ramp | None:
        """The ramp from a share at this update to the peak, which is ``max_warmup`` of the length after ``origin``."""
        limit = self.plan.max_warmup
        if isinstance(limit, str):
            limit = min(_SHORT, max(_LONG, _MIDDLING / length))
        limits = (limit, _TRAINED_WARMUP if self.trained else None)
        longest = [min(x, length) if isinstance(x, int) else x * length for x in limits if x is not None]
        return Ramp(updates, share, origin + min(longest)) if longest else None
