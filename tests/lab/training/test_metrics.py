import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autowarm.lab.config import LabError, RunConfig, ScheduleConfig, differences
from autowarm.lab.tasks import identity, run_id
from autowarm.lab.training import loop
from autowarm.lab.training.loop import _Run, train
from autowarm.lab.training.metrics import read_metrics

from ..helpers import crash_at


def test_without_its_package_a_remote_log_is_one_line(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    wanted = dataclasses.replace(run, engine=dataclasses.replace(run.engine, wandb="project"))
    with pytest.raises(LabError, match="pip install wandb"):
        train(wanted, tmp_path)


@pytest.fixture
def offline(run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunConfig]:
    """A run that logs to W&B, which keeps it in files and asks no server."""
    import wandb

    for name in ("WANDB_DIR", "WANDB_RUN_ID", "WANDB_NAME", "WANDB_PROJECT", "WANDB_RESUME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield dataclasses.replace(run, engine=dataclasses.replace(run.engine, wandb="project"))
    wandb.teardown()


@pytest.mark.long
def test_offline_wandb_keeps_a_run_under_one_id_in_its_folder(
    offline: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    init, logged = wandb.init, []

    def watched(**given: Any) -> Any:
        remote: Any = init(**given)
        log = remote.log
        remote.log = lambda row, step: (logged.append((remote.id, step, row)), log(row, step=step))
        return remote

    monkeypatch.setattr(wandb, "init", watched)
    folder = tmp_path / "a" / "run"
    with pytest.raises(RuntimeError, match="power cut"):
        train(offline, folder, on_step=crash_at(9))
    result = train(offline, folder)
    assert len(list(folder.glob(f"wandb/offline-run-*-{result['id']}"))) == 2
    steps = [*range(1, 10), *range(9, offline.steps + 1)]  # again from behind the checkpoint, step 8
    assert [(name, step) for name, step, _ in logged] == [(result["id"], step) for step in steps]
    assert [{"step": step, **row} for _, step, row in logged[:8] + logged[9:]] == read_metrics(folder)
    assert result["warnings"] == []
    other = train(dataclasses.replace(offline, seed=1), tmp_path / "b" / "run")  # in a folder of the same name
    assert logged[-1][0] == other["id"] != result["id"]


@pytest.fixture
def watched(run: RunConfig) -> RunConfig:
    """A run that ends its warm-up and is evaluated on the way."""
    schedule = ScheduleConfig(options={"max_warmup": 3})
    return dataclasses.replace(run, schedule=schedule, engine=dataclasses.replace(run.engine, eval_every=5))


def test_every_step_is_logged_with_its_norm_its_speed_and_the_schedules_state(
    watched: RunConfig, tmp_path: Path
) -> None:
    states: list[dict[str, Any]] = []

    def note(self: Any) -> dict[str, Any]:
        states.append(actual := whole(self))
        return actual

    whole = _Run._state_of_schedule
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Run, "_state_of_schedule", note)
        result = train(watched, tmp_path)
    rows = read_metrics(tmp_path)
    assert len(rows) == len(states) == watched.steps
    message: dict[str, Any] = {}
    for row, state in zip(rows, states, strict=True):
        message |= {name: value for name, value in row.items() if name.startswith("autowarm/")}
        assert message == state  # what a row leaves out has not changed
    assert {"autowarm/gap", "autowarm/share", "autowarm/loss", "autowarm/peak_gap"} <= message.keys()
    assert message["autowarm/ended_by"] == "clock"
    assert message["autowarm/phase"] == 1
    assert all(row["grad_norm"] > 0 for row in rows)
    assert all(row["tokens_per_second"] > 0 for row in rows[1:])
    judged = [row for row in rows if "val_loss" in row]
    assert [row["step"] for row in judged] == [5, 10]
    for row in judged:
        assert row["val_perplexity"] == pytest.approx(math.exp(row["val_loss"]))
        assert 0 <= row["val_accuracy"] <= 1
    assert result["metric"].keys() == {"accuracy", "perplexity"}


def test_tensorboard_has_what_the_file_has(watched: RunConfig, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(watched, tmp_path)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    logged: dict[int, dict[str, float]] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            logged.setdefault(event.step, {})[name] = event.value
    for row in read_metrics(tmp_path):
        numbers = {name: value for name, value in row.items() if name != "step" and not isinstance(value, str)}
        assert logged[row["step"]] == pytest.approx(numbers, rel=1e-6)
    assert [tag.partition("/text")[0] for tag in events.Tags()["tensors"]] == ["autowarm/ended_by"]


def test_without_clipping_and_with_a_hand_set_schedule_their_columns_are_absent(run: RunConfig, tmp_path: Path) -> None:
    train(dataclasses.replace(run, clip=0.0), tmp_path)
    names = {name for row in read_metrics(tmp_path) for name in row}
    assert names == {"step", "loss", "lr", "seconds", "tokens_per_second"}


def test_the_time_of_evaluations_is_no_training_time(
    watched: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def takes(seconds: float, name: str) -> None:
        plain = getattr(_Run, name)

        def slow(self: Any, *args: Any, **options: Any) -> Any:
            nonlocal now
            now += seconds
            return plain(self, *args, **options)

        monkeypatch.setattr(_Run, name, slow)

    takes(2.0, "_update")
    takes(1000.0, "evaluate")
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now))
    result = train(watched, tmp_path)
    assert result["seconds"] == 2.0 * watched.steps
    assert result["eval_seconds"] == 3000.0  # after steps 5, 10 and 12
    tokens = watched.batch_size * watched.model.seq_len
    assert {row.get("tokens_per_second", tokens / 2) for row in read_metrics(tmp_path)} == {tokens / 2}
    assert result["tokens_per_second"] == tokens / 2


def test_an_id_follows_from_all_that_decides_the_numbers() -> None:
    run = RunConfig()
    who = identity(run, "corpus")
    assert run_id(who) == run_id(json.loads(json.dumps(who)))
    assert run_id(who) != run_id(identity(dataclasses.replace(run, seed=1), "corpus"))
    assert run_id(who) != run_id(identity(run, "another"))
    assert {"code", "torch", "transformers"} <= who.keys()
    changed = identity(dataclasses.replace(run, steps=7), "corpus")
    assert differences(who, changed) == [f"config.steps: {run.steps} → 7"]
