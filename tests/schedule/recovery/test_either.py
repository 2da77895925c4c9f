"""What ``recover=True`` and a `SpikeGuard` beside another schedule have in common: real runs under either."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autowarm import AdaptiveWarmup, SpikeGuard
from autowarm.rate.restore import Snapshot
from tests.schedule.recovery.recovery_runs import (
    MAKERS,
    Beside,
    Run,
    healthy,
    same_weights,
)  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [*((Run, name) for name in MAKERS), (Beside, "adamw")])
def test_without_an_alarm_a_run_is_bit_identical(kind: Any, name: str) -> None:
    run = kind(name, recover=True).train()
    assert run.recoveries == []
    assert kind is Run or run.guard.factor == 1.0
    assert run.used() == healthy(kind, name).used()
    assert same_weights(run, healthy(kind, name))


@pytest.mark.parametrize("make", [AdaptiveWarmup, SpikeGuard])
def test_a_captured_graph_is_refused_unless_nothing_is_restored(make: Any) -> None:
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), capturable=True)
    make(optimizer, 100, recover="warn")
    with pytest.raises(ValueError, match=r"recover=True restores weights .*\(capturable=True\)"):
        make(optimizer, 100, recover=True)


FROZEN: dict[str, Callable[[], torch.Tensor]] = {
    "meta": lambda: torch.empty(4, 4, device="meta"),
    "float4": lambda: torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "plain": lambda: torch.ones(4, 4),
}


@pytest.mark.parametrize("make", [AdaptiveWarmup, SpikeGuard])
@pytest.mark.parametrize("where", ["optimizer", "model"])
@pytest.mark.parametrize("kind", FROZEN)
def test_frozen_weights_that_nobody_writes_are_not_copied(kind: str, where: str, make: Any) -> None:
    frozen = nn.Parameter(FROZEN[kind](), requires_grad=False)
    w = nn.Parameter(torch.ones(2))
    params = [w, frozen] if where == "optimizer" else [w]
    opt = torch.optim.SGD(params, lr=1e-3)
    guard = make(opt, 1000, recover=nn.ParameterList([w, frozen]))._guard
    snapshot = Snapshot(opt, nn.ParameterList([w, frozen]), guard._frozen)
    assert len(snapshot._untouched) == 1
    with torch.no_grad():
        w.fill_(7.0)
        snapshot.restore(opt)
        assert w.tolist() == [1.0, 1.0]
        if kind == "plain":  # one that is written is copied, and one that trains from now on
            frozen.requires_grad_(True)
            snapshot.keep_added(opt)
            frozen.fill_(3.0)
            snapshot.restore(opt)
            assert frozen.unique().tolist() == [1.0]
            frozen.requires_grad_(False)
            later = Snapshot(opt, nn.ParameterList([w, frozen]), guard._frozen)
            frozen.fill_(5.0)
            later.restore(opt)
            assert frozen.unique().tolist() == [1.0]


# Under a GradScaler, which skips every update once the weights are broken, so that losses of none tell of it


def update(
    loss: Tensor, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, watcher: Any, overflows: bool = False
) -> None:
    scaler.scale(loss).backward()
    if overflows:
        optimizer.param_groups[0]["params"][0].grad.fill_(math.inf)
    scaler.step(optimizer)
    scaler.update()
    watcher.step(loss.detach())
    optimizer.zero_grad()


def test_losses_that_stay_broken_raise_an_error_as_without_a_scaler() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    schedule = AdaptiveWarmup(optimizer, 100, max_nonfinite=3)

    def step(factor: float) -> None:
        update(model(torch.ones(2, 4)).square().mean() * factor, optimizer, scaler, schedule)

    for factor in [1.0] * 12 + [math.nan, 1.0, math.nan]:  # bad batches one by one cost their own updates only
        step(factor)
    assert schedule.last_epoch == 13
    step(math.nan)
    with pytest.raises(RuntimeError, match="the loss was not finite 3 times in a row, up to step 13"):
        step(math.nan)


def test_an_overflow_of_gradients_whose_loss_is_finite_counts_neither_as_a_failure_nor_as_a_loss() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    schedule = AdaptiveWarmup(optimizer, 100, max_nonfinite=1, recover=True)
    for t in range(6):
        update(weight.square().sum(), optimizer, scaler, schedule, overflows=t % 2 == 1)
    assert schedule.last_epoch == 3
    assert not schedule.recoveries


def test_a_guard_whose_optimizer_makes_no_update_says_so_once() -> None:
    weight = nn.Parameter(torch.ones(1))
    guard = SpikeGuard(torch.optim.SGD([weight], lr=0.1), 100)
    with warnings.catch_warnings(record=True, action="always") as caught:
        for _ in range(30):
            guard.step(weight.square().sum())
    [said] = [str(one.message) for one in caught]
    assert said.startswith("SpikeGuard.step() was called 10 times in a row, but SGD, which")
