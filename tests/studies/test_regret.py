"""Regret as a share of progress: how a setting is judged, and what the pages say of the stored rows."""

import csv
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.config import LabError
from studies.cells import DEFAULT, SEEDS, Setting
from studies.regret import bed, judge, judged, mean_and_worst
from studies.rows import Cell, Rows
from studies.statistics import Seeds

DOCS = Path(__file__).parents[2] / "docs"
CELL = Cell("mlp", "muon", 1000, 0.03)
SETTING = Setting(CELL, ("linear 0", "linear 0.1", "linear 0.4"), Seeds((0, 1), (10, 11)))


def row(schedule: str, seed: int, loss: float | None) -> dict[str, Any]:
    return {
        "part": "cells", "cell": vars(CELL), "schedule": schedule, "seed": seed, "val_loss": loss, "first_loss": 5.0,
        "diverged": loss is None, "warmup_steps": 100 if seed < 10 else 200, "ended_by": "loss" if seed else "clock",
    }  # fmt: skip


def rows_of(losses: dict[str, tuple[float | None, ...]]) -> Rows:
    return Rows(row(name, (0, 1, 10, 11)[i], x) for name, some in losses.items() for i, x in enumerate(some))


LOSSES = {
    "linear 0": (3.0, 3.0), "linear 0.1": (1.0, 1.0, 1.0, 3.0), "linear 0.4": (None, 1.0),
    DEFAULT: (0.8, 1.6, 1.3, 3.6),
}  # fmt: skip


def test_the_seeds_that_choose_give_regrets_and_others_say_how_far_the_default_is_behind() -> None:
    found = judge(rows_of(LOSSES), SETTING)
    assert found is not None
    assert found.best == "linear 0.1"
    assert found.regrets == pytest.approx({"linear 0": 50.0, "linear 0.1": 0.0, "linear 0.4": 50.0, DEFAULT: 5.0})
    # On the other seeds the progress of the best is 5 − 2 in the mean.
    assert found.behind.values == pytest.approx((10.0, 20.0))
    assert found.warmup == pytest.approx(0.15)
    assert found.ended == Counter(loss=3, clock=1)


def test_a_run_that_diverged_has_made_no_progress() -> None:
    found = judge(rows_of({**LOSSES, DEFAULT: (None, 1.0, None, 3.0)}), SETTING)
    assert found is not None
    assert found.regrets[DEFAULT] == pytest.approx(50.0)
    assert found.behind.values == pytest.approx((100.0 * (5 - 1) / (5 - 2), 0.0))


def test_a_setting_in_which_nothing_is_learnt_says_nothing() -> None:
    assert judge(rows_of({**LOSSES, **dict.fromkeys(SETTING.hand_set, (4.9, 4.9))}), SETTING) is None
    assert judge(rows_of({**LOSSES, **dict.fromkeys(SETTING.hand_set, (None, None))}), SETTING) is None


def test_a_missing_run_is_named() -> None:
    with pytest.raises(LabError, match=r"has not been run under 'default' with the seeds \[11\]"):
        judge(rows_of({**LOSSES, DEFAULT: (0.8, 1.6, 1.3)}), SETTING)


def test_other_constants_count_where_they_were_run() -> None:
    others = rows_of({"share 0.31": (1.4, 1.4)})
    found = judge(rows_of(LOSSES), SETTING, others)
    assert found is not None
    assert found.regrets["share 0.31"] == pytest.approx(10.0)


def test_a_choice_that_is_missing_somewhere_has_no_mean() -> None:
    assert mean_and_worst([0.5, None]) == ("–", "–")
    assert mean_and_worst([0.5, 2.0]) == ("1.25", "2.0")


def test_the_bed_is_empty_until_its_runs_are_made() -> None:
    rows = Rows.load(DOCS / "data" / "studies" / "realistic.jsonl")
    assert set(bed(rows, 4_000)) == {"muon", "lion", "adamw", "normsgd"}
    assert min(bed(rows, 4_000)["muon"].values()) <= 0.0
    assert bed(Rows(one for one in rows if one["schedule"] != "linear 0.05"), 4_000) == {}


def test_every_setting_is_judged() -> None:
    found = judged(DOCS / "data", "warm-up")
    assert len({one.setting.cell for one in found}) == len(found) >= 80
    assert all(one.regrets.keys() >= {"linear 0", "linear 0.1", DEFAULT} for one in found)
    assert all(one.behind.count == len(SEEDS.test) for one in found)
    assert min(one.regrets[one.best] for one in found) == max(one.regrets[one.best] for one in found) == 0.0


# What the pages say


def said(page: str) -> str:
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def table(name: str) -> list[dict[str, str]]:
    with open(DOCS / "data" / "tables" / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def curves(name: str) -> tuple[str, str, list[dict[str, str]]]:
    """In the closed loop: the median share of the run, the part ended by the clock, both in percent, and all rows."""
    with open(DOCS / "data" / "curves" / f"{name}.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["closed loop"]]
    clock = sum(row["closed loop ended by"] == "clock" for row in rows) / len(rows)
    median = statistics.median(float(row["closed loop"]) for row in rows)
    return f"{100 * median:.0f}", f"{100 * clock:.0f}", rows
