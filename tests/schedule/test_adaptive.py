"""The scheduler as a PyTorch user meets it."""

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from schedule_runs import PEAK, every_mode, falling, make_optimizer, run
from torch import nn

from autowarm import AdaptiveWarmup, Lion, Muon


@every_mode
@pytest.mark.parametrize("order", ["after", "before"])
@pytest.mark.parametrize("decay", ["cosine", "linear", "wsd", "wso", lambda p: 1 - p**2])
def test_a_whole_run(make: Callable, order: str, decay: str) -> None:
    T = 200
    scheduler = make(make_optimizer(), T, decay=decay)
    rates = run(scheduler, falling(), range(T), order)
    assert rates[0] == pytest.approx(PEAK / scheduler.profile.div, rel=1e-12)
    assert all(0 < rate <= PEAK for rate in rates)
    assert scheduler.phase == "decay"
    switch = scheduler.warmup_steps
    assert 1 < switch < T
    # Warm-up rises, decay starts at the peak and is the named shape over exactly what is left.
    assert rates[:switch] == sorted(rates[:switch])
    assert rates[switch] == PEAK
    from autowarm.schedule.shapes import decay_shape

    left = T - switch
    expected = [PEAK * float(decay_shape(decay)(k / left)) for k in range(left)]
    assert rates[switch:] == pytest.approx(expected)


@pytest.mark.parametrize("recover", [False, True])
@pytest.mark.parametrize("one", [1, np.float32(1), np.int64(1), torch.tensor(1.0), torch.tensor([1])], ids=str)
def test_a_weight_of_any_kind_is_its_number(one: Any, recover: bool) -> None:
    """As the mean of a mask is, in a batch without padding."""
    schedulers = [AdaptiveWarmup(make_optimizer(), 100, recover=recover) for _ in range(2)]
    for t in range(30):
        for scheduler, weight in zip(schedulers, (one, 1.0), strict=True):
            scheduler.observe(5.0 - t / 20, weight)
            scheduler.observe(torch.tensor(4.0), 0.5)
            scheduler.optimizer.step()
            scheduler.step()
    given = io.BytesIO()
    torch.save(schedulers[0].state_dict(), given)
    given.seek(0)
    state = torch.load(given, weights_only=True)
    assert state == schedulers[1].state_dict()
    AdaptiveWarmup(make_optimizer(), 100, recover=recover).load_state_dict(state)


def test_both_orders_are_the_same_schedule_one_update_apart() -> None:
    T, options = 100, {"target_loss": 0.5, "peak_gap": 2.0}
    before = run(AdaptiveWarmup.paper(make_optimizer(), T, **options), falling(), range(T), "before")
    # Called after the step, update t rests on the loss of update t − 1: handed each loss one update early, it agrees.
    early = lambda t: falling()(t + 1 if t else 0)  # noqa: E731
    after = run(AdaptiveWarmup.paper(make_optimizer(), T, **options), early, range(T), "after")
    assert before[0] == after[0]
    assert before[2:] == after[2:]
    assert before[1] != after[1]


