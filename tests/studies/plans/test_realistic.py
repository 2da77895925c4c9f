"""The realistic bed: its stored runs, and their settings. `test_command.py` says that no planned run is missing."""

from contextlib import suppress

from autowarm.lab.config import LabError
from studies.plans import realistic
from studies.rows import PlannedRow, Rows
from studies.runs import run_of

from ..conftest import stored


def test_its_runs_decay_weights_and_clip_gradients_and_others_do_not() -> None:
    planned = realistic.STAGES["tuning-4000"](Rows())[0]
    config = run_of(planned)
    assert (config.optimizer.weight_decay, config.clip) == (0.1, 1.0)
    other = run_of(PlannedRow("cells", planned.cell, planned.schedule, planned.seed))
    assert (other.optimizer.weight_decay, other.clip) == (0.0, 0.0)


def test_the_stored_rows_are_planned() -> None:
    rows = stored("realistic")
    made = {PlannedRow.of(row) for row in rows}
    ours = sorted({run.schedule for run in made} - {*realistic.HAND_SET})
    planned = set()
    every = realistic.stages_of((*realistic.HAND_SET, *ours), (*realistic.FEWER, *ours))
    for stage in (*every.values(), *realistic.STAGES.values()):
        with suppress(LabError):  # it is planned by rows that are not there yet
            planned |= {*stage(rows)}
    assert made <= planned
