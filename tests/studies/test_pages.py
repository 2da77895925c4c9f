"""The published pages are those of the stored rows, and a made-up study whose answers are known gets its own."""

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.config import LabError
from studies.cells import DEFAULT, FAMILIES, HAND_SET, SEEDS, cells
from studies.pages import write
from studies.pages.evidence import claims, evidence, fixed_regrets, summary
from studies.pages.figures import curves_figure, curves_wanted, differences_figure, evidence_figure
from studies.pages.tables import tables
from studies.pages.write import texts, write_pages
from studies.rows import PlannedRow, Rows
from studies.verdicts import judge, verdicts

from .conftest import AHEAD, made_up

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stored() -> Rows:
    return Rows.load(ROOT / "docs" / "data" / "studies" / "warm-up.jsonl")


def test_the_published_pages_are_those_of_the_stored_rows(stored: Rows) -> None:
    files, headline = texts(stored)
    assert {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in files} == files
    shown = re.findall(r"^:file: (\S+)$", files["evidence.md"], re.MULTILINE)
    assert set(shown) >= {name for name in files if name.endswith(".csv")}
    assert f"\n{headline}\n" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_pages_say_how_often_the_loss_and_the_clock_ended_a_warm_up(stored: Rows) -> None:
    ended = Counter(
        (FAMILIES[v.cell.task], row["ended_by"])
        for v in verdicts(stored)
        if v.learnt
        for row in stored.runs("cells", v.cell, DEFAULT).values()
    )
    page, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/evidence.md", "README.md"))
    for family in sorted({family for family, _ in ended}):
        counts = f"{ended[family, 'loss']} | {ended[family, 'clock']} |"
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {family} |"))
        assert line.endswith(f" | {counts}")
        assert f"\n{line}\n" in readme


