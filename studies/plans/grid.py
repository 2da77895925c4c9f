"""Studies on a full grid of settings: tune the rates, run hand-set warm-ups, compare the default with the best of them.

Each stage is a function of the rows of earlier stages, see `plan`. The seeds that choose the best warm-up are not those
that test it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..cells import AUTO, DEFAULT, GUESS, PAPER, TUNING_SCHEDULE, TUNING_SEED, Setting, tuned_rates
from ..rows import Cell, PlannedRow, Rows
from ..statistics import Seeds, choose, mean_loss
from .warm_up import Stage

_TOLD = 0.95  # Algorithm 1's f* as a share of the best hand-set loss: better than a user can know

RatesToTry = Callable[[Rows, str, int, str], Sequence[float]]
"""A function (rows, task, steps, optimizer) → rates to try."""


def hand_set_grid(*shares: float) -> tuple[str, ...]:
    """No warm-up, and each share of the run from two starts: "linear" from 0, "tenth" from lr/10, as the default."""
    return ("linear 0", *(f"{start} {share:g}" for start in ("linear", "tenth") for share in shares))


@dataclass(frozen=True)
class Grid:
    """Every task at every horizon (a number of updates) with every optimizer.

    `rates` gives the rates to try in a setting, under the schedule `tuned_under`. The best of the hand-set warm-ups is
    chosen on some seeds and tested on others.
    """

    tasks: Sequence[str]
    horizons: Sequence[int]
    optimizers: Sequence[str]
    rates: RatesToTry
    hand_set: Sequence[str]
    seeds: Seeds
    tuned_under: str = TUNING_SCHEDULE

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
            for lr in self.rates(rows, task, steps, optimizer)
        ]

    def cells(self, rows: Rows) -> list[Cell]:
        """The settings at their tuned rates."""
        tried = self.tuning_cells(rows)
        rates = tuned_rates(rows, tried, self.tuned_under)
        return [Cell(*key[:2], steps=key[2], lr=lr) for key, lr in rates.items()]

    def tuning(self, rows: Rows) -> list[PlannedRow]:
        """The runs that tune the peak rates."""
        return [PlannedRow("tuning", cell, self.tuned_under, TUNING_SEED) for cell in self.tuning_cells(rows)]

    def hand(self, rows: Rows) -> list[PlannedRow]:
        """The hand-set warm-ups, on the seeds of the choice."""
        return self._planned(self.cells(rows), self.hand_set, self.seeds.choice)

    def tested(self, rows: Rows) -> list[PlannedRow]:
        """The best hand-set warm-up, on the seeds of the test."""
        return [
            run
            for cell in self.cells(rows)
            for run in self._planned([cell], [choose(self.chosen_from(rows, cell), self.seeds.choice)], self.seeds.test)
        ]

    def paper(self, rows: Rows) -> list[PlannedRow]:
        """Algorithm 1, given an f* a little below the best mean loss of any hand-set warm-up."""
        found = []
        for cell in self.cells(rows):
            best = min(mean_loss(losses, self.seeds.choice) for losses in self.chosen_from(rows, cell).values())
            found += [
                PlannedRow("cells", cell, PAPER, seed, target_loss=_TOLD * best)
                for seed in (*self.seeds.choice, *self.seeds.test)
            ]
        return found

    def default(self, rows: Rows) -> list[PlannedRow]:
        """The default on all seeds."""
        return self._planned(self.cells(rows), [DEFAULT], (*self.seeds.choice, *self.seeds.test))

    def auto(self, rows: Rows) -> list[PlannedRow]:
        """``peak="auto"``, which is told no rate, on the seeds of the test."""
        return self._planned([replace(cell, lr=GUESS) for cell in self.cells(rows)], [AUTO], self.seeds.test)

    def chosen_from(self, rows: Rows, cell: Cell) -> dict[str, Mapping[int, float]]:
        """The losses of the hand-set warm-ups on the seeds of the choice."""
        return {name: rows.losses("cells", cell, name, self.seeds.choice) for name in self.hand_set}

    def stages(self, *names: str, prefix: str = "") -> dict[str, Stage]:
        """These stages, by their names in ``--plan``."""
        return {prefix + name: getattr(self, name) for name in names}

    @staticmethod
    def _planned(some: Sequence[Cell], schedules: Sequence[str], seeds: Sequence[int]) -> list[PlannedRow]:
        """Order the runs by cell, then by seed, so that an interrupted stage leaves complete comparisons."""
        return [PlannedRow("cells", cell, name, seed) for cell in some for seed in seeds for name in schedules]
