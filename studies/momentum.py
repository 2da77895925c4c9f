"""Whether a warm-up of the momentum pays beside that of the rate, under Muon and Lion.

    python -m studies.momentum            make what is left, one run at a time, and store a row as each finishes
    python -m studies.momentum --list     say what is left

24 runs of the default on the small task lm-small, at the rates tuned for 1,000 updates: Muon and Lion, 1,000 and
4,000 updates, three seeds, without and with a momentum that warms up. Its first value remembers a third as many updates
as the optimizer's own: 0.85 to 0.95 for Muon's momentum, 0.7 to 0.9 for Lion's first β. About fifteen CPU-minutes.

Written before the first run: a momentum's warm-up gains the loss without it, less the loss with it on the same seed, as
a share of the progress without it. It pays if the mean over the twelve pairs is more than two standard errors above
zero and no setting loses more than 0.5% in the mean. It costs if the mean is more than two standard errors below zero.
Otherwise the page says that no difference was found.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.analysis.statistics import Estimate

from .cells import DEFAULT
from .in_process import go_on, trained
from .rows import Cell, PlannedRow, Row, Rows
from .runs import run_of
from .statistics import regret

PART, TASK, SEEDS = "momentum", "lm-small", (20, 21, 22)
TUNED = {"muon": 0.01, "lion": 0.001}
VALUES = {"muon": (0.85, 0.95), "lion": (0.7, 0.9)}  # the second is what the studies' optimizers have all along
CELLS = tuple(Cell(TASK, optimizer, steps, lr) for steps in (1_000, 4_000) for optimizer, lr in TUNED.items())
WARMED = "momentum"
ROWS = Path("docs/data/studies/momentum.jsonl")


def plan() -> list[PlannedRow]:
    """All runs, seed by seed, so that a part of them is a complete design."""
    return [PlannedRow(PART, cell, name, seed) for seed in SEEDS for cell in CELLS for name in (DEFAULT, WARMED)]


def made(planned: PlannedRow) -> Row:
    """Make a run, without or with the momentum's warm-up."""
    config = run_of(replace(planned, schedule=DEFAULT))
    if planned.schedule == WARMED:
        config.schedule.options["momentum"] = list(VALUES[planned.cell.optimizer])
    return trained(planned, config)


def gains(rows: Rows, cells: Sequence[Cell] = CELLS) -> Estimate:
    """What the momentum's warm-up gains on each seed of these settings, in percent of the progress without it."""

    def gain(cell: Cell, seed: int) -> float:
        without, with_it = (rows.losses(PART, cell, name, [seed])[seed] for name in (DEFAULT, WARMED))
        return -regret(with_it, without, rows.first_loss(PART, cell, DEFAULT, [seed]))

    return Estimate(tuple(gain(cell, seed) for cell in cells for seed in SEEDS))


def momentum_table(rows: Rows) -> str:
    """CSV: for each setting, and for all, what the momentum's warm-up gains."""
    lines: list[list[Any]] = []
    for cell in CELLS:
        first, last = VALUES[cell.optimizer]
        loss = statistics.fmean(rows.losses(PART, cell, DEFAULT, SEEDS).values())
        gain = gains(rows, [cell])
        lines.append([cell.optimizer, cell.steps, f"{first} to {last}", f"{loss:.4f}",
                      f"{gain.mean:+.2f} ± {gain.stderr:.2f}"])  # fmt: skip
    every = gains(rows)
    lines.append(["all", "", "", "", f"{every.mean:+.2f} ± {every.stderr:.2f}"])
    return comma_separated(["optimizer", "updates", "momentum", "loss without", "gained, % of the progress"], lines)


def main(argv: Sequence[str] | None = None, make: Callable[[PlannedRow], Row] = made) -> None:
    """Make the missing runs, or list them."""
    rows = go_on(__doc__, argv, ROWS, lambda _: plan(), make)
    if all(run in rows for run in plan()):
        print(momentum_table(rows))


if __name__ == "__main__":
    main()
