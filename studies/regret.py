"""Judges warm-ups by one measure: regret as a share of the progress that the best of them makes.

    python -m studies.regret --root .

Regret is the mean loss over the seeds less that of the best hand-set warm-up, over the first loss less that best loss.
A run that diverged has made no progress. Two tables: over the settings of 1,000 updates and more, on the seeds that
choose the best hand-set warm-up; and over the realistic bed, where each warm-up has a peak rate of its own.
"""

import argparse
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from autowarm.lab.analysis.markdown import comma_separated

from .cells import DEFAULT, FAIR, SEEDS
from .plans import realistic
from .rows import Cell, PlannedRow, Row, Rows

DATA = Path("docs/data")
LEAST = (1_000, 4_000, 16_000)  # updates; each column holds the settings of so many and more
EARLIER = "earlier default"  # Δ' calibrated from κ, half of the run at most, a test of noise
CHOICES: Mapping[str, str] = {
    DEFAULT: "the default",
    EARLIER: "the earlier default (Δ' calibrated)",
    "share 0.31": "Δ' = 0.31·Δ0",
    "share 0.5 average 0.03": "averaged over 3 % of T",
    "linear 0": "no warm-up",
    **{f"linear {share:g}": f"{100 * share:g} % of the run" for share in (0.02, 0.05, 0.1, 0.2, 0.4)},
    "tenth 0.4": "40 %, from a tenth of the peak",
    "tenth 0.5": "half, from a tenth of the peak",
}
"""What the tables compare, by the study's names of schedules."""

Regrets = Mapping[str, float]
"""The regret of each choice in one setting, in percent of the progress."""


def main(argv: Sequence[str] | None = None) -> None:
    """Write the tables below the root."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: the current folder)")
    data = parser.parse_args(argv).root / DATA
    for name, text in texts(data).items():
        path = data / "tables" / f"{name}.csv"
        path.write_text(text)
        print(path)


def texts(data: Path) -> dict[str, str]:
    """The tables by name."""
    bed = Rows.load(data / "studies" / "realistic.jsonl")
    judged = {cell: found for cell, found in stored(data).items() if DEFAULT in found}
    return {"regret": _table(judged, LEAST), "realistic": _bed_table(bed)}


def stored(data: Path) -> dict[Cell, Regrets]:
    """The regrets in the stored settings of 1,000 updates and more, from the rows that chose the best warm-up."""
    rows = Rows(
        {**row, "schedule": EARLIER} if row["schedule"] == DEFAULT and name != "rule" else row
        for name in ("warm-up", "horizon", "rule")
        for row in Rows.load(data / "studies" / f"{name}.jsonl")
    )
    found = {}
    for cell in _cells(rows, "cells", EARLIER):
        seeds = [seed for seed in SEEDS.choice if seed in rows.runs("cells", cell, EARLIER)]
        if cell.steps >= min(LEAST):
            found[cell] = regrets(rows, "cells", cell, seeds, FAIR)
    return found


def _cells(rows: Rows, part: str, schedule: str) -> list[Cell]:
    """The settings in which this schedule was run."""
    runs = map(PlannedRow.of, rows)
    return sorted({run.cell for run in runs if (run.part, run.schedule) == (part, schedule)})


def regrets(rows: Rows, part: str, cell: Cell, seeds: Sequence[int], hand_set: Iterable[str]) -> Regrets:
    """The regret of each of `CHOICES` that was run on all these seeds; the best is that of the hand-set warm-ups."""
    first = statistics.fmean(row["first_loss"] for row in rows.runs(part, cell, "linear 0.1", seeds).values())
    means = {name: _mean(rows, part, cell, name, seeds, first) for name in {*hand_set, *CHOICES}}
    best = min(mean for name in hand_set if (mean := means[name]) is not None)
    return {name: 100 * (mean - best) / (first - best) for name, mean in means.items() if mean is not None}


def _mean(rows: Rows, part: str, cell: Cell, schedule: str, seeds: Sequence[int], first: float) -> float | None:
    losses = rows.losses(part, cell, schedule)
    if not all(seed in losses for seed in seeds):
        return None
    return statistics.fmean(first if math.isinf(losses[seed]) else losses[seed] for seed in seeds)


def _table(found: Mapping[Cell, Regrets], least: Sequence[int]) -> str:
    """A row for each choice that was run in every setting: the mean and the worst regret, by the length of the run."""
    longer = {steps: [regret for cell, regret in found.items() if cell.steps >= steps] for steps in least}
    groups = {steps: some for steps, some in longer.items() if some}
    headings = ["warm-up", *(f"T ≥ {steps:,}: {len(some)} settings, {what}" for steps, some in groups.items()
                             for what in ("mean %", "worst %"))]  # fmt: skip
    lines = [
        [words, *(cell for some in groups.values() for cell in mean_and_worst([one.get(name) for one in some]))]
        for name, words in CHOICES.items()
        if any(name in one for one in found.values())
    ]
    return comma_separated(headings, lines)


def mean_and_worst(regrets: Sequence[float | None]) -> tuple[str, str]:
    """The mean and the worst in text; dashes if a setting is missing."""
    known = [regret for regret in regrets if regret is not None]
    if not known or len(known) < len(regrets):
        return "–", "–"
    return f"{statistics.fmean(known):.2f}", f"{max(known):.1f}"


def bed(rows: Rows, steps: int) -> dict[str, Regrets]:
    """The regrets in the realistic bed after so many steps, by optimizer; empty where runs are missing."""
    found: dict[str, Regrets] = {}
    for optimizer in realistic.OPTIMIZERS:
        tested: dict[str, Mapping[int, Row]] = {}
        for name in {*realistic.HAND_SET, *CHOICES}:
            for cell in _cells(rows, realistic.PART, name):
                runs = rows.runs(realistic.PART, cell, name)
                if (cell.optimizer, cell.steps) == (optimizer, steps) and {*realistic.TEST_SEEDS} <= runs.keys():
                    tested[name] = {seed: runs[seed] for seed in realistic.TEST_SEEDS}
        if not {*realistic.HAND_SET} <= tested.keys():
            return {}
        first = statistics.fmean(row["first_loss"] for row in tested["linear 0"].values())
        losses = {
            name: statistics.fmean(first if row["diverged"] else row["val_loss"] for row in runs.values())
            for name, runs in tested.items()
        }
        best = min(losses[name] for name in realistic.HAND_SET)
        found[optimizer] = {name: 100 * (loss - best) / (first - best) for name, loss in losses.items()}
    return found


def _bed_table(rows: Rows) -> str:
    lines = []
    for steps in (4_000, 16_000):
        if not (found := bed(rows, steps)):
            continue
        for name, words in CHOICES.items():
            each = [found[optimizer].get(name) for optimizer in realistic.OPTIMIZERS]
            if None not in each:
                lines.append([f"{steps:,}", words, *(f"{regret:.2f}" for regret in each), *mean_and_worst(each)])
    return comma_separated(["T", "warm-up", *realistic.OPTIMIZERS, "mean %", "worst %"], lines)


if __name__ == "__main__":
    main()
