"""The file of rows: whole at every moment, equal for equal runs, and refused with a reason when it is damaged."""

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from autowarm.lab.config import LabError
from studies.rows import Cell, PlannedRow, Rows, append, tidy

CELL = {"task": "mlp", "optimizer": "muon", "steps": 200, "lr": 0.03}


def run(seed: int = 0, **changes: Any) -> dict[str, Any]:
    planned = {"part": "cells", "cell": CELL, "schedule": "linear 0.1", "seed": seed}
    return {**planned, "val_loss": 0.1 + seed, "diverged": False, **changes}


def test_rows_are_found_by_what_they_are() -> None:
    cell, other = Cell(**CELL), Cell(**{**CELL, "lr": 0.09})
    rows = Rows([run(1), run(0), run(2, diverged=True), run(3, val_loss=None), run(0, cell={**CELL, "lr": 0.09})])
    assert rows.losses("cells", cell, "linear 0.1") == {0: 0.1, 1: 1.1, 2: math.inf, 3: math.inf}
    assert rows.losses("cells", other, "linear 0.1") == {0: 0.1}
    assert rows.losses("tuning", cell, "linear 0.1") == rows.losses("cells", cell, "linear 0.2") == {}
    assert PlannedRow("cells", cell, "linear 0.1", 1) in rows
    assert PlannedRow("cells", cell, "linear 0.1", 4) not in rows
    assert rows[PlannedRow("cells", cell, "linear 0.1", 1, target_loss=0.3)]["val_loss"] == 1.1


def test_equal_runs_make_equal_files_of_a_run_a_line(tmp_path: Path) -> None:
    some = [run(2), run(0, warnings=["ein Gruß"]), run(1, val_loss=1 / 3)]
    Rows(some).save(tmp_path / "a.jsonl")
    Rows(reversed(some)).save(tmp_path / "b.jsonl")
    text = (tmp_path / "a.jsonl").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line)["seed"] for line in text.splitlines()] == [0, 1, 2]
    assert ", " not in text
    assert list(Rows.load(tmp_path / "a.jsonl")) == sorted(some, key=lambda row: row["seed"])


def test_appending_keeps_what_was_there_and_replaces_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "studies" / "rows.jsonl"
    assert len(Rows.load(path)) == 0  # the study has not begun
    for row in (run(1), run(0), run(1, val_loss=7.0)):
        append(path, row)
    expected = {0: 0.1, 1: 7.0}
    assert Rows.load(path).losses("cells", Cell(**CELL), "linear 0.1") == expected
    tidy(path)
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [0, 1]
    with pytest.raises(ValueError, match="not JSON compliant"):
        append(path, run(1, train_loss=math.nan))
    assert Rows.load(path).losses("cells", Cell(**CELL), "linear 0.1") == expected


def test_who_appends_waits_for_whoever_is_writing(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, run(0))
    (lock,) = [name for name in tmp_path.iterdir() if name != path]
    writer = threading.Thread(target=append, args=(path, run(1)))
    with FileLock(lock):
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        assert list(Rows.load(path)) == [run(0)]
    writer.join()
    assert list(Rows.load(path)) == [run(0), run(1)]


def test_a_line_cut_short_is_ignored_and_made_again(tmp_path: Path) -> None:
    """As a kill or a full disk leaves it: at every byte of the last line."""
    path = tmp_path / "rows.jsonl"
    append(path, run(0))
    first = path.read_bytes()
    append(path, run(1))
    whole = path.read_bytes()
    for end in range(len(first), len(whole)):
        path.write_bytes(whole[:end])
        assert list(Rows.load(path)) == [run(0)]
        append(path, run(1))
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "line", ['{"part": "cells", "ce', "[]", '{"part": "cells"}', json.dumps(run(cell={"task": 1}))]
)
def test_a_line_that_is_not_a_run_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, run(0))
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(LabError, match=r"rows\.jsonl is damaged: line 2 is not a run"):
        Rows.load(path)
