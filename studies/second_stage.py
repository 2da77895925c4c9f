"""Whether a second stage makes `find_rate` better: short runs at a third, once and three times its suggestion.

    python -m studies.second_stage            make what is left, one run at a time, and store a row as each finishes
    python -m studies.second_stage --list     say what is left

For every stored search on the tasks that the search was developed on, three runs of a twentieth of the updates (20 at
least) follow the default at those rates, from the same weights, and the rate with the lowest mean training loss over
the last quarter is chosen. Whole runs at the suggestion, at the chosen rate and at the tuned one then judge on another
seed. About one CPU-hour.

Written before the first run: the loss of a suggestion is its final loss less that at the tuned rate, as a share of the
progress at the tuned rate. The second stage is kept if the mean loss over the searches is at most half of that without
it, and the worst is not worse. Otherwise the page says for which runs a suggestion is only a start.
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.rate import RateSearch

from .cells import DEFAULT
from .in_process import go_on
from .pages.which_rate import SEARCHES, tuned_rates
from .rows import Cell, PlannedRow, Row, Rows
from .runs import curve_of
from .shapes import made as whole_run
from .statistics import regret

DATA = Path("docs/data")
ROWS = DATA / "studies" / "second-stage.jsonl"
SHORT, WHOLE = "short", "whole"
FACTORS, SEED, JUDGE = (1 / 3, 1.0, 3.0), 0, 40


class Search(NamedTuple):
    """A stored search that found a rate, and the rate that was tuned."""

    task: str
    optimizer: str
    steps: int
    suggestion: float
    tuned: float

    def run(self, part: str, lr: float) -> PlannedRow:
        """A run at this rate: a short one of the second stage, or a whole one that judges."""
        steps, seed = (max(20, self.steps // 20), SEED) if part == SHORT else (self.steps, JUDGE)
        return PlannedRow(part, Cell(self.task, self.optimizer, steps, float(f"{lr:.3g}")), DEFAULT, seed)

    @property
    def short(self) -> list[PlannedRow]:
        """The runs of the second stage."""
        return [self.run(SHORT, factor * self.suggestion) for factor in FACTORS]

    def chosen(self, rows: Rows) -> float:
        """The rate that the second stage chooses."""
        return min(self.short, key=lambda run: (_loss(rows, run), run.cell.lr)).cell.lr


def searches(data: Path = DATA) -> list[Search]:
    """The searches of the development tasks that found a rate."""
    tuned, found = tuned_rates(data), []
    for line in (data / "find-rate" / SEARCHES["developed on"]).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        losses = np.array([math.nan if x is None else x for x in row["losses"]], dtype=float)
        search = RateSearch(np.geomspace(1e-6, 100.0, 100)[: len(losses)], losses, row["broken"], row["horizon"])
        if search.reason is None:
            key = row["task"], row["opt"], row["horizon"]
            found.append(Search(*key, search.suggestion, tuned[key]))
    return found


def plan(rows: Rows, found: Sequence[Search]) -> list[PlannedRow]:
    """All runs that these rows allow to plan, search by search."""
    runs: dict[PlannedRow, None] = {}
    for search in found:
        runs |= dict.fromkeys([*search.short, search.run(WHOLE, search.suggestion), search.run(WHOLE, search.tuned)])
        if all(run in rows for run in search.short):
            runs[search.run(WHOLE, search.chosen(rows))] = None
    return [*runs]


def made(planned: PlannedRow) -> Row:
    """Make a run in this process; the loss of a short one is that of its last quarter."""
    if planned.part == WHOLE:
        return whole_run(planned)
    losses = [loss for _, loss in curve_of(planned)]
    last = statistics.fmean(losses[-(planned.cell.steps // 4) :]) if len(losses) == planned.cell.steps else math.inf
    finite = math.isfinite(last)
    return {
        "part": SHORT, "cell": vars(planned.cell), "schedule": DEFAULT, "seed": SEED, "first_loss": losses[0],
        "val_loss": last if finite else None, "diverged": not finite,
    }  # fmt: skip


def _loss(rows: Rows, run: PlannedRow) -> float:
    return rows.losses(run.part, run.cell, run.schedule, [run.seed])[run.seed]


def second_stage_table(rows: Rows, found: Sequence[Search]) -> str:
    """CSV: what the suggestions lose without the second stage and with it, over the searches whose runs are made."""
    lost: dict[str, list[float]] = {"suggestion": [], "after the second stage": []}
    for search in found:
        if not all(run in rows for run in plan(rows, [search])):
            continue
        tuned = search.run(WHOLE, search.tuned)
        for name, lr in zip(lost, (search.suggestion, search.chosen(rows)), strict=True):
            loss = _loss(rows, search.run(WHOLE, lr))
            lost[name].append(min(100.0, regret(loss, _loss(rows, tuned), rows[tuned]["first_loss"])))
    lines = [
        [name, len(some), f"{statistics.fmean(some):.2f}", f"{statistics.median(some):.2f}", f"{max(some):.1f}",
         sum(x > 3 for x in some)]
        for name, some in lost.items() if some
    ]  # fmt: skip
    headings = ["rate", "searches", "progress lost, mean %", "median %", "worst %", "more than 3% lost in"]
    return comma_separated(headings, lines)


def main(argv: Sequence[str] | None = None, make: Callable[[PlannedRow], Row] = made) -> None:
    """Make the missing runs, or list them."""
    found = searches()
    print(second_stage_table(go_on(__doc__, argv, ROWS, lambda rows: plan(rows, found), make), found))


if __name__ == "__main__":
    main()
