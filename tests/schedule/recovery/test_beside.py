"""What ``recover=True`` and a `SpikeGuard` beside another schedule have in common, and the guard's own veto."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, SpikeGuard
from autowarm.optim import Together
from autowarm.rate.restore import Snapshot
from tests.schedule.recovery.recovery_runs import MAKERS, Run, batch

both = pytest.mark.parametrize("kind", [AdaptiveWarmup, SpikeGuard])


@pytest.mark.parametrize("name", MAKERS)
def test_without_an_alarm_a_run_is_bit_identical(name: str) -> None:
    plain, watched = (Run(name, recover=recover).train() for recover in (False, True))
    assert watched.scheduler.recoveries == []
    assert watched.rates == plain.rates
    assert all(map(torch.equal, watched.weights(), plain.weights()))


@both
def test_a_captured_graph_is_refused_unless_nothing_is_restored(kind: Any) -> None:
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), capturable=True)
    kind(optimizer, 100, recover="warn")
    with pytest.raises(ValueError, match=r"recover=True restores weights .*\(capturable=True\)"):
        kind(optimizer, 100, recover=True)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_frozen_weights_that_nobody_writes_are_not_copied(device: str) -> None:
    w, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(4, device=device), requires_grad=False)
    opt = torch.optim.SGD([w, frozen] if device == "cpu" else [w], lr=1e-3)
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
        frozen.requires_grad_(True)  # it trains from now on
        snapshot.keep_added(opt)
        frozen.fill_(3.0)
        snapshot.restore(opt)
        assert frozen.unique().tolist() == [1.0]
        frozen.requires_grad_(False)  # and what was written is copied
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


# Where a loop steps the scheduler: nothing must be restored between a loss and its backward pass.


def train(kind: Any, order: str, updates: int = 20, skips: int = 0, recover: Any = True) -> nn.Module:
    """``order`` has a letter for the backward pass, the optimizer's step and the scheduler's.

    The latter is "s" with the loss, or "n" without one, which "v" for `observe` has given.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    watcher = kind(opt, 200, recover=recover)
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


@both
def test_what_restores_weights_refuses_a_loss_before_its_backward_pass_and_takes_it_after_in_any_order(
    kind: Any,
) -> None:
    for order in ("sbo", "vnbo"):
        with refused:
            train(kind, order, updates=1)
    train(kind, "sbo", recover="warn")
    for order in ("bso", "bos", "vbno", "vbon"):
        for skips in (0, 2):  # as a GradScaler does at first
            with warnings.catch_warnings(action="ignore"):
                model = train(kind, order, skips=skips)
            assert all(bool(p.isfinite().all()) for p in model.parameters())


# What a `SpikeGuard` alone can do

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
    with pytest.raises(ValueError, match="veto is for one optimizer that is not ours, .* skip_outliers=6"):
        SpikeGuard(torch.optim.SGD([sharded]), 100, veto=6.0)
    SpikeGuard(torch.optim.SGD(w), 1e3, veto=6.0).step(1.0)  # type: ignore[arg-type]
