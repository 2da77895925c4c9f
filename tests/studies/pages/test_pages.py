"""The published tables and figures are those of the stored rows."""

import csv
import io
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest

from autowarm.lab.config import LabError
from studies import shapes
from studies.cells import title
from studies.pages import insurance, which_rate, write
from studies.pages.figures import EXAMPLE, averaged, first_figure, shapes_figure
from studies.pages.write import texts, with_tables, write_pages
from studies.rows import Rows

ROOT = Path(__file__).parents[3]
DATA = ROOT / "docs" / "data"
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


@pytest.fixture(scope="module")
def stored() -> dict[str, str]:
    return texts(DATA)


def test_the_published_tables_are_those_of_the_stored_rows(stored: dict[str, str]) -> None:
    assert {name: (DATA / "tables" / f"{name}.csv").read_text(encoding="utf-8") for name in stored} == stored


def test_every_table_of_the_study_is_on_a_page(stored: dict[str, str]) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {name for name in stored if f"data/tables/{name}.csv" not in pages} == set()


@pytest.mark.long
def test_pages_and_figures_are_written_together(
    stored: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "curve_of", lambda run: [(0.1, 3.0), (1.0, 2.0)])  # instead of five runs
    monkeypatch.setattr(which_rate, "_SHOWN", [("mlp", "muon", "a"), ("mlp", "lion", "b")])
    monkeypatch.setattr(write, "losses_of", lambda run: ([4.0] * 500 + [700.0] + [5.0] * 499, [[518, 487]]))
    (tmp_path / "docs" / "data" / "tables").mkdir(parents=True)
    for stored_rows in ("studies", "find-rate"):
        (tmp_path / "docs" / "data" / stored_rows).symlink_to(DATA / stored_rows)
    (tmp_path / "docs" / "figures").mkdir()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(re.sub(r"(?m)^\|none\|.*\n", "", readme), encoding="utf-8")
    written = write_pages(tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == readme
    assert {path for path in tmp_path.rglob("*.*") if path.is_file()} == set(written)
    for name, table in stored.items():  # also where a figure has the same name
        assert (tmp_path / "docs" / "data" / "tables" / f"{name}.csv").read_text(encoding="utf-8") == table
    for name in ("insurance.png", "shapes.png", "first.png", "recovery.png", "which-rate.png"):
        assert (tmp_path / "docs" / "figures" / name).stat().st_size > 10_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_its_tables_as_they_are_stored(page: Path) -> None:
    assert with_tables(page) == page.read_text(encoding="utf-8"), "python -m studies pages writes them"


def test_a_table_on_a_page_is_written_anew_between_what_stands_there(tmp_path: Path) -> None:
    page, table = tmp_path / "page.md", tmp_path / "a.csv"
    for given in ("", "|b|\n|---|\n|1|\n"):
        page.write_text(f"Before.\n\n<!-- a.csv -->\n\n{given}\nAfter.\n", encoding="utf-8")
        table.write_text('|x|,"b, c"\n1,\n', encoding="utf-8")
        shown = "|\\|x\\||b, c|\n|---|---|\n|1||\n"
        assert with_tables(page) == f"Before.\n\n<!-- a.csv -->\n\n{shown}\nAfter.\n"
    table.unlink()
    with pytest.raises(LabError, match="page.md shows a.csv, which is not there: name a CSV beside the page"):
        with_tables(page)


@pytest.mark.parametrize("table", sorted((DATA / "tables").glob("*.csv")), ids=lambda path: path.stem)
def test_a_table_has_as_many_cells_in_every_row(table: Path) -> None:
    with open(table, newline="", encoding="utf-8") as file:
        assert len({len(row) for row in csv.reader(file)}) == 1


def test_the_first_picture_and_its_table_state_the_same_numbers() -> None:
    found = insurance.groups(DATA)
    lines = list(csv.DictReader(io.StringIO(insurance.insurance_table(found))))
    for axes, line in zip(insurance.insurance_figure(found).axes, lines, strict=False):
        assert axes.get_title(loc="left").split()[0] == line["n"]
        cells = [[float(x) for x in re.findall(r"[\d.]+", line[title(name)])] for name in insurance.SHOWN]
        for text, bar, (mean, worst) in zip(axes.texts, axes.patches, cells, strict=True):
            assert bar.get_width() == pytest.approx(mean, abs=0.0051)
            shown = [float(x) for x in re.findall(r"[\d.]+", text.get_text())]
            assert shown == [pytest.approx(mean, abs=0.056), pytest.approx(worst, abs=0.56)]
    assert int(lines[0]["n"]) + int(lines[1]["n"]) == len(insurance.long_settings(DATA))


def test_the_lag_of_an_average_is_that_of_the_rule() -> None:
    """The loss falls at once after f(x0) is known; the rule then ends the warm-up when the lag is over."""
    for last in (0.2, 0.4, 0.6):
        steps = 20_000
        length = len(averaged([1.0] * 10 + [last] * steps, steps)) - 10
        assert length == pytest.approx(steps * insurance.lag_share(last), abs=2)
    assert math.isnan(insurance.lag_share(0.7))


def test_the_picture_of_forms_shows_the_means_of_its_table() -> None:
    rows = Rows.load(DATA / "studies" / "shapes.jsonl")
    [axes] = shapes_figure(rows).axes
    bars = [float(np.asarray(line.get_ydata())[0]) for line in axes.lines if line.get_marker() == "None"][:9]
    lines = list(csv.DictReader(io.StringIO(shapes.shapes_table(rows))))[:3]
    table = [float(line[name].split()[0]) for line in lines for name in shapes.ARMS.values()]
    assert bars == pytest.approx(table, abs=0.006)


def test_the_first_figure_shows_what_ended_stored_runs() -> None:
    rows = Rows.load(DATA / "studies" / "horizon.jsonl")
    assert {rows[run]["ended_by"] for run in EXAMPLE} == {"loss", "clock"}
    above, below = first_figure(rows, {run: [(0.1, 3.0), (0.5, 2.0), (1.0, 1.9)] for run in EXAMPLE}).axes
    lengths = [100 * rows[run]["warmup_steps"] / run.cell.steps for run in EXAMPLE]
    for text, length, run in zip(above.texts, lengths, EXAMPLE, strict=True):
        assert f"\n{length:.0f}%" in text.get_text()
        assert text.get_text().endswith("(time limit)") == (rows[run]["ended_by"] == "clock")
    assert below.texts[0].get_text().endswith("at 65%")


def test_the_average_in_the_figure_is_the_rules() -> None:
    assert averaged([4.0] * 10, 100) == [4.0] * 10
    falling = averaged([4.0] * 10 + [1.0] * 90, 100)
    assert 10 < len(falling) < 50
    assert all(a >= b for a, b in itertools.pairwise(falling))
    assert falling[-1] == pytest.approx(0.65 * 4.0, rel=0.1)
