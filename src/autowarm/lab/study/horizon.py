"""The study of horizons: one small LLaMA from 1,000 to 64,000 steps, chosen before the first of its runs.

At a few hundred steps a warm-up by the loss has no time to be one; the paper's own runs take 8,000 to 128,000. For
each horizon the study asks which hand-set length is best, from zero to 80 % of the run and from two starts, where
Algorithm 1 stops stalling, and what ends the default's warm-up. Rates are tuned for each horizon under a hand-set
warm-up; a run of 64,000 steps takes minutes, so there the rates next to the best one at 16,000 are tried.
"""

from collections.abc import Iterable, Sequence

from ..analysis.statistics import Seeds, choose, mean_loss
from .cells import DEFAULT, PAPER, TUNING_SCHEDULE, TUNING_SEED, tuned_rates
from .plan import Stage
from .rows import Cell, PlannedRow, Rows

__all__ = ["HAND_SET", "HORIZONS", "LONG", "OPTIMIZERS", "STAGES", "cells", "seeds_of"]

TASK = "llama-long"
HORIZONS = (1_000, 4_000, 16_000)
LONG = 64_000
OPTIMIZERS = ("muon", "lion", "normsgd", "adamw")

# "linear" starts from the cold, at lr/(steps of warm-up + 1); "tenth" starts at lr/10, as the default does.
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
HAND_SET = ("linear 0", *(f"{start} {share:g}" for start in ("linear", "tenth") for share in SHARES))
RAMP_ALONE = f"{DEFAULT} fstar=-1e6"  # the gap never falls, so the loss never acts
_TOLD = 0.95  # Algorithm 1's f*, in parts of the best hand-set loss: better than one can know

_GRID = {
    "muon": (0.001, 0.003, 0.01, 0.03, 0.1),
    "lion": (0.0001, 0.0003, 0.001, 0.003, 0.01),
    "normsgd": (0.003, 0.01, 0.03, 0.1, 0.3),
    "adamw": (0.0003, 0.001, 0.003, 0.01, 0.03),
}


def seeds_of(steps: int) -> Seeds:
    """Seeds of the choice and of the test; one of each where a run takes minutes."""
    return Seeds((0,), (10,)) if steps == LONG else Seeds((0, 1), (10, 11, 12))


def cells(rows: Rows, horizons: Sequence[int] = (*HORIZONS, LONG)) -> list[Cell]:
    """The settings, at the rates that were tuned for each."""
    grid = _grid()
    if LONG in horizons:
        grid += _long_grid(rows)
    rates = tuned_rates(rows, grid, TUNING_SCHEDULE)
    return [Cell(TASK, name, steps, rates[TASK, name, steps]) for steps in horizons for name in OPTIMIZERS]


def _grid() -> list[Cell]:
    return [Cell(TASK, name, steps, lr) for steps in HORIZONS for name in OPTIMIZERS for lr in _GRID[name]]


def _long_grid(rows: Rows) -> list[Cell]:
    """At the longest horizon, the rates next to the best one of the horizon before it, and that."""
    found = []
    for cell in cells(rows, HORIZONS[-1:]):
        rates = _GRID[cell.optimizer]
        here = rates.index(cell.lr)
        found += [Cell(TASK, cell.optimizer, LONG, lr) for lr in rates[max(0, here - 1) : here + 2]]
    return found


def _planned(part: str, some: Iterable[Cell], schedules: Iterable[str], test: bool = False) -> list[PlannedRow]:
    """Cell by cell and seed by seed, so that an interrupted stage leaves whole comparisons."""
    names = list(schedules)
    return [
        PlannedRow(part, cell, name, seed)
        for cell in some
        for seed in (seeds_of(cell.steps).test if test else seeds_of(cell.steps).choice)
        for name in names
    ]


def _tuned(some: Iterable[Cell]) -> list[PlannedRow]:
    return [PlannedRow("tuning", cell, TUNING_SCHEDULE, TUNING_SEED) for cell in some]


def _told(rows: Rows, some: Iterable[Cell]) -> list[PlannedRow]:
    found = []
    for cell in some:
        seeds = seeds_of(cell.steps)
        best = min(mean_loss(rows.losses("cells", cell, name, seeds.choice), seeds.choice) for name in HAND_SET)
        found += [PlannedRow("cells", cell, PAPER, seed, target_loss=_TOLD * best)
                  for seed in (*seeds.choice, *seeds.test)]  # fmt: skip
    return found


def _tested(rows: Rows, some: Iterable[Cell]) -> list[PlannedRow]:
    """The best hand-set warm-up on the seeds of the test."""
    found = []
    for cell in some:
        seeds = seeds_of(cell.steps)
        best = choose({name: rows.losses("cells", cell, name, seeds.choice) for name in HAND_SET}, seeds.choice)
        found += _planned("cells", [cell], [best], test=True)
    return found


def tuning(rows: Rows) -> list[PlannedRow]:
    """Peak rates, under a hand-set warm-up."""
    return _tuned(_grid())


def hand(rows: Rows) -> list[PlannedRow]:
    """The hand-set grid, on the seeds of the choice."""
    return _planned("cells", cells(rows, HORIZONS), HAND_SET)


def paper(rows: Rows) -> list[PlannedRow]:
    """Algorithm 1, told an f* a little below the best loss that any hand-set run reached."""
    return _told(rows, cells(rows, HORIZONS))


def tested(rows: Rows) -> list[PlannedRow]:
    """The best hand-set warm-up, on the seeds of the test."""
    return _tested(rows, cells(rows, HORIZONS))


def long_tuning(rows: Rows) -> list[PlannedRow]:
    """Peak rates at the longest horizon."""
    return _tuned(_long_grid(rows))


def long_hand(rows: Rows) -> list[PlannedRow]:
    """The hand-set grid at the longest horizon."""
    return _planned("cells", cells(rows, (LONG,)), HAND_SET)


def long_paper(rows: Rows) -> list[PlannedRow]:
    """Algorithm 1 at the longest horizon."""
    return _told(rows, cells(rows, (LONG,)))


def long_tested(rows: Rows) -> list[PlannedRow]:
    """The best hand-set warm-up at the longest horizon, on the seed of the test."""
    return _tested(rows, cells(rows, (LONG,)))


def default(rows: Rows) -> list[PlannedRow]:
    """The default, and its ramp without the loss, on all seeds."""
    some = cells(rows)
    return [run for test in (False, True) for run in _planned("cells", some, [DEFAULT, RAMP_ALONE], test)]


STAGES: dict[str, Stage] = {
    stage.__name__.replace("_", "-"): stage
    for stage in (tuning, hand, paper, tested, long_tuning, long_hand, long_paper, long_tested, default)
}
"""In the order in which they build on each other; about ten CPU-hours in all."""
