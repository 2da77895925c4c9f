"""One loss decides nothing: neither noise nor an outlier sets the length of a warm-up."""

import functools
import random
import statistics
from collections.abc import Callable

import pytest

from autowarm import AdaptiveWarmup
from tests.cases import each
from tests.schedule.schedule_runs import PEAK, falling, make_optimizer, run

SEEDS = range(10)
NOISES: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda draw: draw.gauss(0.0, 1.0),
    "normal, high": lambda draw: draw.gauss(3.0, 1.0),
    "uniform": lambda draw: draw.random(),
    "lognormal": lambda draw: draw.lognormvariate(0.0, 1.0),
    "Student's t, 3 degrees": lambda draw: 5.0 + draw.gauss(0, 1) / (draw.gammavariate(1.5, 2.0) / 3) ** 0.5,
    "zero or one": lambda draw: float(draw.random() < 0.3),
}


def length(losses: Callable[[int], float], T: int = 1000, every: int = 1) -> int:
    """How long the default warms up, told a loss at each update, or every so many."""
    scheduler = AdaptiveWarmup(make_optimizer(), T)
    for t in range(T):
        scheduler.optimizer.step()
        scheduler.step(losses(t) if t % every == 0 else None)
        if scheduler.phase == "decay":
            break
    return scheduler.warmup_steps


@pytest.mark.filterwarnings("ignore:step\\(\\) was called without a loss")
@pytest.mark.parametrize(("T", "every"), [(200, 1), (600, 1), (600, 10)])
@pytest.mark.parametrize("noise", NOISES)
def test_pure_noise_does_not_end_a_warm_up(noise: str, T: int, every: int) -> None:
    lengths = []
    for seed in SEEDS:
        draw = random.Random(seed)
        lengths.append(length(lambda t: NOISES[noise](draw), T, every))  # noqa: B023
    assert max(lengths) < 2 * min(lengths)
    assert statistics.median(lengths) in (T // 2, T // 2 + 1)  # the ramp acts at the next loss


@functools.cache
def lengths_after(factor: float) -> list[int]:
    """With a first loss so many times too high."""
    lengths = []
    for seed in SEEDS:
        draw = random.Random(seed)
        noise = [draw.gauss(0.0, 0.2) for _ in range(1000)]
        plain = lambda t: falling(6.0, 3.0, 100.0)(t) + noise[t]  # noqa: B023, E731
        lengths.append(length(lambda t: plain(t) * (1.0 if t else factor)))  # noqa: B023
    return lengths


@pytest.mark.parametrize("factor", [0.01, 3.0, 100.0, 1e4, 1e9])
def test_an_outlying_first_loss_does_not_either(factor: float) -> None:
    lengths = lengths_after(1.0) + lengths_after(factor)
    assert max(lengths) < 2 * min(lengths)


NO_SCALE: dict[str, list[float]] = {
    "zero": [0.0, 0.0, 0.0, 0.0, 0.0],
    "zeros among them": [5.0, 0.0, 5.0, 5.0, 5.0],
    "negative": [-1.0, -1.1, -0.9, -1.0, -1.0],
    "negative ones among them": [1.0, 1.0, -0.1, 1.0, 1.0],
    "around zero": [0.3, -0.2, 0.1, -0.4, 0.2],
    "small beside its noise": [0.1, 0.9, 0.5, 0.3, 0.7],
}


@each("first", NO_SCALE.values())
def test_first_losses_without_a_scale_leave_the_ramp_alone(first: list[float]) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 600)
    rates = run(scheduler, lambda t: first[t % 5] if t < 10 else -float(t), range(600))
    assert (scheduler.ended_by, scheduler.warmup_steps) == ("clock", 300)
    assert (scheduler.profile, scheduler.target_loss) == (None, None)
    assert rates[:300] == pytest.approx([PEAK * (0.1 + 0.9 * t / 300) for t in range(300)])
