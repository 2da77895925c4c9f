"""`make gpu PROGRAMME=1`: its dry run, how it goes on, and how it judges."""

import csv
import importlib
import io
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def programme(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu_programme")


def row(run: Any, loss: float | None) -> dict[str, Any]:
    return {**run._asdict(), "val_loss": loss, "warmup_steps": 100, "recoveries": []}


def test_the_dry_run_makes_every_run_and_then_has_nothing_left_to_do(
    programme: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    programme.main(["--dry-run", "--rows", str(rows)])
    made = programme.read(rows)
    assert [programme.of(one) for one in made] == programme.plan()
    assert "done" in capsys.readouterr().out
    assert {one["device"] for one in made} == {"none: a dry run"}
    for run, one in zip(programme.plan(), made, strict=True):
        same = [other for other in made if (other["seed"], other["steps"]) == (run.seed, run.steps)]
        assert one["first_loss"] == same[0]["first_loss"]  # the same weights and the same batch
        assert one["val_loss"] < one["first_loss"] or run.steps < 3_000
    assert len({one["first_loss"] for one in made if one["block"] == "B"}) == 4
    programme.main(["--dry-run", "--rows", str(rows)])
    assert programme.read(rows) == made


def test_it_stops_in_time_and_goes_on_where_it_stopped(
    programme: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, now = tmp_path / "rows.jsonl", [0.0]
    plan = [run for run in programme.plan() if not run.planned]
    monkeypatch.setattr(programme, "plan", lambda: plan)

    def make(run: Any, left: Any) -> dict[str, Any]:
        now[0] += 50.0 * run.steps / 1_000
        return row(run, 1.0)

    left = programme.go_on(rows, make, lambda: 540.0 - now[0])
    assert now[0] <= 540.0
    assert left == plan[10:]
    with open(rows, "a") as file:
        file.write('{"block": "A", "optim')  # the process was killed while it wrote
    assert [programme.of(one) for one in programme.read(rows)] == plan[:10]
    now[0] = 0.0
    assert programme.go_on(rows, make, lambda: 10_000.0 - now[0]) == []
    assert [programme.of(one) for one in programme.read(rows)] == plan


@pytest.mark.parametrize("warmup", ["default", "paper", "19%"])
def test_a_long_run_that_stops_on_the_way_is_the_uninterrupted_run(
    programme: ModuleType, tmp_path: Path, warmup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [run] = [one for one in programme.plan() if (one.block, one.optimizer, one.warmup) == ("G", "lion", warmup)]
    run = run._replace(steps=40_000)  # 200 updates of the dry run
    bench = programme.Bench(True, tmp_path / "corpus")
    straight, times = bench.made(run), iter([100.0, 10.0])
    assert bench.made(run, lambda: next(times)) is None  # after 100 updates
    resumed = bench.made(run)
    assert {**resumed, "seconds": 0} == {**straight, "seconds": 0}
    monkeypatch.setattr(programme, "plan", lambda: [run])
    assert programme.go_on(tmp_path / "rows.jsonl", lambda *_: None, lambda: 100.0) == [run]  # nothing was stored


@pytest.mark.parametrize(
    ("behind", "verdicts"),
    [(0.005, ["costs nothing", "costs nothing"]), (0.015, ["costs nothing", "costs something"]),
     (0.025, ["costs something", "costs something"]), (None, ["costs something", "costs something"])],
)  # fmt: skip
def test_the_verdict_follows_the_rule_on_the_page(
    programme: ModuleType, behind: float | None, verdicts: list[str]
) -> None:
    def loss(run: Any) -> float | None:
        return 3.0 if run.warmup != "default" else None if behind is None else 3.0 + behind

    rows = [row(run, loss(run)) for run in programme.plan()]
    judged = list(csv.DictReader(io.StringIO(programme.table(rows))))
    assert [line["deleting it"] for line in judged if line["deleting it"]] == verdicts
    unfinished = list(csv.DictReader(io.StringIO(programme.table(rows[:-12]))))
    assert {line["deleting it"] for line in unfinished} <= {"", "open", verdicts[0]}
    page = " ".join((ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8").split())
    assert f"at most {programme.LIMIT['A']} nats above the best warm-up under AdamW and {programme.LIMIT['B']}" in page
