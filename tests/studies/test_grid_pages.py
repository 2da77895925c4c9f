"""The tables and the figure of the studies of one form, from made-up rows."""

import csv
import io
from pathlib import Path

from studies.cells import AUTO, PAPER, RAMP_ALONE
from studies.pages.grids import (
    GRIDS,
    fine_tuning_summary,
    grid_summary,
    grid_table,
    horizon_figure,
    judged,
    write_grid_pages,
)
from studies.plans import horizon, transfer
from studies.plans.warm_up import missing
from studies.rows import PlannedRow, Rows


def made(planned: PlannedRow) -> dict[str, object]:
    """A rate near 0.01 is the best, and 10 % from a tenth of the peak; the loss ends long runs of the default.

    ``peak="auto"`` finds twice the best rate, which costs 0.1.
    """
    cell, long = planned.cell, planned.cell.steps >= 16_000
    costs = {
        "tenth 0.1": 0.0,
        RAMP_ALONE: 0.015,
        transfer.ADVISED: 0.06,
        transfer.CHANCE: 0.04,
        "default": 0.003 if long else 0.03,
        PAPER: 0.0 if long else 0.3,
        AUTO: 0.103 if long else 0.13,
    }
    ended = {"default": "loss" if long else "clock", PAPER: "loss" if long else None}
    return {
        "part": planned.part, "cell": {"task": cell.task, "optimizer": cell.optimizer, "steps": cell.steps,
        "lr": cell.lr}, "schedule": planned.schedule, "seed": planned.seed, "first_loss": 6.0, "diverged": False,
        "val_loss": 3.0 + (planned.schedule != AUTO) * abs(cell.lr - 0.0101) + costs.get(planned.schedule, 0.06),
        "seconds": 1.0, "metric": {"old_loss": {"default": 2.01, transfer.CHANCE: 2.02}.get(planned.schedule, 2.0)},
        "warmup_steps": cell.steps // (10 if long else 2), "ended_by": ended.get(planned.schedule),
        **({"peak": 0.02} if planned.schedule == AUTO else {}),
    }  # fmt: skip


def whole(stages: dict) -> Rows:
    rows = Rows()
    while left := missing(rows, stages):
        rows = Rows([*rows, *map(made, left)])
    return rows


def lines(text: str) -> list[dict[str, str]]:
    headings, *rest = csv.reader(io.StringIO(text))
    return [dict(zip(headings, line, strict=True)) for line in rest]


def test_a_line_says_what_is_best_and_what_ended_the_warm_up() -> None:
    rows = whole(horizon.STAGES)
    grids = GRIDS["horizon"]
    found = lines(grid_table(rows, judged(rows, grids), {RAMP_ALONE: judged(rows, grids, RAMP_ALONE)}))
    assert len(found) == 2 * 8 + 2 * 4
    assert {line["best hand-set"] for line in found} == {"10 % from lr/10"}
    short, *_, long = (line for line in found if line["optimizer"] == "muon" and line["task"] == "llama-bytes")
    assert short["steps"] == "1,000"
    assert long["steps"] == "64,000"
    assert short["default − best, %"].startswith("+1.00")
    assert long["default − best, %"].startswith("+0.10")
    assert short["the ramp alone − best, %"].startswith("+0.50")
    assert short["Algorithm 1 − best, %"] == "+10.00"
    assert (long["its warm-up"], long["ended by"]) == ("10 %", "loss 4")
    assert (short["its warm-up ended by"], long["its warm-up ended by"]) == ("never 5", "loss 4")