@every_mode
@pytest.mark.parametrize("order", ["after", "before"])
def test_no_pytorch_warning_in_either_order(make: Callable, order: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(make(make_optimizer(), 150), falling(), range(150), order)


def test_the_paper_is_algorithm_1_line_by_line() -> None:
    T, fstar, losses = 300, 0.5, falling(pace=60.0)
    opt = make_optimizer()
    scheduler = AdaptiveWarmup.paper(opt, T, target_loss=fstar, kappa=1e3)
    rates = run(scheduler, losses, range(T), "before")

    profile, warmup_steps, expected = scheduler.profile, 0, []
    decaying = False
    for t in range(T):
        gap = losses(t) - fstar
        if gap >= profile.peak_gap and not decaying:
            warmup_steps += 1
            expected.append(gap / (profile.K0 + profile.K1 * gap + profile.K_rho * gap**2))
        else:
            decaying = True
            k, left = t - warmup_steps, T - warmup_steps
            expected.append(PEAK * (1 + math.cos(math.pi * k / left)) / 2)
    assert profile.gap0 == losses(0) - fstar
    assert rates == pytest.approx(expected, rel=1e-9)
    assert scheduler.warmup_steps == warmup_steps > 10


def test_the_papers_setup_switches_where_it_was_worked_out() -> None:
    """LLaMA-124M's κ, f(x0) = 10.98 and f* = 3.3 make Δ' ≈ 2.470 for Muon."""
    opt = Muon([nn.Parameter(torch.zeros(4, 4))], lr=1e-3)
    scheduler = AdaptiveWarmup.paper(opt, 64_000, target_loss=3.3, kappa=46848)
    scheduler.step(10.98)
    assert scheduler.profile.peak_gap == pytest.approx(2.470, abs=0.008)


@pytest.mark.parametrize("T", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("loss", [3.0, 0.0, -2.0, 1e-30, 1e30])
def test_the_default_never_stalls_even_if_the_loss_never_falls(T: int, loss: float) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), T)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if loss == 0.0:
            warnings.filterwarnings("ignore", message=r"no target loss f\* can be derived")
        rates = run(scheduler, lambda t: loss, range(T))
    assert scheduler.phase == "decay"
    assert scheduler.warmup_steps <= max(1, math.ceil(0.5 * T))
    assert all(0 < rate <= PEAK for rate in rates)


def test_a_ramp_as_long_as_the_run_is_no_stall() -> None:
    """In the order of Algorithm 1 the last call comes before the last update."""
    scheduler = AdaptiveWarmup(make_optimizer(), 30, max_warmup=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(scheduler, lambda t: 5.0, range(30), "before")


@pytest.mark.parametrize("order", ["after", "before"])
def test_without_a_floor_a_stalled_run_is_told_why(order: str) -> None:
    scheduler = AdaptiveWarmup.paper(make_optimizer(), 30, target_loss=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(scheduler, lambda t: 5.0, range(29), order)
    with pytest.warns(
        UserWarning, match=r"total_steps=30 ends still in warm-up: the gap to target_loss=0.5 never fell"
    ):
        run(scheduler, lambda t: 5.0, [29], order)
    assert scheduler.phase == "warmup"


def test_the_floor_counts_updates_not_losses() -> None:
    T = 100
    scheduler = AdaptiveWarmup(make_optimizer(), T)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t in range(T):
            scheduler.optimizer.step()
            scheduler.step(5.0 if t % 10 == 9 else None)
    assert (scheduler.phase, scheduler.warmup_steps) == ("decay", 50)


@pytest.mark.parametrize("lr", [PEAK, torch.tensor(PEAK)], ids=["float", "tensor"])
@pytest.mark.parametrize("options", [{}, {"max_warmup": 0.2}, {"decay": "wsd", "warmup": "cosine"}, {"max_warmup": 7}])
def test_a_run_without_losses_follows_the_ramp_with_one_warning(options: dict, lr: Any) -> None:
    alone = AdaptiveWarmup(make_optimizer(), 50, **options)  # a loss that never falls leaves the ramp alone, too
    rates = run(alone, lambda t: 5.0, range(50))
    scheduler = AdaptiveWarmup(make_optimizer(lr.clone() if isinstance(lr, torch.Tensor) else lr), 50, **options)
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(50):
            found.append(float(scheduler.optimizer.param_groups[0]["lr"]))
            scheduler.optimizer.step()
            scheduler.step()
    assert found == pytest.approx(rates, rel=1e-6)
    assert [str(w.message)[:40] for w in caught] == ["step() was called without a loss, so tim"]
    assert (scheduler.phase, scheduler.ended_by) == ("decay", "clock")


def test_without_losses_and_ramp_it_stays_in_warm_up_and_says_so() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 10, max_warmup=None, peak_gap=1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            scheduler.optimizer.step()
            scheduler.step()
    assert [str(w.message)[:40] for w in caught] == [
        "step() was called without a loss, so tim",
        "the run of total_steps=10 ends still in ",
    ]
    assert "no finite loss was observed" in str(caught[1].message)


@pytest.mark.parametrize("max_warmup", [None, 0.2, 1e-9])
def test_a_first_loss_of_zero(max_warmup: float | None) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 50, max_warmup=max_warmup)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rates = run(scheduler, lambda t: 0.0, range(50), "before")
    assert rates[0] == pytest.approx(PEAK / 10)
    assert all(0 < rate <= PEAK for rate in rates)


def test_where_the_rate_starts() -> None:
    assert AdaptiveWarmup(make_optimizer(), 100).get_last_lr() == pytest.approx([PEAK / 10])
    assert AdaptiveWarmup.paper(make_optimizer(), 100, target_loss=1.0).get_last_lr() == pytest.approx([PEAK / 100])


def test_what_ended_the_warmup() -> None:
    by_gap = AdaptiveWarmup(make_optimizer(), 1000, target_loss=0.5, peak_gap=4.0, max_warmup=0.9)
    by_floor = AdaptiveWarmup(make_optimizer(), 1000, target_loss=0.5, peak_gap=0.1, max_warmup=0.01)
    for scheduler in (by_gap, by_floor):
        assert scheduler.ended_by is None
        run(scheduler, falling(), range(200))
    assert (by_gap.ended_by, by_floor.ended_by) == ("loss", "clock")


def test_smoothing_withstands_one_lucky_batch() -> None:
    def lucky(t: int) -> float:
        return 1.2 if t == 5 else 10.0

    T = 1000
    raw = AdaptiveWarmup(make_optimizer(), T, smoothing=0.0, max_warmup=0.5)
    smooth = AdaptiveWarmup(make_optimizer(), T, max_warmup=0.5)
    run(raw, lucky, range(100))
    run(smooth, lucky, range(100))
    assert (raw.phase, smooth.phase) == ("decay", "warmup")


def test_auto_target_loss_on_the_papers_setup() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 10)
    assert scheduler.target_loss is None
    scheduler.step(10.98)
    assert scheduler.target_loss == pytest.approx(3.294)


