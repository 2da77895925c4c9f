"""What a user changes on the way: the horizon, the decay, a new warm-up; test_core.py has stored runs of each."""

import warnings

import pytest

from tests.schedule.schedule_runs import every_lr, falling, made, run, saved


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
