"""What is kept of the losses: their average, and how much they scatter."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

__all__ = ["OPENING", "Averages"]

# f(x0) is the median of this many first losses, so that no single loss decides it.
OPENING = 5
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
