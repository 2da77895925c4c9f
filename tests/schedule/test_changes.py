"""Another horizon, on the way or on resuming; test_core.py has stored runs of each."""

import warnings

import pytest

from tests.schedule.schedule_runs import every_lr, falling, made, run, saved


@every_lr
def test_loaded_for_another_horizon_it_is_extended_with_one_warning(tensor: bool) -> None:
    first, second, third, back = made(tensor), made(tensor, 160), made(tensor, 160), made(tensor)
    head = run(first, falling(), range(100))
    with pytest.warns(UserWarning, match=r"saved for total_steps=100 and is loaded for total_steps=160") as caught:
        second.load_state_dict(saved(first))
    assert len(caught) == 1
    first.extend(160)
    rates = run(first, falling(), range(100, 130))
    assert rates == run(second, falling(), range(100, 130))
    with warnings.catch_warnings(action="error"):  # it is for 160 now, also for a script that extends on its way
        third.load_state_dict(saved(second))
        back.load_state_dict(saved(first))
        tail = run(third, falling(), range(130, 160))
    assert tail == run(first, falling(), range(130, 160)) == run(back, falling(), range(130, 160))
    assert min(head + rates + tail) > 0
    state = saved(third)
    with pytest.raises(ValueError, match="total_steps=20 is over: 160 updates were made already"):
        third.extend(20)
    assert saved(third) == state
