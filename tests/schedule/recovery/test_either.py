"""What ``recover=True`` and a `SpikeGuard` beside another schedule have in common: real runs under either."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, SpikeGuard
from autowarm.rate.restore import Snapshot
from tests.schedule.recovery.recovery_runs import MAKERS, Run


@pytest.mark.parametrize("name", MAKERS)
def test_without_an_alarm_a_run_is_bit_identical(name: str) -> None:
    plain, watched = (Run(name, recover=recover).train() for recover in (False, True))
    assert watched.scheduler.recoveries == []
    assert watched.rates == plain.rates
    assert all(map(torch.equal, watched.weights(), plain.weights()))


@pytest.mark.parametrize("make", [AdaptiveWarmup, SpikeGuard])
def test_a_captured_graph_is_refused_unless_nothing_is_restored(make: Any) -> None:
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), capturable=True)
    make(optimizer, 100, recover="warn")
    with pytest.raises(ValueError, match=r"recover=True restores weights .*\(capturable=True\)"):
        make(optimizer, 100, recover=True)


@pytest.mark.parametrize("in_optimizer", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_frozen_weights_that_nobody_writes_are_not_copied(device: str, in_optimizer: bool) -> None:
    w, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(4, device=device), requires_grad=False)
    opt = torch.optim.SGD([w, frozen] if in_optimizer else [w], lr=1e-3)
    model = nn.ParameterList([w, frozen])
    known = SpikeGuard(opt, 1000, recover=model)._guard._frozen
    snapshot = Snapshot(opt, model, known)
    assert len(snapshot._untouched) == 1
    with torch.no_grad():
        w.fill_(7.0)
        snapshot.restore(opt)
        assert w.tolist() == [1.0, 1.0]
        if device == "meta":
            return
        # One that is written is copied, and one that trains from now on.
        frozen.requires_grad_(True)
        snapshot.keep_added(opt)
        frozen.fill_(3.0)
        snapshot.restore(opt)
        assert frozen.unique().tolist() == [1.0]
        frozen.requires_grad_(False)
        later = Snapshot(opt, model, known)
        frozen.fill_(5.0)
        later.restore(opt)
        assert frozen.unique().tolist() == [1.0]


def test_under_a_grad_scaler_losses_that_stay_broken_raise_an_error_and_an_overflow_alone_counts_as_nothing() -> None:
    """It skips every update once the weights are broken, so that losses of none tell of it."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    schedule = AdaptiveWarmup(optimizer, 100, max_nonfinite=3, recover=True)

    def update(factor: float, overflows: bool = False) -> None:
        loss = model(torch.ones(2, 4)).square().mean() * factor
        scaler.scale(loss).backward()
        if overflows:
            model.weight.grad.fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
        schedule.step(loss.detach())
        optimizer.zero_grad()

    for t in range(12):
        update(1.0, overflows=t % 2 == 1)
    assert schedule.last_epoch == 6
    for factor in [math.nan, 1.0, math.nan]:  # bad batches one by one cost their own updates only
        update(factor)
    assert schedule.last_epoch == 7
    assert not schedule.recoveries
    update(math.nan)
    with pytest.raises(RuntimeError, match="the loss was not finite 3 times in a row, up to step 7"):
        update(math.nan)


def test_a_guard_whose_optimizer_makes_no_update_says_so_once() -> None:
    weight = nn.Parameter(torch.ones(1))
    guard = SpikeGuard(torch.optim.SGD([weight], lr=0.1), 100)
    with warnings.catch_warnings(record=True, action="always") as caught:
        for _ in range(30):
            guard.step(weight.square().sum())
    [said] = [str(one.message) for one in caught]
    assert said.startswith("SpikeGuard.step() was called 10 times in a row, but SGD, which")
