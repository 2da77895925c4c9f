"""Losses that are not finite are no evidence: they neither end a warm-up nor make its end more likely."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from schedule_runs import PEAK, make_optimizer

from autowarm import AdaptiveWarmup

STREAKS = st.tuples(st.integers(1, 25), st.sampled_from([math.nan, math.inf, -math.inf]))


def phases(losses: list[float], tensor: bool) -> list[tuple[str, float]]:
    """The phase and the share of the peak after each update of a run of 100."""
    scheduler = AdaptiveWarmup(make_optimizer(torch.tensor(PEAK) if tensor else PEAK), 100, max_nonfinite=None)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for loss in losses:
            scheduler.optimizer.step()
            scheduler.step(torch.tensor(loss))
            found.append((scheduler.phase, float(scheduler.metrics()["share"])))
    return found


@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
@given(falls=st.lists(st.one_of(st.floats(0.5, 6.0), STREAKS), min_size=1, max_size=20))
def test_a_streak_of_them_leaves_the_warm_up_as_it_is(tensor: bool, falls: list) -> None:
    losses = [5.0] * 6
    for one in falls:
        losses += [one[1]] * one[0] if isinstance(one, tuple) else [one]
    losses = losses[:45]  # the clock ends the warm-up at 50
    found = phases(losses, tensor)
    for before, after, loss in zip(found, found[1:], losses[1:], strict=False):
        if not math.isfinite(loss) and before[0] == "warmup":
            assert after == before


@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("streak", [2, 18, 30])
def test_a_single_low_loss_before_or_after_them_ends_nothing(tensor: bool, bad: float, streak: int) -> None:
    found = phases([5.0] * 5 + [1.0] + [bad] * streak + [5.0] * 3, tensor)
    assert {phase for phase, _ in found} == {"warmup"}
    assert all(share <= 0.1 + 0.9 * (t + 1) / 50 + 1e-9 for t, (_, share) in enumerate(found))  # the ramp alone
