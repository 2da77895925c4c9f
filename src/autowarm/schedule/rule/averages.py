"""What is kept of the losses seen: their level, where they are heading, and how much they scatter."""

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

__all__ = ["OPENING", "Averages"]

# The first few losses count as their median, so that no single one decides what f(x0) is.
OPENING = 5
# Two means over the past, each of which forgets at the pace of time itself: the weight of the loss at update u is
# proportional to u^(α − 1). Where the loss falls by s per factor e of time, such a mean lags behind it by s/α.
_FAST, _SLOW = 4.0, 1.0
# The decay of the rate brings a fall of its own, as annealing does: as if the run were this much longer.
_DECAY = 4 / 3
# A fall counts once it exceeds so many standard deviations of the difference between two successive losses.
_EVIDENCE = 3.0
# After this many differences their variance is taken for twice what it seems: a few say little, as in Student's t.
_DOUBT = 20

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class Averages(Generic[Number]):
    """Running statistics of the loss since a warm-up began; floats on the host, 0-dim tensors on a device.

    Attributes:
        smoothed: exponential moving average over a fixed share of the run.
        fast, slow: means over the last fourth of the past, roughly, and over all of it.
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
        """Of a run that has had this loss all along."""
        return cls(loss, loss, loss, loss, 0.0 * loss)

    def values(self) -> list[Number]:
        """The five, in their order."""
        return [self.smoothed, self.fast, self.slow, self.last, self.scatter]

    def after(self, loss: Number, pace: float, updates: int) -> "Averages[Number]":
        """With one more loss.

        Args:
            loss: finite.
            pace: how far `smoothed` moves towards it.
            updates: made since the warm-up began, this one included.
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
        """The loss at update ``total``, if it goes on falling at its present pace in log t and the decay helps.

        Above the present loss where the loss has been rising.
        """
        left = math.log(max(1.0, _DECAY * total / max(1, updates)))
        # The lag tells the slope, s = (slow − fast)/(1/α_slow − 1/α_fast), and the level, fast − s/α_fast.
        return self.fast - (1.0 / _FAST + left) / (1.0 / _SLOW - 1.0 / _FAST) * (self.slow - self.fast)

    def has_fallen(self, first: float, updates: int) -> "Tensor | bool":
        """Whether the smoothed loss lies below the first by more than noise explains."""
        fall, n = first - self.smoothed, max(0, updates - OPENING)
        return fall * abs(fall) * (n * n / (n + _DOUBT)) > _EVIDENCE**2 * self.scatter
