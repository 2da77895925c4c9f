"""A run that recovers from a bad batch does so wherever it was interrupted."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from autowarm.lab.config import OptimizerConfig, ScheduleConfig
from autowarm.lab.tasks.own import pack
from autowarm.lab.training.loop import train
from autowarm.lab.training.stopping import Interrupted

from ..helpers import stop_at
from ..tasks import own_runs

BAD, ALARM = 100, 145  # the update of the bad batch, and that of the alarm


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
    (said,) = (text for text in straight["warnings"] if "are those of update" in text)
    assert said.startswith(f"update {ALARM}: ")
    for stop in (BAD, BAD + 10, ALARM - 1):
        with pytest.raises(Interrupted):
            train(config, tmp_path / "resumed", stop_at(stop), own=own)
    resumed = train(config, tmp_path / "resumed", own=own)
    assert not resumed["diverged"]
    assert resumed["val_loss"] == straight["val_loss"]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("straight", "resumed")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
