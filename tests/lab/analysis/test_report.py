import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autowarm.lab.analysis import report
from autowarm.lab.analysis.results import Results
from autowarm.lab.analysis.summary import summarise
from autowarm.lab.analysis.table import table
from autowarm.lab.commands import main
from autowarm.lab.files import claim

from ..helpers import CELL, ROWS, row, stored
from .test_figures import NAMES


def page(rows: list[dict[str, Any]], **document: Any) -> str:
    whole = {"config": {}, "corpus": {"name": "t", "sha256": "0" * 64}, "environment": {"python": "3"}, "runs": rows}
    return report.html(Results(Path(), whole | document, summarise(rows)), [], [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("folder")
    claim(made)
    for one in ROWS:
        metrics = made / "runs" / f"some-label-{one['id']}"
        metrics.mkdir(parents=True)
        lines = [{"step": s, "loss": None if s == 3 else 5.0 / s, "lr": 0.01, "seconds": s} for s in range(1, 101)]
        (metrics / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stored(made)
    assert main(["report", str(made)]) == 0
    return made


def test_the_page_is_whole_and_asks_for_nothing_from_outside(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "<script" not in text
    assert "@import" not in text
    assert text.count("<img ") == 2
    for name in ("sweep", "curves"):
        assert (folder / f"{name}.png").stat().st_size > 1000
        assert (folder / f"{name}.svg").stat().st_size > 1000


def test_text_is_escaped() -> None:
    text = page(ROWS, corpus={"name": "<script>alert(1)</script>", "sha256": "0" * 64})
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_cell_of_any_name_reaches_terminal_and_page_unharmed() -> None:
    rows = [{**one, "cell": {"name": name, **CELL}} for name in NAMES for one in ROWS[:4]]
    terminal = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    terminal.print(table(summarise(rows)))
    text = page(rows)
    for shown in (terminal.file.getvalue(), text):
        for name in NAMES:
            plain = name.replace("\x1b", "")
            assert (plain in shown) or (plain.replace("<", "&lt;").replace(">", "&gt;") in shown), name
        assert "\x1b[31m" not in shown


def test_failed_runs_are_named_on_the_page() -> None:
    text = page(ROWS, failed={"muon paper seed0": "schedule: <too> low"})
    assert "muon paper seed0" in text
    assert "schedule: &lt;too&gt; low" in text
    assert "muon paper seed0" not in page(ROWS)


def test_a_grid_alone_and_a_single_seed_make_a_page_too() -> None:
    assert "Warm-ups side by side" in page([one for one in ROWS if one["schedule"] == "linear" and one["seed"] == 0])


def test_all_diverged_makes_a_page_too() -> None:
    rows = [{**one, "diverged": True, "val_loss": None} for one in ROWS]
    assert "Every hand-set warm-up diverged with some seed." in page(rows)


def test_warnings_are_grouped() -> None:
    rows = [{**one, "warnings": [f"seed {one['seed']} stalled"]} for one in ROWS if one["schedule"] == "paper"]
    assert report.warnings(rows) == ["muon, peak rate 0.01, paper: seed 0 stalled"]


def test_a_comparison_without_hand_set_runs_makes_no_empty_figure(tmp_path: Path) -> None:
    made = report.make(stored(tmp_path, [row("constant", 0, 0, 2.0), row("greedy", 0, 0, 2.1)]))
    assert made[:-1] == []
    assert "No hand-set warm-up was run" in made[-1].read_text()


def test_runs_are_found_from_any_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder / "runs", tmp_path / "store")
    results = stored(tmp_path / "results" / "out", store="../../store")
    monkeypatch.chdir(folder)
    assert {path.name for path in report.make(results)} >= {"curves.png", "report.html"}
    shutil.rmtree(tmp_path / "store")
    assert "curves.png" not in {path.name for path in report.make(results)}


def test_report_without_results_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no results.json" in capsys.readouterr().err
