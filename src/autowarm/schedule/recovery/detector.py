"""Tells from the losses alone that a run has lost ground, in plain numbers.

The *level* of the loss is the mean of the last losses without their highest and lowest tenth. An alarm is raised

- when the level stands above its own minimum by more than a fifth of its fall so far, and by more than noise explains:
  a divergence is a slow rise, which no bar on single losses catches in time. The fall counts as a fifth of the first
  level at least: what little a run has learnt on its first plateau comes back sooner than a restart ends;
- when two losses in a row are not finite, or two of the last three lie far above the first level: the weights are
  broken, and no more losses are needed to know it.

A loss has a *healthy level* once it has fallen by a good part of its first level and was never below zero. Others, as
of a policy gradient, may rise in success: of them, only what is not finite raises an alarm. A stall raises none:
nothing that a schedule could restore would help.
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
_GOOD_PART = 0.1  # of the first level: a fall that shows what success is
_ERRORS = 6.0  # standard errors of the difference between two levels
_WARY = 3.0  # as many after weights were at fault: a rise that noise explains costs a trial, and no more
_SWING = 1.5  # of the highest rise that was followed by a new low
_FLAT = 5.0  # times as many where the fall so far may be noise as well
_MOST_LOSS = 1e150  # its square is finite
_FAR = 30.0  # standard deviations of a loss
_CALM = 100  # losses after a bad one, or a window of them: momenta remember it as long, and then do their damage
OPENING = 5  # losses right after a restart
_NEWEST = 8  # losses that tell what the present weights are worth
_MEMORY = 200  # levels, each a twentieth of a window after the last, that the noise is averaged over


@dataclass
class Detector:
    """Sees the loss of each update."""

    window: int  # how many losses the level is the mean of
    recent: list[float] = field(default_factory=list)  # the last finite losses, at most `window`
    last: list[float] = field(default_factory=list)  # the last three losses, finite or not
    bad: list[bool] = field(default_factory=list)  # whether each of those was not finite or far too high
    calm: int = _MOST  # how many losses there were since the last of those; enough at the start
    count: int = 0  # how many finite losses there were
    wary: bool = False  # whether weights were at fault, and the run has not been healthy since
    negative: bool = False  # whether one of them was below zero
    first: float | None = None  # the first level; None before there are enough losses
    lowest: float | None = None  # the lowest level
    size: int = 0  # how many losses the lowest level is the mean of
    levels: int = 0  # how many levels there were
    variance: float = 0.0  # that of a loss about its level, averaged over the last levels
    # Its square root at the lowest level: what diverges is noisy, too, and must not hide behind that.
    noise: float = 0.0
    highest: float = 0.0  # how far the level has risen since its lowest
    swing: float = 0.0  # the most that it has risen before a new low, as correlated noise makes it do
    idle: str | None = None  # why a rise of this loss is no failure, in words; None if none has been seen
    # Whether the last loss made a new lowest level that still falls, so that its weights are worth keeping.
    at_low: bool = False

    @classmethod
    def over(cls, length: int) -> Self:
        """A detector for a run of this many updates."""
        return cls(min(_MOST, max(_FEWEST, length // _SHARE)))

    def see(self, loss: float) -> str | None:
        """Take the loss of one more update; return the reason for an alarm, in words, or None."""
        self.at_low = False
        loss = math.inf if abs(loss) > _MOST_LOSS else loss  # NaN stays NaN, also in words
        far = self.first + self.fall + _FAR * self.noise if self.first is not None and self.judges else math.inf
        bad = not math.isfinite(loss) or loss > far
        self.last, self.bad = [*self.last[-2:], loss], [*self.bad[-2:], bad]
        # What is not finite leaves nothing in the momenta, or else no weight and no loss is finite any more.
        self.calm = 0 if bad and math.isfinite(loss) else self.calm + 1
        finite = all(map(math.isfinite, self.last))
        if sum(self.bad if finite else self.bad[-2:]) >= 2:
            last, level = ", ".join(f"{x:.4g}" for x in self.last), self.lowest
            after = "" if level is None else f", after a level of {level:.4g}"
            return f"the last losses were {last}{after}: not finite, or far above the first"
        if not math.isfinite(loss) or loss == 0.0:  # 0: of a batch without labels
            return None
        if loss < 0.0:
            self.negative, self.idle = True, self.idle or f"a loss of {loss:.4g} is below zero"
        self.recent.append(loss)
        del self.recent[: -self.window]
        self.count += 1
        # A long level moves slowly, so it need not be computed at each update.
        if len(self.recent) < _FEWEST or self.count % (self.window // _FEWEST):
            return None
        level, variance = _level(self.recent)
        self.levels += 1
        self.variance += (variance - self.variance) / min(self.levels, _MEMORY)
        if self.first is None or self.lowest is None:
            self.first, self.lowest = max(level, statistics.median(self.recent[:OPENING])), level
        self.highest = max(self.highest, level - self.lowest)
        if level <= self.lowest:
            self.swing, self.highest = max(self.swing, self.highest), 0.0
            self.lowest, self.size, self.noise = level, len(self.recent), math.sqrt(self.variance)
            self.at_low = self._stays_low(math.sqrt(variance))
            return None
        if self.is_above(level) and not self.judges:
            self.idle = self.idle or f"the loss rose from {self.first:.4g} at first to {level:.4g}"
        elif self.is_above(level):
            return f"the loss rose from {self.lowest:.4g} to {level:.4g}, after {self.first:.4g} at first"
        return None

    @property
    def fall(self) -> float:
        """How far the level has fallen so far."""
        return 0.0 if self.first is None or self.lowest is None else self.first - self.lowest

    @property
    def judges(self) -> bool:
        """Whether the loss has a healthy level, so that a rise is a failure."""
        return self.first is not None and not self.negative and self.fall >= _GOOD_PART * self.first

    def is_lost(self) -> bool:
        """Whether the losses since a restart lie more than half of the fall above the lowest level."""
        return self.lowest is not None and self.judges and statistics.median(self.recent) > self.lowest + self.fall / 2

    def is_low(self) -> bool:
        """Whether the last losses are as low as those of the lowest level, or there is only one yet."""
        return self.count == 1 if self.lowest is None else bool(self.recent) and self._stays_low(self.noise)

    def is_above(self, level: float) -> bool:
        """Whether this level is too high."""
        assert self.first is not None
        assert self.lowest is not None
        errors, swing = (_WARY, 0.0) if self.wary else (_ERRORS, _SWING * self.swing)
        noise = errors * self.noise * math.sqrt(1 / len(self.recent) + 1 / self.size)
        if self.fall < noise:
            noise *= _FLAT
        counted = max(self.fall, _LEAST_FALL * abs(self.first))
        return level - self.lowest > max(_RISE * counted, noise, swing)

    def bar(self) -> float:
        """Three quarters of the way from the lowest level up to the losses of the present weights, which are finite."""
        assert self.lowest is not None
        # Where the loss rises fast, the newest ones are far above the level, which a few losses do not have.
        newest = self.last if sum(self.bad) >= 2 else self.recent[-_NEWEST:]
        level = _level(self.recent)[0] if len(self.recent) >= _FEWEST else self.lowest
        return self.lowest + 0.75 * (max(statistics.median(newest), level) - self.lowest)

    def forget(self) -> None:
        """Drop the recent losses, which are of weights that were replaced."""
        self.recent, self.last, self.bad, self.calm, self.highest = [], [], [], _MOST, 0.0

    def _stays_low(self, noise: float) -> bool:
        """Whether the newest losses are at the lowest level: the start of a rise is not in the level yet."""
        assert self.lowest is not None
        newest = self.recent[-len(self.recent) // 4 :]
        settled = max(self.recent[-1], sum(newest) / len(newest)) <= self.lowest + noise
        return settled and self.calm >= max(_CALM, self.window)

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
