"""The study of faults: each happens when it should, and what it costs is counted."""

import math
import statistics

import pytest
import torch

from studies.beds import TASKS
from studies.recovery import (
    CELLS,
    LINEAR,
    LONG,
    NONE,
    Run,
    faults_table,
    faulty,
    lines,
    lost,
    make,
    plan,
)
from studies.rows import Cell, PlannedRow, Rows

from .conftest import stored

SHORT = Cell("mlp", "adamw", 60, 0.01)


def test_a_fault_comes_in_the_middle_and_nothing_else_changes() -> None:
    batches = [TASKS["mlp"].draw(1, step) for step in range(60)]
    for what, changed, scale in (
        (NONE, [], 1.0), ("bad batch", [30], 100.0), ("ten bad batches", [*range(30, 40)], 100.0),
        ("NaN batch", [30], math.nan), ("corrupted data", [30, 40, 50], 1.0), ("rate × 3", [], 1.0),
    ):  # fmt: skip
        torch.manual_seed(0)
        found = [faulty(batch, what, step, 60) for step, batch in enumerate(batches)]
        assert [found[i][1] for i in changed] == pytest.approx([scale] * len(changed), nan_ok=True)
        for i, ((batch, factor), same) in enumerate(zip(found, batches, strict=True)):
            assert torch.equal(batch[0], same[0])
            assert torch.equal(batch[1], same[1]) == (i not in changed or what == "NaN batch")
            assert i in changed or factor == 1.0
            assert torch.equal(batch[1].sort(0).values, same[1].sort(0).values)
    assert faulty((torch.arange(12).view(3, 4),), "bad batch", 0, 1)[0][0].shape == (3, 4)  # text


def test_a_run_without_a_fault_is_the_same_with_recovery() -> None:
    plain, watched = (make(Run(SHORT, NONE, recovers, 3)) for recovers in (False, True))
    assert plain["val_loss"] == watched["val_loss"]
    assert plain["recoveries"] == watched["recoveries"] == []


@pytest.mark.parametrize("schedule", ["default", LINEAR])
def test_recovery_saves_a_run_from_a_nan_batch(schedule: str) -> None:
    dead, saved = (make(Run(SHORT, "NaN batch", recovers, 3, schedule)) for recovers in (False, True))
    assert dead["diverged"]
    assert saved["val_loss"] < saved["first_loss"]
    assert len(saved["recoveries"]) == 1


def test_the_stored_rows_are_those_of_the_plan_and_a_line_whose_runs_are_not_all_made_is_left_out() -> None:
    rows = stored("faults")
    assert {run.planned for run in plan()} == {*map(PlannedRow.of, rows)}
    missing = Rows(row for row in rows if row["cell"] != vars(LONG[0]))
    shown = [line for line in faults_table(rows).splitlines() if "16,000" not in line]
    assert faults_table(missing).splitlines() == shown


def test_the_stored_runs_meet_what_was_written_before_them_but_at_hot_rates() -> None:
    rows = stored("faults")
    table = lines(rows)
    for what in ("bad batch", "ten bad batches", "NaN batch"):
        costs = [lost(rows, run) for run in table[what] if run.recovers]
        assert len(costs) == len(CELLS)
        assert statistics.fmean(costs) <= 3.0
        assert max(costs) <= 6.0
    hot = [run for label, runs in table.items() if label.startswith(("rate × 10", "rate × 30")) for run in runs]
    before, after = (sum(lost(rows, run) > 50.0 for run in hot if run.recovers == how) for how in (False, True))
    assert round(10 * (1 - after / before)) == 6
