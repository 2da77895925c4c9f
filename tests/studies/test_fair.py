"""The wider grid: what each simple rule costs, from made-up rows."""

import csv
import io
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from autowarm.lab.config import LabError
from studies.cells import FAIR, FAMILIES, SEEDS
from studies.pages.fair import (
    RULES,
    fair_table,
    fair_tested_table,
    rule_regrets,
    sensitivity_table,
    write_fair_tables,
)
from studies.plans.warm_up import FAIR_STAGES
from studies.rows import PlannedRow, Rows
from studies.verdicts import judge, verdicts

from .conftest import made_up

DOCS = Path(__file__).parents[2] / "docs"


def made(planned: PlannedRow) -> dict[str, object]:
    """Of the grid's new lengths 20 % from lr/10 is the best; the ramp alone costs 1 % more than it."""
    losses = {"tenth 0.2": 2.9, "default fstar=-1e6": 2.929}
    row = made_up(planned)
    if planned.schedule.startswith("tenth") or planned.schedule in losses:
        row["val_loss"] = losses.get(planned.schedule, 3.5)
    return row


@pytest.fixture(scope="module")
def wide(finished: Callable[..., Rows]) -> Rows:
    rows = finished(make=made)
    for stage in FAIR_STAGES.values():
        rows = Rows([*rows, *map(made, stage(rows))])
    return rows


def test_the_grid_brackets_what_is_best_from_both_starts() -> None:
    assert {"linear 0", "linear 0.8", "tenth 0.05", "tenth 0.8"} <= set(FAIR)


def test_a_rule_costs_what_its_warm_up_costs(wide: Rows) -> None:
    learnt = [v for v in verdicts(wide) if v.learnt]
    found = rule_regrets(wide, learnt)
    assert found.keys() == RULES.keys()
    assert all(cost == pytest.approx(0.01) for cost in found["half from lr/10"].values())
    for cell, cost in found["half from lr/10 for transformers, 5 % else"].items():
        same = "5 %" if cell.task in ("mlp", "factor") else "half from lr/10"
        assert cost == found[same][cell]


def test_the_table_has_a_line_for_each_family_and_one_for_all_tasks(wide: Rows) -> None:
    headings, *lines = csv.reader(io.StringIO(fair_table(wide, [v for v in verdicts(wide) if v.learnt])))
    assert headings == ["family, %", *RULES]
    assert [line[0] for line in lines] == ["language", "vision", "MLP", "deep linear", "*all tasks*"]
    assert {line[4] for line in lines} == {"+1.00"}


def test_the_best_of_the_wider_grid_is_tested_on_seeds_that_did_not_choose(wide: Rows) -> None:
    tested = {(run.schedule, run.seed) for run in FAIR_STAGES["fair-tested"](wide)}
    assert {seed for schedule, seed in tested if schedule == "tenth 0.2"} == set(SEEDS.test)


def test_each_rule_is_compared_with_the_best_of_the_wider_grid_on_other_seeds(wide: Rows) -> None:
    text = fair_tested_table(wide, [v for v in verdicts(wide) if v.learnt])
    lines = {line["family"]: line for line in csv.DictReader(io.StringIO(text))}
    assert list(lines) == ["language", "vision", "MLP", "deep linear", "*all tasks*"]
    for line in lines.values():
        assert line["half from lr/10, %"].startswith("+1.00")
        passed, of = line["half from lr/10 passes"].split(" of ")
        assert (passed, int(of) > 0) == ("0", True)
    parts = [int(line["default passes"].split()[-1]) for line in lines.values()]
    assert sum(parts[:-1]) == parts[-1]


def test_a_schedule_that_pays_at_every_other_rate_is_sensitive(wide: Rows) -> None:
    rows = Rows(
        {**row, "val_loss": 2.0 + abs(row["cell"]["lr"] - 0.003)} if row["part"] == "sensitivity" else row
        for row in wide
    )
    headings, *lines = csv.reader(io.StringIO(sensitivity_table(rows)))
    assert headings == ["optimizer, %", "none", "5 %", "40 %", "half from lr/10", "default"]
    assert [line[0] for line in lines] == ["muon", "lion", "signsgd", "normsgd", "adamw", "*all*"]
    expected = 100 * (0.002 + 0.0 + 0.006 + 0.027) / 2.0 / 4  # at 0.001, 0.003, 0.009 and 0.03
    assert float(lines[-1][1]) == pytest.approx(expected, abs=0.02)


def test_the_tables_are_written(wide: Rows, tmp_path: Path) -> None:
    (tmp_path / "docs" / "data" / "tables").mkdir(parents=True)
    learnt = [v for v in verdicts(wide) if v.learnt]
    fair, tested = write_fair_tables(wide, tmp_path)
    assert fair.read_text() == fair_table(wide, learnt)
    assert tested.read_text() == fair_tested_table(wide, learnt)


def test_the_published_tables_and_sentences_are_those_of_the_stored_rows() -> None:
    rows = Rows.load(DOCS / "data" / "studies" / "warm-up.jsonl")
    learnt = [v for v in verdicts(rows) if v.learnt]
    tested = fair_tested_table(rows, learnt)
    assert (DOCS / "data" / "tables" / "fair.csv").read_text() == fair_table(rows, learnt)
    assert (DOCS / "data" / "tables" / "fair-tested.csv").read_text() == tested
    lines = {line["family"]: line for line in csv.DictReader(io.StringIO(tested))}
    mean, error = (round(float(number), 1) for number in lines["*all tasks*"]["default, %"].split(" ± "))
    judged = [judge(rows, v.cell, SEEDS, FAIR) for v in learnt]
    short, longer = ([v for v in judged if (v.cell.steps == 200) == least] for least in (True, False))
    language = [v for v in longer if FAMILIES[v.cell.task] == "language"]
    evidence, readme = (" ".join((DOCS / name).read_text().split()) for name in ("evidence.md", "../README.md"))
    assert f"[{mean} ± {error} % behind the best of fourteen]" in evidence
    assert len(FAIR) == 14
    pass_short, pass_longer = (f"{sum(v.passed for v in some)} of {len(some)}" for some in (short, longer))
    means = [f"{100 * statistics.fmean(v.mean for v in some):+.1f} %" for some in (short, longer)]
    assert (
        f"the settings' mean is {means[0]} and {pass_short} pass; with more, it is {means[1]} and {pass_longer} pass"
        in evidence
    )
    assert all(v.passed for v in language)
    assert f"pass, all {len(language)} of language among them" in evidence
    worst = max(judged, key=lambda v: v.mean)
    assert f"Swin under AdamW (+{100 * worst.mean:.0f} %)" in evidence
    assert worst.cell.name == "swin-x8.adamw.200.0.03"
    assert (
        f"**{mean} ± {error} % behind** if each task counts once: it passes in {pass_short} settings of 200 steps, and "
        f"in {pass_longer} longer ones"
    ) in readme


def test_only_the_rule_that_knows_the_kind_of_model_costs_less_than_the_default() -> None:
    rows = Rows.load(DOCS / "data" / "studies" / "warm-up.jsonl")
    *_, line = csv.DictReader(io.StringIO(fair_table(rows, [v for v in verdicts(rows) if v.learnt])))
    costs = {name: float(line[name]) for name in RULES}
    assert [name for name in RULES if costs[name] < costs["default"]] == ["half from lr/10 for transformers, 5 % else"]


def test_it_is_refused_without_the_wider_grid(study: Rows) -> None:
    with pytest.raises(LabError, match="has not been run under 'linear 0.6'"):
        fair_table(study, verdicts(study))
