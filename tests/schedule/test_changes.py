"""What a user changes on the way: the horizon, the decay, a new warm-up; test_core.py has stored runs of each."""

import math
import warnings

import pytest

from autowarm import AdaptiveWarmup
from tests.schedule.schedule_runs import PEAK, every_lr, falling, made, run, saved


def lingering(t: int) -> float:
    return 5.0  # the ramp alone raises the rate


@every_lr
@pytest.mark.parametrize("at", [60, 99, 100, 101])
def test_extended_in_decay_it_climbs_to_the_new_decay_without_a_jump(tensor: bool, at: int) -> None:
    scheduler = made(tensor, 100)
    with warnings.catch_warnings(action="error"):
        rates = run(scheduler, lingering, range(at))
        scheduler.extend(200)
        rates += run(scheduler, lingering, range(at, 200))
    # The new decay, as from the same switch at 50; and a ramp that would reach the peak after half of what is left.
    now = rates[at] / PEAK
    new = [math.cos(math.pi * (t - 50) / 150 / 2) ** 2 for t in range(200)]
    ramp = [now + (1 - now) * (t - at) / (0.5 * (200 - at)) for t in range(200)]
    assert rates[at:] == pytest.approx([PEAK * min(new[t], ramp[t]) for t in range(at, 200)], rel=1e-9)
    assert rates[at] <= rates[at - 1] or at > 100
    assert rates[-1] < 1e-3 * PEAK < rates[at + 30]


@pytest.mark.parametrize("at", [30, 60, 90])
def test_extended_to_the_updates_made_it_is_at_its_end(at: int) -> None:
    scheduler = made(False, 100)
    run(scheduler, falling(), range(at))
    scheduler.extend(at)
    assert 0 < scheduler.get_last_lr()[0] <= PEAK


def test_a_horizon_that_is_over_is_refused() -> None:
    scheduler = made(False, 100)
    run(scheduler, falling(), range(30))
    state = saved(scheduler)
    with pytest.raises(ValueError, match="total_steps=20 is over: 30 updates were made already"):
        scheduler.extend(20)
    assert saved(scheduler) == state


@every_lr
def test_loaded_for_another_horizon_it_is_extended_with_one_warning(tensor: bool) -> None:
    first = made(tensor, 100)
    head = run(first, falling(), range(100))
    second, third = made(tensor, 160), made(tensor, 160)
    with pytest.warns(UserWarning, match=r"saved for total_steps=100 and is loaded for total_steps=160") as caught:
        second.load_state_dict(saved(first))
    assert len(caught) == 1
    first.extend(160)
    rates = run(first, falling(), range(100, 130))
    assert rates == run(second, falling(), range(100, 130))
    with warnings.catch_warnings(action="error"):  # it is for 160 now
        third.load_state_dict(saved(second))
        tail = run(third, falling(), range(130, 160))
    assert tail == run(first, falling(), range(130, 160))
    assert min(head + rates + tail) > 0


@every_lr
def test_a_script_that_extends_on_its_way_resumes_without_a_word(tensor: bool) -> None:
    straight = made(tensor, 100)
    run(straight, falling(), range(40))
    straight.extend(150)
    run(straight, falling(), range(40, 60))
    with warnings.catch_warnings(action="error"):
        again, longer = made(tensor, 100), made(tensor, 150)
        again.load_state_dict(saved(straight))
        longer.load_state_dict(saved(straight))
    rest = run(straight, falling(), range(60, 150))
    assert run(again, falling(), range(60, 150)) == rest == run(longer, falling(), range(60, 150))


@every_lr
@pytest.mark.parametrize("at", [0, 7, 80, 180])
def test_a_new_warmup_is_a_new_schedule_on_the_same_optimizer(tensor: bool, at: int) -> None:
    scheduler = made(tensor, 180)
    run(scheduler, falling(), range(at))
    with warnings.catch_warnings(action="error"):
        again = AdaptiveWarmup(scheduler.optimizer, 100)
        rates = run(again, falling(7.0), range(100))
    fresh = made(tensor, 100)
    assert rates == run(fresh, falling(7.0), range(100))
    assert again.profile == fresh.profile
    assert (again.warmup_steps, again.last_epoch, scheduler.last_epoch) == (fresh.warmup_steps, 100, at)
