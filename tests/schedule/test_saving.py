"""Saved and loaded, it goes on to the bit."""

from collections.abc import Callable

import pytest
import torch
from schedule_runs import PEAK, every_mode, falling, make_optimizer, run, saved
from torch import nn

from autowarm import AdaptiveWarmup, Muon


@every_mode
@pytest.mark.parametrize("at", [0, 1, 5, 9, 10, 11, 20, 21, 60, 99])
def test_resumed_equals_straight_to_the_bit(make: Callable, at: int) -> None:
    T = 100
    straight = make(make_optimizer(), T)
    rates = run(straight, falling(), range(T))
    first = make(make_optimizer(), T)
    head = run(first, falling(), range(at))
    state = saved(first)
    second = make(make_optimizer(), T)
    second.load_state_dict(state)
    assert state == saved(second)  # loading changes neither
    assert second.phase == first.phase
    assert head + run(second, falling(), range(at, T)) == rates


def test_construct_then_load_and_load_then_construct_agree() -> None:
    opt = make_optimizer()
    scheduler = AdaptiveWarmup(opt, 50)
    run(scheduler, falling(), range(7))
    opt_state, state = opt.state_dict(), saved(scheduler)

    a = make_optimizer()
    sched_a = AdaptiveWarmup(a, 50)
    a.load_state_dict(opt_state)
    sched_a.load_state_dict(state)
    b = make_optimizer()
    b.load_state_dict(opt_state)
    sched_b = AdaptiveWarmup(b, 50)
    sched_b.load_state_dict(state)
    expected = opt.param_groups[0]["lr"]
    assert a.param_groups[0]["lr"] == b.param_groups[0]["lr"] == expected
    more = range(7, 50)
    assert run(sched_a, falling(), more) == run(sched_b, falling(), more) == run(scheduler, falling(), more)


def test_saved_between_micro_batches() -> None:
    first = AdaptiveWarmup(make_optimizer(), 50)
    first.observe(torch.tensor(6.0), weight=2)
    second = AdaptiveWarmup(make_optimizer(), 50)
    second.load_state_dict(saved(first))
    second.observe(3.0)
    second.step()
    assert second.profile.gap0 == pytest.approx(0.7 * 5.0)


def test_the_saved_peak_rate_holds() -> None:
    first = AdaptiveWarmup(make_optimizer(0.05), 50)
    run(first, falling(), range(3))
    second = AdaptiveWarmup(make_optimizer(0.01), 50)
    second.load_state_dict(saved(first))
    assert second.base_lrs == [0.05]
    assert second.profile == first.profile


def test_another_schedule_is_refused_by_its_differences() -> None:
    state = AdaptiveWarmup(make_optimizer(), 50).state_dict()
    with pytest.raises(ValueError, match="another one: div: saved 10.0, here 20.0"):
        AdaptiveWarmup(make_optimizer(), 60, div=20.0).load_state_dict(state)
    muon = Muon([nn.Parameter(torch.zeros(2, 2))], lr=PEAK)
    with pytest.raises(
        ValueError, match=r"optimizer: saved 'Lion', here 'Muon'; geometry: saved 'Sign.*here .Spectral"
    ):
        AdaptiveWarmup(muon, 50).load_state_dict(state)
    with pytest.raises(ValueError, match="no AdaptiveWarmup state of version 1 to 2: its version is None"):
        AdaptiveWarmup(make_optimizer(), 50).load_state_dict({"last_epoch": 3})
