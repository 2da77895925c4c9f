"""The chance loss: a first loss far below it says that the weights were trained before, so the warm-up is short."""

import itertools
import math
import warnings

import pytest

from autowarm import AdaptiveWarmup
from tests.schedule.schedule_runs import PEAK, make_optimizer, run

CHANCE = math.log(50_000)  # 10.8
T, SHORT = 1_000, 30  # 3 % of T


def rates(first: float, **options: object) -> list[float]:
    scheduler = AdaptiveWarmup(make_optimizer(), T, **options)
    return run(scheduler, lambda t: first, range(T))


@pytest.mark.parametrize("first", [CHANCE, 0.9 * CHANCE, 0.76 * CHANCE])
def test_new_weights_warm_up_as_if_nothing_was_told(first: float) -> None:
    assert rates(first, chance_loss=CHANCE) == rates(first)


@pytest.mark.parametrize(("first", "others", "length"), [(11.0, 3.0, SHORT), (1e9, 3.0, SHORT), (3.0, 11.0, T // 2)])
def test_one_loss_does_not_decide(first: float, others: float, length: int) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), T, chance_loss=CHANCE)
    with warnings.catch_warnings(action="ignore"):  # of a first loss above chance
        found = run(scheduler, lambda t: others if t else first, range(T))
    assert (scheduler.ended_by, scheduler.warmup_steps) == ("clock", length)
    climb = [b - a for a, b in itertools.pairwise(found[: length + 1])]
    assert all(0 < step < 0.1 * PEAK for step in climb)  # the ramp bends but does not jump


@pytest.mark.parametrize(("trained", "length"), [(False, T // 2), (None, SHORT), (True, SHORT)])
def test_what_is_said_of_the_weights_counts_over_the_loss(trained: bool | None, length: int) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), T, chance_loss=CHANCE, trained=trained)
    run(scheduler, lambda t: 3.0, range(T))
    assert scheduler.warmup_steps == length
