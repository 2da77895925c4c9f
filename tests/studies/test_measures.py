"""What a warm-up costs: regret at one rate, sensitivity and excess over all rates."""

import math
from collections import Counter
from typing import Any

import pytest

from autowarm.lab.config import LabError
from studies.entries import DEFAULT
from studies.measures import (
    STUDIES,
    Setting,
    Sweep,
    judge,
    settings,
    sweep,
    tuned_rates,
    updates_to,
)
from studies.rows import Cell, PlannedRow, Rows

from .conftest import row_of, stored

CELL = Cell("mlp", "muon", 1000, 0.03)
SETTING = Setting(CELL, ("linear 0", "linear 0.1", "linear 0.4"), (0, 1))


def row(schedule: str, seed: int, loss: float | None) -> dict[str, Any]:
    return row_of(PlannedRow("cells", CELL, schedule, seed), loss) | {
        "first_loss": 5.0, "diverged": loss is None, "warmup_steps": 100 if seed < 10 else 200,
        "ended_by": "loss" if seed else "clock",
    }  # fmt: skip


def rows_of(losses: dict[str, tuple[float | None, ...]]) -> Rows:
    return Rows(row(name, (0, 1, 10, 11)[i], x) for name, some in losses.items() for i, x in enumerate(some))


LOSSES = {
    "linear 0": (3.0, 3.0), "linear 0.1": (1.0, 1.0, 1.0, 3.0), "linear 0.4": (None, 1.0),
    DEFAULT: (0.8, 1.6, 1.3, 3.6),
}  # fmt: skip


def test_the_seeds_that_choose_give_regrets() -> None:
    found = judge(rows_of(LOSSES), SETTING)
    assert found is not None
    assert found.best == "linear 0.1"
    assert found.regrets == pytest.approx({"linear 0": 50.0, "linear 0.1": 0.0, "linear 0.4": 50.0, DEFAULT: 5.0})
    assert found.warmup == pytest.approx(0.15)
    assert found.ended == Counter(loss=3, clock=1)
    found = judge(rows_of({**LOSSES, DEFAULT: (None, 1.0, None, 3.0)}), SETTING)
    assert found is not None
    assert found.regrets[DEFAULT] == pytest.approx(50.0)  # a run that diverged has made no progress


def test_a_setting_in_which_nothing_is_learnt_says_nothing() -> None:
    assert judge(rows_of({**LOSSES, **dict.fromkeys(SETTING.hand_set, (4.9, 4.9))}), SETTING) is None
    assert judge(rows_of({**LOSSES, **dict.fromkeys(SETTING.hand_set, (None, None))}), SETTING) is None


def test_a_missing_run_is_named() -> None:
    with pytest.raises(LabError, match=r"has not been run under 'default' with the seeds \[1\]"):
        judge(rows_of({**LOSSES, DEFAULT: (0.8,)}), SETTING)


def test_the_settings_of_a_study_are_those_that_its_rows_hold() -> None:
    counts = {name: len(settings(stored(name), seeds)) for name, seeds in STUDIES.items()}
    assert counts == {"warm-up": 46, "horizon": 24, "fresh": 25, "unseen": 30}
    every = settings(rows_of(LOSSES), (0, 1))
    assert every == [Setting(CELL, sorted(SETTING.hand_set), SETTING.seeds)]
    assert settings(rows_of({**LOSSES, DEFAULT: (0.8,)}), SETTING.seeds) == []


def test_the_tuned_rate_is_the_lower_of_two_equally_good_ones() -> None:
    rows = [
        row_of(PlannedRow("tuning", Cell("mlp", "muon", 1000, lr), "linear 0.1", 100), loss)
        for lr, loss in ((0.1, 2.0), (0.03, 2.0), (0.3, None), (0.01, 2.5))
    ]
    other = row_of(PlannedRow("tuning", Cell("mlp", "muon", 1000, 0.001), "linear 0", 100), 1.0)
    assert tuned_rates([*rows, other]) == {("mlp", "muon", 1000): 0.03}


# Over all rates


@pytest.mark.parametrize(
    ("losses", "first", "best", "expected"),
    [
        ([2.0, 1.0, 3.0], 4.0, 0.5, (1.0, 1.5)),
        ([2.0, 1.0, math.inf], 4.0, 1.0, (4 / 3, 4 / 3)),  # a run that diverged counts as the first loss
        ([2.0, 1.0, 9.0], 4.0, 1.0, (4 / 3, 4 / 3)),  # and so does one that ends above it
        ([3.9, 3.9, 3.9], 4.0, 1.0, (0.0, 2.9)),  # bad everywhere: not sensitive, and far behind
        ([math.inf, math.inf], 4.0, 1.0, (0.0, 3.0)),
    ],
)
def test_sensitivity_and_excess(losses: list[float], first: float, best: float, expected: tuple[float, float]) -> None:
    found = Sweep([0.1] * len(losses), {"one": losses, "other": [best]}, first)
    assert (found.sensitivity("one"), found.excess("one")) == pytest.approx(expected)


def test_a_sweep_waits_for_all_of_its_runs_and_takes_means_over_the_seeds() -> None:
    cells = [Cell("mlp", "adamw", 10, lr) for lr in (0.1, 0.3)]
    losses = {(0.1, 1): 2.0, (0.1, 2): 3.0, (0.3, 1): None, (0.3, 2): 1.0}
    rows = [row_of(PlannedRow("cells", Cell("mlp", "adamw", 10, lr), "linear 0", seed), loss)
            for (lr, seed), loss in losses.items()]  # fmt: skip
    found = sweep(Rows(rows), "cells", cells, ["linear 0"], [1, 2])
    assert found is not None
    assert found.curves == {"linear 0": [2.5, 3.0]}
    assert sweep(Rows(rows[:-1]), "cells", cells, ["linear 0"], [1, 2]) is None
    assert sweep(Rows(rows), "cells", cells, ["linear 0", "default"], [1, 2]) is None


def test_updates_to_a_target_loss() -> None:
    row = {"cell": {"steps": 1_000}, "curve": [3.0, 2.0, None, 1.0, 1.5]}
    assert [updates_to(row, target) for target in (3.5, 2.0, 1.2, 0.5)] == [20, 40, 80, None]
    assert updates_to({"cell": {"steps": 1_000}}, 1.0) is None
