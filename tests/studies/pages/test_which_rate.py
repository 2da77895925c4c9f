"""docs/which-rate.md against the stored searches and the rates that were tuned."""

import csv
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autowarm.rate import RateSearch
from studies.cells import AUTO, GUESS
from studies.pages.peak import outcomes
from studies.plans import horizon, peak
from studies.plans.grid import Grid
from studies.rows import Cell, PlannedRow, Rows

DOCS = Path(__file__).parents[3] / "docs"
DATA = DOCS / "data"
DEVELOPED_ON, JUDGED_ON = "searches-development.jsonl", "searches.jsonl"


@pytest.fixture(scope="module")
def tuned() -> dict[tuple[str, str, int], float]:
    """The rate of lowest loss by task, optimizer and steps; of two equally good ones the lower."""
    files = (DATA / "studies" / "warm-up.jsonl", DATA / "find-rate" / "tuned.jsonl")
    best: dict[tuple[str, str, int], tuple[float, float]] = {}
    for row in (row for path in files for row in Rows.load(path)):
        run = PlannedRow.of(row)
        if (run.part, run.schedule) == ("tuning", "linear 0.1"):
            key = run.cell.task, run.cell.optimizer, run.cell.steps
            loss = math.inf if row["diverged"] else row["val_loss"]
            best[key] = min(best.get(key, (math.inf, math.inf)), (loss, run.cell.lr))
    return {key: lr for key, (_, lr) in best.items()}


def searches(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / "find-rate" / name).read_text().splitlines()]


def found_in(one: dict) -> RateSearch:
    """What the stored losses suggest for a run as long as those that were tuned."""
    losses = np.array([math.nan if x is None else x for x in one["losses"]], dtype=float)
    return RateSearch(np.geomspace(1e-6, 100.0, 100)[: len(losses)], losses, one["broken"], one["horizon"])


def compared(name: str, tuned: dict[tuple[str, str, int], float]) -> tuple[list[float], list[bool]]:
    """Rate found over rate tuned, and whether the interval holds the tuned one, of the searches that found one."""
    ratios, held = [], []
    for one in searches(name):
        found = found_in(one)
        if found.reason is None:
            best = tuned[one["task"], one["opt"], one["horizon"]]
            ratios.append(found.suggestion / best)
            held.append(found.interval[0] <= best <= found.interval[1])
    return ratios, held


@pytest.mark.parametrize(("name", "kind"), [(DEVELOPED_ON, "developed on"), (JUDGED_ON, "judged on")])
def test_the_table(name: str, kind: str, tuned: dict[tuple[str, str, int], float]) -> None:
    ratios, held = compared(name, tuned)
    shares = [statistics.fmean(1 / most <= ratio <= most for ratio in ratios) for most in (3.0001, 5)]
    cells = [
        f"{len({one['task'] for one in searches(name)})} that it was {kind}",
        f"{len(ratios)} of {len(searches(name))}",
        *(f"{100 * x:.0f}%" for x in (*shares, statistics.fmean(held))),
    ]
    with open(DATA / "tables" / "find-rate.csv", newline="") as file:
        assert cells in list(csv.reader(file))


def test_the_text(tuned: dict[tuple[str, str, int], float]) -> None:
    judged, developed_on = compared(JUDGED_ON, tuned)[0], compared(DEVELOPED_ON, tuned)[0]
    text = " ".join((DOCS / "which-rate.md").read_text().split())
    assert f"the median is {statistics.median(judged):.2f} times the tuned rate" in text
    assert max(judged) <= 1.3
    assert f"{max(developed_on):.0f} times the tuned rate" in text


DEVELOPED_ON_GRIDS = [peak.DEVELOPED_ON, *peak.LARGER]


def progress_lost(
    rows: Rows, grids: Sequence[Grid], steps: int, optimizers: Sequence[str], way: str
) -> dict[Cell, float]:
    """The part of the progress that is lost, by setting."""
    return {
        one.cell: one.lost
        for grid in grids
        if steps in grid.horizons
        for name in optimizers
        if name in grid.optimizers
        for one in outcomes(rows, replace(grid, horizons=(steps,), optimizers=(name,)), way)
        if one.lost is not None
    }


