"""The stages build on each other, plan each run once, and keep the seeds that choose from those that judge."""

from typing import Any

import pytest

from autowarm.lab.config import LabError
from studies.cells import FAMILIES, HAND_SET, cells
from studies.plans.warm_up import STAGES, missing
from studies.rows import PlannedRow, Rows
from studies.tasks import TASKS

from ..conftest import made_up, stored, whole


def test_the_stored_runs_are_those_that_the_stages_plan_each_once() -> None:
    rows, every = stored("warm-up"), set()
    for stage in STAGES.values():
        planned = stage(rows)
        assert len(planned) == len(set(planned)) > 0
        assert {run.cell.task for run in planned} <= set(TASKS) == set(FAMILIES)
        every |= set(planned)
    assert every == {*map(PlannedRow.of, rows)}


def test_no_stage_but_the_first_two_can_be_planned_without_the_ones_before(study: Rows) -> None:
    assert STAGES["tuning"](Rows()) == missing(Rows())
    with pytest.raises(LabError, match=r"has not been run under 'linear 0.1' with the seeds \[100\].*in their order"):
        STAGES["hand"](Rows())
    with pytest.raises(LabError, match=r"has not been run under 'linear 0' with the seeds \[0, 1\].*in their order"):
        STAGES["compare"](Rows(row for row in study if row["part"] == "tuning"))
    tuned = Rows(row for row in study if row["part"] == "tuning")
    assert missing(tuned) == STAGES["hand"](tuned)


def test_algorithm_1_is_told_a_target_below_the_best_loss_and_left_out_where_all_diverged(study: Rows) -> None:
    for run in STAGES["paper"](study):
        losses = [study.losses("cells", run.cell, schedule) for schedule in HAND_SET]
        assert run.target_loss == pytest.approx(0.95 * min((x[0] + x[1]) / 2 for x in losses))
    lost = cells(study)[-1]

    def make(run: PlannedRow) -> dict[str, Any]:
        return {**made_up(run), "diverged": run.cell == lost and run.schedule in HAND_SET and run.seed < 10}

    told = STAGES["paper"](whole(make=make)[0])
    assert {run.cell for run in told} == set(cells(study)) - {lost}


def test_a_stage_that_was_interrupted_goes_on(study: Rows) -> None:
    """Wherever that was: the stages so far can be planned, and the end is the same."""
    every = list(study)
    for made in (2800, 3600, len(every) - 1):  # in "compare", between a cell's runs of "paper", before the last run
        planned = [run for stage in STAGES.values() for run in stage(study)][:made]
        some = Rows(study[run] for run in planned)
        assert missing(some)
        assert list(whole(rows=some)[0]) == every
