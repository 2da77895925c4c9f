"""Tells from the losses alone that a run has lost ground, in plain numbers.

The *level* of the loss is the mean of the last losses without their highest and lowest tenth. An alarm is raised

- when the level stands above its own minimum by more than a fifth of its fall so far, and by more than noise explains:
  a divergence is a slow rise, which no bar on single losses catches in time. The fall counts as a fifth of the first
  level at least: what little a run has learnt on its first plateau comes back sooner than a restart ends. A loss that
  begins at about zero, as that of a policy gradient with a baseline, returns there as the policy settles: its rise is
  no failure;
- when two of the last three losses are not finite, or lie far above the first level: the weights are broken, and no
  more losses are needed to know it.

A stall raises none: nothing that a schedule could restore would help.
"""

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, Self

_SHARE = 50  # the level is that of a fiftieth of the run, and of no fewer and no more losses than these
_FEWEST, _MOST = 20, 2_000
_TRIMMED = 10  # a tenth of the losses is left out at either end
_RISE = 0.2  # of the fall so far
_LEAST_FALL = 0.2  # of the first level
_ERRORS = 6.0  # standard errors of the difference between two levels
_SWING = 1.5  # of the highest rise that was followed by a new low
_FLAT = 5.0  # times as many where the fall so far may be noise as well
_FAR = 30.0  # standard deviations of a loss
_CALM = 100  # losses after a bad one, or a window of them: momenta remember it as long, and then do their damage
_OPENING = 5  # losses right after a restart
_MEMORY = 200  # levels, each a twentieth of a window after the last, that the noise is averaged over


@dataclass
class Detector:
    """Sees the loss of each update."""

    window: int  # how many losses the level is the mean of
    recent: list[float] = field(default_factory=list)  # the last finite losses, at most `window`
    bad: list[bool] = field(default_factory=list)  # whether each of the last three was not finite or far too high
    calm: int = _MOST  # how many losses there were since the last of those; enough at the start
    seen: int = 0  # how many finite losses there were
    first: float | None = None  # the first level; None before there are enough losses
    lowest: float | None = None  # the lowest level
    size: int = 0  # how many losses the lowest level is the mean of
    levels: int = 0  # how many levels there were
    variance: float = 0.0  # that of a loss about its level, averaged over the last levels
    # Its square root at the lowest level: what diverges is noisy, too, and must not hide behind that.
    noise: float = 0.0
    highest: float = 0.0  # how far the level has risen since its lowest
    swing: float = 0.0  # the most that it has risen before a new low, as correlated noise makes it do
    # Whether the last loss made a new lowest level that still falls, so that its weights are worth keeping.
    at_low: bool = False

    @classmethod
    def over(cls, length: int) -> Self:
        """A detector for a run of this many updates."""
        return cls(min(_MOST, max(_FEWEST, length // _SHARE)))

    def see(self, loss: float) -> str | None:
        """Take the loss of one more update; return the reason for an alarm, in words, or None."""
        self.at_low = False
        bad = not math.isfinite(loss) or loss > self._far()
        self.bad, self.calm = [*self.bad[-2:], bad], 0 if bad else self.calm + 1
        if sum(self.bad) >= 2:
            return "two of the last three losses were not finite, or far above the first"
        if not math.isfinite(loss):
            return None
        self.recent.append(loss)
        del self.recent[: -self.window]
        self.seen += 1
        # A long level moves slowly, so it need not be computed at each update.
        if len(self.recent) < _FEWEST or self.seen % (self.window // _FEWEST):
            return None
        level, variance = _level(self.recent)
        self.levels += 1
        self.variance += (variance - self.variance) / min(self.levels, _MEMORY)
        if self.first is None or self.lowest is None:
            self.first, self.lowest = max(level, statistics.median(self.recent[:_OPENING])), level
        self.highest = max(self.highest, level - self.lowest)
        if level <= self.lowest:
            self.swing, self.highest = max(self.swing, self.highest), 0.0
            self.lowest, self.size, self.noise = level, len(self.recent), math.sqrt(self.variance)
            self.at_low = self._stays_low(math.sqrt(variance))
            return None
        if self.is_above(level):
            return f"the loss rose from {self.lowest:.4g} to {level:.4g}, after {self.first:.4g} at first"
        return None

    def is_low(self) -> bool:
        """Whether the last losses are as low as those of the lowest level, or there is only one yet."""
        return self.seen == 1 if self.lowest is None else bool(self.recent) and self._stays_low(self.noise)

    def is_above(self, level: float) -> bool:
        """Whether a level of as many losses as there are now would raise an alarm."""
        if self.first is None or self.lowest is None or not self.recent:
            return False
        noise = _ERRORS * self.noise * math.sqrt(1 / len(self.recent) + 1 / self.size)
        fall = self.first - self.lowest
        if abs(self.first) < _RISE * fall:
            return False
        if fall < noise:
            noise *= _FLAT
        counted = max(fall, _LEAST_FALL * abs(self.first))
        return level - self.lowest > max(_RISE * counted, noise, _SWING * self.swing)

    def began_above(self) -> bool:
        """Whether the level is too high, and so were the losses right after `forget`, before the weights changed."""
        return len(self.recent) >= _FEWEST and self.is_above(statistics.median(self.recent[:_OPENING]))

    def forget(self) -> None:
        """Drop the recent losses, which are of weights that were replaced."""
        self.recent, self.bad, self.calm, self.highest = [], [], _MOST, 0.0

    def _stays_low(self, noise: float) -> bool:
        """Whether the newest losses are at the lowest level: the start of a rise is not in the level yet."""
        assert self.lowest is not None
        newest = self.recent[-len(self.recent) // 4 :]
        settled = max(self.recent[-1], sum(newest) / len(newest)) <= self.lowest + noise
        return settled and self.calm >= max(_CALM, self.window)

    def _far(self) -> float:
        if self.first is None or self.lowest is None:
            return math.inf
        return self.first + (self.first - self.lowest) + _FAR * self.noise

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, as plain numbers."""
        return {name: x for name, x in asdict(self).items() if name not in ("window", "at_low")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; the run may have another length now."""
        vars(self).update({name: list(x) if isinstance(x, list) else x for name, x in state.items()})
        del self.recent[: -self.window]


def _level(losses: list[float]) -> tuple[float, float]:
    """The mean of the losses without their extremes, and n times the square of its standard error.

    A trend is no noise: the slope from the median of one half to that of the other is taken out first.
    For normal noise that is the variance of a loss. The error is Tukey and McLaughlin's (1963): the deviation of the
    losses with the extremes moved to the nearest of those left, over the share of those left and √n.
    """
    n = len(losses)
    half = n // 2
    slope = (statistics.median(losses[-half:]) - statistics.median(losses[:half])) / (n - half)
    ordered = sorted(x - slope * (i - (n - 1) / 2) for i, x in enumerate(losses))
    cut = n // _TRIMMED
    middle = ordered[cut : n - cut]
    level = sum(middle) / len(middle)
    squares = sum((x - level) ** 2 for x in middle)
    squares += cut * ((middle[0] - level) ** 2 + (middle[-1] - level) ** 2)
    return level, squares / n * (n / len(middle)) ** 2