def test_the_text_on_the_search_inside_a_run() -> None:
    rows, text = Rows.load(DATA / "studies" / "peak.jsonl"), " ".join((DOCS / "which-rate.md").read_text().split())
    short, long = (list(outcomes(rows, replace(peak.JUDGED, horizons=(steps,)), "search")) for steps in (200, 1000))
    means = [statistics.fmean(lost for one in some if (lost := one.lost) is not None) for some in (short, long)]
    worst = max((one for one in long if one.lost is not None), key=lambda one: one.lost or 0.0)
    assert f"**In 1,000 updates** it loses {100 * means[1]:.1f}% of the progress, search included, and " in text
    assert f"**in 200**, {100 * means[0]:.1f}% (Prodigy less, for AdamW)" in text
    assert f"and {100 * (worst.lost or 0.0):.1f}% at worst, under normSGD" in text
    assert (worst.cell.optimizer, means[0] > means[1]) == ("normsgd", True)
    for steps, task, sentence in (
        (200, "swin-x8", "it loses {:.1f}% in 200 updates ({:.1f}% at worst, on Swin)"),
        (1000, "post-norm", "and {:.1f}% in 1,000 ({:.1f}%, on a post-norm one)"),
    ):
        lost = progress_lost(rows, DEVELOPED_ON_GRIDS, steps, peak.DEVELOPED_ON.optimizers, "search")
        dearest = max(lost, key=lost.__getitem__)
        assert sentence.format(100 * statistics.fmean(lost.values()), 100 * lost[dearest]) in text
        assert dearest.task == task
    for grids, steps, prodigy_is_worse in (
        ([peak.JUDGED], 200, False),
        ([peak.JUDGED], 1000, True),
        (DEVELOPED_ON_GRIDS, 200, True),
        (DEVELOPED_ON_GRIDS, 1000, True),
    ):
        ours, theirs = (
            statistics.fmean(progress_lost(rows, grids, steps, ("adamw",), way).values())
            for way in ("search", "prodigy")
        )
        assert (theirs > ours) == prodigy_is_worse
    for some in (short, long):
        assert f"{statistics.median(one.rate or 0.0 for one in some if one.lost is not None):.2f}" == "0.47"
    near = [100 * statistics.fmean(1 / 3 <= (one.rate or 0.0) <= 3 for one in some) for some in (long, short)]
    near += [100 * statistics.fmean(1 / 3 <= (one.rate or 0.0) <= 3 for one in some if one.lost is not None)
             for some in (long, short)]  # fmt: skip
    assert (
        "only {:.0f} to {:.0f}% are within a factor of 3 ({:.0f} to {:.0f}% without the policy gradient)".format(*near)
    ) in text
    for cell in (one.cell for one in (*short, *long) if one.cell.task != "policy"):
        [seed, *_] = peak.SEEDS
        guesses = [Cell(cell.task, cell.optimizer, cell.steps, lr) for lr in (GUESS, *peak.GUESSES)]
        found = [rows.runs(peak.PART, at, AUTO, [seed])[seed]["peak"] for at in guesses]
        assert found == pytest.approx([found[0]] * len(found), rel=1e-12)


def test_the_text_on_longer_runs() -> None:
    rows = Rows.load(DATA / "studies" / "horizon.jsonl")
    assert "**In longer runs it costs less** (small LLaMAs, an earlier version" in (DOCS / "which-rate.md").read_text()
    for task in horizon.TASKS:
        means = []
        for grid in (horizon.SHORT, horizon.LONG, horizon.LONGEST):
            for steps in grid.horizons if task in grid.tasks else ():
                some = outcomes(rows, replace(grid, tasks=(task,), horizons=(steps,)), "search", "cells")
                lost = [one.lost or 0.0 for one in some]
                means.append(statistics.fmean(lost))
        assert len(means) >= 2
        assert max(means[1:]) < means[0]
