import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab import report
from autowarm.lab.cli import main
from autowarm.lab.config import CompareConfig
from autowarm.lab.analysis.figures import smoothed
from autowarm.lab.analysis.results import document, summarise, write_results

from .test_results import ROWS


def results(**corpus: Any) -> dict[str, Any]:
    return document(asdict(CompareConfig()), {"name": "t", "sha256": "0" * 64, "tokens": 9, **corpus}, ROWS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for row in ROWS:
        metrics = tmp_path / "runs" / f"some-label-{row['id']}"
        metrics.mkdir(parents=True)
        lines = [{"step": s, "loss": None if s == 3 else 5.0 / s, "lr": 0.01, "seconds": s} for s in range(1, 101)]
        (metrics / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_results(tmp_path, results())
    return tmp_path


def test_the_page_is_whole_and_asks_for_nothing_from_outside(folder: Path) -> None:
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "<script" not in page
    assert "@import" not in page
    assert page.count("<img ") == 2
    for name in ("sweep", "curves"):
        assert (folder / f"{name}.png").stat().st_size > 1000
        assert (folder / f"{name}.svg").stat().st_size > 1000


def test_text_is_escaped() -> None:
    page = report.html(results(name="<script>alert(1)</script>"), summarise(ROWS), [[]])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_grid_alone_and_a_single_seed_make_a_page_too() -> None:
    rows = [row for row in ROWS if row["schedule"] == "linear" and row["seed"] == 0]
    page = report.html({**results(), "runs": rows}, summarise(rows), [[]])
    assert "Hand-set warm-ups side by side" in page


def test_all_diverged_makes_a_page_too() -> None:
    rows = [{**row, "diverged": True, "val_loss": None} for row in ROWS]
    page = report.html({**results(), "runs": rows}, summarise(rows), [[]])
    assert "Every hand-set warm-up diverged with some seed." in page


def test_the_table_marks_a_run_that_never_left_warm_up() -> None:
    cells = report.cells(summarise(ROWS)[0])
    assert cells[0] == "Muon 0.01"
    assert cells[-1] == "all"
    assert cells[5] == "-0.0000 ± 0.1000" or cells[5] == "+0.0000 ± 0.1000"


def test_warnings_are_grouped() -> None:
    rows = [{**row, "warnings": [f"seed {row['seed']} stalled"]} for row in ROWS if row["schedule"] == "paper"]
    assert report.warnings(rows) == ["muon, peak rate 0.01, paper: seed 0 stalled"]


def test_smoothing_neither_lags_nor_invents() -> None:
    line = [float(i) for i in range(200)]
    assert smoothed(line) == pytest.approx(line)
    assert smoothed([]) == []


def test_report_without_results_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no results.json" in capsys.readouterr().err
