"""Under a GradScaler, which skips every update once the weights are broken, so that losses of none tell of it."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autowarm import AdaptiveWarmup, SpikeGuard

BROKEN = 150


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


def trained(guarded: str, scaled: bool) -> tuple[AdaptiveWarmup | SpikeGuard, list[float], list[str]]:
    """A run of 300 steps whose weights are broken in the middle: what guards it, its losses, its warnings."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scaled)
    guard = AdaptiveWarmup(optimizer, 300, recover=True) if guarded == "schedule" else SpikeGuard(optimizer, 300)
    losses = []
    with warnings.catch_warnings(record=True, action="always") as caught:
        for t in range(300):
            x = torch.randn(32, 4)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            update(loss, optimizer, scaler, guard)
            losses.append(loss.item())
            if t == BROKEN:
                nn.init.constant_(model.weight, math.inf)
    return guard, losses, [str(one.message) for one in caught]


@pytest.mark.parametrize("guarded", ["schedule", "beside"])
@pytest.mark.parametrize("scaled", [True, False])
def test_broken_weights_are_restored(guarded: str, scaled: bool) -> None:
    guard, losses, said = trained(guarded, scaled)
    assert len(guard.recoveries) == 1
    assert guard.recoveries[0].restored is not None
    assert losses[-1] < 0.01
    assert any("the last losses were" in one for one in said)


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
