"""What a schedule costs in one setting, over a few seeds: pure functions of losses.

**Seeds that choose do not judge.** The best of several options looks better than it is on the seeds that chose it.
`Seeds` keeps the two sets apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autowarm.lab.analysis.statistics import Losses

Option = TypeVar("Option")


@dataclass(frozen=True)
class Seeds:
    """The seeds that choose an option, and the seeds that judge the choice. The two sets are disjoint."""

    choice: tuple[int, ...]
    test: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.choice or not self.test:
            raise ValueError(f"both choice and test need at least one seed, got {self}")
        if both := sorted(set(self.choice) & set(self.test)):
            raise ValueError(f"seeds that chose must not judge: {both} are in both choice and test")

    @property
    def every(self) -> tuple[int, ...]:
        """The seeds that choose, then those that judge."""
        return *self.choice, *self.test


def mean_loss(losses: Losses, seeds: Sequence[int]) -> float:
    """The mean over the seeds, which must be there; infinite if one of the runs diverged."""
    if missing := [seed for seed in seeds if seed not in losses]:
        raise ValueError(f"no loss for the seeds {missing}, only for {sorted(losses)}")
    return math.fsum(losses[seed] for seed in seeds) / len(seeds)


def choose(options: Mapping[Option, Losses], seeds: Sequence[int]) -> Option:
    """The option with the lowest mean loss on the seeds; the first one if several are equal."""
    return min(options, key=lambda option: mean_loss(options[option], seeds))


def regret(loss: float, best: float, first: float) -> float:
    """What a choice costs as a share of the progress, in percent: 100·(loss − best)/(first − best).

    Args:
        loss: the loss of the choice; infinite if its run diverged, which then has made no progress.
        best: the loss of the best hand-set warm-up.
        first: the loss before the first update.

    Example:
        >>> from studies.statistics import regret
        >>> regret(2.1, best=2.0, first=4.0), regret(float("inf"), best=2.0, first=4.0)
        (5.0, 100.0)
    """
    return round(100 * ((first if math.isinf(loss) else loss) - best) / (first - best), 12)
