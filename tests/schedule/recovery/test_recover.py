"""``recover=``: real runs with faults, with it and without it."""

import copy
import functools
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion, losses
from autowarm.rate.restore import Snapshot
from tests.schedule.recovery.recovery_runs import MAKERS, Run, batch, halfway, healthy, lost, quiet, quiet_to

BAD, NAN = halfway("lion", "bad"), halfway("adamw", "nan")
LION, ADAMW = min(BAD), min(NAN)  # when


@functools.cache
def faulty(name: str, fault: str, recover: bool = False) -> Run:
    """A run with a fault halfway, which several tests look at."""
    return quiet(Run(name, faults=halfway(name, fault), recover=recover))


@pytest.mark.parametrize("name", ["lion", "normsgd"])
def test_a_bad_batch_costs_little(name: str) -> None:
    run, at = faulty(name, "bad", recover=True), MAKERS[name][2] // 2
    assert lost(faulty(name, "bad"), healthy(Run, name)) > 0.12
    assert lost(run, healthy(Run, name)) < 0.08
    [found] = run.scheduler.recoveries
    assert found.restored <= at < found.update <= at + 50
    assert found.peak_after == found.peak_before == MAKERS[name][1]


@pytest.mark.parametrize("name", ["lion", "adamw"])
def test_bad_batches_in_a_row_lower_nothing(name: str) -> None:
    faults = halfway(name, "bad", 8)
    run = quiet(Run(name, faults=faults, recover=True))
    assert lost(quiet(Run(name, faults=faults)), healthy(Run, name)) > 0.5
    assert lost(run, healthy(Run, name)) < 0.05
    assert [found.peak_after / found.peak_before for found in run.scheduler.recoveries] == [1.0]
    assert run.scheduler.base_lrs[0] == MAKERS[name][1]


def test_a_nan_batch_no_longer_kills_adamw() -> None:
    with pytest.raises(RuntimeError, match="not finite 20 times in a row"):
        quiet(Run(faults=NAN))
    run = faulty("adamw", "nan", recover=True)
    assert lost(run, healthy(Run)) < 0.05
    [found] = run.scheduler.recoveries
    assert found.update == ADAMW + 2
    assert re.fullmatch(r"the last losses were .*, nan, nan, after a level of .*: not finite, .*", found.reason)


def test_losses_that_stay_nan_still_end_the_run() -> None:
    with pytest.raises(RuntimeError, match="not finite 20 times in a row"):
        quiet(Run(faults=halfway("adamw", "nan", 150), recover=True))


def test_what_it_says() -> None:
    run = Run("lion", faults=BAD, recover=True)
    assert run.scheduler.metrics()["recoveries"] == 0
    with pytest.warns(UserWarning, match="weights and optimizer are those of update 2.* again, and the run goes on"):
        run.train(LION + 66)
    assert run.scheduler.metrics()["recoveries"] == len(run.scheduler.recoveries) == 1
    assert "recoveries" not in Run().scheduler.metrics()
    assert Run().scheduler.recoveries == []


def test_an_expanded_buffer_is_no_obstacle() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("scale", torch.ones(1).expand(4))
    optimizer = torch.optim.SGD(model.parameters())
    snapshot = Snapshot(optimizer, model)
    model.scale = torch.zeros(4)
    snapshot.restore(optimizer)
    assert model.scale.tolist() == [1.0] * 4


def test_a_cache_that_has_grown_or_joined_since_the_copy_stays_as_the_module_counts_on_it() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("cache", torch.ones(4))
    model.register_buffer("mean", torch.ones(4))
    optimizer = torch.optim.SGD(model.parameters())
    snapshot = Snapshot(optimizer, model)
    model.cache, model.mean = torch.zeros(8), torch.zeros(4)
    model.register_buffer("other", torch.zeros(1))
    snapshot.restore(optimizer)
    assert (model.cache.tolist(), model.mean.tolist(), model.other.tolist()) == ([0.0] * 8, [1.0] * 4, [0.0])


