"""The study of horizons: each stage follows from the rows of those before it."""

from autowarm.lab.study import horizon
from autowarm.lab.study.plan import missing
from autowarm.lab.study.rows import PlannedRow, Rows
from autowarm.lab.study.runs import run_of


def made(planned: PlannedRow) -> dict[str, object]:
    """A made-up result: the middle rate of each grid is the best, and so is 40 % from a tenth of the peak."""
    cell = planned.cell
    rates = horizon._GRID[cell.optimizer]
    loss = 3.0 + abs(rates.index(cell.lr) - 2) + (planned.schedule != "tenth 0.4")
    return {
        "part": planned.part, "cell": {"task": cell.task, "optimizer": cell.optimizer, "steps": cell.steps,
        "lr": cell.lr}, "schedule": planned.schedule, "seed": planned.seed, "val_loss": loss, "diverged": False,
    }  # fmt: skip


def test_the_stages_are_planned_in_their_order_and_end() -> None:
    rows, stages = Rows(), []
    while left := missing(rows, horizon.STAGES):
        stages.append(left)
        rows = Rows([*rows, *map(made, left)])
    assert len(stages) == len(horizon.STAGES)
    assert len({run for stage in stages for run in stage}) == len(rows)
    assert {run.cell.steps for run in rows_of(rows)} == {*horizon.HORIZONS, horizon.LONG}


def test_rates_starts_and_targets_follow_from_the_rows() -> None:
    rows = Rows()
    while left := missing(rows, horizon.STAGES):
        rows = Rows([*rows, *map(made, left)])
    for cell in horizon.cells(rows):
        assert cell.lr == horizon._GRID[cell.optimizer][2]
    tried = {run.cell.lr for run in horizon.long_tuning(rows) if run.cell.optimizer == "muon"}
    assert tried == {0.003, 0.01, 0.03}
    assert {run.schedule for run in horizon.tested(rows)} == {"tenth 0.4"}
    assert {run.target_loss for run in horizon.paper(rows)} == {0.95 * 3.0}


def test_both_starts_of_a_hand_set_warm_up() -> None:
    cell = horizon._grid()[0]
    cold, warm = (run_of(PlannedRow("cells", cell, f"{word} 0.4", 0)).schedule for word in ("linear", "tenth"))
    assert (cold.warmup_steps, cold.div) == (400, None)
    assert (warm.warmup_steps, warm.div) == (400, 10.0)


def rows_of(rows: Rows) -> list[PlannedRow]:
    return [PlannedRow.of(row) for row in rows]