def test_group_ratios_are_kept() -> None:
    a, b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    opt = Lion([{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.02}])
    scheduler = AdaptiveWarmup(opt, 50)
    for t in range(60):
        assert opt.param_groups[0]["lr"] == pytest.approx(5 * opt.param_groups[1]["lr"])
        opt.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step(5.0 - 0.01 * t)


def test_a_tensor_rate_is_filled_in_place() -> None:
    rate = torch.tensor(PEAK, dtype=torch.float64)
    opt = make_optimizer(rate)
    scheduler = AdaptiveWarmup(opt, 100)
    tensor_rates = run(scheduler, falling(), range(100))
    assert opt.param_groups[0]["lr"] is rate
    assert tensor_rates == pytest.approx(run(AdaptiveWarmup(make_optimizer(), 100), falling(), range(100)))
    assert scheduler.get_last_lr()[0] is not rate


def test_the_picture() -> None:
    pytest.importorskip("matplotlib")
    scheduler = AdaptiveWarmup(make_optimizer(), 10)
    assert scheduler.plot().get_xlabel() == "update"  # the plan, see test_report.py
    scheduler.step(5.0)
    ax = scheduler.plot()
    assert ax.get_xlabel() == "loss"
    assert max(ax.lines[0].get_ydata()) == pytest.approx(PEAK, rel=1e-3)


def test_a_probe_measures_and_changes_nothing() -> None:
    from autowarm.smoothness import Probe

    def train(how: str) -> tuple[list[float], list[float], torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))
        opt = Lion(model.parameters(), lr=PEAK)
        scheduler = AdaptiveWarmup(opt, 12)
        probe = Probe(model, opt)
        rates = []
        for _ in range(12):
            x = torch.randn(16, 4)

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                loss = model(x).square().mean()
                loss.backward()
                return loss

            if how == "plain":
                loss = closure()
                opt.step()
            else:
                with probe(closure) if how == "smoothness" else scheduler.probe(closure, model) as loss:
                    opt.step()
            scheduler.step(loss)
            opt.zero_grad()
            rates.append(scheduler.get_last_lr()[0])
        points = probe.points if how == "smoothness" else scheduler.points
        return rates, [point.smoothness for point in points], model[0].weight

    plain, probed, other = train("plain"), train("scheduler"), train("smoothness")
    assert plain[0] == probed[0]
    assert torch.equal(plain[2], probed[2])
    assert probed[1] == other[1]
    assert len(probed[1]) == 12
