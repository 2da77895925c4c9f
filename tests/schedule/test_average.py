"""The average of the loss: which share of the run it covers, and where it starts, by the length of the run."""

import itertools
import statistics
from typing import Any

import pytest
import torch
from schedule_runs import PEAK, falling, make_optimizer, run, saved

from autowarm import AdaptiveWarmup

EARLY = falling(start=10.0, end=0.5, pace=20.0)  # down to a tenth after 60 updates
# By T: the updates that the average covers, and the first weight of f(x0).
WINDOWS = {4_001: 4_001 * (0.01 + 0.04 / 12_000), 7_000: 140.0, 10_000: 300.0, 16_000: 800.0, 64_000: 3_200.0}
LAGS = {4_001: 1 / 12_000, 7_000: 0.25, 10_000: 0.5, 16_000: 1.0, 64_000: 1.0}

both_rates = pytest.mark.parametrize("tensor", [False, True], ids=["float lr", "tensor lr"])


def schedule(total: int | None, tensor: bool = False, **options: Any) -> AdaptiveWarmup:
    lr = torch.tensor(PEAK, dtype=torch.float64) if tensor else PEAK
    return AdaptiveWarmup(make_optimizer(lr), total, **options)


def averaged(losses: list[float], window: float, lag: float) -> float:
    """The average as a sum: f(x0) and each later loss with its weight, over the sum of the weights."""
    first, keep = statistics.median(losses[:5]), 1 - 1 / window
    seen = [first] * 5 + losses[5:]
    weights = [keep**age / window for age in reversed(range(len(seen)))]
    early = lag * keep ** len(seen)
    return (early * first + sum(w * x for w, x in zip(weights, seen, strict=True))) / (early + sum(weights))


@both_rates
@pytest.mark.parametrize("total", [1, 40, 1_000, 4_000])
def test_up_to_4000_updates_it_covers_one_percent_and_is_corrected(total: int, tensor: bool) -> None:
    default, given = schedule(total, tensor), schedule(total, tensor, smoothing=0.01)
    steps = range(min(total, 200))
    assert run(default, EARLY, steps) == run(given, EARLY, steps)
    assert default.metrics() == given.metrics()


@both_rates
@pytest.mark.parametrize("total", WINDOWS)
def test_in_longer_runs_it_covers_more_and_lags(total: int, tensor: bool) -> None:
    scheduler = schedule(total, tensor, target_loss=-1e6)  # the loss never acts
    losses = [EARLY(t) + 0.1 * (-1) ** t for t in range(150)]
    run(scheduler, losses.__getitem__, range(150))
    assert scheduler.metrics()["loss"] == pytest.approx(averaged(losses, WINDOWS[total], LAGS[total]), rel=1e-9)


def test_a_given_share_is_corrected_in_every_run() -> None:
    scheduler = schedule(64_000, smoothing=0.05, target_loss=-1e6)
    losses = [EARLY(t) for t in range(150)]
    run(scheduler, EARLY, range(150))
    assert scheduler.metrics()["loss"] == pytest.approx(averaged(losses, 3_200.0, 0.0), rel=1e-9)


@both_rates
def test_a_loss_every_tenth_update_counts_for_ten(tensor: bool) -> None:
    scheduler = schedule(16_000, tensor, target_loss=-1e6)
    run(scheduler, EARLY, range(50))
    before = float(scheduler.metrics()["loss"])
    for _ in range(10):
        scheduler.optimizer.step()
    scheduler.step(2.0)
    assert scheduler.metrics()["loss"] == pytest.approx(before + (1 - (1 - 1 / 800) ** 10) * (2.0 - before), rel=1e-9)


@both_rates
def test_a_loss_that_falls_early_ends_no_long_runs_warmup_early(tensor: bool) -> None:
    quick, slow = schedule(16_000, tensor, smoothing=0.01), schedule(16_000, tensor)
    rates = [run(scheduler, EARLY, range(1_700)) for scheduler in (quick, slow)]
    assert (quick.ended_by, slow.ended_by) == ("gap", "gap")
    assert quick.warmup_steps < 0.01 * 16_000
    assert 0.03 * 16_000 < slow.warmup_steps < 0.05 * 16_000
    climb = rates[1][: slow.warmup_steps]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(climb))


def test_a_longer_run_never_warms_up_for_fewer_updates() -> None:
    lengths = []
    for total in (1_000, 3_999, 4_000, 4_001, 8_000, 12_000, 15_999, 16_000, 16_001, 20_000):
        scheduler = schedule(total)
        run(scheduler, EARLY, range(total // 8))
        assert scheduler.ended_by == "gap"
        lengths.append(scheduler.warmup_steps)
    assert lengths == sorted(lengths)
    assert lengths[3] - lengths[1] <= 1  # and it has no step at either end of the transition
    assert lengths[8] - lengths[6] <= 1


@both_rates
@pytest.mark.parametrize("at", [0, 1, 3, 5, 60])
def test_resumed_it_goes_on_to_the_bit(at: int, tensor: bool) -> None:
    straight, first, second = (schedule(10_000, tensor) for _ in range(3))
    head = run(first, EARLY, range(at))
    second.load_state_dict(saved(first))
    assert saved(second) == saved(first)
    assert head + run(second, EARLY, range(at, 400)) == run(straight, EARLY, range(400))
    assert saved(second) == saved(straight)


@both_rates
def test_an_extended_run_averages_as_its_new_length_asks(tensor: bool) -> None:
    scheduler = schedule(2_000, tensor, target_loss=-1e6)
    run(scheduler, EARLY, range(50))
    before = float(scheduler.metrics()["loss"])
    scheduler.extend(16_000)
    run(scheduler, lambda t: 2.0, range(1))
    assert scheduler.metrics()["loss"] == pytest.approx(before + (2.0 - before) / 800, rel=1e-9)


@both_rates
@pytest.mark.parametrize("at", [0, 1, 5, 10])
@pytest.mark.parametrize("total", [2_000, 6_000, None])
def test_a_run_extended_early_warms_up_as_if_planned_so(total: int | None, at: int, tensor: bool) -> None:
    extended, planned = schedule(total, tensor, decay="wso"), schedule(16_000, tensor, decay="wso")
    run(extended, EARLY, range(at))
    extended.extend(16_000)
    run(extended, EARLY, range(at, 1_700))
    run(planned, EARLY, range(1_700))
    assert extended.ended_by == planned.ended_by == "gap"
    assert 0.75 * planned.warmup_steps <= extended.warmup_steps <= planned.warmup_steps


@both_rates
def test_a_run_shortened_before_its_first_loss_is_the_short_run(tensor: bool) -> None:
    shortened, planned = schedule(16_000, tensor), schedule(2_000, tensor)
    shortened.extend(2_000)
    assert run(shortened, EARLY, range(300)) == run(planned, EARLY, range(300))
    assert shortened.metrics() == planned.metrics()


def test_a_new_warmup_takes_the_share_of_what_is_left() -> None:
    scheduler = schedule(16_000)
    run(scheduler, EARLY, range(1_700))
    assert scheduler.ended_by == "gap"
    scheduler.rewarm(1_700 + 4_000)
    other = schedule(4_000)
    later = range(200)
    assert run(scheduler, EARLY, later) == run(other, EARLY, later)


def test_an_open_run_averages_as_one_of_4000_updates() -> None:
    open_run, given = schedule(None, decay="wso"), schedule(4_000, decay="wso")
    assert run(open_run, EARLY, range(200)) == run(given, EARLY, range(200))
