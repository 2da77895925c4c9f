"""How much of a long warm-up is the lag of the average, and whether a shorter average is as good. Planned beforehand.

The default averages the loss over 5 % of the run ("average 0.05"), so that one lucky batch decides nothing; over 16,000
updates that is 800, over 64,000 it is 3,200, and more than half of the warm-up is their lag. "average 250" is the
default with an average over 250 updates, as in a run of 5,000. In the realistic bed (`realistic`), Muon and AdamW run
16,000 updates at the rates tuned for the default and at three times those, on two seeds, and 64,000 at the tuned rates
on one; about two CPU-hours.

Judged by a rule written before the first run: the cost of an average is its loss less that of 5 % on the same seed, as
a share of the latter's progress. The shortest average whose mean cost over the six settings is at most 0.1 %, and which
costs no setting more than 0.5 %, becomes the bound of the default's average; if none is, 5 % stays.

The rule accepts 250 updates, and yet 5 % stays. The realistic bed clips gradients, and the rows of `horizon`, without
clipping or weight decay, show that over 64,000 updates a hand-set warm-up of 1,280 is far worse than one of 6,400. So
the stage "unclipped", added after the verdict, runs two settings of `horizon` on the seed that chose there: 250 and 500
updates cost them 0.2 to 1.5 % of the progress. No default may cost that where it is not watched.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from autowarm.lab.analysis.markdown import comma_separated

from ..rows import Cell, PlannedRow, Rows
from ..statistics import regret
from .realistic import PART, TASK
from .warm_up import Stage

TUNED = {"muon": 0.003, "adamw": 0.01}
"""The rates that the realistic bed tuned for the default, over 16,000 updates as over 64,000."""
SEEDS = (50, 51)
AVERAGES = (250, 500, 1_000)  # updates; over 16,000 the last is longer than 5 %
SHARE, SHORT = "average 0.05", "average 250"  # the default's, and the one that the rule accepts
LENGTHS = (16_000, 64_000)


def settings(steps: int) -> list[Cell]:
    """The settings of a length: at the tuned rates, and over 16,000 updates at three times those."""
    return [
        Cell(TASK, optimizer, steps, float(f"{factor * lr:.3g}"))
        for factor in ((1, 3) if steps == 16_000 else (1,))
        for optimizer, lr in TUNED.items()
    ]


def names(steps: int) -> list[str]:
    """The schedules of a length: an average over 5 % of the run, and each that is shorter."""
    return [SHARE, *(f"average {updates}" for updates in AVERAGES if updates < 0.05 * steps)]


def runs(steps: int) -> list[PlannedRow]:
    """All runs of a length, seed by seed."""
    return [
        PlannedRow(PART, cell, name, seed)
        for seed in _seeds(steps)
        for cell in settings(steps)
        for name in names(steps)
    ]


def _seeds(steps: int) -> Sequence[int]:
    return SEEDS if steps == 16_000 else SEEDS[:1]


def costs(rows: Rows, cell: Cell) -> Mapping[str, float]:
    """What each average costs more than 5 % of the run, in percent of the progress, in the mean over the seeds.

    Raises:
        LabError: a run is missing.
    """
    seeds = _seeds(cell.steps)
    ours = rows.runs(PART, cell, SHARE, seeds)
    found = {}
    for name in names(cell.steps)[1:]:
        theirs = rows.losses(PART, cell, name, seeds)
        each = (regret(theirs[seed], row["val_loss"], row["first_loss"]) for seed, row in ours.items())
        found[name] = statistics.fmean(each)
    return found


def warm_ups(rows: Rows, steps: int, name: str) -> Iterator[float]:
    """How long the warm-ups of a schedule are in each setting of a length, as shares of the run."""
    for cell in settings(steps):
        yield (
            statistics.fmean(row["warmup_steps"] for row in rows.runs(PART, cell, name, _seeds(steps)).values()) / steps
        )


def lag_table(rows: Rows) -> str:
    """CSV: what each average costs in each setting, and how long the warm-ups are."""
    lines, every = [], [cell for steps in LENGTHS for cell in settings(steps)]
    by_cell = {cell: costs(rows, cell) for cell in every}
    for cell, found in by_cell.items():
        for name in names(cell.steps):
            lengths = [row["warmup_steps"] for row in rows.runs(PART, cell, name, _seeds(cell.steps)).values()]
            cost = "" if name == SHARE else f"{found[name]:+.2f}"
            lines.append([f"{cell.steps:,}", cell.optimizer, f"{cell.lr:g}", name, f"{statistics.fmean(lengths):,.0f}",
                          cost])  # fmt: skip
    for name in names(64_000)[1:]:
        some = [found[name] for found in by_cell.values() if name in found]
        lines.append([f"all {len(some)} settings", "", "", name, "",
                      f"{statistics.fmean(some):+.2f} (at most {max(some):+.2f})"])  # fmt: skip
    return comma_separated(["T", "optimizer", "peak rate", "warm-up", "its length", "cost, % of the progress"], lines)


def bound(rows: Rows) -> int | None:
    """The shortest average that the rule accepts; None if there is none."""
    found = [costs(rows, cell) for steps in LENGTHS for cell in settings(steps)]
    for updates in AVERAGES:
        some = [one[f"average {updates}"] for one in found if f"average {updates}" in one]
        if statistics.fmean(some) <= 0.1 and max(some) <= 0.5:
            return updates
    return None


UNCLIPPED = [
    PlannedRow("cells", Cell(TASK, optimizer, 64_000, lr), f"average {updates}", 0)
    for optimizer, lr in {"adamw": 0.01, "lion": 0.001}.items()
    for updates in AVERAGES[:2]
]


def unclipped(rows: Rows, horizon: Rows) -> Mapping[tuple[str, str], float]:
    """What a shorter average costs more than 5 % of the run without clipping, by optimizer and average."""
    found = {}
    for run in UNCLIPPED:
        theirs = horizon.losses("cells", run.cell, "default", [run.seed])[run.seed]
        found[run.cell.optimizer, run.schedule] = regret(float(rows[run]["val_loss"]), theirs, rows[run]["first_loss"])
    return found


STAGES: dict[str, Stage] = {
    "16000": lambda _: runs(16_000), "64000": lambda _: runs(64_000), "unclipped": lambda _: UNCLIPPED
}  # fmt: skip
