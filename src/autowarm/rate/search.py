"""Reads a peak rate off losses at rising rates. It needs no model and no optimizer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .._torch.plotting import BLUE, GREY, ORANGE, axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 0.25  # decades of the rate: standard deviation of the Gaussian that smooths the losses
_BEGUN = 0.2  # the fall has begun once this share of it is done
_SURE = 8.0  # a fall counts if it exceeds this many standard errors of the smoothed losses
_FEWEST = 10  # finite losses needed to say anything


@dataclass(frozen=True, eq=False, repr=False)
class RateSearch:
    """Losses at rising rates, and the peak rate that they suggest.

    The loss stays level while the rate is too small to matter, then falls, and breaks when the rate is too large. A
    norm-constrained step is as long as its rate, so the sum of the rates is how far the weights have travelled. Two of
    these distances count: D₁, at which a fifth of the fall is done, and D₂, at which the loss breaks. A run of T
    updates at the rate η strays about η√T from where it began (as a random walk would), so the suggestion is
    √(D₁D₂/T), and the interval runs from D₁/√T to D₂/√T. The number of updates in the search does not matter, nor do
    the loss's unit or a constant added to it.

    A fall counts only if it is clear of the noise, which is estimated from the differences between neighbouring losses.
    If it is not, or if the losses do not show both ends of the fall, `reason` says what to change.

    Args:
        rates: the rate of each update, rising by a constant factor.
        losses: the loss before each update; only the last ones may be non-finite.
        broken: whether the loss broke at the last of these rates, as `has_broken` defines it.
        total_steps: T, the number of updates in the run that the rate is for.

    Example:
        >>> import numpy as np
        >>> from autowarm.rate import RateSearch
        >>> rates = np.geomspace(1e-6, 10, 100)
        >>> losses = 2 - 1 / (1 + 1e-3 / rates) + 100 * rates**2  # falls around 1e-3, breaks at about 0.1
        >>> search = RateSearch(rates[:75], losses[:75], broken=True, total_steps=1000)
        >>> f"{search.suggestion:.1e}"
        '1.2e-03'
        >>> RateSearch(rates, np.full(100, 2.0), broken=False).suggestion
        Traceback (most recent call last):
        RuntimeError: no rate can be suggested: the loss never fell...
    """

    rates: np.ndarray
    losses: np.ndarray
    broken: bool
    total_steps: int = 10_000

    @property
    def suggestion(self) -> float:
        """The suggested peak rate, in units of the optimizer's ``lr``.

        Raises:
            RuntimeError: the losses do not tell; the message is `reason`.
        """
        low, high = self.interval
        return math.sqrt(low * high)

    @property
    def interval(self) -> tuple[float, float]:
        """The lowest and the highest peak rate that the losses leave open.

        Raises:
            RuntimeError: as for `suggestion`.
        """
        if isinstance(self._interval_or_reason, str):
            raise RuntimeError(f"no rate can be suggested: {self._interval_or_reason}")
        return self._interval_or_reason

    @property
    def reason(self) -> str | None:
        """Why no rate can be suggested, and what to change; None if there is a suggestion."""
        return self._interval_or_reason if isinstance(self._interval_or_reason, str) else None

    @cached_property
    def smoothed(self) -> np.ndarray:
        """The finite losses, smoothed by a Gaussian with a standard deviation of a quarter of a decade.

        Losses are capped as far above the first losses as the best one lies below them, because how high a loss breaks
        says nothing about where it was low.
        """
        finite = np.isfinite(self.losses)
        if not finite.any():
            return np.full(len(self.losses), math.nan)
        known = self.losses[finite]
        start = known[:5].mean()
        known = np.minimum(known, start + abs(start - known.min()))
        logs = np.log10(self.rates)
        weights = np.exp(-0.5 * ((logs[:, None] - logs[finite][None, :]) / _WIDTH) ** 2)
        return (weights @ known) / weights.sum(axis=1)

    def plot(self, *, ax: "Axes | None" = None) -> "Axes":
        """Plot the losses over the rates, the smoothed curve, the suggestion and its interval.

        Args:
            ax: matplotlib axes to draw on; None makes new ones.

        Raises:
            ImportError: matplotlib is not installed.
        """
        ax = axes_or_new(ax, 5.6, 3.6)
        ax.plot(self.rates, self.losses, ".", color=GREY, alpha=0.6, markersize=4, label="loss")
        ax.plot(self.rates, self.smoothed, color=BLUE, linewidth=2, label="smoothed")
        if self.reason is None:
            ax.axvspan(*self.interval, color=ORANGE, alpha=0.12, linewidth=0)
            ax.axvline(self.suggestion, color=ORANGE, label=f"suggestion, {self.suggestion:.2g}")
        level = self.smoothed[np.isfinite(self.smoothed)]
        if level.size and np.ptp(level) > 0:
            ax.set_ylim(level.min() - 0.15 * np.ptp(level), level.max() + 0.15 * np.ptp(level))
        ax.set(xscale="log", xlabel="learning rate", ylabel="loss")
        ax.legend(frameon=False, fontsize="small")
        return ax

    def __repr__(self) -> str:
        tried = f"{len(self.rates)} updates at rates from {self.rates[0]:.2g} to {self.rates[-1]:.2g}"
        if self.reason is not None:
            return f"RateSearch(no suggestion: {self.reason}; {tried})"
        low, high = self.interval
        return f"RateSearch(suggestion {self.suggestion:.2g}, interval {low:.2g} to {high:.2g}; {tried})"

    @cached_property
    def _interval_or_reason(self) -> tuple[float, float] | str:
        """The interval, from where the fall to the lowest loss begins to the break; or why the losses do not tell."""
        if (finite := int(np.isfinite(self.losses).sum())) == 0:
            return "the first loss is not finite: check the model and the data"
        if finite < _FEWEST:
            how = "broke" if np.isfinite(self.losses[-1]) else "was not finite"
            return f"the loss {how} after {finite} updates: lower `lowest`"
        smoothed = self.smoothed
        bottom = int(np.nanargmin(smoothed))
        level_steps = max(3, bottom // 5)
        start = float(self.losses[:level_steps].mean())
        fall = start - float(smoothed[bottom])
        per_decade = (len(self.rates) - 1) / math.log10(self.rates[-1] / self.rates[0])
        averaged = max(1.0, 2 * math.sqrt(math.pi) * _WIDTH * per_decade)  # how many losses a smoothed loss averages
        noise = noise_of(self.losses)
        error = noise / math.sqrt(averaged)
        if self.broken and self.rates[-1] < 30 * self.rates[0]:
            return f"the loss breaks at {self.rates[-1]:.2g}, soon after the lowest rate: lower `lowest`"
        if not fall > _SURE * error or fall <= 1e-12 * abs(start):
            return (
                f"the loss never fell clear of its noise (by {max(fall, 0.0):.3g}, and one loss differs from the next "
                f"by about {noise:.3g}): use larger batches or more steps, or check that the model learns at all"
            )
        begun, at = self._rate_at(start - _BEGUN * fall, bottom)
        if at < level_steps:
            return f"the loss falls from the lowest rate on, {self.rates[0]:.2g}: lower `lowest`"
        if not self.broken:
            return f"the loss has not broken at the highest rate, {self.rates[-1]:.2g}: raise `highest`"
        growth = float(self.rates[-1] / self.rates[0]) ** (1 / (len(self.rates) - 1))
        travelled = growth / (growth - 1)  # the sum of all rates up to a rate, divided by that rate
        low, high = (travelled * rate / math.sqrt(self.total_steps) for rate in (begun, float(self.rates[-1])))
        return low, high

    def _rate_at(self, level: float, bottom: int) -> tuple[float, int]:
        """The rate at which the smoothed losses last fall through a level, and the step before it."""
        above = np.flatnonzero(self.smoothed[:bottom] > level)
        if not above.size:
            return float(self.rates[0]), 0
        i = int(above[-1])
        first, second = self.smoothed[i], self.smoothed[i + 1]
        share = min(1.0, float((first - level) / (first - second)))
        return float(self.rates[i] ** (1 - share) * self.rates[i + 1] ** share), i


def noise_of(losses: Sequence[float] | np.ndarray) -> float:
    """Estimate a loss's standard deviation from the median difference between neighbours, robust to a few steep steps.

    Of two draws from N(μ, σ²) the median absolute difference is 0.6745·√2·σ.
    """
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        steps = np.abs(np.diff(np.asarray(losses, dtype=np.float64)))
    steps = steps[np.isfinite(steps)]
    return float(np.median(steps)) / (0.6745 * math.sqrt(2)) if steps.size else 0.0


def has_broken(losses: Sequence[float], steps: int) -> bool:
    """Whether the loss of a search of so many steps has broken: it is as far above its first level as it ever fell.

    The median of three losses decides, and a rise within ten times the noise does not count, so a single outlier cannot
    end the search. A non-finite loss ends it at once.
    """
    if not math.isfinite(losses[-1]):
        return True
    first = max(3, steps // 10)
    if len(losses) < first + 3:
        return False
    values = np.asarray(losses)
    start = float(values[:first].mean())
    medians = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    return bool(medians[-1] > start + max(start - medians.min(), 10 * noise_of(values)))
