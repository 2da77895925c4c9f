"""One loss decides nothing: neither noise, nor an outlier, nor one far below chance sets the length of a warm-up."""

import itertools
import math
import random
import statistics
from collections.abc import Callable

import pytest

from autowarm import AdaptiveWarmup
from tests.schedule.schedule_runs import PEAK, falling, make_optimizer, run

SEEDS = range(10)
NOISES: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda draw: draw.gauss(0.0, 1.0),
    "normal, high": lambda draw: draw.gauss(3.0, 1.0),
    "lognormal": lambda draw: draw.lognormvariate(0.0, 1.0),
    "Student's t, 3 degrees": lambda draw: 5.0 + draw.gauss(0, 1) / (draw.gammavariate(1.5, 2.0) / 3) ** 0.5,
    "zero or one": lambda draw: float(draw.random() < 0.3),
}


def length(losses: Callable[[int], float], T: int = 1000, every: int = 1) -> int:
    """How long the default warms up, given a loss at each update, or every so many."""
    scheduler = AdaptiveWarmup(make_optimizer(), T)
    for t in range(T):
        scheduler.optimizer.step()
        scheduler.step(losses(t) if t % every == 0 else None)
        if scheduler.phase == "decay":
            break
    return scheduler.warmup_steps


@pytest.mark.filterwarnings("ignore:step\\(\\) was called without a loss")
@pytest.mark.parametrize(("T", "every"), [(200, 1), (600, 10)])
@pytest.mark.parametrize("noise", NOISES)
def test_pure_noise_does_not_end_a_warm_up(noise: str, T: int, every: int) -> None:
    lengths = []
    for seed in SEEDS:
        draw = random.Random(seed)
        lengths.append(length(lambda t: NOISES[noise](draw), T, every))  # noqa: B023
    assert max(lengths) < 2 * min(lengths)
    assert statistics.median(lengths) in (T // 2, T // 2 + 1)  # the ramp acts at the next loss


def test_an_outlying_first_loss_does_not_either() -> None:
    lengths = []
    for seed in SEEDS:
        draw = random.Random(seed)
        losses = [falling(6.0, 3.0, 100.0)(t) + draw.gauss(0.0, 0.2) for t in range(1000)]
        lengths += [length([factor * losses[0], *losses[1:]].__getitem__) for factor in (0.01, 1.0, 3.0, 1e9)]
    assert max(lengths) < 2 * min(lengths)


# The chance loss: first losses far below it say that the weights were trained before, so the warm-up is short.

CHANCE = math.log(50_000)  # 10.8
T, SHORT = 1_000, 30  # 3 % of T


@pytest.mark.parametrize(
    ("trained", "first", "others", "length"),
    [
        *((None, loss, loss, T // 2) for loss in (CHANCE, 0.76 * CHANCE)),
        *((None, first, 3.0, SHORT) for first in (3.0, 11.0, 1e9)),  # one loss does not decide
        (None, 3.0, 11.0, T // 2),
        (False, 3.0, 3.0, T // 2),  # what is said of the weights counts over the loss
        (True, 11.0, 11.0, SHORT),
    ],
)
def test_trained_weights_warm_up_for_3_percent(trained: bool | None, first: float, others: float, length: int) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), T, chance_loss=CHANCE, trained=trained)
    rates = run(scheduler, lambda t: others if t else first, range(T))
    assert (scheduler.ended_by, scheduler.warmup_steps) == ("clock", length)
    climb = [b - a for a, b in itertools.pairwise(rates[: length + 1])]
    assert all(0 < step < 0.1 * PEAK for step in climb)  # the ramp bends but does not jump
