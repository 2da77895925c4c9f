"""The engine: it makes each planned run once, goes on where it stopped, and takes entries of others."""

import itertools
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from studies import bench
from studies.__main__ import main
from studies.bench import PLAN, Part, go_on, planned
from studies.rows import Cell, PlannedRow, Rows

from .conftest import row_of

ROOT = Path(__file__).parents[2]
RUNS = [PlannedRow("cells", Cell("mlp", "adamw", 10, 0.01), name, seed)
        for seed in (0, 1) for name in ("linear 0.1", "default")]  # fmt: skip


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[PlannedRow]:
    """What the engine has made, in place of training."""
    made: list[PlannedRow] = []

    def make(run: PlannedRow) -> dict[str, Any]:
        made.append(run)
        return row_of(run, 1.0)

    monkeypatch.setattr(bench, "make", make)
    monkeypatch.setattr(bench.go_on, "__defaults__", (make, math.inf, 1))
    return made


def test_the_plan_is_what_its_docstring_says() -> None:
    runs = planned()
    assert len(runs) == len({*runs}) == 5 * 4 * 7 * 3 * 6 + 4 * 4 * 7 * 2 * 5
    assert Counter(run.cell.steps for run in runs) == {1_000: 2_520, 4_000: 1_120}
    for bed in bench.BEDS:
        for optimizer in bench.OPTIMIZERS:
            rates = bench.rates(bed, optimizer)
            factors = [b / a for a, b in itertools.pairwise(rates)]
            assert factors == pytest.approx([math.sqrt(10)] * 6, rel=0.01)
            assert rates[3] == bench.TUNED[bed][bench.OPTIMIZERS.index(optimizer)]
    assert [run.seed for run in planned(PLAN[:1])] == sorted(run.seed for run in planned(PLAN[:1]))


def test_no_seed_of_the_plan_chose_anything() -> None:
    stored = {row["seed"] for path in (ROOT / bench.DATA).glob("*.jsonl") if path.stem not in ("bench", "stand-ins")
              for row in Rows.load(path)}  # fmt: skip
    assert not stored & {seed for part in PLAN for seed in part.seeds}


def test_the_list_says_what_is_left_and_costs_at_most_eight_hours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    rows = tmp_path / "rows.jsonl"
    assert main(["bench", "--list", "--rows", str(rows)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("LLaMA on bytes, as people train, 1,000 updates")
    assert lines[-1].split()[:4] == ["all", "0", "of", "3640"]
    assert 5.0 < float(lines[-1].split()[-3]) <= 8.0
    Rows(row_of(run, 1.0) for run in planned()[:100]).save(rows)
    assert main(["bench", "--list", "--rows", str(rows), "--bed", "mlp", "--steps", "1000"]) == 0
    assert main(["bench", "--list", "--rows", str(rows)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[1] == "100"


def test_it_makes_what_is_left_once_and_goes_on(tmp_path: Path, made: list[PlannedRow]) -> None:
    path = tmp_path / "rows.jsonl"
    Rows([row_of(RUNS[1], 2.0)]).save(path)
    assert go_on([*RUNS, *RUNS], path) == 0
    assert made == [RUNS[0], RUNS[2], RUNS[3]]
    assert go_on(RUNS, path) == 0
    assert len(made) == 3
    assert {PlannedRow.of(row) for row in Rows.load(path)} == {*RUNS}


def test_it_begins_no_run_after_so_many_cpu_hours(tmp_path: Path) -> None:
    def make(run: PlannedRow) -> dict[str, Any]:
        return row_of(run, 1.0, seconds=3600.0)

    assert [go_on(RUNS, tmp_path / "rows.jsonl", make, hours=1.5) for _ in range(3)] == [2, 0, 0]


@pytest.mark.long
def test_workers_make_the_same_rows(tmp_path: Path) -> None:
    for workers in (1, 2):
        go_on(RUNS, tmp_path / f"{workers}.jsonl", workers=workers)
    alone, beside = ([{**row, "seconds": 0} for row in Rows.load(tmp_path / f"{n}.jsonl")] for n in (1, 2))
    assert alone == beside


def test_a_row_says_how_the_run_went() -> None:
    row = bench.make(PlannedRow("cells", Cell("mlp", "adamw", 100, 0.01), "default", 0))
    assert row["warmup_steps"] <= 50
    assert row["ended_by"] in ("loss", "clock")
    assert (row["alarms"], row["diverged"], len(row["curve"])) == (0, False, 50)
    assert row["curve"][0] == pytest.approx(row["first_loss"], rel=0.1)
    assert row["train_loss"] == pytest.approx(sum(row["curve"][-2:]) / 2, abs=0.2)


def test_a_run_that_explodes_ends_there() -> None:
    row = bench.make(PlannedRow("cells", Cell("mlp", "adamw", 60, 1e6), "linear 0", 0))
    assert row["diverged"]
    assert row["val_loss"] is None
    assert len(row["curve"]) < 30


def test_a_foreign_entry_of_a_few_lines_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).with_name("mine.py"), tmp_path)
    monkeypatch.setattr(bench, "PLAN", (Part(["mlp", "cnn"], 20, (60,), ("default",)),))
    words = ["bench", "--entry", "mine.py:root", "--bed", "mlp", "--optimizer", "adamw", "--rows", "rows.jsonl"]
    assert main(words) == 0
    rows = Rows.load(Path("rows.jsonl"))
    assert [row["schedule"] for row in rows] == ["mine.py:root"] * 7
    assert sorted(row["cell"]["lr"] for row in rows) == bench.rates("mlp", "adamw")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bensh"], "invalid choice: 'bensh'"),
        (["bench", "--bed", "lama"], "invalid choice: 'lama'"),
        (["pages", "--help"], "pages takes no options, got --help"),
        (["bench", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["bench", "--steps", "7"], "nothing is planned at 7 updates: give --steps 1000 or 4000"),
        (["bench", "--entry", "zigzag"], "no entry 'zigzag'"),
    ],
)
def test_a_wrong_word_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(words)
    except SystemExit as stopped:
        status = int(str(stopped.code))
    assert status == 2
    assert said in capsys.readouterr().err
