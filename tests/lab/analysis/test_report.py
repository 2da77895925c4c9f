import base64
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from autowarm._torch.plotting import BLUE, GREY, ORANGE
from autowarm.lab.analysis import report
from autowarm.lab.analysis.results import Results
from autowarm.lab.analysis.summary import summarise
from autowarm.lab.analysis.table import table
from autowarm.lab.commands import main

from ..helpers import CELL, ROWS, leave_metrics, printed, row, stored
from .test_figures import NAMES


def page(rows: list[dict[str, Any]], **document: Any) -> str:
    whole = {"config": {}, "corpus": {"name": "t", "sha256": "0" * 64}, "environment": {"python": "3"}, "runs": rows}
    return report.html(Results(Path(), whole | document, summarise(rows)), [], [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    created = tmp_path_factory.mktemp("folder")
    stored(created)
    leave_metrics(created)
    assert main(["report", str(created)]) == 0
    return created


def test_the_page_is_whole_and_asks_for_nothing_from_outside(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "<script" not in text
    assert "@import" not in text
    assert text.count("<img ") == 2
    for name in ("sweep", "curves"):
        assert (folder / f"{name}.png").stat().st_size > 1000
        assert (folder / f"{name}.svg").stat().st_size > 1000


def test_the_pictures_follow_a_dark_page(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert "background: #fff" not in text
    for encoded in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)', text):
        picture = base64.b64decode(encoded).decode()
        styled, dark = picture.split("</style>")[0], "@media screen and (prefers-color-scheme: dark)"
        changed = set(re.findall(r"\[style\*='((?:fill|stroke): #\w+)'\] {\w+: (?:none|#\w+) !important}", styled))
        assert dark in styled
        used = set(re.findall(r"(?:fill|stroke): #\w{6}", picture.replace(styled, "")))
        curves = {f"{kind}: {colour.lower()}" for colour in (BLUE, ORANGE, GREY) for kind in ("fill", "stroke")}
        assert used - curves == changed  # neither paper nor ink is left as on a light page


@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_cell_of_any_name_reaches_terminal_and_page_unharmed() -> None:
    rows = [{**one, "cell": {"name": name, **CELL}} for name in NAMES for one in ROWS[:4]]
    for shown in (printed(table(summarise(rows)), 200, force_terminal=True, color_system=None), page(rows)):
        for name in NAMES:
            plain = name.replace("\x1b", "")
            assert (plain in shown) or (plain.replace("<", "&lt;").replace(">", "&gt;") in shown), name
        assert "\x1b[31m" not in shown


def test_warnings_are_grouped() -> None:
    rows = [{**one, "warnings": [f"seed {one['seed']} stalled"]} for one in ROWS if one["schedule"] == "paper"]
    assert report.warnings(rows) == ["muon, peak rate 0.01, paper: seed 0 stalled"]


def test_a_comparison_without_hand_set_runs_makes_no_empty_figure(tmp_path: Path) -> None:
    created = report.make(stored(tmp_path, [row("constant", 0, 0, 2.0), row("greedy", 0, 0, 2.1)]))
    assert created[:-1] == []
    assert "No hand-set warm-up was run" in created[-1].read_text()


def test_runs_are_found_from_any_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder / "runs", tmp_path / "store")
    results = stored(tmp_path / "results" / "out", store="../../store")
    monkeypatch.chdir(folder)
    assert {path.name for path in report.make(results)} >= {"curves.png", "report.html"}
    shutil.rmtree(tmp_path / "store")
    assert "curves.png" not in {path.name for path in report.make(results)}
