import io
from pathlib import Path

from rich.console import Console

from autowarm.lab.analysis.results import Results
from autowarm.lab.analysis.summary import summarise
from autowarm.lab.analysis.table import cells, lines, table

from ..helpers import CELL, ROWS


def test_the_table_marks_a_run_that_never_left_warm_up() -> None:
    row = cells(summarise(ROWS)[0])
    assert row[0] == "Muon 0.01"
    assert row[-1] == "all"
    assert row[5].lstrip("+-") == "0.0000 ± 0.1000"


def test_the_table_fits_into_80_columns_and_cuts_nothing_off() -> None:
    """Five-digit losses, a task's own long name and a paper column: the widest that a comparison makes."""
    longest = [{**one, "optimizer": "schedule-free", "cell": CELL | {"optimizer": "schedule-free", "lr": 0.0003},
                "val_loss": one["val_loss"] and 40 * one["val_loss"]} for one in ROWS]  # fmt: skip
    summaries = summarise([*ROWS, *longest])
    console = Console(file=io.StringIO(), width=80)
    console.print(table(summaries))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for summary in summaries:
        for cell in cells(summary)[1:]:
            assert cell in text


def test_an_algorithm_that_was_not_run_has_no_column() -> None:
    summaries = summarise([one for one in ROWS if one["schedule"] != "paper"])
    console = Console(file=io.StringIO(), width=80)
    console.print(table(summaries))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert [len(line) for line in lines(summaries)] == [6, 6]
    assert ("Algorithm" in text, "difference" in text) == (False, True)


def test_print_and_a_notebook_show_the_rows_and_where_the_report_is() -> None:
    summaries, folder = summarise(ROWS), Path("out <1>")
    results = Results(folder, {"failed": {"one": "too low"}}, summaries)
    text, html = str(results), results._repr_html_()
    assert text.splitlines()[-1] == str(folder / "report.html")
    assert "failed runs: 1. too low" in text
    assert html.endswith("<p>out &lt;1&gt;/report.html</p>")
    for shown in (*lines(summaries)[0], *cells(summaries[0])):
        assert f"<td>{shown}</td>" in html
