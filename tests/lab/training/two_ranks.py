"""The runs that `test_parallel` compares: `python two_ranks.py FOLDER CORPUS` alone, or started by `torchrun`."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # the launcher's path has no tests

from autowarm.lab.config import EngineConfig, LabError, ModelConfig, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.processes import Interrupted
from autowarm.lab.training.loop import train
from autowarm.lab.training.parallel import joined
from autowarm.lab.training.setup import Setup
from tests.lab.conftest import small_run

WAYS: Any = ("ddp", "fsdp")
EXACT: Any = {"muon": {"dtype": "float64"}, "normsgd": {}}
RANK = int(os.environ.get("RANK", 0))


def runs(base: RunConfig) -> dict[str, RunConfig]:
    """By the optimizer's name: 16 steps in float64."""
    actual = {}
    base = dataclasses.replace(base, schedule=ScheduleConfig(), batch_size=8, eval_batches=1, checkpoint_every=1000)
    for name, options in EXACT.items():
        optimizer = OptimizerConfig(name=name, lr=0.01, options=options)
        engine = EngineConfig(precision="float64", accumulate=2)
        actual[name] = dataclasses.replace(base, optimizer=optimizer, engine=engine, steps=16)
    return actual


def normed(*_: Any) -> torch.nn.Module:
    """A classifier of digits, whose running averages each rank keeps of its own rows."""
    torch.manual_seed(0)
    layers = torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10)
    return torch.nn.Sequential(*layers)


def classified(way: Any) -> RunConfig:
    """A run of `normed`."""
    return RunConfig(model=ModelConfig("swin"), optimizer=OptimizerConfig("adamw"), steps=10, batch_size=4,
                     eval_batches=2, checkpoint_every=3, engine=EngineConfig(parallel=way))  # fmt: skip


def watched_run(config: RunConfig, folder: Path) -> None:
    """Trains, and keeps the first gradients beside the rest."""
    gradients: dict[str, torch.Tensor] = {}

    class Watched(Setup):
        def forward_backward(self, pieces: Any) -> torch.Tensor:
            loss = super().forward_backward(pieces)
            if not gradients:
                for name, p in self.model.named_parameters():
                    grad: Any = p.grad
                    gradients[name] = (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).clone()
            return loss

    with mock.patch("autowarm.lab.training.loop.Setup", Watched):
        train(config, folder)
    if RANK == 0:
        torch.save(gradients, folder / "gradients.pt")


def alone(folder: Path, base: RunConfig) -> None:
    for name, config in runs(base).items():
        watched_run(config, folder / "alone" / name)


def together(folder: Path, base: RunConfig) -> None:
    for way in WAYS:
        for name, config in runs(base).items():
            engine = dataclasses.replace(config.engine, parallel=way)
            watched_run(dataclasses.replace(config, engine=engine), folder / way / name)
        # Broken off twice, the second time on the word of the other rank alone.
        config = dataclasses.replace(base, engine=EngineConfig(parallel=way))
        train(config, folder / way / "straight")
        for step, who in ((5, (0, 1)), (7, (1,))):
            with pytest.raises(Interrupted):
                train(config, folder / way / "broken", lambda p, at=step, by=who: p.step == at and RANK in by)
        train(config, folder / way / "broken")
        with mock.patch("autowarm.lab.tasks.corpora.classifier", normed):
            train(classified(way), folder / way / "averages straight")
            with pytest.raises(Interrupted):
                train(classified(way), folder / way / "averages", lambda p: p.step == 5)
            train(classified(way), folder / way / "averages")
        with pytest.raises(LabError, match="holds another run"):  # on both ranks, though one looks
            train(dataclasses.replace(config, seed=9), folder / way / "straight")
    # Given different runs, or different versions of the code, every rank says so before the first step.
    apart = dataclasses.replace(base, seed=RANK)
    with pytest.raises(LabError, match=r"ranks disagree: rank 0 and rank 1 differ in config\.seed: 0 → 1"):
        train(apart, folder / "apart")
    with (
        mock.patch("autowarm.lab.tasks.code_fingerprint", return_value=f"code{RANK}"),
        pytest.raises(LabError, match="rank 0 and rank 1 differ in code: code0 → code1"),
    ):
        train(base, folder / "apart")
    assert not (folder / "apart").exists()


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(sys.argv[1])
    config = dataclasses.replace(small_run(Path(sys.argv[2])), steps=10, checkpoint_every=3)
    if "WORLD_SIZE" in os.environ:
        with joined(EngineConfig()):
            together(where, config)
    else:
        alone(where, config)
