"""Both readings against the scheduler driven by hand."""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from autowarm import AdaptiveWarmup
from autowarm.logs import replaying
from autowarm.logs.log import Log, make_log
from autowarm.logs.replaying import as_recorded, closed_loop
from autowarm.schedule import Calibration
from autowarm.schedule.core import Plan, State
from autowarm.schedule.planning import plan_of

T = 400


OPTIONS: dict[str, Any] = {"calibration": Calibration("sign", kappa=1e8)}
make = partial(plan_of, **OPTIONS)


def by_hand(loss_at: Callable[[int, float], float], peak: float) -> tuple[AdaptiveWarmup, list[float]]:
    """What a training loop does whose losses follow from the update and from the sum of the rates before it."""
    p = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([p], lr=peak)
    schedule, rates = AdaptiveWarmup(optimizer, T, **OPTIONS), []
    for update in range(T):
        loss = loss_at(update, sum(rates))
        rates.append(optimizer.param_groups[0]["lr"])
        p.grad = torch.zeros(2, 2)
        optimizer.step()
        schedule.step(loss)
    return schedule, rates


def curve(falls: float, noise: float = 0.05) -> np.ndarray:
    draw = np.random.default_rng(0).standard_normal(T)
    return 2.0 + 6.0 * np.exp(-np.arange(T) / falls) + noise * draw


@pytest.mark.filterwarnings("ignore:the loss was NaN")
@pytest.mark.parametrize("falls", [20.0, 60.0, 1e6])
@pytest.mark.parametrize("broken", [(), (0,), (30, 31, 32)])
def test_as_recorded_is_the_scheduler_driven_by_hand_to_the_bit(falls: float, broken: tuple[int, ...]) -> None:
    losses = curve(falls)
    losses[list(broken)] = math.nan
    reading = as_recorded(make_log("a", range(1, T + 1), losses, [1, T], [0.3, 0.3]), make)
    schedule, rates = by_hand(lambda update, _: float(losses[update]), 0.3)
    assert reading.rates.tolist() == rates
    assert np.array_equal(reading.losses, losses, equal_nan=True)
    assert (reading.warmup_steps, reading.ended_by) == (schedule.warmup_steps, schedule.ended_by)
    assert (reading.ended_by == "loss") == (falls < T)


@pytest.mark.parametrize("falls", [10.0, 40.0])
@pytest.mark.parametrize("warmup", [0, 40])
@pytest.mark.parametrize("every", [1, 5])
def test_the_closed_loop_is_the_run_that_it_stands_for(falls: float, warmup: int, every: int) -> None:
    def loss_at(summed: float) -> float:
        return 2.0 + 6.0 * math.exp(-summed / (0.3 * falls))

    rates = 0.3 * np.minimum(1.0, np.arange(1, T + 1) / max(1, warmup))
    sums = np.concatenate([[0.0], np.cumsum(rates)[:-1]])
    steps = np.unique([*range(0, T, every), T - 1])
    log = make_log("a", steps + 1, [loss_at(float(sums[i])) for i in steps], steps + 1, rates[steps])
    schedule, _ = by_hand(lambda _, summed: loss_at(summed), 0.3)
    reading = closed_loop(log, make)
    assert schedule.ended_by == reading.ended_by
    assert reading.ended_by == "loss"
    assert reading.warmup_steps == pytest.approx(schedule.warmup_steps, abs=1 if every == 1 else 8)
    # A reading that ignores the rates says something else.
    assert abs(as_recorded(log, make).warmup_steps - schedule.warmup_steps) > 10


def given(monkeypatch: pytest.MonkeyPatch, shares: Iterator[float]) -> None:
    """Let the rule be one whose shares of the peak are given."""

    def advance(plan: Plan, state: State, updates: int, loss: float) -> State:
        assert math.isfinite(loss)
        return state._replace(share=next(shares))

    first = next(shares)
    monkeypatch.setattr(replaying, "settle", lambda plan, state, trained: state._replace(share=first))
    monkeypatch.setattr(replaying, "advance", advance)


def sparse(noise: float) -> Log:
    steps = np.arange(0, 4000, 10)
    losses = 5.0 - steps / 2000 + noise * np.random.default_rng(1).standard_normal(len(steps))
    return make_log("a", steps, losses, steps, np.ones(len(steps)))


@pytest.mark.parametrize("read", [as_recorded, closed_loop])
def test_between_logged_losses_the_noise_has_the_size_of_theirs(read: Any) -> None:
    reading = read(sparse(0.2), make)
    known = reading.losses[:2000]
    # Half the mean squared difference between neighbours is the variance of the noise.
    assert math.sqrt(np.mean(np.diff(known) ** 2) / 2) == pytest.approx(0.2, rel=0.15)
    log = sparse(0.2)
    assert read(log, make).losses.tolist() == reading.losses.tolist()
    if read is as_recorded:
        assert reading.losses[log.updates - 1].tolist() == log.losses.tolist()


@pytest.mark.parametrize("share", [0.1, 0.9, 1.0])
def test_a_slower_schedule_meets_as_much_noise_from_one_update_to_the_next(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = 5.0 + 0.2 * np.random.default_rng(2).standard_normal(8000)
    log = make_log("a", range(1, 8001), losses, [1], [1.0])
    given(monkeypatch, itertools.repeat(share))
    read = closed_loop(log, make).losses
    assert math.sqrt(np.mean(np.diff(read) ** 2) / 2) == pytest.approx(0.2, rel=0.1)
    assert (read.tolist() == losses.tolist()) == (share == 1.0)


def test_past_the_end_of_an_unfinished_log_the_last_loss_stays() -> None:
    log = make_log("a", range(1, 101), curve(1e6)[:100], [1], [0.3], total_steps=T)
    assert any("end at update 100 of 400" in note for note in log.notes)
    for reading in (as_recorded(log, make), closed_loop(log, make)):
        assert len(reading.rates) == T
        assert reading.losses[-1] == log.losses[-1]
        assert (reading.warmup_steps, reading.ended_by) == (T // 2, "clock")


def test_a_scheduler_that_stops_a_run_is_reported() -> None:
    losses = curve(1e6)
    losses[50:120] = math.nan
    reading = as_recorded(make_log("a", range(1, T + 1), losses), make)
    assert reading.warmup_steps is None
    assert any(note.startswith("the scheduler stops the run at update 70") for note in reading.notes)
