"""The table of docs/which-rate.md: what it costs not to tune the peak rate."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...analysis.markdown import comma_separated
from ...analysis.statistics import mean_loss
from ...config import LabError
from ...files import write_atomically
from ..cells import DEFAULT
from ..grid import Grid
from ..peak import AUTO, COMMON, FOUND_ON, GUESS, JUDGED, PART, SEEDS, WITHOUT_RATE
from ..rows import Cell, Rows

__all__ = ["Outcome", "outcomes", "peak_table", "write_peak_table"]


_INSTEAD = {"Prodigy": "prodigy", "D-Adaptation": "d-adaptation", "Schedule-Free": "schedule-free", "DoG": "dog"}


class Outcome(NamedTuple):
    """The result of one way to choose the rate in one setting.

    Attributes:
        cell: the setting, at the tuned rate.
        cost: loss / loss at the tuned rate − 1; infinite if a run diverged.
        lost: the part of the tuned rate's progress from the first loss that is not made; infinite if a run diverged.
            None if the held-out loss cannot be compared with the first loss, because it is higher even at the tuned
            rate (a policy gradient's surrogate loss).
        rate: rate / tuned rate; None for an optimizer that needs no rate.
    """

    cell: Cell
    cost: float
    lost: float | None
    rate: float | None


def outcomes(rows: Rows, grid: Grid, way: str) -> Iterator[Outcome]:
    """The outcome in every setting.

    Args:
        rows: rows of the study.
        grid: of the tasks that the search was found on, or that judge it; with AdamW alone for what replaces it.
        way: "search", "common", or the name of an optimizer that needs no rate.
    """
    for cell in grid.cells(rows):

        def mean(lr: float, schedule: str, name: str = cell.optimizer, cell: Cell = cell) -> float:
            return mean_loss(rows.losses(PART, Cell(cell.task, name, cell.steps, lr), schedule, SEEDS), SEEDS)

        if way == "search":
            here = Cell(cell.task, cell.optimizer, cell.steps, GUESS)
            found = [run["peak"] for run in rows.runs(PART, here, AUTO, SEEDS).values()]
            rate, loss = statistics.geometric_mean(found) / cell.lr, mean(GUESS, AUTO)
        elif way == "common":
            rate, loss = COMMON[cell.optimizer] / cell.lr, mean(COMMON[cell.optimizer], DEFAULT)
        else:
            rate, loss = None, mean(WITHOUT_RATE[way], "own", way)
        tuned = mean(cell.lr, DEFAULT)
        first = statistics.fmean(run["first_loss"] for run in rows.runs(PART, cell, DEFAULT, SEEDS).values())
        lost = (loss - tuned) / (first - tuned) if first > tuned else None
        yield Outcome(cell, loss / tuned - 1, lost, rate)


def peak_table(rows: Rows) -> str:
    """CSV: the cost of each way to choose the rate, on the tasks that judge the search and on those it was found on.

    A horizon is left out until all its runs are made.
    """
    auto, every = '`peak="auto"`', JUDGED.optimizers
    ways = {auto: ("search", every), f"{auto}, for AdamW": ("search", ("adamw",)),
            "one rate for all tasks": ("common", every),
            **{f"{name}, for AdamW": (way, ("adamw",)) for name, way in _INSTEAD.items()}}  # fmt: skip
    lines = []
    for group, grid in (("judged", JUDGED), ("found on", FOUND_ON)):
        for steps in grid.horizons:
            with suppress(LabError):  # its runs are not all made
                found = {
                    name: list(outcomes(rows, dataclasses.replace(grid, horizons=(steps,), optimizers=some), way))
                    for name, (way, some) in ways.items()
                }
                lines += [[f"{group}, {steps}", name, *_summary(some)] for name, some in found.items()]
    headings = ["tasks, updates", "rate by", "settings", "within 3 times", "progress lost: mean (worst)",
                "higher loss, median", "diverged"]  # fmt: skip
    return comma_separated(headings, lines)


def write_peak_table(rows: Rows, root: Path) -> list[Path]:
    """Write the table into docs/ and return its path.

    Args:
        rows: rows of the study, which may be incomplete.
        root: root of the repository.
    """
    path = root / "docs" / "data" / "tables" / "peak-rates.csv"
    write_atomically(path, peak_table(rows))
    return [path]


def _summary(some: Sequence[Outcome]) -> list[str]:
    finite = [one for one in some if math.isfinite(one.cost)]
    rates = [one.rate for one in some if one.rate is not None]
    near = f"{100 * statistics.fmean(1 / 3 <= rate <= 3 for rate in rates):.0f} %" if rates else ""
    shown = ["", ""]
    if finite:
        lost, cost = [one.lost for one in finite if one.lost is not None], [one.cost for one in finite]
        shown = [
            f"{100 * statistics.fmean(lost):.1f} % ({100 * max(lost):.0f} %)",
            f"{100 * statistics.median(cost):.0f} %",
        ]
    return [str(len(some)), near, *shown, str(len(some) - len(finite))]
