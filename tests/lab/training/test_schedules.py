import pytest
import torch

from autowarm import AdaptiveWarmup, Lion
from autowarm.lab.config import LabError, ScheduleConfig
from autowarm.lab.registry import SCHEDULES
from autowarm.lab.training.schedules import authors_peak_gap, hand_set, make_scheduler, warmup_length
from autowarm.schedule import calibrate

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
        scheduler.step(*[torch.tensor(100.0 / (1 + step))] * SCHEDULES[schedule.kind].watches)
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


MUON, LION = {"lr": 1e-3, "div": 100.0, "kappa": 46_848}, {"lr": 1e-3, "div": 100.0, "kappa": 123_568_128}


@pytest.mark.parametrize(
    ("first", "target", "kind", "peak_gap"),
    [(10.95, 3.3, MUON, 4.888), (10.98, 3.3, MUON, 3.188), (10.99, 3.3, MUON, 3.776), (11.0, 3.3, MUON, 5.027),
     (10.98, 3.2, MUON, 5.515), (10.98, 3.4, LION, 0.374)],
)  # fmt: skip
def test_it_is_theirs_and_jumps_with_the_first_loss(
    first: float, target: float, kind: dict[str, float], peak_gap: float
) -> None:
    assert authors_peak_gap(first - target, **kind) == pytest.approx(peak_gap, abs=5e-4)


def test_it_depends_on_what_the_minimum_does_not() -> None:
    theirs = {authors_peak_gap(7.68, **(MUON | {"lr": lr})) for lr in (1e-3, 1e-2)}
    ours = {calibrate(7.68, **(MUON | {"lr": lr})).peak_gap for lr in (1e-3, 1e-2)}
    assert (len(theirs), len(ours)) == (2, 1)


def test_a_gap_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="peak_gap must"):
        authors_peak_gap(0.01, **MUON)
