"""What a schedule says of itself to loggers and people."""

import json
import math
import warnings

import pytest
import torch
from schedule_runs import PEAK, falling, make_optimizer, run

from autowarm import AdaptiveWarmup

every_lr = pytest.mark.parametrize("tensor", [False, True], ids=["float lr", "tensor lr"])


def made(tensor: bool, total_steps: int | None = 100, **options) -> AdaptiveWarmup:
    return AdaptiveWarmup(make_optimizer(torch.tensor(PEAK) if tensor else PEAK), total_steps, **options)


@every_lr
def test_metrics_are_plain_and_follow_the_run(tensor: bool) -> None:
    scheduler = made(tensor)
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


def test_the_forecast_is_the_ramps_end_at_the_latest_and_right_for_a_steady_fall() -> None:
    lingering = made(False)
    run(lingering, lambda t: 5.0, range(20))
    assert lingering.metrics()["warmup_end"] == 50
    # The gap falls as e^{−t/10}: log Δ is a straight line, so that its mean pace is its pace.
    steady = made(False, 1000, target_loss=0.0, smoothing=0.0)
    run(steady, lambda t: 8.0 * math.exp(-t / 10), range(12))
    forecast = steady.metrics()["warmup_end"]
    run(steady, lambda t: 8.0 * math.exp(-t / 10), range(12, 100))
    assert abs(forecast - steady.warmup_steps) <= 3
    assert "warmup_end" not in AdaptiveWarmup.paper(make_optimizer(), 100, target_loss=0.5).metrics()


@every_lr
def test_its_line(tensor: bool) -> None:
    scheduler = made(tensor)
    assert repr(scheduler) == (
        "AdaptiveWarmup(warmup, update 0 of 100; lr 0.001 (0.1 of the peak); no loss yet; by update 50 at the latest)"
    )
    run(scheduler, falling(), range(5))
    assert "estimate" not in repr(scheduler)  # in the first losses
    run(scheduler, falling(), range(5, 20))
    line = repr(scheduler)
    assert "warmup, update 20 of 100" in line
    assert "f* = 2.368; warm-up ends at" in line
    assert "by an estimate around" in line
    run(scheduler, falling(), range(20, 100))
    assert f"warm-up took {scheduler.warmup_steps} updates, ended by loss" in repr(scheduler)
    assert "\n" not in line
    assert "update 0 of an open run" in repr(made(tensor, None, decay="wso"))


@every_lr
def test_looking_changes_nothing(tensor: bool) -> None:
    looked, plain = made(tensor), made(tensor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in range(100):
            looked.metrics(), repr(looked), looked.phase, looked.state_dict()
            assert run(looked, falling(), [t]) == run(plain, falling(), [t])


@every_lr
@pytest.mark.parametrize("made_before", [0, 7])
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"max_warmup": 30}, {"max_warmup": 1.0}, {"max_warmup": None}, {"decay": "wsd", "final_ratio": 0.1}),
        {"decay": "wso", "total_steps": None},
        {"warmup": "cosine", "decay": "1-sqrt", "total_steps": 2000},
    ],
    ids=str,
)
def test_before_the_first_loss_the_plot_is_the_plan(options: dict, made_before: int, tensor: bool) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")

    def to_plan() -> AdaptiveWarmup:
        scheduler = made(tensor, **({"total_steps": 100} | options))
        for _ in range(made_before):
            update_without_loss(scheduler)
        return scheduler

    def update_without_loss(scheduler: AdaptiveWarmup) -> float:
        scheduler.optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no loss
            scheduler.step()
        return float(scheduler.optimizer.param_groups[0]["lr"])

    scheduler = to_plan()
    before = repr(scheduler.state_dict())
    axes = scheduler.plot(plt.figure().subplots())
    assert repr(scheduler.state_dict()) == before
    at, drawn = axes.lines[0].get_data()
    assert axes.get_ylabel() == "learning rate"
    rates = {made_before: float(scheduler.optimizer.param_groups[0]["lr"])}
    for t in range(made_before + 1, min(int(at[-1]), 300) + 1):
        rates[t] = update_without_loss(scheduler)
    seen = [(rate, rates[t]) for t, rate in zip(at, drawn, strict=True) if t in rates]
    assert len(seen) > 30
    assert [rate for rate, _ in seen] == pytest.approx([rate for _, rate in seen], rel=1e-6)
    plt.close("all")
