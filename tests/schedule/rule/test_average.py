"""The average of the loss: it begins from f(x0), covers a share of the run, and is clipped to what can be lost."""

import functools
import itertools
import warnings
from typing import Any

import pytest
import torch
from schedule_runs import PEAK, falling, make_optimizer, run, saved

from autowarm import AdaptiveWarmup

SMOOTHING = 0.05
EARLY = falling(start=10.0, end=0.5, pace=20.0)  # down to a tenth after 60 updates

both_rates = pytest.mark.parametrize("tensor", [False, True], ids=["float lr", "tensor lr"])


def schedule(total: int | None, tensor: bool = False, **options: Any) -> AdaptiveWarmup:
    lr = torch.tensor(PEAK, dtype=torch.float64) if tensor else PEAK
    return AdaptiveWarmup(make_optimizer(lr), total, **options)


def warmed_up(scheduler: AdaptiveWarmup, first: int = 0) -> list[float]:
    """The rates of a warm-up, up to its end, from an update on."""
    rates: list[float] = []
    while scheduler.phase != "decay":
        rates += run(scheduler, EARLY, [first + len(rates)])
    return rates


@functools.cache
def planned(tensor: bool) -> AdaptiveWarmup:
    """A run of 16,000 updates whose warm-up is over."""
    scheduler = schedule(16_000, tensor, decay="wso")
    warmed_up(scheduler)
    return scheduler


def averaged(losses: list[float], window: float) -> float:
    """The average as a sum: f(x0), and each later loss, with its weight."""
    first, keep = sorted(losses[:10])[min(1, len(losses) - 1)], max(0.0, 1 - 1 / window)
    later = [min(loss, first) for loss in losses[10:]]
    weights = [(1 - keep) * keep**age for age in reversed(range(len(later)))]
    return keep ** len(later) * first + sum(w * x for w, x in zip(weights, later, strict=True))


@both_rates
@pytest.mark.parametrize("total", [1, 40, 1_000, 4_000, 16_000, 64_000])
def test_it_begins_from_the_first_loss_and_covers_a_share_of_the_run(total: int, tensor: bool) -> None:
    scheduler = schedule(total, tensor, target_loss=-1e6, max_warmup=None)  # neither loss nor clock ends the warm-up
    losses = [EARLY(t) + 0.1 * (-1) ** t for t in range(min(total, 150))]
    run(scheduler, losses.__getitem__, range(len(losses)))
    assert scheduler.metrics()["loss"] == pytest.approx(averaged(losses, SMOOTHING * total), rel=1e-9)


@both_rates
@pytest.mark.parametrize("gaps", [10, (3, 1, 20), 2])
@pytest.mark.parametrize("meanwhile", ["no call", "no loss", "not finite"])
def test_a_loss_counts_for_the_updates_since_the_last(
    meanwhile: str, gaps: int | tuple[int, ...], tensor: bool
) -> None:
    scheduler = schedule(16_000, tensor, target_loss=-1e6, max_nonfinite=None)
    run(scheduler, EARLY, range(50))
    between = {"no loss": None, "not finite": float("nan")}
    for gap in [gaps] * 3 if isinstance(gaps, int) else gaps:
        before = float(scheduler.metrics()["loss"])
        for _ in range(gap - 1):
            scheduler.optimizer.step()
            if meanwhile in between:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    scheduler.step(between[meanwhile])
        scheduler.optimizer.step()
        scheduler.step(2.0)
        wanted = before + (1 - (1 - 1 / (SMOOTHING * 16_000)) ** gap) * (2.0 - before)
        assert scheduler.metrics()["loss"] == pytest.approx(wanted, rel=1e-9)


@both_rates
@pytest.mark.parametrize("wild", [1e3, 1e300, -1e3, -1e300])
def test_no_loss_counts_for_more_than_what_there_is_to_lose(wild: float, tensor: bool) -> None:
    scheduler = schedule(2_000, tensor)
    run(scheduler, lambda t: 10.0, range(20))
    scheduler.optimizer.step()
    scheduler.step(wild)
    clipped = 10.0 if wild > 0 else 3.0  # f(x0) or f*
    assert scheduler.metrics()["loss"] == pytest.approx(10.0 + (clipped - 10.0) / (SMOOTHING * 2_000), rel=1e-9)


@both_rates
def test_a_loss_that_falls_early_ends_no_long_runs_warmup_early(tensor: bool) -> None:
    quick, slow = schedule(16_000, tensor, smoothing=0.01), schedule(16_000, tensor)
    rates = [warmed_up(scheduler) for scheduler in (quick, slow)]
    assert (quick.ended_by, slow.ended_by) == ("loss", "loss")
    assert quick.warmup_steps < 0.015 * 16_000
    assert SMOOTHING / 2 * 16_000 < slow.warmup_steps < 2 * SMOOTHING * 16_000
    climb = rates[1][: slow.warmup_steps]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(climb))


def test_a_longer_run_never_warms_up_for_fewer_updates() -> None:
    lengths = []
    for total in (1_000, 3_999, 4_000, 4_001, 8_000, 10_000, 10_001, 16_000, 20_000):
        scheduler = schedule(total)
        warmed_up(scheduler)
        assert scheduler.ended_by == "loss"
        assert scheduler.warmup_steps < total // 8
        lengths.append(scheduler.warmup_steps)
    assert lengths == sorted(lengths)


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
    assert scheduler.metrics()["loss"] == pytest.approx(before + (2.0 - before) / (SMOOTHING * 16_000), rel=1e-9)


@both_rates
@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize("total", [2_000, 6_000, None])
def test_a_run_extended_early_warms_up_as_if_planned_so(total: int | None, at: int, tensor: bool) -> None:
    extended = schedule(total, tensor, decay="wso")
    run(extended, EARLY, range(at))
    extended.extend(16_000)
    warmed_up(extended, at)
    assert extended.ended_by == planned(tensor).ended_by == "loss"
    assert extended.warmup_steps == planned(tensor).warmup_steps


@both_rates
def test_a_run_shortened_before_its_first_loss_is_the_short_run(tensor: bool) -> None:
    shortened, short = schedule(16_000, tensor), schedule(2_000, tensor)
    shortened.extend(2_000)
    assert run(shortened, EARLY, range(300)) == run(short, EARLY, range(300))
    assert shortened.metrics() == short.metrics()


def test_a_new_warmup_takes_the_share_of_what_is_left() -> None:
    scheduler = schedule(16_000)
    warmed_up(scheduler)
    assert scheduler.ended_by == "loss"
    scheduler.rewarm(scheduler.last_epoch + 4_000)
    other = schedule(4_000)
    later = range(200)
    assert run(scheduler, EARLY, later) == run(other, EARLY, later)


def test_an_open_run_averages_as_one_of_4000_updates() -> None:
    open_run, given = schedule(None, decay="wso"), schedule(4_000, decay="wso")
    assert run(open_run, EARLY, range(200)) == run(given, EARLY, range(200))
