"""What it costs not to tune the peak rate, from made-up rows."""

import csv
import io
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from studies.cells import AUTO, GUESS
from studies.pages.peak import (
    horizon_rates_table,
    outcomes,
    peak_figure,
    peak_table,
    sensitivity,
)
from studies.plans import peak
from studies.plans.warm_up import missing
from studies.rows import PlannedRow, Rows

TUNED = 2.0**-6


def made(planned: PlannedRow) -> dict[str, object]:
    """The loss is 1 at the tuned rate, and 10 % more for each factor of 2 away from it; Prodigy diverges."""
    cell, searched = planned.cell, planned.schedule == AUTO
    rate = 2 * TUNED if searched else cell.lr
    return {
        "part": planned.part, "cell": {"task": cell.task, "optimizer": cell.optimizer, "steps": cell.steps,
        "lr": cell.lr}, "schedule": planned.schedule, "seed": planned.seed, "first_loss": 6.0,
        "val_loss": 1 + 0.1 * abs(math.log2(rate / TUNED)), "diverged": cell.optimizer == "prodigy",
        **({"peak": rate} if searched else {}),
    }  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> Rows:
    found = Rows()
    while left := missing(found, peak.STAGES):
        found = Rows([*found, *map(made, left)])
    return found


def test_a_search_is_held_against_the_tuned_rate_in_every_setting(rows: Rows) -> None:
    found = list(outcomes(rows, peak.JUDGED, "search"))
    assert len(found) == 6 * 5 * 2
    assert {one.cell.lr for one in found} == {TUNED}
    assert all(one.cost == pytest.approx(0.1) and one.rate == pytest.approx(2) for one in found)
    assert all(one.lost == pytest.approx(0.1 / (6 - 1)) for one in found)  # the first loss is 6
    common = {one.cell.optimizer: one for one in outcomes(rows, peak.JUDGED, "common")}
    assert common["lion"].rate == pytest.approx(3e-4 / TUNED)
    assert common["lion"].cost == pytest.approx(0.1 * math.log2(TUNED / 3e-4))


def test_a_setting_is_left_out_where_the_tuned_rate_diverges(rows: Rows) -> None:
    def diverges(row: dict) -> bool:
        return row["part"] == peak.PART and row["cell"]["task"] == "cnn" and row["cell"]["lr"] == TUNED

    some = Rows({**row, "diverged": row["diverged"] or diverges(row)} for row in rows)
    assert {one.cell.task for one in outcomes(some, peak.JUDGED, "search")} == set(peak.JUDGED.tasks) - {"cnn"}


def test_what_needs_no_rate_takes_the_place_of_adamw(rows: Rows) -> None:
    found = list(outcomes(rows, replace(peak.DEVELOPED_ON, optimizers=("adamw",)), "prodigy"))
    assert len(found) == 7 * 2
    assert all(math.isinf(one.cost) and one.rate is None for one in found)


def test_the_table_says_how_near_and_how_dear(rows: Rows) -> None:
    headings, *lines = csv.reader(io.StringIO(peak_table(rows)))
    found = {(line[0], line[1]): dict(zip(headings[2:], line[2:], strict=True)) for line in lines}
    search = found["judged, 1000", '`peak="auto"`']
    assert search["within 3 times"] == "100 %"
    assert (search["settings"], found["judged, 1000", '`peak="auto"`, for AdamW']["settings"]) == ("30", "6")
    assert search["progress lost: mean (worst)"] == "2.0 % (2.0 %)"
    assert search["higher loss, median"] == "10.0 %"
    assert found["developed on, 200", "Prodigy, for AdamW"]["diverged"] == "10"  # with three of the larger tasks
    assert found["developed on, 1000", "Prodigy, for AdamW"]["diverged"] == "7"


def test_the_table_of_long_runs_has_every_horizon() -> None:
    rows = Rows.load(Path(__file__).parents[3] / "docs" / "data" / "studies" / "horizon.jsonl")
    text = horizon_rates_table(rows)
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [(line["task"], line["updates"], line["settings"]) for line in lines] == [
        (task, steps, "4") for task, steps in itertools.product(("llama-long", "llama-bytes"), ("1,000", "4,000"))
    ] + [("llama-bytes", "16,000", "4"), ("llama-bytes", "64,000", "4")]


def test_the_table_leaves_out_a_horizon_with_missing_runs(rows: Rows) -> None:
    some = Rows(row for row in rows if (row["cell"]["steps"], row["cell"]["optimizer"]) != (1000, "muon"))
    _, *lines = csv.reader(io.StringIO(peak_table(some)))
    assert {line[0] for line in lines} == {"judged, 200", "developed on, 200"}


def test_rates_far_from_the_tuned_one_lose_progress(rows: Rows) -> None:
    [cell] = replace(peak.JUDGED, tasks=("cnn",), horizons=(200,), optimizers=("muon",)).cells(rows)
    curve = dict(sensitivity(rows, peak.JUDGED, cell))
    assert len(curve) == len(peak.RATES["muon"])
    assert curve[1.0] == 0.0
    assert curve[0.25] == pytest.approx(0.2 / (6 - 1))


def test_the_figure_has_a_line_and_a_dot_for_each_task(rows: Rows) -> None:
    figure = peak_figure(rows, steps=200)
    *panels, _ = figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == list(peak.RATES)
    for axes in panels:
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert len(axes.lines) == 2 * len(dots) == 2 * (6 + 7)
        assert {(dot.get_xdata()[0], round(dot.get_ydata()[0], 6)) for dot in dots} == {(2.0, 2.0)}


def test_other_guesses_are_tried_in_every_setting(rows: Rows) -> None:
    tried = {run.cell.lr for run in peak.STAGES["tested"](rows) if run.schedule == AUTO}
    assert tried == {GUESS, *peak.GUESSES}
