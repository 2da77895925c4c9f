"""The study of faults: each happens when it should, and what it costs is counted."""

import math
import statistics

import pytest
import torch

from studies.recovery.faults import (
    CELLS,
    LINEAR,
    LONG,
    NONE,
    SPIKE,
    Fault,
    _shuffled,
    batches,
    faults_table,
    lines,
    losses_of,
    lost,
    made,
)  # fmt: skip
from studies.rows import Cell, Rows
from studies.tasks import TASKS

from ..conftest import said, stored

SHORT = Cell("mlp", "adamw", 60, 0.01)


def test_a_fault_comes_in_the_middle_and_nothing_else_changes() -> None:
    recipe = TASKS["mlp"]
    healthy = list(batches(recipe, Fault(SHORT, NONE, False, 1)))
    assert {scale for _, scale in healthy} == {1.0}
    for what, changed, scale in (
        ("bad batch", [30], 100.0), ("ten bad batches", [*range(30, 40)], 100.0), ("NaN batch", [30], math.nan),
        ("corrupted data", [30, 40, 50], 1.0),
    ):  # fmt: skip
        found = list(batches(recipe, Fault(SHORT, what, True, 1)))
        assert [found[i][1] for i in changed] == pytest.approx([scale] * len(changed), nan_ok=True)
        for i, ((batch, factor), (same, _)) in enumerate(zip(found, healthy, strict=True)):
            assert torch.equal(batch[0], same[0])
            assert torch.equal(batch[1], same[1]) == (i not in changed or what == "NaN batch")
            assert i in changed or factor == 1.0
            assert torch.equal(batch[1].sort(0).values, same[1].sort(0).values)
    assert _shuffled((torch.arange(12).view(3, 4),))[0].shape == (3, 4)  # text


def test_a_run_without_a_fault_is_the_same_with_recovery() -> None:
    plain, watched = (made(Fault(SHORT, NONE, recovers, 3)) for recovers in (False, True))
    assert plain["val_loss"] == watched["val_loss"]
    assert plain["recoveries"] == watched["recoveries"] == []


@pytest.mark.parametrize("schedule", ["default", LINEAR])
def test_recovery_saves_a_run_from_a_nan_batch(schedule: str) -> None:
    dead, saved = (made(Fault(SHORT, "NaN batch", recovers, 3, schedule)) for recovers in (False, True))
    assert dead["diverged"]
    assert saved["val_loss"] < saved["first_loss"]
    assert len(saved["recoveries"]) == 1


def test_a_line_whose_runs_are_not_all_made_is_left_out() -> None:
    rows = stored("faults")
    missing = Rows(row for row in rows if row["cell"] != vars(LONG[0]))
    shown = [line for line in faults_table(rows).splitlines() if "16,000" not in line]
    assert faults_table(missing).splitlines() == shown


def test_what_the_page_says_of_the_stored_runs() -> None:
    rows = stored("faults")
    table = lines(rows)
    for what in ("bad batch", "ten bad batches", "NaN batch"):  # the criterion, written before the runs
        costs = [lost(rows, run) for run in table[what] if run.recovers]
        assert len(costs) == len(CELLS)
        assert statistics.fmean(costs) <= 3.0
        assert max(costs) <= 6.0
    hot = [run for label, runs in table.items() if label.startswith(("rate × 10", "rate × 30")) for run in runs]
    before, after = (sum(lost(rows, run) > 50.0 for run in hot if run.recovers == how) for how in (False, True))
    assert round(10 * (1 - after / before)) == 6
    assert "six in ten of those that a rate ten or thirty times too high ruins" in said("recovery.md")
    corrupted = ([lost(rows, run) for run in table["corrupted data"] if run.recovers == how] for how in (True, False))
    assert next(corrupted) == next(corrupted)


def test_the_picture_shows_the_setting_that_is_nearest_to_the_mean() -> None:
    rows = stored("faults")
    runs = lines(rows)["bad batch"]
    costs = {run.cell: lost(rows, run) for run in runs if not run.recovers}
    mean = statistics.fmean(costs.values())
    assert SPIKE[0].cell == min(costs, key=lambda cell: abs(costs[cell] - mean))
    bare, recovered = (lost(rows, run) for run in runs if run.cell == SPIKE[0].cell)
    assert f"costs {bare:.1f}% of the progress, and {recovered:.1f}% with recovery" in said("recovery.md")


def test_the_losses_of_a_run_are_those_of_its_row() -> None:
    run = Fault(SHORT, "bad batch", False, 3)
    losses, recoveries = losses_of(run)
    assert recoveries == []
    assert losses[0] == made(run)["first_loss"]
    assert max(range(60), key=losses.__getitem__) == 30
