"""Compares two schedules over a few seeds. Pure functions of losses; numpy and scipy only.

Runs that differ only in schedule and seed share initial weights and batches if they share the seed, so schedules are
compared seed by seed, which cancels what the runs have in common.

One seed decides nothing. With a few seeds, quantiles are those of Student's t: 12.7 standard errors for two seeds, 2.8
for five; for the best of six lengths, 76 and 4.9.

The distributions are those of `scipy.special`, for `scipy.stats`, which calls them, takes seconds to import.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

Losses = Mapping[int, float]
"""Held-out loss by seed. Lower is better; `math.inf` marks a run that diverged."""

Outcome = Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class Estimate:
    """Independent values, one per seed or per task, with an interval for their true mean.

    Args:
        values: the values.
        choices: of how many estimates this one was chosen for being extreme. Intervals are wide enough that, at their
            level, all of these hold together (Bonferroni), so trying more decides nothing by itself.

    Raises:
        ValueError: there are no values, or one is not finite.

    Example:
        >>> from autowarm.lab.analysis.statistics import Estimate
        >>> five = Estimate((-0.02, -0.01, -0.03, -0.02, -0.02))
        >>> low, high = five.interval()
        >>> print(f"{five.mean:.3f} ± {five.stderr:.4f}, 95 %: {low:.3f} to {high:.3f}; {five.outcome}")
        -0.020 ± 0.0032, 95 %: -0.029 to -0.011; better
    """

    values: tuple[float, ...]
    choices: int = 1

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("an estimate needs at least one value, got none")
        if not all(map(math.isfinite, self.values)):
            raise ValueError(f"values must be finite, got {self.values}")

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

        t is the 1 − (1 − level)/(2·choices) quantile of Student's t with n − 1 degrees of freedom.
        """
        if self.stderr is None:
            return None
        reach = -float(special.stdtrit(self.count - 1, (1 - level) / (2 * self.choices))) * self.stderr
        return self.mean - reach, self.mean + reach

    @property
    def outcome(self) -> Outcome:
        """Which side of zero the whole 95% interval lies on; lower is better, and "undecided" means neither."""
        low, high = self.interval() or (-math.inf, math.inf)
        return "better" if high < 0 else "worse" if low > 0 else "undecided"


def same_mean(values: Sequence[Sequence[float]]) -> float:
    """How likely differences as large as these are if all rows have the same mean: a p-value.

    The F test of a randomised block design (Fisher, 1935): what the columns, here seeds, have in common is taken out,
    and the noise is pooled over all rows.

    Args:
        values: finite numbers, shape (rows, columns), at least two of each.

    Example:
        >>> from autowarm.lab.analysis.statistics import same_mean
        >>> round(same_mean([[2.0, 2.1, 2.2], [2.3, 2.4, 2.6]]), 3)
        0.01
    """
    x = np.asarray(values, dtype=float)
    rows, columns = x.shape
    effects = x.mean(axis=1, keepdims=True) - x.mean()
    noise = x - x.mean(axis=0, keepdims=True) - effects
    freedom = (rows - 1) * (columns - 1)
    between, within = columns * float(np.sum(effects**2)) / (rows - 1), float(np.sum(noise**2)) / freedom
    if within == 0.0:
        return 1.0 if between == 0.0 else 0.0
    return float(special.fdtrc(rows - 1, freedom, between / within))
