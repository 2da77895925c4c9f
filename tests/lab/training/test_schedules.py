import pytest
import torch

from autowarm import AdaptiveWarmup, Lion
from autowarm.lab.config import LabError, ScheduleConfig
from autowarm.lab.registry import SCHEDULES
from autowarm.lab.training.schedules import hand_set, make_scheduler, warmup_length

STEPS = 50


def rates(schedule: ScheduleConfig, steps: int = STEPS) -> list[float]:
    """The rate of each update at peak rate 1, of a loss that falls and falls."""
    p = torch.nn.Parameter(torch.zeros(2, 2))
    p.grad = torch.zeros(2, 2)
    optimizer = torch.optim.AdamW([p], lr=1.0) if schedule.kind == "untuned" else Lion([p], lr=1.0)
    scheduler, actual = make_scheduler(optimizer, schedule, steps), []
    for step in range(steps):
        optimizer.step()
        actual.append(optimizer.param_groups[0]["lr"])
        scheduler.step(*[torch.tensor(100.0 / (1 + step))] * SCHEDULES[schedule.kind].watches)
    return actual


@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 20])
def test_a_hand_set_ramp_rises_from_zero_in_equal_steps(warmup_steps: int) -> None:
    """(s + 1)/(w + 1): the one definition, whoever makes the run."""
    actual = rates(ScheduleConfig("linear", warmup_steps))
    ramp = [(step + 1) / (warmup_steps + 1) for step in range(warmup_steps + 1)]
    assert actual[: warmup_steps + 1] == pytest.approx(ramp, rel=1e-12)
    assert actual == pytest.approx([hand_set(step, warmup_steps, STEPS) for step in range(STEPS)], rel=1e-12)


def test_with_div_a_hand_set_ramp_starts_there() -> None:
    """lr/div + (lr − lr/div)·s/w, as `torch.optim.lr_scheduler.OneCycleLR` has it."""
    actual = rates(ScheduleConfig("linear", 4, div=100))
    assert actual[:5] == pytest.approx([0.01 + 0.99 * step / 4 for step in range(5)], rel=1e-12)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_kind_can_be_made_and_stays_within_the_peak_rate(kind: str) -> None:
    schedule = ScheduleConfig(kind, 3 if kind == "linear" else None, target_loss=0.5 if kind == "paper" else None)
    actual = rates(schedule)
    assert all(0 <= rate <= 1 + 1e-12 for rate in actual)
    assert (len(set(actual)) == 1) == (kind == "constant")


def test_untuned_takes_twice_the_memory_of_the_second_moments() -> None:
    p = torch.nn.Parameter(torch.zeros(2, 2))
    scheduler = make_scheduler(torch.optim.AdamW([p], lr=1.0, betas=(0.9, 0.95)), ScheduleConfig("untuned"), 1000)
    rises = [scheduler.lr_lambdas[0](step) for step in range(60)]
    assert rises[0] == pytest.approx(1 / 40)
    assert rises.index(max(rises)) == 39  # 2/(1 − 0.95) updates
    short = make_scheduler(torch.optim.AdamW([p], lr=1.0, betas=(0.9, 0.5)), ScheduleConfig("untuned"), 8)
    assert [round(short.lr_lambdas[0](step), 2) for step in range(5)] == [0.25, 0.48, 0.64, 0.69, 0.5]
    for without in (torch.optim.SGD([p], lr=1.0), Lion([p], lr=1.0)):
        with pytest.raises(LabError, match="(SGD|Lion) keeps none"):
            make_scheduler(without, ScheduleConfig("untuned"), 10)


def test_greedy_starts_low_and_rises_while_the_loss_falls() -> None:
    actual = rates(ScheduleConfig("greedy"), steps=200)
    assert actual[0] == pytest.approx(0.01)
    assert actual[-1] == pytest.approx(1.0)


def test_the_length_of_a_warm_up_is_what_was_made_of_it() -> None:
    p = torch.nn.Parameter(torch.zeros(2, 2))
    p.grad = torch.zeros(2, 2)
    optimizer = Lion([p], lr=1.0)
    scheduler = AdaptiveWarmup.paper(optimizer, 20, target_loss=0.5)
    for _ in range(5):
        optimizer.step()
        scheduler.step(10.0)
    assert warmup_length(ScheduleConfig("paper", target_loss=0.5), scheduler, 5) == 5
    assert warmup_length(ScheduleConfig("linear", 7), None, 5) == 7
    assert warmup_length(ScheduleConfig("greedy"), None, 5) == 0
