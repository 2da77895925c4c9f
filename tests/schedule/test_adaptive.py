"""The scheduler as a PyTorch user meets it."""

import json
import warnings

import pytest
import torch

from autowarm import AdaptiveWarmup
from tests.schedule.schedule_runs import PEAK, every_lr, falling, made, make_optimizer, run


@pytest.mark.parametrize("options", [{}, {"decay": "wsd", "warmup": "cosine", "max_warmup": 7}])
def test_a_run_without_losses_follows_the_ramp_with_one_warning(options: dict) -> None:
    alone = AdaptiveWarmup(make_optimizer(), 50, **options)  # a loss that never falls leaves the ramp alone, too
    rates = run(alone, lambda t: 5.0, range(50))
    scheduler = AdaptiveWarmup(make_optimizer(torch.tensor(PEAK)), 50, **options)
    with warnings.catch_warnings(record=True, action="always") as caught:
        assert run(scheduler, lambda t: None, range(50)) == pytest.approx(rates, rel=1e-6)
    assert [str(w.message)[:40] for w in caught] == ["step() was called without a loss, so tim"]
    assert (scheduler.phase, scheduler.ended_by) == ("decay", "clock")


def test_the_picture() -> None:
    pytest.importorskip("matplotlib")
    scheduler = AdaptiveWarmup(make_optimizer(), 10)
    with pytest.raises(RuntimeError, match="there is no η.Δ. to plot: either no loss has come"):
        scheduler.plot()
    scheduler.step(5.0)
    ax = scheduler.plot()
    assert ax.get_xlabel() == "loss"
    warmup, rest, switch, _ = ax.lines  # what the schedule follows, from f(x0) to Δ', and what it does not
    assert max(warmup.get_ydata()) == pytest.approx(PEAK, rel=1e-3)
    assert (min(warmup.get_xdata()), max(rest.get_xdata())) == pytest.approx([switch.get_xdata()[0]] * 2, rel=1e-2)


@every_lr
def test_metrics_are_plain_and_follow_the_run_as_does_its_line(tensor: bool) -> None:
    scheduler = made(tensor)
    assert "warmup_end" not in AdaptiveWarmup.paper(make_optimizer(), 100, target_loss=0.5).metrics()
    first = {"phase": "warmup", "share": 0.1, "lr": pytest.approx(PEAK / 10), "warmup_steps": 0, "warmup_end": 50}
    assert scheduler.metrics() == first
    assert repr(scheduler) == (
        "AdaptiveWarmup(warmup, update 0 of 100; lr 0.001 (0.1 of the peak); no loss yet; by update 50 at the latest)"
    )
    rows, lines = [], []
    for t in range(100):
        run(scheduler, falling(pace=15.0), [t])
        rows.append(scheduler.metrics())
        lines.append(repr(scheduler))
        assert {type(value) for value in rows[-1].values()} <= {int, float, str}
        assert json.loads(json.dumps(rows[-1])) == rows[-1]
    warm, decay = rows[10], rows[-1]
    assert (warm["phase"], warm["warmup_steps"]) == ("warmup", 11)
    assert falling(pace=15.0)(10) < warm["loss"] < falling(pace=15.0)(8)
    assert warm["gap"] == pytest.approx(warm["loss"] - warm["target_loss"])
    second_lowest = falling(pace=15.0)(8)  # of the first ten
    assert warm["target_loss"] == scheduler.target_loss == pytest.approx(0.3 * second_lowest)
    assert warm["peak_gap"] == scheduler.profile.peak_gap
    assert warm["share"] == pytest.approx(warm["lr"] / PEAK)
    assert "ended_by" not in warm
    assert (decay["phase"], decay["ended_by"]) == ("decay", "loss")
    assert decay["warmup_steps"] == decay["warmup_end"] == scheduler.warmup_steps
    for words in ("warmup, update 20 of 100", "f* = 1.884; warm-up ends at", "by update 50 at the latest)"):
        assert words in lines[19]
    assert f"warm-up took {scheduler.warmup_steps} updates, ended by loss" in lines[-1]
    assert "\n" not in lines[19] + lines[-1]
    assert "update 0 of an open run" in repr(made(tensor, None, decay="wso"))
