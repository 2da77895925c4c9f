from pathlib import Path

from autowarm.lab.analysis.results import Results
from autowarm.lab.analysis.summary import summarise, verdict
from autowarm.lab.analysis.table import cells, table

from ..helpers import CELL, ROWS, printed, row


def test_the_table_says_what_ended_each_warm_up() -> None:
    """Of the default and of Algorithm 1; a hand-set one ends where it was set to."""
    ends = {0: "loss", 1: "clock"}
    rows = [one if one["schedule"] == "linear" else {**one, "ended_by": ends[one["seed"]]} for one in ROWS]
    assert [cells(summarise(rows)[0])[i] for i in (2, 4, 7)] == ["20", "12, loss and clock", "all, loss and clock"]


def test_the_means_are_over_the_seeds_of_the_difference() -> None:
    rows = [row("linear", 0, 0, 1.0), row("linear", 0, 1, 1.2)]
    rows += [row("adaptive", 20, seed, loss) for seed, loss in enumerate((1.1, 1.3, 3.0))]
    (summary,) = summarise(rows)
    assert cells(summary)[1:6] == ["1.100 ± 0.100", "0", "1.200 ± 0.100", "20", "+0.1000 ± 0.0000"]
    assert "0 updates, loss 1.100" in verdict(summary)
    rows[0], rows[3] = row("linear", 0, 3, 1.4), row("adaptive", 20, 1, None)
    assert cells(summarise(rows)[0])[1:5] == ["1.200", "0", "1 of 3 diverged", "20"]


def test_the_table_fits_into_80_columns_and_cuts_nothing_off() -> None:
    """Five-digit losses, a task's own long name and a paper column: the widest that a comparison makes."""
    longest = [{**one, "optimizer": "schedule-free", "cell": CELL | {"optimizer": "schedule-free", "lr": 0.0003},
                "val_loss": one["val_loss"] and 40 * one["val_loss"]} for one in ROWS]  # fmt: skip
    summaries = summarise([*ROWS, *longest])
    text = printed(table(summaries))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for summary in summaries:
        for cell in cells(summary)[1:]:
            assert cell in text


def test_print_and_a_notebook_show_the_verdict_and_where_the_report_is() -> None:
    summaries, folder = summarise(ROWS), Path("out <1>")
    results = Results(folder, {"failed": {"one": "too low"}}, summaries)
    text = str(results)
    assert repr(results) == text
    assert text.splitlines()[-1] == str(folder / "report.html")
    assert "failed runs: 1. too low" in text
    assert f"{summaries[0].title}: Undecided" in text
