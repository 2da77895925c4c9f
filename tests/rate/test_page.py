"""docs/which-rate.md against the stored searches and the rates that were tuned."""

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from autowarm.lab.study.rows import PlannedRow, Rows
from autowarm.rate import RateSearch

DOCS = Path(__file__).parents[2] / "docs"
DATA = DOCS / "data"
FOUND_ON, JUDGED_ON = "searches-development.jsonl", "searches.jsonl"


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


@pytest.mark.parametrize(
    ("name", "begins"), [(FOUND_ON, "| tasks it was found on"), (JUDGED_ON, "| tasks it was judged")]
)
def test_the_table(name: str, begins: str, tuned: dict[tuple[str, str, int], float]) -> None:
    ratios, held = compared(name, tuned)
    shares = [statistics.fmean(1 / most <= ratio <= most for ratio in ratios) for most in (3.0001, 5)]
    cells = [
        f"{len(ratios)} of {len(searches(name))}",
        *(f"{100 * x:.0f} %" for x in (*shares, statistics.fmean(held))),
    ]
    [line] = [line for line in (DOCS / "which-rate.md").read_text().splitlines() if line.startswith(begins)]
    assert [cell.strip() for cell in line.split("|")[2:-1]] == cells


def test_the_text(tuned: dict[tuple[str, str, int], float]) -> None:
    judged, found_on = compared(JUDGED_ON, tuned)[0], compared(FOUND_ON, tuned)[0]
    text = " ".join((DOCS / "which-rate.md").read_text().split())
    assert f"the median is {statistics.median(judged):.2f} times the tuned rate" in text
    assert max(judged) <= 1.3
    assert f"{max(found_on):.0f} times the tuned rate" in text
