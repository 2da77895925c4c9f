"""The entries: what each does to the rate, and how it is named."""

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup
from autowarm.lab.config import UsageError
from studies import bench
from studies.entries import ENTRIES, ScheduleFreePlus, Training, find, title
from studies.rows import Cell, PlannedRow


def training(schedule: str, optimizer: str = "adamw", steps: int = 20, target: float | None = None) -> Training:
    run = PlannedRow("cells", Cell("mlp", optimizer, steps, 0.5), schedule, 0, target)
    return Training(nn.Linear(4, 3), run)


@pytest.mark.parametrize(
    ("schedule", "first", "warmup_steps"),
    [
        ("linear 0.1", [1 / 3, 2 / 3, 1.0], 2),
        ("linear 0", [1.0, 0.99, 0.98], 0),
        ("tenth 0.2", [0.1, 0.325, 0.55], 4),
        ("updates 3", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0], 3),
        ("wsd", [0.0, 0.5, 1.0, 1.0], None),
        ("untuned", [0.05, 0.0994], None),
        ("radam", [1.0, 0.99], 0),
        ("schedule-free+", [0.5, 1.0, 1.0], 1),
        ("default", [0.1], None),
        ("schedule-free+ ours", [0.1], None),
    ],
)
def test_the_first_rates_as_shares_of_the_peak(schedule: str, first: list[float], warmup_steps: int | None) -> None:
    one = training(schedule)
    scheduler = find(schedule)(one)
    found = []
    for _ in first:
        found.append(one.optimizer.param_groups[0]["lr"] / 0.5)
        one.optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, AdaptiveWarmup) else []))
    assert found == pytest.approx(first, abs=6e-3)
    if not isinstance(scheduler, AdaptiveWarmup):
        assert getattr(scheduler, "warmup_steps", None) == warmup_steps


@pytest.mark.parametrize("name", [*ENTRIES, "updates 4", "tenth 0.5", "peak limit 2"])
def test_every_entry_makes_a_run(name: str) -> None:
    run = PlannedRow("cells", Cell("mlp", "adamw", 30, 0.01), name, 0, target_loss=0.3)
    row = bench.make(run)
    assert row["val_loss"] < row["first_loss"]
    assert row["schedule"] == name


def test_algorithm_1_is_told_its_target_and_the_default_watches() -> None:
    assert find("paper")(training("paper", "muon", target=0.3)).target_loss == 0.3
    assert find("default")(training("default"))._guard is not None


@pytest.mark.parametrize("name", ["zigzag", "mine.py:name", "linear", f"{__file__}:absent", f"{__file__}:__doc__"])
def test_an_entry_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"no entry '.*': (give default, paper, |name a function in a Python file)"):
        find(name)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [("linear 0", "none"), ("linear 0.02", "2%"), ("tenth 0.5", "50% from lr/10"), ("updates 40", "40 updates"),
     ("paper", "Algorithm 1"), ("default", "default")],
)  # fmt: skip
def test_a_title_is_a_length(schedule: str, words: str) -> None:
    assert title(schedule) == words


def test_schedule_free_plus_is_adam_at_a_polyak_step_whose_average_starts_after_the_warm_up() -> None:
    p = torch.nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    opt = ScheduleFreePlus([p])
    z = x = p.detach().clone()
    mean, square, weights, highest = torch.zeros(2), torch.zeros(2), 0.0, 0.0
    for t in range(1, 9):
        factor = opt.param_groups[0]["lr"] = min(1.0, t / 4)
        y = 0.9 * x + 0.1 * z
        torch.testing.assert_close(p.detach(), y)
        opt.zero_grad()
        loss = (p**4).sum()
        loss.backward()
        grad = 4 * y**3
        height = float(loss.detach()) + 0.9 * float(grad @ (z - x))
        rate = factor * height / (float(grad.abs().sum()) * (torch.pi / 2) ** 0.5)
        mean, square = 0.9 * mean + 0.1 * grad, 0.95 * square + 0.05 * grad**2
        z = z - rate * (mean / (1 - 0.9**t)) / ((square / (1 - 0.95**t)).sqrt() + 1e-8)
        highest = max(highest, rate)
        weights += highest**2 if t >= 4 else 0.0
        x = x + (highest**2 / weights if t >= 4 else 1.0) * (z - x)
        opt.loss = loss.detach()
        opt.step()
    opt.eval()
    torch.testing.assert_close(p.detach(), x)
