"""The realistic bed: rates of their own for each length, and the settings of its runs."""

from contextlib import suppress

from autowarm.lab.config import LabError
from studies.plans import lag, realistic
from studies.rows import PlannedRow, Rows
from studies.runs import run_of

from ..conftest import row_of, stored, whole


def made(planned: PlannedRow) -> dict[str, object]:
    """The longer the warm-up, the higher the best rate."""
    cell, share = planned.cell, 0.0 if planned.schedule == "default" else float(planned.schedule.split()[1])
    grid = realistic.RATES[cell.optimizer]
    best = grid[2 if share < 0.2 else 3]
    return row_of(planned, 2.0 + abs(grid.index(cell.lr) - grid.index(best)) + share)


def test_each_length_is_tested_at_the_rate_that_is_best_for_it() -> None:
    stages = realistic.STAGES
    rows, _ = whole(stages, made)
    for optimizer in realistic.OPTIMIZERS:
        for steps in (4_000, 16_000):
            assert realistic.best_rate(rows, optimizer, steps, "linear 0") == realistic.RATES[optimizer][2]
            assert realistic.best_rate(rows, optimizer, steps, "linear 0.4") == realistic.RATES[optimizer][3]
    longest = [planned for planned in stages["tuning-64000"](rows) if planned.schedule == "linear 0.4"]
    assert [planned.cell.lr for planned in longest if planned.cell.optimizer == "muon"] == [0.01, 0.03]
    assert {planned.seed for planned in stages["tested-16000"](rows)} == set(realistic.TEST_SEEDS)


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


def test_shorter_averages_run_at_the_rates_that_were_tuned_for_the_default() -> None:
    rows = stored("realistic")
    for steps in lag.LENGTHS:
        for run in lag.runs(steps):
            tuned = realistic.best_rate(rows, run.cell.optimizer, steps, "default")
            assert run.cell.lr in (tuned, float(f"{3 * tuned:.3g}"))
            config = run_of(run)
            assert (config.steps, config.clip) == (steps, 1.0)
            assert 0.0 < config.schedule.options["smoothing"] <= 0.05
    assert [run_of(run).clip for run in lag.UNCLIPPED] == [0.0] * 4
    assert [len(stage(Rows())) for stage in lag.STAGES.values()] == [24, 8, 4]
