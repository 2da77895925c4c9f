"""Studies on a full grid of settings: tune the rates, run hand-set warm-ups, compare the default with the best of them.

Each stage is a function of the rows of earlier stages, see `stages`. The seeds that choose the best warm-up are not
those that test it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..cells import DEFAULT, PAPER, TUNING_SCHEDULE, TUNING_SEED, Setting, tuned_rates
from ..rows import Cell, PlannedRow, Rows
from ..statistics import Seeds
from .warm_up import Stage


def hand_set_grid(*shares: float) -> tuple[str, ...]:
    """No warm-up, and each share of the run from two starts: "linear" from 0, "tenth" from lr/10, as the default."""
    return ("linear 0", *(f"{start} {share:g}" for start in ("linear", "tenth") for share in shares))


@dataclass(frozen=True)
class Grid:
    """Every task at every horizon (a number of updates) with every optimizer.

    `rates` is a function (rows, task, optimizer) → rates to try under a warm-up of 10 %. The best of the
    hand-set warm-ups is chosen on some seeds and tested on others.
    """

    tasks: Sequence[str]
    horizons: Sequence[int]
    optimizers: Sequence[str]
    rates: Callable[[Rows, str, str], Sequence[float]]
    hand_set: Sequence[str]
    seeds: Seeds

    def judged(self, rows: Rows) -> list[Setting]:
        """The settings at their tuned rates, with what they are judged by."""
        return [Setting(cell, self.hand_set, self.seeds) for cell in self.cells(rows)]

    def tuning_cells(self, rows: Rows) -> list[Cell]:
        """Each setting at each rate to try."""
        return [
            Cell(task, optimizer, steps, lr)
            for steps in self.horizons
            for task in self.tasks
            for optimizer in self.optimizers
            for lr in self.rates(rows, task, optimizer)
        ]

    def cells(self, rows: Rows) -> list[Cell]:
        """The settings at their tuned rates."""
        rates = tuned_rates(rows, self.tuning_cells(rows), TUNING_SCHEDULE)
        return [Cell(*key, lr) for key, lr in rates.items()]

    def tuning(self, rows: Rows) -> list[PlannedRow]:
        """The runs that tune the peak rates."""
        return [PlannedRow("tuning", cell, TUNING_SCHEDULE, TUNING_SEED) for cell in self.tuning_cells(rows)]

    def hand(self, rows: Rows) -> list[PlannedRow]:
        """The hand-set warm-ups, on the seeds of the choice."""
        return self._planned(self.cells(rows), self.hand_set, self.seeds.choice)

    def tested(self, rows: Rows) -> list[PlannedRow]:
        """The best hand-set warm-up, on the seeds of the test."""
        return [
            run
            for setting in self.judged(rows)
            for run in self._planned([setting.cell], [setting.best(rows)], self.seeds.test)
        ]

    def paper(self, rows: Rows) -> list[PlannedRow]:
        """Algorithm 1, which is told f*, on all seeds."""
        told = [(setting.cell, setting.target(rows)) for setting in self.judged(rows)]
        return [PlannedRow("cells", cell, PAPER, seed, target) for cell, target in told for seed in self.seeds.every]

    def default(self, rows: Rows) -> list[PlannedRow]:
        """The default on all seeds."""
        return self._planned(self.cells(rows), [DEFAULT], self.seeds.every)

    def stages(self, *names: str, prefix: str = "") -> dict[str, Stage]:
        """These stages, by their names in ``--plan``."""
        return {prefix + name: getattr(self, name) for name in names}

    @staticmethod
    def _planned(some: Sequence[Cell], schedules: Sequence[str], seeds: Sequence[int]) -> list[PlannedRow]:
        """Order the runs by cell, then by seed, so that an interrupted stage leaves complete comparisons."""
        return [PlannedRow("cells", cell, name, seed) for cell in some for seed in seeds for name in schedules]
