"""The average of the loss: it begins from f(x0), covers a share of the run, and is clipped to what can be lost."""

import pytest

from autowarm import AdaptiveWarmup
from tests.schedule.schedule_runs import every_lr, falling, made, run

SMOOTHING = 0.05
EARLY = falling(start=10.0, end=0.5, pace=20.0)  # down to a tenth after 60 updates


def warmed_up(scheduler: AdaptiveWarmup, first: int = 0) -> list[float]:
    """The rates of a warm-up, up to its end, from an update on."""
    rates: list[float] = []
    while scheduler.phase != "decay":
        rates += run(scheduler, EARLY, [first + len(rates)])
    return rates


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
        warmed_up(scheduler)
        assert scheduler.ended_by == "loss"
        assert scheduler.warmup_steps < total // 8
        lengths.append(scheduler.warmup_steps)
    assert lengths == sorted(lengths)
