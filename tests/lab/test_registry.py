"""A name stands in the registry alone: choices, help texts, messages and the pages follow from it."""

from pkgutil import resolve_name

import pytest
import torch

from autowarm.lab import registry
from autowarm.lab.config import CompareConfig, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.registry import OPTIMIZERS, SCHEDULES, SMALL_TASKS, Optimizer, Schedule
from autowarm.lab.tasks import make_task
from autowarm.lab.training.optimizers import make_optimizer
from autowarm.lab.training.schedules import make_scheduler

from .config.test_build import shown


def test_every_entry_is_where_it_says() -> None:
    assert all(callable(resolve_name(entry.place)) for entry in (*OPTIMIZERS.values(), *SCHEDULES.values()))
    assert [make_task(RunConfig(task=name)).name for name in SMALL_TASKS] == list(SMALL_TASKS)


def test_help_lists_every_name() -> None:
    whole = " ".join(shown("train", "--help").split()).replace("- ", "-")  # argparse breaks a line at a hyphen
    assert [name for name in (*OPTIMIZERS, *SCHEDULES, *SMALL_TASKS) if name not in whole] == []


def slow_start(optimizer: torch.optim.Optimizer, config: ScheduleConfig, steps: int) -> object:
    """A schedule of a file of its own."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))


def test_a_row_is_all_that_a_new_schedule_and_a_new_optimizer_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SCHEDULES", SCHEDULES)
    monkeypatch.setitem(SCHEDULES, "slow", Schedule(f"{__name__}:slow_start"))  # type: ignore[misc]
    monkeypatch.setitem(OPTIMIZERS, "sgd", Optimizer("SGD", "torch.optim:SGD"))  # type: ignore[misc]
    config = CompareConfig(rates={"sgd": [0.1]}, schedules=["slow"], seeds=[0])
    [point] = config.points()
    assert point.name == "SGD 0.1, slow, seed 0"
    optimizer = make_optimizer(torch.nn.Linear(2, 2), OptimizerConfig("sgd", 0.1))
    monkeypatch.setattr("autowarm.lab.training.schedules.resolve_name", lambda place: slow_start)
    make_scheduler(optimizer, point.run.schedule, 10)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
