"""The study's runs on the lab's engine."""

import pickle
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from autowarm.lab.config import LabError, Point, ScheduleConfig, Where
from autowarm.lab.execution.display import Display
from autowarm.lab.execution.engine import plan
from autowarm.lab.tasks import identity, run_id
from autowarm.lab.training.loop import train
from studies.cells import HAND_SET
from studies.rows import Cell, PlannedRow, Rows
from studies.runs import curve_of, make, row_of, run_of
from studies.tasks import StudyTask

from .conftest import stored

MLP = Cell("mlp", "signsgd", 20, 0.01)


def planned(schedule: str, cell: Cell = MLP, **more: object) -> PlannedRow:
    return PlannedRow("cells", cell, schedule, 0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "found"),
    [
        ("linear 0.1", ("linear", 2, None, {})),
        ("linear 0", ("linear", 0, None, {})),
        ("tenth 0.2", ("linear", 4, 10.0, {})),
        ("default", ("adaptive", None, None, {"recover": "warn"})),
        ("average 5", ("adaptive", None, None, {"smoothing": 0.25})),
        ("average 0.05", ("adaptive", None, None, {"smoothing": 0.05})),
        ("limit 0.1", ("adaptive", None, None, {"max_warmup": 0.1, "trained": False})),
        ("untuned", ("untuned", None, None, {})),
        ("wsd", ("wsd", None, None, {})),
        ("greedy", ("greedy", None, None, {})),
    ],
)
def test_a_schedule_in_the_studys_words(schedule: str, found: tuple[object, ...]) -> None:
    made = run_of(planned(schedule)).schedule
    assert (made.kind, made.warmup_steps, made.div, made.options) == found


def test_algorithm_1_gets_its_target_and_an_unknown_schedule_is_refused() -> None:
    assert run_of(planned("paper", target_loss=0.3)).schedule.target_loss == 0.3
    with pytest.raises(LabError, match="knows no schedule 'zigzag'"):
        run_of(planned("zigzag"))


def test_watching_for_spikes_changes_no_run(tmp_path: Path) -> None:
    watched = planned("default")
    plain = replace(run_of(watched), schedule=ScheduleConfig("adaptive"))
    losses = [loss for _, loss in curve_of(watched)]
    seen: list[float] = []
    train(plain, tmp_path, lambda progress: seen.append(progress.loss), own=StudyTask("mlp"))
    assert seen == losses


def test_runs_become_rows_once(tmp_path: Path, jobs_here: None) -> None:
    rows, store = tmp_path / "rows.jsonl", tmp_path / "runs"
    runs = [planned("linear 0.1"), planned("default")]
    # One was finished by a command that was killed before it wrote the row.
    unwritten = run_of(runs[0])
    make(runs[1:], rows, store, Display(), Where())
    assert len(Rows.load(rows)) == 1
    make(runs[:1], rows, store, Display(), Where())
    found = Rows.load(rows)
    assert [run in found for run in runs] == [True, True]
    assert list(store.glob("*/result.json")) == []
    assert found[runs[0]]["warmup_steps"] == 2
    result = train(unwritten, tmp_path / "again", own=StudyTask("mlp"))
    assert row_of(runs[0], result)["val_loss"] == found[runs[0]]["val_loss"]


# One of each kind: MLP, deep linear, a language model, pictures by a transformer.
KINDS = [
    Cell("mlp", "muon", 1000, 0.03),
    Cell("factor", "adamw", 1000, 0.003),
    Cell("llama", "adamw", 200, 0.03),
    Cell("vit", "muon", 200, 0.03),
]


@pytest.mark.long
@pytest.mark.parametrize("cell", KINDS, ids=lambda cell: cell.name)
def test_a_setting_made_again_agrees_with_its_stored_run(cell: Cell, tmp_path: Path) -> None:
    rows = stored("warm-up")
    schedule = HAND_SET[3] if cell.optimizer == "adamw" else "default"
    noise = statistics.stdev(rows.losses("cells", cell, "default").values())
    result = train(run_of(PlannedRow("cells", cell, schedule, 0)), tmp_path, own=StudyTask(cell.task))
    # Two runs that rounding or dropout set apart differ by √2 of it.
    assert abs(result["val_loss"] - rows.losses("cells", cell, schedule)[0]) <= 4 * noise


def test_a_worker_gets_a_task_by_its_name_and_the_runs_id_covers_the_tasks_code(tmp_path: Path) -> None:
    source = StudyTask("cnn")
    assert pickle.loads(pickle.dumps(source)) == source
    config = run_of(planned("linear 0.1", Cell("cnn", "adamw", 20, 0.01)))
    assert (config.task, config.is_own_task) == ("cnn@studies", True)
    assert source.make(config).sha256 == source.sha256
    [run] = plan([Point("one", config)], tmp_path, source)
    assert run.id == run_id(identity(config, source.sha256)) != run_id(identity(config, ""))


@pytest.mark.long
def test_a_stage_is_made_by_worker_processes(tmp_path: Path) -> None:
    runs = [planned("linear 0.1", Cell(task, "adamw", 3, 0.01)) for task in ("cnn", "mlp")]
    make(runs, tmp_path / "rows.jsonl", tmp_path / "runs", Display(), Where(workers=1))
    assert all(run in Rows.load(tmp_path / "rows.jsonl") for run in runs)