def test_the_summary_has_a_line_for_each_task_and_horizon() -> None:
    rows = whole(horizon.STAGES)
    grids = GRIDS["horizon"]
    beside = {form: judged(rows, grids, form) for form in horizon.BESIDE}
    headings, *table = csv.reader(io.StringIO(grid_summary(judged(rows, grids), beside)))
    assert [line[:2] for line in table] == [
        ["llama-long", "1,000"], ["llama-long", "4,000"], ["llama-bytes", "1,000"], ["llama-bytes", "4,000"],
        ["llama-bytes", "16,000"], ["llama-bytes", "64,000"],
    ]  # fmt: skip
    assert headings[2:] == [
        "default passes", "default − best, %", "its warm-up", "ended by the loss", "by the clock",
        "the ramp alone passes", "the ramp alone − best, %", "Algorithm 1 − best, %",
    ]  # fmt: skip
    assert table[0][2:] == ["0 of 4", "+1.00", "50 %", "0", "20", "4 of 4", "+0.50", "+10.00"]
    assert table[4][2:] == ["4 of 4", "+0.10", "10 %", "16", "0", "4 of 4", "+0.50", "+0.00"]
    [first, *_] = lines(grid_summary(judged(whole(transfer.FRESH_STAGES), (transfer.FRESH,)), {}, of_progress=True))
    assert first["of the progress, %"] == first["default − best, %"] == "+1.00"  # the best ends at half of the first
    assert not any("Algorithm 1" in heading for heading in first)  # it is not part of that study


def test_fine_tuning_has_its_forms_and_the_old_text_beside_the_default() -> None:
    rows, part = whole(transfer.FINE_TUNING_STAGES), (transfer.FINE_TUNING,)
    found, told, advised = (judged(rows, part, form) for form in ("default", transfer.CHANCE, transfer.ADVISED))
    headings, *table = csv.reader(io.StringIO(fine_tuning_summary(rows, found, told)))
    assert {len(line) for line in table} == {len(headings)}
    assert table[0] == ["tune-near", "100", "0 of 3", "+1.00", "+0.50", "0 of 3", "+1.33", "+1.00"]
    [first, *_] = lines(grid_table(rows, found, {transfer.ADVISED: advised}))
    assert first["max_warmup=0.1 − best, %"].startswith("+2.00")


def test_settings_that_lack_runs_are_left_out() -> None:
    rows = whole(horizon.STAGES)
    assert judged(Rows(), (horizon.SHORT,)) == []
    gone = Rows(row for row in rows if (row["cell"]["steps"], row["schedule"]) != (4000, "default"))
    assert {v.cell.steps for v in judged(gone, (horizon.SHORT, horizon.LONG))} == {1000, 16_000}


def test_the_figure_has_a_panel_for_each_optimizer_and_marks_what_ended_the_warm_up() -> None:
    rows = whole(horizon.STAGES)
    grids = GRIDS["horizon"]
    figure = horizon_figure(judged(rows, grids), judged(rows, grids, RAMP_ALONE)).subfigs[1]
    above = figure.axes[: len(horizon.OPTIMIZERS)]
    assert [axes.get_title(loc="left") for axes in above] == list(horizon.OPTIMIZERS)
    assert {line.get_label() for line in above[0].lines} >= {"no warm-up", "Algorithm 1", "default", "the ramp alone"}
    marks = [text.get_text() for text in figure.axes[len(above)].texts]
    assert marks == ["clock", "clock", "loss", "loss"]
    assert {line.get_label() for line in figure.axes[len(above)].lines} == {"best hand-set length", "default"}


def test_pages_are_written_as_far_as_the_study_is(tmp_path: Path) -> None:
    (tmp_path / "docs" / "data" / "tables").mkdir(parents=True)
    (tmp_path / "docs" / "figures").mkdir()
    assert [path.name for path in write_grid_pages("horizon", Rows(), tmp_path)] == [
        "horizon.csv",
        "horizon-summary.csv",
        "peak-horizons.csv",
    ]
    written = write_grid_pages("horizon", whole(horizon.STAGES), tmp_path)
    assert [path.name for path in written[1:]] == ["horizon-summary.csv", "peak-horizons.csv", "horizons.png"]
    table, _, rules = write_grid_pages("fresh", whole(transfer.FRESH_STAGES), tmp_path)
    assert len(table.read_text().splitlines()) == 1 + 6 * 2 * 5
    *_, progress, loss = lines(rules.read_text())
    for line in (progress, loss):  # the best ends at 3, half of the first loss
        assert line["task, %"].startswith("*all tasks*")
        assert list(line.values())[1:] == ["+2.00", "+2.00", "+2.00", "+0.50", "+2.00", "+1.00"]
