import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from autowarm.lab.config import EngineConfig, LabError, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.files import sha256
from autowarm.lab.processes import Interrupted
from autowarm.lab.tasks.own import pack
from autowarm.lab.training.checkpoint import own_checkpoints
from autowarm.lab.training.loop import _Run, train
from autowarm.lab.training.metrics import read_metrics, write_log

from ..helpers import crash_at, numbers, resumed, stop_at
from ..tasks import own_runs

SCHEDULES = {
    "linear": ScheduleConfig(kind="linear", warmup_steps=3),
    "adaptive": ScheduleConfig(kind="adaptive"),
    "paper": ScheduleConfig(kind="paper", target_loss=1.0, peak_gap=4.2),
}


def test_a_finished_run_is_not_made_again(run: RunConfig, tmp_path: Path) -> None:
    first = train(run, tmp_path)
    assert first["files"] == {name: sha256(tmp_path / name) for name in ("model.safetensors", "metrics.jsonl")}
    assert train(run, tmp_path, crash_at(1)) == json.loads((tmp_path / "result.json").read_text()) == first
    assert list(tmp_path.glob("events.out.tfevents.*"))
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_run_that_ends_above_its_first_loss_counts_as_diverged(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loss, diverged in ((5.0, False), (8.0, True)):  # at first it is that of 280 tokens
        monkeypatch.setattr(_Run, "evaluate", lambda self, loss=loss, **_: {"loss": loss})
        assert train(run, tmp_path / str(loss))["diverged"] == diverged


class Poisoned(own_runs.Line):
    """Batches of NaN at some updates, which reach the weights under an optimizer that is not ours."""

    def __init__(self, *updates: int) -> None:
        self.updates = updates

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def batches(self, seed: int) -> Iterator[torch.Tensor]:
        for step in range(1, 1000):
            yield torch.randn(16, 4) * (torch.nan if step in self.updates else 1.0)


def poisoned(task: Poisoned, folder: Path, name: str = "adamw", lr: float = 0.01, **more: Any) -> dict[str, Any]:
    own = pack(task)
    config = dataclasses.replace(
        own_runs.config_of(own, steps=60, clip=1.0), optimizer=OptimizerConfig(name=name, lr=lr),
        schedule=ScheduleConfig(kind="linear", warmup_steps=3), checkpoint_every=10,
    )  # fmt: skip
    return train(config, folder, own=own, **more)


@pytest.mark.parametrize(
    ("broken", "steps"),
    [(41, [30, 40]), (40, [20, 30])],  # where it would save or stop
)
def test_a_run_that_diverges_keeps_its_checkpoints_and_no_broken_weights(
    broken: int, steps: list[int], tmp_path: Path
) -> None:
    result = poisoned(Poisoned(broken), tmp_path, on_step=stop_at(40) if broken == 40 else None)
    assert result["diverged"]
    assert result["val_loss"] is None
    assert result["resume_from"] == f"checkpoint-000000{steps[-1]}"
    assert [path.name for path in own_checkpoints(tmp_path)] == [f"checkpoint-000000{step}" for step in steps]
    assert not (tmp_path / "model.safetensors").exists()
    assert result["files"].keys() == {"metrics.jsonl"}
    with pytest.raises(LabError, match=r"holds another run \(config\.optimizer\.lr: 0\.01 → 0\.005\)"):
        poisoned(Poisoned(broken), tmp_path, lr=0.005)


def test_a_run_that_diverges_at_its_first_update_has_a_result(tmp_path: Path) -> None:
    own = pack(Poisoned(1))
    config = dataclasses.replace(own_runs.config_of(own), schedule=ScheduleConfig(options={"max_nonfinite": 1}))
    result = train(config, tmp_path, own=own)
    assert (result["diverged"], result["train_loss"], result["val_loss"]) == (True, None, None)


@pytest.mark.parametrize(("kind", "options"), [("linear", {}), ("adaptive", {}), ("adaptive", {"recover": True})])
def test_a_run_that_goes_on_elsewhere_at_half_the_rate_can_be_interrupted(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    own = pack(Poisoned())
    schedule = SCHEDULES[kind]
    config = dataclasses.replace(own_runs.config_of(own, steps=60), schedule=schedule, checkpoint_every=10)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "first", stop_at(45), own=own)
    start = tmp_path / "first" / "checkpoint-00000040"
    lower = dataclasses.replace(config.optimizer, lr=config.optimizer.lr / 2)
    config = dataclasses.replace(config, optimizer=lower, schedule=dataclasses.replace(schedule, options=options))
    straight = train(config, tmp_path / "straight", own=own, resume_from=start)
    assert numbers(resumed(config, tmp_path / "broken", 44, 55, own=own, resume_from=start)) == numbers(straight)
    rates = [row["lr"] for row in read_metrics(tmp_path / "straight")]
    first = [row["lr"] for row in read_metrics(tmp_path / "first")]
    assert rates[:40] == first[:40]
    assert rates[41:45] == pytest.approx([rate / 2 for rate in first[41:45]])
    for changed, words in ((dataclasses.replace(config, steps=70), "but not steps: 60 → 70"), (dataclasses.replace(
            config, optimizer=dataclasses.replace(lower, lr=1.0)), "a lower optimizer.lr")):  # fmt: skip
        with pytest.raises(LabError, match=words):
            train(changed, tmp_path / "another", own=own, resume_from=start)
    with pytest.raises(LabError, match="is no intact checkpoint"):
        train(config, tmp_path / "another", own=own, resume_from=tmp_path / "first")
    write_log(tmp_path / "first", [{**row, "loss": 1.0} for row in read_metrics(tmp_path / "first")])
    with pytest.raises(LabError, match=r"does not match metrics\.jsonl beside it, which has changed since"):
        train(config, tmp_path / "another", own=own, resume_from=start)


@pytest.mark.parametrize("name", ["muon", "lion"])
def test_a_loss_of_nan_whose_update_was_skipped_is_no_divergence(name: str, tmp_path: Path) -> None:
    result = poisoned(Poisoned(41, 60), tmp_path, name)
    assert not result["diverged"]
    assert len(read_metrics(tmp_path)) == 60
    assert result["val_loss"] < result["first_loss"]
    assert any("a gradient is not finite" in text for text in result["warnings"])


def test_losses_of_nan_without_end_are_a_divergence(tmp_path: Path) -> None:
    result = poisoned(Poisoned(*range(21, 60)), tmp_path, "muon")
    assert result["diverged"]
    assert any("20 updates in a row" in text for text in result["warnings"])
    assert result["resume_from"] == "checkpoint-00000030"  # its weights are those of update 20


@pytest.mark.parametrize(("last", "diverged"), [(60, False), (99, True)])
def test_a_schedule_that_recovers_ends_a_broken_run_itself(last: int, diverged: bool, tmp_path: Path) -> None:
    class Broken(own_runs.Line):
        """Batches of NaN from update 61 to update last + 1, which reach the weights and BatchNorm's buffers."""

        def batches(self, seed: int) -> Iterator[torch.Tensor]:
            for step in range(100):
                yield torch.randn(16, 4) * (torch.nan if 60 <= step <= last else 1.0)

    own = pack(Broken())
    schedule = ScheduleConfig(options={"recover": True, "max_nonfinite": 10})
    run = dataclasses.replace(own_runs.config_of(own, steps=100, clip=1.0), schedule=schedule)
    result = resumed(run, tmp_path, *([] if diverged else [70]), own=own)
    rows = read_metrics(tmp_path)
    assert (result["diverged"], result["val_loss"] is None, len(rows) < 100) == (diverged,) * 3
    assert any("are those of update" in text for text in result["warnings"])
    assert any("not finite 10 times in a row" in text for text in result["warnings"]) == diverged
    if not diverged:
        assert result["val_loss"] < result["first_loss"]
        assert all(value.isfinite().all() for value in load_file(tmp_path / "model.safetensors").values())


def test_micro_batches_change_a_run_by_rounding_only(run: RunConfig, tmp_path: Path) -> None:
    whole, split = (
        train(
            dataclasses.replace(run, engine=EngineConfig(precision="float64", accumulate=count)), tmp_path / str(count)
        )
        for count in (1, 4)
    )
    for name in ("train_loss", "val_loss"):
        assert split[name] == pytest.approx(whole[name], rel=1e-9)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
def test_a_compiled_model_trains_alike(run: RunConfig, tmp_path: Path) -> None:
    run = dataclasses.replace(run, steps=5, eval_batches=1)
    eager = train(run, tmp_path / "eager")
    compiled = dataclasses.replace(run, engine=dataclasses.replace(run.engine, compile=True))
    assert train(compiled, tmp_path / "compiled")["val_loss"] == pytest.approx(eager["val_loss"], rel=1e-4)
    # Its weights have the names of a model that is not compiled.
    names = [sorted(load_file(tmp_path / folder / "model.safetensors")) for folder in ("eager", "compiled")]
    assert names[0] == names[1]


BAD, ALARM = 100, 142  # the update of the bad batch, and that of the alarm


class OneBadBatch(own_runs.Line):
    """A finite batch that throws the weights far away."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def batches(self, seed: int) -> Iterator[torch.Tensor]:
        for step in range(200):
            yield torch.randn(16, 4) * (300.0 if step == BAD - 1 else 1.0)


def test_a_run_stopped_between_a_bad_batch_and_its_alarm_goes_back_as_an_uninterrupted_one(tmp_path: Path) -> None:
    own = pack(OneBadBatch())
    schedule, optimizer = ScheduleConfig(options={"recover": True}), OptimizerConfig("normsgd", 0.05, weight_decay=0.0)
    config = dataclasses.replace(own_runs.config_of(own, steps=200), schedule=schedule, optimizer=optimizer)
    straight = train(config, tmp_path / "straight", own=own)
    (message,) = (text for text in straight["warnings"] if "are those of update" in text)
    assert message.startswith(f"update {ALARM}: ")
    again = resumed(config, tmp_path / "resumed", BAD, BAD + 10, ALARM - 1, own=own)
    assert not again["diverged"]
    assert again["val_loss"] == straight["val_loss"]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("straight", "resumed")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
