"""What a schedule says of itself to loggers and people."""

import json

import pytest

from autowarm import AdaptiveWarmup
from tests.schedule.schedule_runs import PEAK, every_lr, falling, made, make_optimizer, run


@every_lr
def test_metrics_are_plain_and_follow_the_run(tensor: bool) -> None:
    scheduler = made(tensor)
    assert "warmup_end" not in AdaptiveWarmup.paper(make_optimizer(), 100, target_loss=0.5).metrics()
    assert scheduler.metrics() == {
        "phase": "warmup",
        "share": 0.1,
        "lr": pytest.approx(PEAK / 10),
        "warmup_steps": 0,
        "warmup_end": 50,
    }
    seen = []
    for t in range(100):
        run(scheduler, falling(), [t])
        seen.append(scheduler.metrics())
        assert {type(value) for value in seen[-1].values()} <= {int, float, str}
        assert json.loads(json.dumps(seen[-1])) == seen[-1]
    warm, decay = seen[10], seen[-1]
    assert (warm["phase"], warm["warmup_steps"]) == ("warmup", 11)
    assert falling()(10) < warm["loss"] < falling()(8)
    assert warm["gap"] == pytest.approx(warm["loss"] - warm["target_loss"])
    assert (
        warm["target_loss"] == scheduler.target_loss == pytest.approx(0.3 * falling()(8))
    )  # the lowest of the first ten
    assert warm["peak_gap"] == scheduler.profile.peak_gap
    assert warm["share"] == pytest.approx(warm["lr"] / PEAK)
    assert "ended_by" not in warm
    assert (decay["phase"], decay["ended_by"]) == ("decay", "loss")
    assert decay["warmup_steps"] == decay["warmup_end"] == scheduler.warmup_steps


@every_lr
def test_its_line(tensor: bool) -> None:
    scheduler = made(tensor)
    assert repr(scheduler) == (
        "AdaptiveWarmup(warmup, update 0 of 100; lr 0.001 (0.1 of the peak); no loss yet; by update 50 at the latest)"
    )
    run(scheduler, falling(), range(20))
    line = repr(scheduler)
    assert "warmup, update 20 of 100" in line
    assert "f* = 2.368; warm-up ends at" in line
    assert line.endswith("by update 50 at the latest)")
    run(scheduler, falling(), range(20, 100))
    assert f"warm-up took {scheduler.warmup_steps} updates, ended by loss" in repr(scheduler)
    assert "\n" not in line
    assert "update 0 of an open run" in repr(made(tensor, None, decay="wso"))
