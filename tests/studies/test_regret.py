"""Regret as a share of progress: its arithmetic, its tables, and what the pages say of them."""

import csv
import io
import statistics
from pathlib import Path

import pytest

from studies.cells import DEFAULT
from studies.regret import CHOICES, mean_and_worst, regrets, texts
from studies.rows import Cell, Rows

DOCS = Path(__file__).parents[2] / "docs"
CELL = Cell("mlp", "muon", 1000, 0.03)


def row(schedule: str, seed: int, loss: float | None) -> dict:
    cell = {"task": "mlp", "optimizer": "muon", "steps": 1000, "lr": 0.03}
    return {"part": "cells", "cell": cell, "schedule": schedule, "seed": seed, "val_loss": loss,
            "first_loss": 5.0, "diverged": loss is None}  # fmt: skip


def test_it_is_a_share_of_what_the_best_hand_set_warm_up_gains() -> None:
    losses = {"linear 0": (3.0, 3.0), "linear 0.1": (1.0, 1.0), "linear 0.4": (None, 1.0), DEFAULT: (0.8, 1.6)}
    rows = Rows(row(name, seed, loss) for name, some in losses.items() for seed, loss in enumerate(some))
    found = regrets(rows, "cells", CELL, (0, 1), ("linear 0", "linear 0.1", "linear 0.4"))
    # A run that diverged has made no progress: it counts as its first loss.
    assert found == pytest.approx({"linear 0": 50.0, "linear 0.1": 0.0, "linear 0.4": 50.0, DEFAULT: 5.0})
    assert regrets(rows, "cells", CELL, (1,), ("linear 0.1",))[DEFAULT] == pytest.approx(15.0)


def test_a_choice_that_is_missing_somewhere_has_no_mean() -> None:
    assert mean_and_worst([0.5, None]) == ("–", "–")
    assert mean_and_worst([0.5, 2.0]) == ("1.25", "2.0")


@pytest.mark.parametrize("name", ["regret", "realistic"])
def test_the_tables_are_those_of_the_rows(name: str) -> None:
    text = texts(DOCS / "data")[name]
    assert (DOCS / "data" / "tables" / f"{name}.csv").read_text() == text
    assert len(list(csv.reader(io.StringIO(text)))) > len(CHOICES) // 2


def curves(name: str) -> tuple[str, str, list[dict[str, str]]]:
    """In the closed loop: the median share of the run, the part ended by the clock, both in percent, and all rows."""
    with open(DOCS / "data" / "curves" / f"{name}.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["closed loop"]]
    clock = sum(row["closed loop ended by"] == "clock" for row in rows) / len(rows)
    median = statistics.median(float(row["closed loop"]) for row in rows)
    return f"{100 * median:.0f}", f"{100 * clock:.0f}", rows


def test_what_the_page_says_of_public_curves() -> None:
    said = " ".join((DOCS / "evidence.md").read_text(encoding="utf-8").split())
    (median, clock, rows), (other_median, other_clock, _) = curves("default"), curves("share-0.31")
    assert f"the clock would end {other_clock} % of {len(rows)} public loss curves" in said
    assert f"the median warm-up would take {other_median} % of the run; with Δ0/2 it is {clock} and {median} %" in said
    (_, calibrated, _) = curves("calibrated")
    how = " ".join((DOCS / "how-it-works.md").read_text(encoding="utf-8").split())
    assert (
        f"end the warm-up on {calibrated}% of [the public loss curves](evidence.md#one-measure), and not on {clock}%"
        in how
    )
    muon = [row for row in rows if row["optimizer"] == "spectral"]
    long = [float(row["closed loop"]) for row in muon if int(row["T"]) >= 5_000]
    of_all = statistics.median(float(row["closed loop"]) for row in muon)
    assert (
        f"there our median is {100 * of_all:.0f} %, or {100 * statistics.median(long):.0f} % in runs of 5,000" in said
    )
    assert int(clock) <= 10
    assert 2 <= int(median) <= 12
    assert max(float(row["closed loop"]) for row in rows if int(row["T"]) >= 10_000) <= 0.2


def test_what_the_readme_says_of_single_lengths() -> None:
    with open(DOCS / "data" / "tables" / "regret.csv", newline="") as file:
        heading, *lines = csv.reader(file)
    found = {line[0]: line[1:3] for line in lines}
    said = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    settings = heading[1].removeprefix("T ≥ 1,000: ").removesuffix(", mean %")
    for words, name in (
        (
            f"in each of {settings} of 1,000 to 4,000 updates, it costs {{}} % of the progress in the mean and {{}} %",
            "the default",
        ),
        ("10 % of the run everywhere costs {} and {} %", "10 % of the run"),
        ("no warm-up {} and {} %", "no warm-up"),
        ("the best single length, 40 %, {} and {} %", "40 % of the run"),
    ):
        assert words.format(*found[name]) in said
    lengths = [float(found[name][0]) for name in found if name.endswith("of the run") and found[name][0] != "–"]
    assert min(lengths) == float(found["40 % of the run"][0])
