"""Every study: each stage follows from the rows of those before it."""

import pytest

from studies.plans import STUDIES, horizon
from studies.rows import PlannedRow
from studies.runs import run_of

from ..conftest import row_of, whole


def made(planned: PlannedRow) -> dict[str, object]:
    """A made-up result: a rate near 0.01 is the best, and so is 10 % from a tenth of the peak."""
    return row_of(planned, 3.0 + abs(planned.cell.lr - 0.0101) + (planned.schedule != "tenth 0.1"))


@pytest.mark.parametrize("name", STUDIES)
def test_the_stages_are_planned_in_their_order_and_end(name: str) -> None:
    stages = STUDIES[name]
    rows, rounds = whole(stages, made)
    assert rounds == len(stages)
    planned = {run for stage in stages.values() for run in stage(rows)}
    assert planned == {PlannedRow.of(row) for row in rows}
    for run in planned:
        run_of(PlannedRow("cells", run.cell, "linear 0.1", 0))  # a config that is accepted


def test_rates_starts_and_targets_follow_from_the_rows() -> None:
    rows, _ = whole(horizon.STAGES, made)
    assert {cell.lr for cell in horizon.SHORT.cells(rows)} == {0.01}
    tried = {run.cell.lr for run in horizon.LONG.tuning(rows) if run.cell.optimizer == "muon"}
    assert tried == {0.003, 0.01, 0.03}
    assert {run.schedule for run in horizon.SHORT.tested(rows)} == {"tenth 0.1"}
    best = min(row["val_loss"] for row in rows if row["part"] == "cells")
    assert {run.target_loss for run in horizon.LONG.paper(rows)} == {0.95 * best}
