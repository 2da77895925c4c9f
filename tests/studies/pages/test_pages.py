"""The published tables and figures are those of the stored rows."""

import csv
import re
import shlex
from pathlib import Path

import pytest

from autowarm.lab.config import LabError
from studies import __main__ as command
from studies import bench, recovery
from studies.pages.figures import CURVES, sensitivity_figure
from studies.pages.tables import SENSITIVE, sweeps
from studies.pages.write import tables, with_tables, write_pages

ROOT = Path(__file__).parents[3]
DATA = ROOT / "docs" / "data"
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


@pytest.fixture(scope="module")
def stored() -> dict[str, str]:
    return tables(DATA)


def test_the_published_tables_are_those_of_the_stored_rows(stored: dict[str, str]) -> None:
    assert {name: (DATA / "tables" / f"{name}.csv").read_text(encoding="utf-8") for name in stored} == stored


def test_every_table_of_the_study_is_on_a_page(stored: dict[str, str]) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {name for name in stored if f"data/tables/{name}.csv" not in pages} == set()


@pytest.mark.long
def test_pages_and_figures_are_written_together(
    stored: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "losses_of", lambda run: ([4.0] * 500 + [700.0] + [5.0] * 499, [[518, 487]]))
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
    for name in ("sensitivity", "geometry", "recovery", "which-rate"):
        assert (tmp_path / "docs" / "figures" / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_its_tables_as_they_are_stored(page: Path) -> None:
    assert with_tables(page) == page.read_text(encoding="utf-8"), "python -m studies pages writes them"


def test_a_table_on_a_page_is_written_anew_between_what_stands_there(tmp_path: Path) -> None:
    page, table = tmp_path / "page.md", tmp_path / "a.csv"
    for given in ("", "\n", "|b|\n|---|\n|1|\n", "|b|\n|---|\n|1|\n\n"):  # a table ends at a blank line
        page.write_text(f"Before.\n\n<!-- a.csv -->\n\n{given}After.\n", encoding="utf-8")
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


def test_the_figure_of_the_sensitivity_shows_the_losses_of_its_table() -> None:
    found = sweeps(DATA)
    assert set(CURVES) < set(SENSITIVE)
    for axes, some in zip(sensitivity_figure(found).axes, found.values(), strict=False):
        for line, name in zip(axes.lines, CURVES, strict=True):
            assert [*line.get_xdata()] == bench.FACTORS
            for i, loss in enumerate(line.get_ydata()):
                assert loss == pytest.approx(sum(sweep.curves[name][i] for sweep in some.values()) / 4)


def test_a_bed_of_the_plan_is_shown_for_the_seeds_of_which_all_runs_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies.rows import PlannedRow, Rows

    (tmp_path / "studies").mkdir()

    def row(run: PlannedRow) -> dict[str, object]:
        return {"part": run.part, "cell": vars(run.cell), "schedule": run.schedule, "seed": run.seed, "val_loss": 2.0,
                "first_loss": 5.0, "diverged": False}  # fmt: skip

    runs = bench.planned([part._replace(beds=["mlp"]) for part in bench.PLAN])
    for some, shown in ((runs[:-1], ["3 seeds", "one seed"]), (runs, ["3 seeds", "2 seeds"]), (runs[:1], [])):
        Rows(map(row, some)).save(tmp_path / "studies" / "bench.jsonl")
        assert [name.split(", ")[-1] for name in sweeps(tmp_path)] == shown


def test_commands_on_pages_are_understood() -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "docs" / "figures.py"]
    found = {line for page in pages
             for line in re.findall(r"`python -m studies\s+([^`]+)`", page.read_text(encoding="utf-8"))}  # fmt: skip
    assert len(found) >= 2
    assert {shlex.split(line)[0] for line in found} - {"NAME"} <= {*command.NAMES}
