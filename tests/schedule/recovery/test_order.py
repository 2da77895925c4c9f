"""Where a loop steps the scheduler: what restores weights must not do so between a loss and its backward pass."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, SpikeGuard

RESTORING = {"recover": lambda opt: AdaptiveWarmup(opt, 200, recover=True), "guard": lambda opt: SpikeGuard(opt, 200)}
OTHERS = {
    "warns": lambda opt: AdaptiveWarmup(opt, 200, recover="warn"),
    "guard that warns": lambda opt: SpikeGuard(opt, 200, recover="warn"),
}
restoring = pytest.mark.parametrize("make", RESTORING.values(), ids=RESTORING)


def train(make: Callable[[Any], Any], order: str, updates: int = 20, skips: int = 0) -> nn.Module:
    """``order`` has a letter for the backward pass, the optimizer's step and the scheduler's.

    The latter is "s" with the loss, or "n" without one, which "v" for `observe` has given.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    watcher = make(opt)
    for t in range(updates):
        x = torch.randn(64, 8)
        loss = (model(x) - x[:, :4]).square().mean() * (math.inf if t < skips else 1.0)
        for letter in order:
            if letter == "b":
                scaler.scale(loss).backward()
            elif letter == "o":
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
            elif letter == "v":
                watcher.observe(loss)
            else:
                watcher.step(*[loss] * (letter == "s"))
    return model


refused = pytest.raises(RuntimeError, match=r"call step\(loss\) after loss.backward\(\)")


@restoring
def test_what_restores_weights_refuses_a_loss_before_its_backward_pass_and_takes_it_after_in_any_order(
    make: Callable,
) -> None:
    for order in ("sbo", "vnbo"):
        with refused:
            train(make, order, updates=1)
    for order in ("bso", "bos", "vbno", "vbon"):
        for skips in (0, 2):  # as a GradScaler does at first
            with warnings.catch_warnings(action="ignore"):
                model = train(make, order, skips=skips)
            assert all(bool(p.isfinite().all()) for p in model.parameters())


@restoring
@pytest.mark.parametrize("early", [False, True])
def test_of_micro_batches_only_the_step_must_come_after_the_last_backward_pass(make: Callable, early: bool) -> None:
    weight = nn.Parameter(torch.ones(4))
    opt = torch.optim.SGD([weight], lr=0.1)
    watcher = make(opt)
    for _ in range(3):
        for last in (False, True):
            loss = weight.square().mean()
            watcher.observe(loss)
            loss = loss / 2  # all that is left of the observed loss is in the graph
            if last and early:
                watcher.step()
                with refused:
                    loss.backward()
                return
            loss.backward()
        opt.step()
        watcher.step()


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_what_restores_nothing_takes_a_loss_before_its_backward_pass(make: Callable) -> None:
    train(make, "sbo")