def test_pages_and_figures_are_written_together(stored: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "curve_of", lambda run: [(0.1, 3.0), (1.0, 2.0)])  # instead of nine runs
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files, headline = texts(stored)
    (tmp_path / "README.md").write_text(readme.replace(headline, "what it said before"), encoding="utf-8")
    written = write_pages(stored, tmp_path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(written)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == readme
    for name in (f"docs/{name}" for name in files):
        assert (tmp_path / name).read_text(encoding="utf-8") == (ROOT / name).read_text(encoding="utf-8")
    for name in ("evidence.png", "schedules.png", "warming-up.png", "first.png"):
        assert (tmp_path / "docs" / "figures" / name).stat().st_size > 10_000


def test_a_readme_without_a_place_for_the_headline_is_refused_before_anything_is_written(
    stored: Rows, tmp_path: Path
) -> None:
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "README.md").write_text("# autowarm\n")
    with pytest.raises(LabError, match="has no <!-- by python -m studies warm-up -->"):
        write_pages(stored, tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["README.md"]


def test_no_page_is_made_of_part_of_a_study(stored: Rows) -> None:
    some = Rows(row for row in stored if (row["schedule"], row["part"], row["seed"]) != ("wsd", "cells", 12))
    with pytest.raises(LabError, match=r"at least 43 are missing, first \S+ under 'wsd', seed 12"):
        texts(some)


# A made-up study


def test_what_was_put_in_comes_out(study: Rows) -> None:
    judged = verdicts(study)
    assert all(v.best == "linear 0.1" and v.learnt and v.counted and v.passed for v in judged)
    assert all(v.difference.count == len(SEEDS.test) and abs(v.mean + AHEAD) < 0.003 for v in judged)
    assert all(v.warmup == pytest.approx(0.25, abs=0.001) for v in judged)
    found = evidence(study, judged)
    assert found["cells"] == found["counted"] == found["passed"] == found["better"] == len(judged)
    assert (found["worse"], found["unfinished"], found["lost"], found["names"]) == (0, 0, "none", "")
    regret = fixed_regrets(judged)
    expected = {"linear 0": 0.1, "linear 0.02": 0.08, "linear 0.05": 0.05, "linear 0.1": 0.0, "linear 0.2": 0.1}
    expected |= {"linear 0.4": 0.3, DEFAULT: -AHEAD, "paper": 0.2}
    assert regret == pytest.approx(expected, abs=0.003 + 0.02)  # a seed's own loss is not quite 3
    assert summary(study, judged)["share"] == "10 %"
    assert claims(study, judged)["algorithm_1_stuck"] == 2 * len(judged)
    assert tables(study, judged)["worse"].count("\n") == 1  # no setting is more than 1 % worse
    assert found["targets_within"] == found["quick"]


def test_a_fault_in_one_setting_is_told(finished: Callable[..., Rows], study: Rows) -> None:
    """One is 3 % worse, one diverges once, one stays in warm-up, one learns nothing, in one every length diverges."""
    worse, diverging, stuck, untaught, hopeless = cells(study)[:5]

    def make(run: PlannedRow) -> dict[str, Any]:
        row = made_up(run)
        if run.part == "cells" and run.schedule == DEFAULT:
            row["val_loss"] += {worse: 3 * (AHEAD + 0.03)}.get(run.cell, 0)
            row["diverged"] = run.cell == diverging and run.seed == 11
            row["ended_by"] = None if run.cell == stuck else row["ended_by"]
        if run.cell == untaught:
            row["first_loss"] = 3.0
        if run.cell == hopeless and run.part == "cells" and run.schedule in HAND_SET:
            row |= {"diverged": True, "val_loss": None}
        return row

    rows = finished(make=make)
    of = {cell: judge(rows, cell) for cell in (worse, diverging, stuck, untaught, hopeless)}
    assert of[worse].mean == pytest.approx(0.03, abs=0.003)
    assert of[worse].counted
    assert not of[worse].passed
    assert of[diverging].difference.count == 10  # five seeds did not settle it
    assert of[diverging].difference.diverged == of[diverging].diverged == 1
    assert max(of[diverging].difference.values) == pytest.approx(1, abs=0.2)
    assert not of[diverging].counted
    assert of[stuck].ended == {"": 7}
    assert not of[untaught].learnt
    assert not of[hopeless].learnt
    assert (of[hopeless].regret, math.isinf(of[hopeless].hand["linear 0"])) == ({}, True)
    judged = verdicts(rows)
    found, files = evidence(rows, judged), tables(rows, judged)
    assert found["cells"] == len(judged) - 2
    assert found["names"] == f"`{untaught.name}`, `{hopeless.name}`"
    assert (found["unfinished"], found["lost"]) == (7, f"`{diverging.name}`")
    assert (found["worse"], found["much_worse"]) == (1, 1)
    assert f"\n`{worse.name}`,+3." in files["worse"]
    by_cell = {line.split("`")[1]: line for line in files["settings"].splitlines()[1:]}
    for cell, mark in ((worse, "FAIL"), (diverging, "not counted"), (stuck, "pass"), (hopeless, "nothing learnt")):
        assert f",{mark}," in by_cell[cell.name]
    assert "**—**" in by_cell[hopeless.name]


def test_the_figures_show_every_setting(study: Rows) -> None:
    judged = verdicts(study)
    (axes,) = differences_figure(judged).axes
    assert {label.get_text() for label in axes.get_yticklabels()} == {v.cell.name for v in judged}
    left, right = evidence_figure(judged).axes
    heights = [bar.get_height() for bar in left.patches]
    assert heights == pytest.approx([100 * x for name, x in fixed_regrets(judged).items() if name != "paper"])
    assert len(right.containers) == len(judged)


def test_the_curves_are_those_of_runs_that_the_plan_has(stored: Rows) -> None:
    wanted = curves_wanted(stored)
    assert len(wanted) == 9
    assert all(run in stored for run in wanted)
    figure = curves_figure(stored, {run: [(0.1, 3.0), (1.0, 2.0)] for run in wanted})
    above = figure.axes[:3]
    assert [text.get_text() for text in above[2].texts] == [
        "default",
        "hand-set, 10 %",
        "Algorithm 1",
    ]
    assert [axes.get_title("left").splitlines()[1].split(" ends")[0] for axes in above] == [
        "the loss", "the loss", "the clock"
    ]  # fmt: skip
