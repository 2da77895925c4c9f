"""A user's own task in one run, as the engine makes it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autowarm.lab.config import OptimizerConfig, Point, RunConfig, ScheduleConfig
from autowarm.lab.execution.engine import Planned
from autowarm.lab.registry import SCHEDULES
from autowarm.lab.tasks.own import PackedTask, pack
from autowarm.lab.training.metrics import Progress


class Line:
    """What every task below starts from; batches draw from PyTorch's global generator."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))

    def batches(self, seed: int) -> Iterator[Any]:
        while True:
            yield torch.randn(16, 4)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return (model(batch) - batch.sum(1, keepdim=True)).square().mean()

    def validation(self) -> list[Any]:
        return [torch.randn(32, 4)]


def config_of(own: PackedTask, name: str = "adamw", kind: Any = "adaptive", **more: Any) -> RunConfig:
    return RunConfig(
        task=own.key, optimizer=OptimizerConfig(name=name, lr=0.01, weight_decay=0.0),
        schedule=ScheduleConfig(
            kind, 3 if kind == "linear" else None, target_loss=0.0 if SCHEDULES[kind].needs_target else None
        ),
        **{"steps": 12, "clip": 0.0, "checkpoint_every": 5, **more},
    )  # fmt: skip


def run(task: Any, folder: Path, on_step: Callable[[Progress], bool] | None = None, **more: Any) -> dict[str, Any]:
    """One run as the engine makes it."""
    own = pack(task).prepared(folder / "task")
    planned = Planned(Point("run", config_of(own, **more)), "id", folder / "run", own)
    return planned.job().call(on_step or (lambda progress: False))
