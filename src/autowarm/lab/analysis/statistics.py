"""Compares two schedules over a few seeds. Pure functions of losses; numpy and scipy only.

**The design.** Runs that share a seed share initial weights and batches, so the runs of a cell are a two-way layout,
seed × schedule (Fisher, 1935): a loss is the schedule's mean, plus what its seed adds to every schedule, plus noise of
standard deviation σ. The noise is pooled over the schedules: the default and six hand-set lengths with four seeds give
18 degrees of freedom, where four paired differences alone give 3.

The quantity is D, the default's mean loss minus the lowest mean loss of k hand-set lengths. The length that is best on
the seeds at hand looks better than it is. That can make the default look worse, never better, so only the limit that
would call it worse pays for the choice among k (Bonferroni). With 95% confidence, and t(q) a quantile of Student's t,

    D̂ − t(1 − 0.025/k)·s·√(2/n)  ≤  D  ≤  D̂ + t(0.975)·s·√(2/n).

**Its power**, with four seeds and two to seven lengths, over simulated comparisons (`test_statistics.py` repeats some):
where D = 0, 2 to 4% of verdicts are wrong. Where D is two standard deviations of a seed's difference, 2·√2·σ, 80 to 98%
are right, whether one length is best or all are equal; with a single length, which has nothing to pool, 76%.
It assumes equal noise. Lengths far behind, whose noise is often larger, do not count towards it. Of six equal lengths,
7% of verdicts are wrong where the default has twice the noise, and 10% where one length has ten times the noise.

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
    """Independent values, one per seed or per task, all finite, with an interval for their true mean.

    Example:
        >>> from autowarm.lab.analysis.statistics import Estimate
        >>> five = Estimate((-0.02, -0.01, -0.03, -0.02, -0.02))
        >>> low, high = five.interval()
        >>> print(f"{five.mean:.3f} ± {five.stderr:.4f}, 95 %: {low:.3f} to {high:.3f}; {five.outcome}")
        -0.020 ± 0.0032, 95 %: -0.029 to -0.011; better
    """

    values: tuple[float, ...]
    choices: int = 1  # of how many this one was chosen for being largest; only the interval's lower end is moved
    noise: tuple[float, int] | None = None  # a value's standard deviation and degrees of freedom, if known otherwise

    def __post_init__(self) -> None:
        if not self.values or not all(map(math.isfinite, self.values)):
            raise ValueError(f"an estimate needs at least one value, and all finite, got {self.values}")

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean, s/√n; None for one value."""
        if len(self.values) < 2:
            return None
        spread = float(np.std(self.values, ddof=1)) if self.noise is None else self.noise[0]
        return spread / math.sqrt(len(self.values))

    def interval(self, level: float = 0.95, count: int | None = None) -> tuple[float, float] | None:
        """Return the module's confidence interval, with `count` for as many values of the same spread; None for one."""
        if self.stderr is None:
            return None
        count = count or len(self.values)
        freedom = (self.noise[1] / (len(self.values) - 1) if self.noise else 1) * (count - 1)
        error = self.stderr * math.sqrt(len(self.values) / count)
        down, up = (-float(special.stdtrit(freedom, (1 - level) / (2 * many))) for many in (self.choices, 1))
        return self.mean - down * error, self.mean + up * error

    @property
    def outcome(self) -> Outcome:
        """Which side of zero the whole 95% interval lies on; lower is better, and "undecided" means neither."""
        return _side(self.interval())

    @property
    def seeds_to_decide(self) -> int | None:
        """With how many values the same mean and spread would be decided; None for more than a hundred, or unknown."""
        counts = range(len(self.values), 101)
        return next((count for count in counts if _side(self.interval(count=count)) != "undecided"), None)


def _side(interval: tuple[float, float] | None) -> Outcome:
    low, high = interval or (-math.inf, math.inf)
    return "better" if high < 0 else "worse" if low > 0 else "undecided"


def against_best(ours: Sequence[float], best: Sequence[float], others: Sequence[Sequence[float]]) -> Estimate:
    """Compare the default's losses, which are finite, with those of the best of several hand-set lengths, by seed.

    Those of the other lengths are infinite where a run diverged or is missing.
    """
    lengths = np.asarray([best, *others], dtype=float)
    pairs = tuple(float(a - b) for a, b in zip(ours, best, strict=True))
    if len(pairs) < 2:
        return Estimate(pairs, len(lengths))
    behind = (lengths - lengths[0]).mean(axis=1)  # to choose by means does not bias the noise, which is independent
    near = lengths[behind <= 3 * max(0.0, float(np.median(behind[np.isfinite(behind)])))]
    x = np.vstack([ours, near])  # schedules × seeds; what is left without the effects of either is noise
    rest = x - x.mean(axis=0, keepdims=True) - x.mean(axis=1, keepdims=True) + x.mean()
    freedom = (x.shape[0] - 1) * (x.shape[1] - 1)
    return Estimate(pairs, len(lengths), (math.sqrt(2 * float(np.sum(rest**2)) / freedom), freedom))
