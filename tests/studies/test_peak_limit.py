"""The judgement of a limit of the peak: what is copied, and what the table says."""

from pathlib import Path
from typing import Any

import pytest

from studies import bench, peak_limit
from studies.entries import DEFAULT
from studies.rows import PlannedRow, Rows

from .conftest import row_of


@pytest.mark.parametrize(("lr", "copied"), [(0.003, True), (3.0, False)])
def test_a_run_that_no_limit_lowers_is_copied(
    lr: float, copied: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cell = bench.cells("mlp", "lion", 1_000)[0]
    free, limited = (PlannedRow("cells", type(cell)("mlp", "lion", 1_000, lr), name, 60)
                     for name in (DEFAULT, "peak limit 2.5"))  # fmt: skip
    made: list[Any] = []
    monkeypatch.setattr(bench, "ROWS", tmp_path / "bench.jsonl")
    monkeypatch.setattr(bench, "make", made.append)
    Rows([row_of(free, 1.25)]).save(bench.ROWS)
    row = peak_limit.make(limited)
    assert made == ([] if copied else [limited])
    if copied:
        assert (row["val_loss"], PlannedRow.of(row)) == (1.25, limited)
