"""Losses that are read four updates late, as on an accelerator, here on a CPU."""

import math
import warnings

import pytest

from autowarm import losses
from tests.schedule.schedule_runs import falling, made, run, saved

T = 100


@pytest.fixture(autouse=True)
def _as_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "AT_ONCE", ())


def test_all_comes_four_updates_later_and_a_resumed_run_goes_on_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late, tensor = made(), made(tensor=True)
    with warnings.catch_warnings(action="error"):  # waiting for a loss is no step without one
        rates = run(late, falling(pace=15.0), range(T))
    assert rates == pytest.approx(run(tensor, falling(pace=15.0), range(T)), rel=1e-12)
    for at in (0, 1, 3, 4, 9, 60):
        first, second = made(), made()
        head = run(first, falling(pace=15.0), range(at))
        state = saved(first)
        assert len(state["waiting"]) == min(at, losses.LATE)
        second.load_state_dict(state)
        assert head + run(second, falling(pace=15.0), range(at, T)) == rates
    monkeypatch.setattr(losses, "AT_ONCE", ("cpu",))
    at_once = made()
    # The same losses, four updates later, and none before.
    with warnings.catch_warnings(action="ignore"):
        for t in range(T):
            assert rates[t] == at_once.optimizer.param_groups[0]["lr"], t
            at_once.optimizer.step()
            at_once.step(falling(pace=15.0)(t - losses.LATE) if t >= losses.LATE else None)
    assert late.ended_by == "loss"


def test_broken_losses_are_told_and_end_the_run_four_updates_later() -> None:
    scheduler = made(max_nonfinite=3)
    run(scheduler, falling(), range(10))
    with warnings.catch_warnings(record=True, action="always") as caught:
        run(scheduler, lambda t: math.nan, range(4))
        assert not caught
        with pytest.raises(RuntimeError, match="not finite 3 times in a row"):
            run(scheduler, lambda t: math.nan, range(3))
    assert scheduler._state.updates == 17
