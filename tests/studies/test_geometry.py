"""The judgement by geometry: its plan, its constants in its own runs alone, and the published curves."""

import csv
import io
from pathlib import Path

import pytest

from autowarm.schedule import core, planning
from studies import bench, geometry, published
from studies.rows import Cell, PlannedRow, Rows

ROOT = Path(__file__).parents[2]


def test_the_plan_is_made_from_the_rows_of_finished_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    counts = {name: len(stage()) for name, stage in geometry.STAGES.items()}
    assert counts == {"choice": 5, "long": 16, "hot": 16, "longest": 4, "rates": 20, "short": 264}
    made = {PlannedRow.of(row).cell for row in Rows.load(geometry.ROWS) if row["schedule"] == "default"}
    assert made <= {run.cell for stage in geometry.STAGES.values() for run in stage()}


def test_a_candidates_constants_hold_in_its_own_runs_alone() -> None:
    before = {**planning.PEAK_SHARES}, core.AVERAGES, core.MAX_WARMUPS
    for schedule, known in {"rule 0.05": "default", "earlier": "default", "linear 0.1": "linear 0.1"}.items():
        with geometry.constants(schedule) as name:
            assert name == known
            assert ({*planning.PEAK_SHARES.values()} == {0.05}) == (schedule == "rule 0.05")
            assert (core.MAX_WARMUPS[2] == 0.2) == (schedule == "earlier")
    assert before == (planning.PEAK_SHARES, core.AVERAGES, core.MAX_WARMUPS)
    run = PlannedRow("cells", Cell("mlp", "adamw", 40, 0.01), "rule 0.05", 0)
    row, default = geometry.make(run), bench.make(PlannedRow("cells", run.cell, "linear 0.1", 0))
    assert PlannedRow.of(row) == run
    assert row["first_loss"] == default["first_loss"]


def test_a_table_of_the_seeds_that_have_been_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    runs = geometry._short()[:1]
    rows = Rows(
        {**vars(run), "cell": vars(run.cell), "schedule": name, "val_loss": 3.4, "diverged": False}
        for run in runs for name in ("default", "earlier")
    )  # fmt: skip
    lines = list(csv.DictReader(io.StringIO(geometry.short_table(rows))))
    assert [line["n"] for line in lines] == ["1", "1"]


def test_the_published_settings_are_priced_on_their_own_curves() -> None:
    hand, adaptive = published.points()
    assert (len(hand), sum(map(len, hand.values())), len(adaptive)) == (24, 225, 24)
    for setting, some in hand.items():
        best = min(some, key=lambda point: point[1])
        assert published.cost(setting, best[0]) == pytest.approx(0.0)
        assert published.cost(setting, 1) == pytest.approx(some[0][1] - best[1])
        low, high = published.needed(setting)
        assert low <= best[0] <= high
    assert abs(published.switch() / 11_972 - 1) < 0.1  # the number that the model has not seen