def recovering(change: Callable[[int, torch.optim.Optimizer, nn.Module], None]) -> tuple[Any, Any, nn.Module]:
    """A run of AdamW on a linear model, with a NaN batch at step 200 and a change on the way."""
    torch.manual_seed(0)
    body, head = nn.Linear(8, 8), nn.Linear(8, 1)
    x, true = torch.randn(2048, 8), torch.randn(8, 1)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=0.1)
    scheduler = AdaptiveWarmup(optimizer, 300, recover=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(300):
            change(step, optimizer, body)
            scheduler.state_dict()  # which takes over a group that was added, and changes nothing
            batch = x[torch.randint(len(x), (128,))]
            loss = (head(torch.tanh(body(batch))) - batch @ true).square().mean()
            (loss * (math.nan if step == 200 else 1.0)).backward()
            optimizer.step()
            scheduler.step(loss if step != 200 else math.nan)
            optimizer.zero_grad()
    return scheduler, optimizer, body


def test_a_group_that_joined_after_the_copy_goes_back_too() -> None:
    def unfreeze(step: int, optimizer: torch.optim.Optimizer, body: nn.Module) -> None:
        if step == 199:
            optimizer.add_param_group({"params": [*body.parameters()], "lr": 1e-2})

    scheduler, optimizer, body = recovering(unfreeze)
    [found] = scheduler.recoveries
    assert found.restored < 199
    assert body.weight.isfinite().all()
    assert 50 < float(optimizer.state[body.weight]["step"]) < 100  # its averages began anew


def test_a_state_loaded_after_the_copy_goes_back_too() -> None:
    def load(step: int, optimizer: torch.optim.Optimizer, body: nn.Module) -> None:
        if step == 199:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    scheduler, optimizer, _ = recovering(load)
    [found] = scheduler.recoveries
    assert found.restored < 199
    assert all(x.isfinite().all() for state in optimizer.state.values() for x in state.values())


def test_an_option_that_the_loop_changed_stays_changed() -> None:
    def stop_decay(step: int, optimizer: torch.optim.Optimizer, body: nn.Module) -> None:
        if step == 199:
            optimizer.param_groups[0]["weight_decay"] = 0.0

    scheduler, optimizer, _ = recovering(stop_decay)
    assert len(scheduler.recoveries) == 1
    assert optimizer.param_groups[0]["weight_decay"] == 0.0


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_everything_that_an_update_changes_goes_back(name: str) -> None:
    run = Run(name, faults=dict.fromkeys([100, 101], "nan"), recover=True, norm=True)
    guard: Any = run.scheduler._guard
    run.train(60)
    while guard._unproven is None:
        run.train(1)
    whole = [run.model.state_dict(), run.optimizer.state_dict()["state"]]
    kept, tensors = copy.deepcopy(whole), [id(p) for p in run.model.parameters()]
    update = run.scheduler.last_epoch
    assert guard._unproven.update == update
    average = run.scheduler._state.average
    guard._detector.window = 500  # no later copy
    while not run.scheduler.recoveries:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.train(1)
    assert run.scheduler.recoveries[0].restored == update
    assert run.scheduler._state.average == average
    torch.testing.assert_close(
        [run.model.state_dict(), run.optimizer.state_dict()["state"]], kept, rtol=0, atol=0, equal_nan=True
    )
    assert [id(p) for p in run.model.parameters()] == tensors  # in place
    assert run.scheduler.last_epoch == 102  # and time goes on


@pytest.mark.parametrize(("name", "fault"), [("adamw", "nan"), ("lion", "bad")])
def test_tensor_rates_recover_as_floats_do(name: str, fault: str) -> None:
    floats = faulty(name, fault, recover=True)
    tensors = quiet(Run(name, faults=halfway(name, fault), recover=True, tensor=True))
    assert tensors.rates == pytest.approx(floats.rates, rel=1e-6)
    found = [[(x.update, x.restored) for x in run.scheduler.recoveries] for run in (floats, tensors)]
    assert found[0] == found[1] != []


def test_losses_that_are_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator."""
    monkeypatch.setattr(losses, "AT_ONCE", ())
    run = Run(faults=NAN, recover=True, tensor=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.train(ADAMW + 3)
        resumed = run.resumed(faults=NAN, recover=True, tensor=True)
        waiting = [str(one.scheduler.state_dict()["waiting"]) for one in (run, resumed)]
        assert waiting[0] == waiting[1] != "[]"
        run.train(run.steps - ADAMW - 3)
    assert [found.update for found in run.scheduler.recoveries] == [ADAMW + 6]
    assert lost(run, healthy(Run)) < 0.05


def test_weights_that_break_as_they_are_copied_are_not_kept() -> None:
    """The loss of that update is healthy, but its gradient is not."""
    healthy_run = Run(recover=True).train(150)
    guard = healthy_run.scheduler._guard
    while guard._unproven is None:  # type: ignore[union-attr]
        healthy_run.train(1)
    copied = guard._unproven.update  # type: ignore[union-attr]
    run = Run(recover=True).train(copied - 1)

    def spoil(*_: Any) -> None:
        run.model[0].weight.grad.fill_(math.nan)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spoilt = run.optimizer.register_step_pre_hook(spoil)
        run.train(1)
        spoilt.remove()
        run.train(250 - copied)
    [found] = run.scheduler.recoveries
    assert found.restored < copied < found.update
    assert run.tested() < 0.6


def test_a_resumed_run_takes_a_copy_at_once() -> None:
    resumed = Run(recover=True).train(200).resumed(recover=True, faults={210: "nan"})
    [found] = quiet_to(resumed, 220)
    assert 200 < found.restored <= 210 < found.update
    assert resumed.tested() < 0.6


def test_without_a_copy_it_only_says_so() -> None:
    run = Run("lion", faults=BAD, recover=True).train(LION + 2)
    resumed = run.resumed(name="lion", recover=True)
    with pytest.warns(UserWarning, match="there is no copy yet to go back to; nothing was restored"):
        resumed.train(100)


def test_a_state_may_be_loaded_with_and_without_recover() -> None:
    run = Run(recover=True).train(50)
    assert run.resumed().train(10).scheduler.recoveries == []
    assert Run().train(50).resumed(recover=True).train(10).scheduler.metrics()["recoveries"] == 0


def changed(steps: int, *times: int) -> tuple[AdaptiveWarmup, nn.Parameter, list[float]]:
    """A run whose loss rises for good at some updates, whatever the weights are: the data have changed."""
    w = nn.Parameter(torch.zeros(2))
    scheduler = AdaptiveWarmup(optimizer := Lion([w], lr=0.01), steps, recover=True, decay="wso")
    generator, moved = torch.Generator().manual_seed(0), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t in range(steps):
            w.grad = torch.ones(2)
            optimizer.step()
            moved.append(float(w.detach()[0]))
            since = max((time for time in times if time <= t), default=0)
            level = 1 + sum(time <= t for time in times) + math.exp(-(t - since) / 30)
            scheduler.step(level + 0.02 * float(torch.randn((), generator=generator)))
    return scheduler, w, moved


def test_other_data_put_the_weights_back_where_they_were() -> None:
    """A loss as high with the weights of the copy is the data's: sixteen updates on trial, and nothing is lost."""
    scheduler, _, moved = changed(600, 400)
    [found] = scheduler.recoveries
    assert 400 < found.update < 430
    assert found.restored is None
    assert found.peak_before == found.peak_after == 0.01
    assert found.reason.endswith("do no better now: the data or the objective have changed")
    assert moved[found.update + 15] > moved[found.update - 1] + 0.01  # the weights of the copy, which had moved less
    assert moved[found.update + 16] == pytest.approx(
        moved[found.update - 1] - 0.01
    )  # as without the trial, at full rate


def test_after_two_wrong_alarms_only_what_is_not_finite_counts() -> None:
    scheduler, _, _ = changed(1200, 300, 600, 900)
    assert [found.restored for found in scheduler.recoveries] == [None, None]
    assert scheduler.recoveries[1].reason.endswith("from now on, only losses that are not finite count")


def test_it_says_why_it_is_idle() -> None:
    w = nn.Parameter(torch.zeros(2))
    scheduler = AdaptiveWarmup(optimizer := Lion([w], lr=0.01), 300, recover=True)
    w.grad = torch.ones(2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for t in range(200):
            optimizer.step()
            scheduler.step(-0.995 + t / 200)
    [idle] = [str(one.message) for one in said if "idle" in str(one.message)]
    assert idle.startswith("recovery is idle: a loss of -0.995 is below zero, so a rise may be success")
    assert scheduler.recoveries == []


@pytest.mark.parametrize("at", [2, 5])
def test_a_trial_goes_on_in_a_resumed_run(at: int) -> None:
    straight = Run("lion", faults=BAD, recover=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while not straight.scheduler.recoveries:
            straight.train(1)
        straight.train(at)
        resumed = straight.resumed(name="lion", faults=BAD, recover=True)
        straight.train(60)
        resumed.train(60)
    assert resumed.scheduler.recoveries == straight.scheduler.recoveries != []
    assert resumed.scheduler.metrics() == straight.scheduler.metrics()  # with the averaged loss of the copy
    assert all(torch.equal(a, b) for a, b in zip(resumed.weights(), straight.weights(), strict=True))


def test_rewarm_begins_anew_and_takes_a_peak() -> None:
    model = nn.Linear(2, 2)
    optimizer = Lion([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.01}])
    scheduler = AdaptiveWarmup(optimizer, 100, recover=True)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for t in range(60):
        optimizer.step()
        scheduler.step(2 - t / 60)
    scheduler.rewarm(200, peak=0.05)
    assert scheduler.base_lrs == pytest.approx([0.05, 0.005])
    assert scheduler.get_last_lr() == pytest.approx([0.005, 0.0005])
    assert scheduler._guard._detector.seen == 0  # type: ignore[union-attr]
    for _ in range(60):  # of other data
        optimizer.step()
        scheduler.step(10.0)
    assert scheduler.recoveries == []
    with pytest.raises(ValueError, match="peak must be positive and finite, got 0"):
        scheduler.rewarm(peak=0)


def test_the_loss_may_come_before_the_update() -> None:
    run = Run(recover=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t in range(run.steps):
            x, y = batch(run.data)
            loss = nn.functional.cross_entropy(run.model(x * math.nan if t in NAN else x), y)
            loss.backward()
            run.scheduler.step(loss.detach())
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert len(run.scheduler.recoveries) == 1
    assert lost(run, healthy(Run)) < 0.05


def test_a_captured_graph_is_refused() -> None:
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), capturable=True)
    with pytest.raises(ValueError, match=r"recover=True restores weights .*\(capturable=True\)"):
        AdaptiveWarmup(optimizer, 100, recover=True)
    AdaptiveWarmup(optimizer, 100, recover="warn")
    for no_choice in ("on", 1):
        with pytest.raises(ValueError, match=f'recover must be True, False, or "warn" to warn only, got {no_choice!r}'):
            AdaptiveWarmup(optimizer, 100, recover=no_choice)  # type: ignore[arg-type]


@pytest.mark.parametrize("after", [3, 12])
def test_extend_leaves_the_next_rate_alone(after: int) -> None:
    """On trial, and in the short ramp after it."""
    run = Run("lion", faults=BAD, recover=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while not run.scheduler.recoveries:
            run.train(1)
        run.train(after)
    rate = run.optimizer.param_groups[0]["lr"]
    run.scheduler.extend(5000)
    assert run.scheduler._guard._detector.window == 100  # type: ignore[union-attr]
    run.scheduler._write()
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
