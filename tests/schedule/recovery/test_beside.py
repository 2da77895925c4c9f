"""A `SpikeGuard` beside the schedules that others set."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import Lion, SpikeGuard
from autowarm.optim import Together
from tests.schedule.recovery.recovery_runs import Run, batch

VETOED: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.003),
    "muon": lambda params: torch.optim.Muon([p for p in params if p.ndim == 2], lr=0.02),
}


@pytest.mark.parametrize("fault", [100.0, math.nan])
@pytest.mark.parametrize("make", VETOED.values(), ids=VETOED)
def test_a_veto_leaves_weights_and_state_as_they_are(make: Callable[[Any], Any], fault: float) -> None:
    run = Run()
    optimizer = make([*run.model.parameters()])
    guard = SpikeGuard(optimizer, 300, veto=6.0)

    def update(scale: float) -> None:
        x, y = batch(run.data)
        loss = nn.functional.cross_entropy(run.model(x), y) * scale
        loss.backward()
        optimizer.step()
        guard.step(loss.detach())
        optimizer.zero_grad()

    for _ in range(150):
        update(1.0)
    assert guard.skipped_updates == 0
    before = copy.deepcopy([run.weights(), optimizer.state_dict()["state"]])
    with warnings.catch_warnings(action="ignore"):
        update(fault)
    torch.testing.assert_close([run.weights(), optimizer.state_dict()["state"]], before, rtol=0, atol=0)
    other = SpikeGuard(optimizer, 300, veto=6.0)
    other.load_state_dict(guard.state_dict())
    assert other.skipped_updates == guard.skipped_updates == 1
    assert other.state_dict() == guard.state_dict()
    assert guard.recoveries == []


def test_several_optimizers_recover_as_one() -> None:
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = Together(torch.optim.SGD([a], lr=0.1), torch.optim.AdamW([b], lr=0.01))
    guard = SpikeGuard(optimizer, 1000)
    used: list[tuple[float, ...]] = []
    for one in optimizer.optimizers:
        one.register_step_pre_hook(lambda *_: used.append(tuple(group["lr"] for group in optimizer.param_groups)))

    def train(updates: range) -> None:
        for t in updates:
            for p in (a, b):
                p.grad = torch.full_like(p, math.nan if t == 100 else 1.0)
            optimizer.step()
            guard.step(2.0 - t / 100 if t < 100 else math.nan if t < 102 else 1.0)

    with pytest.warns(UserWarning, match="update 102: the last losses were .*, nan, nan, after a level of"):
        train(range(103))
    assert a.isfinite().all()
    assert b.isfinite().all()
    assert used[-1] == pytest.approx((0.1, 0.001))  # the first has stepped, and has its rate again
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]


def test_a_veto_that_is_refused() -> None:
    w = [nn.Parameter(torch.ones(2, 2))]
    sharded = torch.Tensor._make_subclass(
        type("Sharded", (torch.Tensor,), {"placements": (), "device_mesh": None}), w[0]
    )
    for refused in (torch.optim.SGD([sharded]), Together(torch.optim.SGD(w), torch.optim.SGD([sharded])), Lion(w)):
        with pytest.raises(ValueError, match="veto is for one optimizer that is not ours, .* skip_outliers=6"):
            SpikeGuard(refused, 100, veto=6.0)
    SpikeGuard(torch.optim.SGD(w), 1e3, veto=6.0).step(1.0)  # type: ignore[arg-type]
