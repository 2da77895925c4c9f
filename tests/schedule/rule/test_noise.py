"""One loss decides nothing: not noise, nor an outlier, nor one far below chance sets the length of a warm-up."""

import functools
import itertools
import math
import random
import statistics
import warnings
from collections.abc import Callable

import pytest

from autowarm import AdaptiveWarmup
from tests.cases import each
from tests.schedule.schedule_runs import PEAK, every_lr, falling, made, make_optimizer, run

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


# The average of the loss begins from f(x0), covers a share of the run, and is clipped to what can be lost.

SMOOTHING = 0.05
EARLY = falling(start=10.0, end=0.5, pace=20.0)  # down to a tenth after 60 updates


def averaged(losses: list[float], window: float) -> float:
    """The average as a sum: f(x0), and each later loss, with its weight."""
    first, keep = sorted(losses[:10])[min(1, len(losses) - 1)], max(0.0, 1 - 1 / window)
    later = [min(loss, first) for loss in losses[10:]]
    weights = [(1 - keep) * keep**age for age in reversed(range(len(later)))]
    return keep ** len(later) * first + sum(w * x for w, x in zip(weights, later, strict=True))


@every_lr
@pytest.mark.parametrize("total", [1, 40, 1_000, 4_000, 16_000, 64_000])
def test_it_begins_from_the_first_loss_and_covers_a_share_of_the_run(total: int, tensor: bool) -> None:
    scheduler = made(tensor, total, target_loss=-1e6, max_warmup=None)  # neither loss nor clock ends the warm-up
    losses = [EARLY(t) + 0.1 * (-1) ** t for t in range(min(total, 150))]
    run(scheduler, losses.__getitem__, range(len(losses)))
    assert scheduler.metrics()["loss"] == pytest.approx(averaged(losses, SMOOTHING * total), rel=1e-9)


def test_a_longer_run_never_warms_up_for_fewer_updates() -> None:
    lengths = []
    for total in (1_000, 3_999, 4_000, 4_001, 8_000, 10_000, 10_001, 16_000, 20_000):
        scheduler = made(total_steps=total)
        while scheduler.phase != "decay":
            run(scheduler, EARLY, [scheduler.last_epoch])
        assert scheduler.ended_by == "loss"
        assert scheduler.warmup_steps < total // 8
        lengths.append(scheduler.warmup_steps)
    assert lengths == sorted(lengths)


# The chance loss: a first loss far below it says that the weights were trained before, so the warm-up is short.

CHANCE = math.log(50_000)  # 10.8
T, SHORT = 1_000, 30  # 3 % of T


def rates_of(first: float, **options: object) -> list[float]:
    scheduler = AdaptiveWarmup(make_optimizer(), T, **options)
    return run(scheduler, lambda t: first, range(T))


@pytest.mark.parametrize("first", [CHANCE, 0.9 * CHANCE, 0.76 * CHANCE])
def test_new_weights_warm_up_as_if_nothing_was_told(first: float) -> None:
    assert rates_of(first, chance_loss=CHANCE) == rates_of(first)


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
