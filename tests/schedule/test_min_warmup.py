"""The shortest warm-up: a loss that falls early neither raises the rate above a ramp in time nor ends the warm-up."""

import itertools
import math
from typing import Any

import pytest
import torch
from schedule_runs import PEAK, falling, make_optimizer, run, saved

from autowarm import AdaptiveWarmup

T = 400
EARLY = falling(start=10.0, end=0.5, pace=5.0)  # down to a tenth after 15 updates


def schedule(tensor: bool = False, total: int = T, **options: Any) -> AdaptiveWarmup:
    lr = torch.tensor(PEAK, dtype=torch.float64) if tensor else PEAK
    return AdaptiveWarmup(make_optimizer(lr), total, **options)


@pytest.mark.parametrize("tensor", [False, True], ids=["float lr", "tensor lr"])
@pytest.mark.parametrize(("given", "length"), [(0.1, 40), (40, 40), (0.2, 80), (0.25, 100)])
def test_a_loss_that_falls_early_waits_for_it(tensor: bool, given: float | int, length: int) -> None:
    free = schedule(tensor)
    run(free, EARLY, range(T))
    assert (free.ended_by, free.warmup_steps < 40) == ("gap", True)
    scheduler = schedule(tensor, min_warmup=given)
    rates = run(scheduler, EARLY, range(T))
    assert (scheduler.ended_by, scheduler.warmup_steps) == ("min_warmup", length)
    assert all(rate <= PEAK * (0.1 + 0.9 * t / length) * (1 + 1e-12) for t, rate in enumerate(rates[:length]))
    assert all(a <= b for a, b in itertools.pairwise(rates[: length + 1]))  # η(Δ) falls below Δ'; the rate does not
    assert rates[length] == pytest.approx(PEAK)


def test_a_loss_that_falls_later_ends_it() -> None:
    slow = falling(start=10.0, end=0.5, pace=50.0)
    free, bounded = schedule(), schedule(min_warmup=0.05)
    unbounded, rates = run(free, slow, range(T)), run(bounded, slow, range(T))
    assert bounded.ended_by == free.ended_by == "gap"
    assert bounded.warmup_steps == free.warmup_steps > 20
    assert rates[20:] == unbounded[20:]


@pytest.mark.parametrize(("options", "length"), [({"max_warmup": 0.1}, 40), ({"chance_loss": 100.0}, 40)])
def test_a_shorter_max_warmup_wins(options: dict[str, Any], length: int) -> None:
    scheduler = schedule(min_warmup=0.5, **options)
    run(scheduler, EARLY, range(T))
    assert (scheduler.ended_by, scheduler.warmup_steps) == ("max_warmup", length)


@pytest.mark.parametrize("tensor", [False, True], ids=["float lr", "tensor lr"])
@pytest.mark.parametrize("total", [120, 200, 1200])
def test_an_extended_run_does_not_jump(total: int, tensor: bool) -> None:
    scheduler = schedule(tensor, min_warmup=0.2)
    rates = run(scheduler, EARLY, range(30))
    scheduler.extend(total)
    resumed = schedule(tensor, total, min_warmup=0.2)
    resumed.load_state_dict(saved(scheduler))
    after = run(scheduler, EARLY, range(30, total))
    assert run(resumed, EARLY, range(30, total)) == after
    # On a shorter run it does not move; half of the run is still the longest warm-up.
    assert scheduler.warmup_steps == {120: 60, 200: 80, 1200: 240}[total]
    climb = [b - a for a, b in itertools.pairwise((rates + after)[29 : scheduler.warmup_steps + 1])]
    assert all(0 < step < 0.05 * PEAK for step in climb)


def test_its_end_is_foretold() -> None:
    scheduler = schedule(min_warmup=0.2)
    assert scheduler.metrics()["warmup_end"] == 200  # by the clock, as long as there is no loss
    run(scheduler, EARLY, range(30))
    assert scheduler.metrics()["warmup_end"] == 80
    assert "warm-up ends by update 80" in repr(scheduler)


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, math.nan, "a tenth", True, 0])
def test_a_bound_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="min_warmup is a share of the run, in"):
        schedule(min_warmup=value)


def test_algorithm_1_has_none() -> None:
    with pytest.raises(TypeError, match="Algorithm 1 has no min_warmup"):
        AdaptiveWarmup.paper(make_optimizer(), T, target_loss=0.1, min_warmup=0.1)
