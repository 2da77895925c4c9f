"""A little of `benchmarks/faults`; its full counts are in `docs/reliability.md`."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Launcher

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "benchmarks" / "faults" / "__main__.py"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="faults strike a fork")


def found_in(out: Path, mode: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"{mode}.json").read_text())
    assert found["losses"] == []
    return found


@pytest.mark.long
@pytest.mark.parametrize("mode", ["kill", "preempt"])
def test_runs_struck_at_random_moments_end_with_the_same_bits(
    mode: str, tmp_path: Path, lab_launcher: Launcher
) -> None:
    words = ["--tries", "3", "--seconds", "60", "--seed", "1", "--out", tmp_path]
    done = lab_launcher.run([FAULTS, mode, *words])
    assert done.status == 0, done.stderr
    assert sum(row["survived"] for row in found_in(tmp_path, mode)["faults"].values()) >= 1


@pytest.mark.long
def test_a_long_run_of_the_scheduler_neither_grows_nor_drifts(tmp_path: Path) -> None:
    # In a process of its own, for one that is forked may grow into memory that its parent has left free.
    command = [sys.executable, FAULTS, "soak", "--steps", "2000", "--seconds", "1000", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    found = found_in(tmp_path, "soak")
    assert found["steps"] == 2000
    assert found["phase"] == "decay"


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "faults").glob("*.json")), ids=lambda path: path.stem)
def test_the_stored_counts_have_lost_nothing_and_stand_on_the_page(path: Path) -> None:
    found = json.loads(path.read_text())
    assert found["losses"] == []
    table = "data/tables/faults.csv"
    assert f"]({table})" in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    with (ROOT / "docs" / table).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    for where, row in found["faults"].items():
        assert row["tried"] == row["survived"] > 0
        expected = [str(row["tried"]), str(row["survived"]), "0"]
        assert any(fault.endswith(where) and counts == expected for fault, *counts in rows)
