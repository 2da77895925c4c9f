"""Whatever numbers come, the rates are finite and in (0, lr]."""

import math
import warnings
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule.schedule_runs import MODES, PEAK, every_mode, make_optimizer, run

STEPS = 40


@pytest.fixture(autouse=True)
def _unheard() -> Iterator[None]:
    """Warnings are wanted here, and tested elsewhere."""
    with warnings.catch_warnings(action="ignore"):
        yield


def in_bounds(rates: list[float]) -> bool:
    # A tensor's rate may be in single precision.
    return all(math.isfinite(rate) and 0 < rate <= PEAK * (1 + 1e-6) for rate in rates)


numbers = st.one_of(st.floats(width=64), st.floats(-20, 20), st.sampled_from([0.0, -0.0, 5e-324, 1.7e308, -1.7e308]))


@given(losses=st.lists(numbers, min_size=1, max_size=30), name=st.sampled_from(["default", "no ramp"]))
def test_any_row_of_losses(losses: list[float], name: str) -> None:
    options = {"peak_gap": None} if name == "no ramp" else {}
    scheduler = MODES[name](make_optimizer(), len(losses) + 3, max_nonfinite=None, **options)
    assert in_bounds(run(scheduler, lambda t: losses[t], range(len(losses))) + scheduler.get_last_lr())


@every_mode
def test_f_star_above_the_first_loss_is_an_error_and_below_later_ones_is_not(make: Callable) -> None:
    scheduler = make(make_optimizer(), STEPS, target_loss=5.0, peak_gap=1.0)
    scheduler.optimizer.step()
    with pytest.raises(ValueError, match=r"f\(x0\) = 4 is not above the target loss f\* = 5"):
        scheduler.step(4.0)
    scheduler = make(make_optimizer(), STEPS, target_loss=5.0, peak_gap=1.0)
    assert in_bounds(run(scheduler, lambda t: 9.0 - t, range(STEPS)))
    assert scheduler.phase == "decay"
