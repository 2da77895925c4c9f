"""A `SpikeGuard` beside the schedules that others set."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import swa_utils

from autowarm import SpikeGuard
from autowarm.optim import Together
from tests.schedule.recovery.recovery_runs import SCHEDULES, Beside, Run, batch, halfway, healthy, lost, quiet

BAD, NAN = halfway("lion", "bad", 8), halfway("adamw", "nan")
AT = min(NAN)


@pytest.mark.parametrize(("by", "first"), [*((by, False) for by in SCHEDULES), ("cosine", True)])
def test_a_nan_no_longer_kills_a_run_and_the_schedule_goes_on(by: str, first: bool) -> None:
    """Whichever of the schedule and the guard is stepped first."""
    run = quiet(Beside(by=by, faults=NAN, first=first))
    assert lost(run, healthy(Beside, by=by)) < 0.05
    [found] = run.guard.recoveries
    assert found.restored <= AT < found.update == AT + 2
    # The schedule's own rates are those of a run without fault, and the optimizer's ramp up to them again.
    assert run.rates == healthy(Beside, by=by).rates
    at, used = found.update, run.used()
    assert used[:at] == run.rates[:at]
    shares = [used / rate for used, rate in zip(used[at : at + 22], run.rates[at:], strict=False)]
    assert shares == pytest.approx([min(1.0, 0.1 + 0.9 * i / 20) for i in range(22)])


@pytest.mark.parametrize(("name", "faults"), [("lion", BAD), ("adamw", NAN)])
def test_it_does_what_the_schedules_own_recovery_does(name: str, faults: dict[int, str]) -> None:
    own = quiet(Run(name, faults=faults, recover=True))
    run = Run(name, faults=faults)
    guard = SpikeGuard(run.optimizer, run.steps)
    with warnings.catch_warnings(action="ignore"):
        for _ in range(run.steps):
            loss = run.update()
            run.scheduler.step(loss)
            guard.step(loss)
    assert guard.recoveries == own.scheduler.recoveries != []


@pytest.mark.parametrize("tensor", [False, True], ids=["float lr", "tensor lr"])
def test_a_step_that_only_creates_the_state_is_no_update(tensor: bool) -> None:
    """As `torch.distributed.checkpoint` makes it."""
    run = Beside(by="none", tensor=tensor)
    get_optimizer_state_dict(run.model, run.optimizer)
    run.train(3)
    assert run.guard.state_dict()["updates"] == 3


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


@pytest.mark.parametrize("given", [True, False])
def test_averaged_weights_go_back_if_they_are_given(given: bool) -> None:
    run = Beside(by="none", faults=NAN, recover=False)
    averaged = swa_utils.AveragedModel(run.model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    guard = SpikeGuard(run.optimizer, run.steps, recover=nn.ModuleList([run.model, averaged]) if given else True)
    with warnings.catch_warnings(action="ignore"):
        for _ in range(AT + 10):
            loss = run.update()
            averaged.update_parameters(run.model)
            guard.step(loss)
    [found] = guard.recoveries
    assert all(bool(p.isfinite().all()) for p in averaged.parameters()) == given
    assert int(averaged.n_averaged) == (AT + 10 - found.update + found.restored if given else AT + 10)


def test_losses_that_stay_nan_are_said_once_and_given_up() -> None:
    run = Beside(faults=halfway("adamw", "nan", 250))
    with pytest.warns(UserWarning, match="not finite") as said:
        run.train()
    assert len(said) == 12  # ten restarts that fail at once, after the first; then nothing is restored
    assert [found.restored is None for found in run.guard.recoveries] == [False] * 11 + [True]


VETOED: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.003),
    "muon": lambda params: torch.optim.Muon([p for p in params if p.ndim == 2], lr=0.02),
}


@pytest.mark.parametrize("fault", [100.0, math.nan])
@pytest.mark.parametrize("make", VETOED.values(), ids=VETOED)
def test_a_veto_leaves_weights_and_state_as_they_are(make: Callable[[Any], Any], fault: float) -> None:
    run = Beside(by="none", recover=False)
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


def test_a_veto_that_is_refused() -> None:
    w = [nn.Parameter(torch.ones(2, 2))]
    sharded = torch.Tensor._make_subclass(
        type("Sharded", (torch.Tensor,), {"placements": (), "device_mesh": None}), w[0]
    )
    with pytest.raises(ValueError, match="veto needs whole gradients, and each rank has a part here"):
        SpikeGuard(torch.optim.SGD([sharded]), 100, veto=6.0)
    SpikeGuard(torch.optim.SGD(w), 1e3, veto=6.0).step(1.0)  # type: ignore[arg-type]
