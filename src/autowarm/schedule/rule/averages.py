"""Running statistics of the losses: their level, their trend, and how much they scatter."""

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

__all__ = ["OPENING", "Averages"]

# f(x0) is the median of this many first losses, so that no single loss decides it.
OPENING = 5
# The α of two means over all past losses, whose memory grows with time: the loss at update u has a weight proportional
# to u^(α − 1). If the loss falls by s each time that u grows by a factor of e, such a mean lags behind it by s/α.
_FAST, _SLOW = 4.0, 1.0
# The decay of the rate lowers the loss further, as annealing does. The forecast treats the run as this much longer.
_DECAY = 4 / 3
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
        smoothed: exponential moving average over a fixed share of the run.
        fast, slow: means over roughly the last quarter of the losses, and over all of them.
        last: the latest loss.
        scatter: sum of squared differences between successive losses. Half their mean estimates the variance of the
            noise, whatever the trend (von Neumann's mean square successive difference).
    """

    smoothed: Number
    fast: Number
    slow: Number
    last: Number
    scatter: Number

    @classmethod
    def begin(cls, loss: Number) -> "Averages[Number]":
        """The statistics of a run in which every loss was this one."""
        return cls(loss, loss, loss, loss, 0.0 * loss)

    def values(self) -> list[Number]:
        """The five statistics, in the order of the attributes."""
        return [self.smoothed, self.fast, self.slow, self.last, self.scatter]

    def after(self, loss: Number, pace: float, updates: int) -> "Averages[Number]":
        """The statistics after one more loss.

        Args:
            loss: the new loss; it must be finite.
            pace: the share of the way that `smoothed` moves towards the new loss.
            updates: the number of updates since the warm-up began, including this one.
        """
        step = loss - self.last
        return Averages(
            loss if pace == 1.0 else self.smoothed + pace * (loss - self.smoothed),
            self.fast + min(1.0, _FAST / max(1, updates)) * (loss - self.fast),
            self.slow + min(1.0, _SLOW / max(1, updates)) * (loss - self.slow),
            loss,
            self.scatter + step * step,
        )

    def forecast(self, updates: int, total: int) -> Number:
        """The loss at update ``total`` if it keeps falling at its current pace in log t, and more in the decay.

        If the loss has been rising, the forecast is above the current loss.
        """
        left = math.log(max(1.0, _DECAY * total / max(1, updates)))
        # The lags give the slope, s = (slow − fast)/(1/α_slow − 1/α_fast), and the current level, fast − s/α_fast.
        return self.fast - (1.0 / _FAST + left) / (1.0 / _SLOW - 1.0 / _FAST) * (self.slow - self.fast)

    def has_fallen(self, first: float, updates: int) -> "Tensor | bool":
        """Whether the smoothed loss is below the first loss by more than noise explains."""
        fall, n = first - self.smoothed, max(0, updates - OPENING)
        return fall * abs(fall) * (n * n / (n + _DOUBT)) > _EVIDENCE**2 * self.scatter
