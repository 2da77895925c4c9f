import math

import pytest
import torch

from autowarm import AdaptiveWarmup, Lion, Muon
from autowarm.lab.config import LabError, RunConfig, ScheduleConfig
from autowarm.lab.registry import SCHEDULES
from autowarm.lab.training.schedules import advance, hand_set, make_scheduler, warmup_length
from autowarm.theory import Smoothness, polyak_rate, warmup_only_rate

STEPS = 50


def rates(schedule: ScheduleConfig, steps: int = STEPS) -> list[float]:
    """The rate of each update at peak rate 1, of a loss that falls and falls."""
    p = torch.nn.Parameter(torch.zeros(2, 2))
    p.grad = torch.zeros(2, 2)
    optimizer = torch.optim.AdamW([p], lr=1.0) if schedule.kind == "untuned" else Lion([p], lr=1.0)
    scheduler, found = make_scheduler(optimizer, schedule, steps), []
    for step in range(steps):
        optimizer.step()
        found.append(optimizer.param_groups[0]["lr"])
        advance(scheduler, SCHEDULES[schedule.kind].watches, torch.tensor(100.0 / (1 + step)))
    return found


@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 20])
def test_a_hand_set_ramp_rises_from_zero_in_equal_steps(warmup_steps: int) -> None:
    """(s + 1)/(w + 1): the one definition, whoever makes the run."""
    found = rates(ScheduleConfig("linear", warmup_steps))
    ramp = [(step + 1) / (warmup_steps + 1) for step in range(warmup_steps + 1)]
    assert found[: warmup_steps + 1] == pytest.approx(ramp, rel=1e-12)
    assert found == pytest.approx([hand_set(step, warmup_steps, STEPS) for step in range(STEPS)], rel=1e-12)


@pytest.mark.parametrize("div", [2, 100])
def test_with_div_a_hand_set_ramp_starts_there(div: float) -> None:
    """lr/div + (lr − lr/div)·s/w, as `torch.optim.lr_scheduler.OneCycleLR` has it."""
    warmup_steps = 4
    found = rates(ScheduleConfig("linear", warmup_steps, div=div))
    ramp = [1 / div + (1 - 1 / div) * step / warmup_steps for step in range(warmup_steps + 1)]
    assert found[: warmup_steps + 1] == pytest.approx(ramp, rel=1e-12)


def test_behind_the_ramp_the_cosine_ends_near_zero() -> None:
    ratios = [hand_set(step, 4, 12, 100) for step in range(12)]
    assert ratios[0] == 0.01
    assert ratios[4] == 1.0 == max(ratios)
    assert ratios[8] == pytest.approx(0.5)
    assert ratios[11] == pytest.approx((1 + math.cos(math.pi * 7 / 8)) / 2)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_kind_can_be_made_and_stays_within_the_peak_rate(kind: str) -> None:
    schedule = ScheduleConfig(kind, 3 if kind == "linear" else None, target_loss=0.5 if kind == "paper" else None)
    found = rates(schedule)
    assert all(0 <= rate <= 1 + 1e-12 for rate in found)
    assert (len(set(found)) == 1) == (kind == "constant")


def test_warmup_stable_decay_is_a_tenth_up_and_a_fifth_down() -> None:
    found = rates(ScheduleConfig("wsd"))
    assert found[5:40] == [1.0] * 35
    assert found[4] < 1 > found[41]


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
    found = rates(ScheduleConfig("greedy"), steps=200)
    assert found[0] == pytest.approx(0.01)
    assert found[-1] == pytest.approx(1.0)


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


@pytest.mark.parametrize(
    "schedule",
    [
        ScheduleConfig(options={"max_warmup": -1.0}),
        ScheduleConfig(options={"candidtes": 9}),
        ScheduleConfig("paper", target_loss=200.0),
    ],
)
def test_what_a_schedule_objects_to_is_one_line(schedule: ScheduleConfig) -> None:
    with pytest.raises(LabError, match="^schedule: "):
        rates(schedule)


def test_the_rate_of_earlier_theory_only_warms_up() -> None:
    """1/K(Δ) with K = K0 + K1Δ, of the loss before."""
    target, div = -1.0, 20.0
    found = rates(ScheduleConfig("warmup-only", target_loss=target, div=div))
    gaps = [100.0 / (1 + step) - target for step in range(STEPS - 1)]
    K = Smoothness(rho=1, K0=1.0, K1=(div - 1) / gaps[0], K_rho=0)
    assert found == pytest.approx([1 / div, *(warmup_only_rate(gap, K) for gap in gaps)])
    assert found == sorted(found)
    with pytest.raises(ValueError, match="warmup-only needs schedule.target_loss"):
        RunConfig(schedule=ScheduleConfig("warmup-only"))


def test_polyaks_rate_is_the_gap_over_the_dual_norm_of_what_the_geometry_steps() -> None:
    """Of the loss and gradient before, at most lr; AdamW's tensors do not count.

    A step of Muon at rate 1 has the spectral norm 0.2·√3 here, so its dual norm is that times the nuclear norm.
    """
    matrix, vector = torch.nn.Parameter(torch.eye(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = Muon([{"params": [matrix]}, {"params": [vector], "algorithm": "adamw"}], lr=0.1)
    scheduler = make_scheduler(optimizer, ScheduleConfig("polyak", target_loss=1.0, div=50.0), STEPS)
    found = [optimizer.param_groups[0]["lr"]]
    for step in range(6):
        matrix.grad = torch.diag(torch.tensor([1.0, 2.0, 3.0])) * 4**step
        vector.grad = torch.full((3,), 1e3)
        optimizer.step()
        advance(scheduler, True, torch.tensor(2.0))
        found.append(optimizer.param_groups[0]["lr"])
    assert found == pytest.approx(
        [0.1 / 50, *(min(0.1, polyak_rate(1.0, 0.2 * 3**0.5 * 6.0 * 4**step)) for step in range(6))]
    )
    assert found[2] == 0.1 > found[3]


def test_polyaks_rate_needs_a_norm_and_whole_gradients() -> None:
    schedule = ScheduleConfig("polyak", target_loss=1.0)
    with pytest.raises(LabError, match="AdamW has none"):
        make_scheduler(torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]), schedule, STEPS)
    with pytest.raises(ValueError, match="needs clip: 0"):
        RunConfig(schedule=schedule)
    with pytest.raises(ValueError, match="polyak needs schedule.target_loss"):
        RunConfig(schedule=ScheduleConfig("polyak"), clip=0.0)
