"""What ``recover=True`` and a `SpikeGuard` beside another schedule have in common: real runs under either."""

import copy
import math
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autowarm import AdaptiveWarmup, SpikeGuard
from autowarm.rate.restore import Snapshot
from tests.schedule.recovery import recovery_runs
from tests.schedule.recovery.recovery_runs import (
    MAKERS,
    Beside,
    Run,
    batch,
    halfway,
    healthy,
    lost,
    quiet,
    same_weights,
)  # fmt: skip

BAD, BAD_8, NAN = halfway("lion", "bad"), halfway("lion", "bad", 8), halfway("adamw", "nan")
both = pytest.mark.parametrize("kind", [Run, Beside], ids=["recover=True", "SpikeGuard"])


@pytest.mark.parametrize(("kind", "name"), [*((Run, name) for name in MAKERS), (Beside, "adamw")])
def test_without_an_alarm_a_run_is_bit_identical(kind: Any, name: str) -> None:
    run = kind(name, recover=True).train()
    assert run.recoveries == []
    assert kind is Run or run.guard.factor == 1.0
    assert run.used() == healthy(kind, name).used()
    assert same_weights(run, healthy(kind, name))


@pytest.mark.parametrize(("kind", "name", "rate"), [(Beside, "muon", 30), (Run, "lion", 30), (Run, "normsgd", 10)])
def test_a_rate_that_is_far_too_high_is_lowered(kind: Any, name: str, rate: float) -> None:
    """In most of five runs: each of them is chaotic, and where it ends follows from the last bit."""
    by = {} if kind is Run else {"by": "lambda"}
    assert lost(quiet(kind(name, rate, recover=False, **by)), healthy(kind, name, **by)) > 0.5
    runs = [quiet(kind(name, rate, recover=True, seed=seed, **by)) for seed in range(5)]
    assert statistics.median(lost(run, healthy(kind, name, **by)) for run in runs) < 0.15
    peak, helped = MAKERS[name][1] * rate, 0
    for run in runs:
        assert run.scheduler.base_lrs[0] == pytest.approx(peak)
        assert all(found.peak_after == found.peak_before for found in run.recoveries[:1])
        lowered = [found for found in run.recoveries if found.peak_after != found.peak_before]
        helped += bool(lowered)
        assert all(peak / 9.001 < found.peak_after <= found.peak_before / 3 * 1.0001 for found in lowered)
        if kind is Run and lowered and (at := lowered[0].update) < 0.4 * run.steps:  # later, the decay counts, too
            # The rate at the alarm, and a third of it (less, soon after another alarm) once the short ramp is over:
            # no jump, and no second warm-up.
            after = run.rates[at - 1] * lowered[0].peak_after / lowered[0].peak_before
            assert run.rates[at + 20] == pytest.approx(after, rel=0.1)
            assert run.rates[at] == pytest.approx(after / 10, rel=0.1)
    assert helped > len(runs) / 2


@pytest.mark.parametrize(("kind", "faults", "said"), [(Run, BAD, "the loss rose from .*"), (Beside, BAD_8, "")])
def test_to_warn_is_to_change_nothing(kind: Any, faults: dict[int, str], said: str) -> None:
    straight = quiet(kind("lion", faults=faults, recover=False))
    run = kind("lion", faults=faults, recover="warn")
    with pytest.warns(UserWarning, match=f"{said}; recover=True would have restored the weights") as seen:
        run.train()
    assert all(one.filename == recovery_runs.__file__ for one in seen)
    assert run.used() == straight.used()
    assert same_weights(run, straight)
    assert [found.restored for found in run.recoveries] == [None] * sum(
        "recover=True" in str(one.message) for one in seen
    )


@pytest.mark.parametrize("make", [AdaptiveWarmup, SpikeGuard])
def test_a_captured_graph_is_refused_unless_nothing_is_restored(make: Any) -> None:
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), capturable=True)
    make(optimizer, 100, recover="warn")
    with pytest.raises(ValueError, match=r"recover=True restores weights .*\(capturable=True\)"):
        make(optimizer, 100, recover=True)


@pytest.mark.parametrize(("kind", "name", "faults", "end"), [(Run, "lion", BAD, 330), (Beside, "adamw", NAN, 200)])
def test_a_copied_run_restores_its_own_weights(kind: Any, name: str, faults: dict[int, str], end: int) -> None:
    run = kind(name, faults=faults, recover=True).train(100)
    other = copy.deepcopy(run)
    assert quiet(run, end).recoveries == quiet(other, end).recoveries != []
    assert same_weights(run, other)


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


@both
@pytest.mark.parametrize("loop", ["accumulation", "scaler", "compiled model", "compiled step", "loss first"])
def test_loops_of_other_kinds(kind: Any, loop: str) -> None:
    run = kind(recover=True, tensor=loop == "compiled step")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=loop == "scaler")
    model = torch.compile(run.model, backend="eager") if loop == "compiled model" else run.model
    if loop == "compiled step":
        run.optimizer.step = torch.compile(run.optimizer.step, backend="eager")
    with warnings.catch_warnings(action="ignore"):
        for t in range(250):
            for _ in range(2):
                x, y = batch(run.data, 32)
                loss = nn.functional.cross_entropy(model(x * math.nan if t in NAN else x), y)
                scaler.scale(loss / 2).backward()
                run.watcher.observe(loss.detach())
            if loop == "loss first":
                run.watch()
            scaler.step(run.optimizer)
            scaler.update()
            if loop != "loss first":
                run.watch()
            run.optimizer.zero_grad()
    # A scaler skips the update of a batch that is not finite, so nothing is lost.
    assert len(run.recoveries) == (loop != "scaler")
    assert run.tested() < 0.6


# Under a GradScaler, which skips every update once the weights are broken, so that losses of none tell of it


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
