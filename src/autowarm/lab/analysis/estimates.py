"""Estimates a true mean from a few independent values, by Student's t, and corrects many tests for their number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

__all__ = ["Estimate", "NonInferiority", "Outcome", "discoveries"]

Outcome = Literal["better", "no worse", "worse", "undecided", "no verdict"]


@dataclass(frozen=True)
class Estimate:
    """Independent values, one per seed or per task, with intervals and tests for their true mean.

    Args:
        values: at least one, all finite.
        diverged: the number of values for which a run diverged.

    Raises:
        ValueError: there are no values, or one is not finite.

    Example:
        >>> from autowarm.lab.analysis.statistics import Estimate
        >>> five = Estimate((-0.02, -0.01, -0.03, -0.02, -0.02))
        >>> low, high = five.interval()
        >>> print(f"{five.mean:.3f} ± {five.stderr:.4f}, 95 %: {low:.3f} to {high:.3f}; {five.outcome()}")
        -0.020 ± 0.0032, 95 %: -0.029 to -0.011; better
        >>> Estimate((-0.02,)).outcome()
        'no verdict'
    """

    values: tuple[float, ...]
    diverged: int = 0

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("an estimate needs at least one value, got none")
        if not all(map(math.isfinite, self.values)):
            raise ValueError(f"values must be finite, got {self.values}")

    def __neg__(self) -> "Estimate":
        """Return the estimate with the opposite sign."""
        return Estimate(tuple(-x for x in self.values), self.diverged)

    @property
    def count(self) -> int:
        """n, the number of values."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """x̄, the mean of the values."""
        return math.fsum(self.values) / self.count

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean, s/√n with s² = Σ(x − x̄)²/(n − 1); None for one value."""
        if self.count < 2:
            return None
        return float(np.std(self.values, ddof=1)) / math.sqrt(self.count)

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Return the two-sided confidence interval x̄ ± t·s/√n; None for one value.

        t is the (1 + level)/2 quantile of Student's t with n − 1 degrees of freedom.
        """
        if self.stderr is None:
            return None
        reach = float(stats.t.ppf((1 + level) / 2, self.count - 1)) * self.stderr
        return self.mean - reach, self.mean + reach

    @property
    def p_value(self) -> float | None:
        """The p value of the two-sided t test that the true mean is 0; 1 if all values are 0, None for one value."""
        if self.stderr is None:
            return None
        if self.stderr == 0:
            return float(self.mean == 0)
        return float(2 * stats.t.sf(abs(self.mean) / self.stderr, self.count - 1))

    def outcome(self, margin: float = 0.0, level: float = 0.95) -> Outcome:
        """Say in one word where the confidence interval lies; lower values are better.

        Args:
            margin: the largest difference that counts as none, in the unit of the values, ≥ 0.
            level: the interval's confidence level.

        Returns:
            "better" if the whole interval is below 0, otherwise "no worse" if it ends at or below the margin, "worse"
            if it begins above the margin, "undecided" if it contains the margin, and "no verdict" for one value.
        """
        if margin < 0:
            raise ValueError(f"a margin must be at least 0, got {margin}")
        interval = self.interval(level)
        if interval is None:
            return "no verdict"
        low, high = interval
        if high < 0:
            return "better"
        if high <= margin:
            return "no worse"
        return "worse" if low > margin else "undecided"

    def non_inferiority(self, margin: float, level: float = 0.95) -> "NonInferiority | None":
        """Run the one-sided t test that the true mean is below `margin`; None for one value."""
        if self.stderr is None:
            return None
        freedom = self.count - 1
        if self.stderr == 0:
            p = 0.0 if self.mean < margin else 1.0
        else:
            p = float(stats.t.cdf((self.mean - margin) / self.stderr, freedom))
        bound = self.mean + float(stats.t.ppf(level, freedom)) * self.stderr
        return NonInferiority(margin, level, p, bound)

    def exceeds(self, tolerance: float = 0.0, errors: float = 2.0) -> bool | None:
        """Whether the mean is above both `tolerance` and this many standard errors; None for one value.

        This is a rule of thumb that the published numbers use. Two standard errors are a 95 % interval for many seeds
        but only an 88 % interval for five. For a test use `outcome` or `non_inferiority`.
        """
        return None if self.stderr is None else self.mean > max(errors * self.stderr, tolerance)


@dataclass(frozen=True)
class NonInferiority:
    """The result of a one-sided test of non-inferiority.

    The null hypothesis is that a schedule is worse by the margin or more. Rejecting it shows that the schedule is worse
    by less than the margin, if at all. A test that merely finds no difference does not show that.

    Attributes:
        margin: the difference to exclude, in the unit of the values.
        level: 1 − the size of the test.
        p_value: P(T ≤ (x̄ − margin)/(s/√n)) for Student's T with n − 1 degrees of freedom.
        bound: x̄ + t·s/√n for the `level` quantile t, an upper confidence bound of the true mean.
    """

    margin: float
    level: float
    p_value: float
    bound: float

    @property
    def shown(self) -> bool:
        """Whether non-inferiority is shown: p ≤ 1 − level, so the bound is at most the margin."""
        return self.p_value <= 1 - self.level


def discoveries(p_values: Sequence[float | None], level: float = 0.05) -> list[bool]:
    """Return which of many tests remain significant after correction for their number (Benjamini and Hochberg, 1995).

    For independent or positively dependent tests, the expected share of false discoveries is at most `level`. None
    marks a test without a verdict, which does not count.

    Example:
        >>> from autowarm.lab.analysis.statistics import discoveries
        >>> discoveries([0.001, 0.04, None, 0.6])
        [True, False, False, False]
    """
    known = [p for p in p_values if p is not None]
    adjusted = iter(stats.false_discovery_control(known)) if known else iter(())
    return [p is not None and bool(next(adjusted) <= level) for p in p_values]
