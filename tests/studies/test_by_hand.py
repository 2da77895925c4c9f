"""The studies that make their runs in their own process: their plans, and how they judge."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest

from autowarm.schedule import core
from studies import second_stage, shapes
from studies.cells import DEFAULT
from studies.plans.transfer import FINE_TUNING, FINE_TUNING_STAGES
from studies.rows import Cell, PlannedRow, Rows, append

from .conftest import row_of, said, stored


def made_up(run: PlannedRow) -> dict[str, Any]:
    """A loss by the schedule and the rate, with nothing random in it."""
    arm = run.schedule.split()[0]
    loss = 1.0 + {DEFAULT: 0.0, shapes.LINEAR: 0.02, shapes.RAMP: -0.01}.get(arm, 0.2) + run.seed / 1000
    return row_of(run, loss) | {"first_loss": 3.0 + run.seed / 1000, "warmup_steps": 100 + run.seed}


@pytest.mark.parametrize(
    ("study", "first", "count", "schedules", "last"),
    [
        (shapes, shapes.plan(Rows())[0], 144, {DEFAULT, "gap-linear", "tenth 0.121", "linear 0.1"},
         "all,12,+1.00 ± 0.00,-0.50 ± 0.00,+10.00 ± 0.00"),
    ], ids=["shapes"],
)  # fmt: skip
def test_a_study_runs_to_its_end_seed_by_seed_and_goes_on(
    study: Any, first: PlannedRow, count: int, schedules: set[str], last: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rows, made = tmp_path / "rows.jsonl", []

    def make(run: PlannedRow) -> dict[str, Any]:
        made.append(run)
        return made_up(run)

    study.main([str(rows), "--list"])
    assert not rows.exists()
    append(rows, made_up(first))
    study.main([str(rows)], make)
    assert len(made) == len(Rows.load(rows)) - 1 == count - 1
    assert [run.seed for run in made] == sorted(run.seed for run in made)
    assert {run.schedule for run in made if run.seed == 21} == schedules
    assert capsys.readouterr().out.strip().splitlines()[-1] == last


def test_the_stored_runs_of_forms_are_planned() -> None:
    rows = stored("shapes")
    assert {PlannedRow.of(row) for row in rows} <= {*shapes.plan(rows)}
    assert shapes.finished(rows)


def test_what_the_page_says_of_forms() -> None:
    rows = stored("shapes")
    seeds = shapes.finished(rows)
    ramp, linear = (shapes.over_settings(rows, arm, seeds) for arm in (shapes.RAMP, shapes.LINEAR))
    assert (
        f"Over {len(ramp.values)} settings and {len(seeds)} seeds, a ramp as long as the default's warm-up costs "
        f"{-ramp.mean:.2f} ± {ramp.stderr:.2f}% of the progress less than η(Δ), most of it at hot rates; but nobody "
        f"knows that length before the run. A rate linear in the gap costs {-linear.mean:.2f} ± {linear.stderr:.2f}% "
        "less."
    ) in said("how-it-works.md")
    hot = shapes.over_settings(rows, shapes.RAMP, seeds, [3.0])
    assert sum(hot.values) < 0.5 * sum(ramp.values)
    tuned = shapes.over_settings(rows, shapes.LINEAR, seeds, [1.0])
    assert all(
        one.mean > -2 * one.stderr for one in (linear, tuned)
    )  # so that η(Δ) stays: a ramp cannot know its length


def test_a_form_is_used_in_its_own_runs_alone() -> None:
    theirs = core.eta_share
    with shapes.form(shapes.LINEAR) as known:
        assert known == DEFAULT
        state = core.State(0.1, 20, 100, 100, 0, gap0=2.0, target_loss=1.0, peak_gap=1.0, average=2.5)
        assert core._warm_up(core.Plan(100), state, 20).share == pytest.approx(1.0 - 0.9 * 0.5)
    assert core.eta_share is theirs
    for share in (theirs, shapes.linear_share):
        assert (share(2.0, 2.0, 1.0, 10.0), share(1.0, 2.0, 1.0, 10.0)) == (pytest.approx(0.1), 1.0)
    short = Cell("mlp", "adamw", 60, 0.03)
    rows = [shapes.made(PlannedRow(shapes.PART, short, name, 20)) for name in (DEFAULT, shapes.LINEAR, "tenth 0.3")]
    assert len({row["first_loss"] for row in rows}) == 1
    assert all(row["val_loss"] < row["first_loss"] for row in rows)
    assert rows[2]["warmup_steps"] == 18


def test_the_second_stage_chooses_by_its_short_runs_and_is_judged_by_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = second_stage.Search("mlp", "adamw", 1_000, 0.003, 0.01)
    monkeypatch.setattr(second_stage, "searches", lambda: [search])

    def make(run: PlannedRow) -> dict[str, Any]:
        return made_up(run) | {"val_loss": 1.0 + abs(math.log10(run.cell.lr / 0.01))}

    rows = tmp_path / "rows.jsonl"
    second_stage.main([str(rows)], make)
    made = Rows.load(rows)
    assert {run.cell.lr for run in map(PlannedRow.of, made) if run.part == second_stage.SHORT} == {0.001, 0.003, 0.009}
    assert search.chosen(made) == 0.009
    table = csv.DictReader(io.StringIO(second_stage.second_stage_table(made, [search])))
    assert [line["progress lost, mean %"] for line in table] == ["25.63", "2.24"]


def test_limits_for_trained_weights_are_planned_in_every_setting() -> None:
    rows = stored("fine-tuning")
    planned = FINE_TUNING_STAGES["limits"](rows)
    assert {run.cell for run in planned} == {*FINE_TUNING.cells(rows)}
    assert [run.seed for run in planned] == sorted(run.seed for run in planned)
    assert {*planned} <= {*map(PlannedRow.of, rows)}
