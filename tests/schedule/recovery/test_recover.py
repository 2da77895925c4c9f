"""``recover=``: real runs with faults, with it and without it."""

import copy
import functools
import math
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion
from autowarm.rate.restore import Snapshot
from tests.schedule.recovery.recovery_runs import MAKERS, Run, halfway, healthy, lost, quiet, to_alarm

BAD, NAN = halfway("lion", "bad"), halfway("adamw", "nan")
LION, ADAMW = min(BAD), min(NAN)  # when


@functools.cache
def faulty(name: str, fault: str, batches: int = 1, recover: bool = False) -> Run:
    """A run with a fault halfway, which several tests look at."""
    return quiet(Run(name, faults=halfway(name, fault, batches), recover=recover))


@pytest.mark.parametrize(
    ("name", "batches", "with_it", "without"),
    [("lion", 1, 0.08, 0.12), ("normsgd", 1, 0.08, 0.12), ("lion", 8, 0.05, 0.5), ("adamw", 8, 0.05, 0.5)],
)
def test_bad_batches_cost_little_and_lower_no_rate(name: str, batches: int, with_it: float, without: float) -> None:
    run, at = faulty(name, "bad", batches, recover=True), MAKERS[name][2] // 2
    assert lost(run, healthy(Run, name)) < with_it < without < lost(faulty(name, "bad", batches), healthy(Run, name))
    [found] = run.scheduler.recoveries
    assert found.restored <= at < found.update <= at + 50
    assert found.peak_after == found.peak_before == run.scheduler.base_lrs[0] == MAKERS[name][1]


def test_a_nan_batch_no_longer_kills_adamw() -> None:
    for faults, recover in ((NAN, False), (halfway("adamw", "nan", 150), True)):  # losses that stay NaN end the run
        with pytest.raises(RuntimeError, match="not finite 20 times in a row"):
            quiet(Run(faults=faults, recover=recover))
    run = faulty("adamw", "nan", recover=True)
    assert lost(run, healthy(Run)) < 0.05
    [found] = run.scheduler.recoveries
    assert found.update == ADAMW + 2
    assert re.fullmatch(r"the last losses were .*, nan, nan, after a level of .*: not finite, .*", found.reason)


def test_buffers_go_back_but_not_a_cache_that_has_grown_or_joined_since_on_which_the_module_counts() -> None:
    """And a moment that an optimizer keeps as an attribute."""
    model = nn.Linear(2, 2)
    for name, buffer in {"cache": torch.ones(4), "mean": torch.ones(4), "expanded": torch.ones(1).expand(4)}.items():
        model.register_buffer(name, buffer)
    optimizer: Any = torch.optim.SGD(model.parameters())
    optimizer.moment = torch.ones(())
    snapshot = Snapshot(optimizer, model)
    model.cache, model.mean, model.expanded = torch.zeros(8), torch.zeros(4), torch.zeros(4)
    model.register_buffer("other", torch.zeros(1))
    moment = optimizer.moment.fill_(math.nan)
    snapshot.restore(optimizer)
    found = {name: buffer.tolist() for name, buffer in model.named_buffers()}
    assert found == {"cache": [0.0] * 8, "mean": [1.0] * 4, "expanded": [1.0] * 4, "other": [0.0]}
    assert (optimizer.moment is moment, float(moment)) == (True, 1.0)


@pytest.mark.parametrize("changes", [("join",), ("load",), ("join", "load", "option")], ids=" ".join)
def test_what_the_loop_changes_after_the_copy(changes: tuple[str, ...]) -> None:
    """A group that joins and a state that is loaded go back, too; an option that is set stays set."""
    torch.manual_seed(0)
    body, head = nn.Linear(8, 8), nn.Linear(8, 1)
    x, true = torch.randn(2048, 8), torch.randn(8, 1)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=0.1)
    scheduler = AdaptiveWarmup(optimizer, 300, recover=True)
    with warnings.catch_warnings(action="ignore"):
        for step in range(300):
            if step == 199 and "join" in changes:
                optimizer.add_param_group({"params": [*body.parameters()], "lr": 1e-2})
            if step == 199 and "load" in changes:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if step == 199 and "option" in changes:
                optimizer.param_groups[0]["weight_decay"] = 0.0
            scheduler.state_dict()  # which takes over a group that was added, and changes nothing
            batch = x[torch.randint(len(x), (128,))]
            loss = (head(torch.tanh(body(batch))) - batch @ true).square().mean()
            (loss * (math.nan if step == 200 else 1.0)).backward()
            optimizer.step()
            scheduler.step(loss if step != 200 else math.nan)
            optimizer.zero_grad()
    [found] = scheduler.recoveries
    assert found.restored is not None
    assert found.restored < 199
    assert all(x.isfinite().all() for p, state in optimizer.state.items() for x in (p, *state.values()))
    assert "join" not in changes or 50 < float(optimizer.state[body.weight]["step"]) < 100  # its averages began anew
    assert optimizer.param_groups[0]["weight_decay"] == (0.0 if "option" in changes else 0.1)


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
    to_alarm(run, 0)
    assert run.scheduler.recoveries[0].restored == update
    assert run.scheduler._state.average == average
    torch.testing.assert_close(
        [run.model.state_dict(), run.optimizer.state_dict()["state"]], kept, rtol=0, atol=0, equal_nan=True
    )
    assert [id(p) for p in run.model.parameters()] == tensors  # in place
    assert run.scheduler.last_epoch == 102  # and time goes on


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

    with warnings.catch_warnings(action="ignore"):
        spoilt = run.optimizer.register_step_pre_hook(spoil)
        run.train(1)
        spoilt.remove()
        run.train(250 - copied)
    [found] = run.scheduler.recoveries
    assert found.restored < copied < found.update
    assert run.tested() < 0.6


def test_a_resumed_run_takes_a_copy_at_once() -> None:
    resumed = Run(recover=True).train(200).resumed(recover=True, faults={210: "nan"})
    [found] = quiet(resumed, 220).recoveries
    assert 200 < found.restored <= 210 < found.update
    assert resumed.tested() < 0.6


def test_a_state_may_be_loaded_with_and_without_recover() -> None:
    run = Run(recover=True).train(50)
    assert "recoveries" not in run.resumed().scheduler.metrics()
    assert run.resumed().train(10).scheduler.recoveries == []
    assert Run().train(50).resumed(recover=True).train(10).scheduler.metrics()["recoveries"] == 0


def changed(steps: int, *times: int) -> tuple[AdaptiveWarmup, nn.Parameter, list[float]]:
    """A run whose loss rises for good at some updates, whatever the weights are: the data have changed."""
    w = nn.Parameter(torch.zeros(2))
    scheduler = AdaptiveWarmup(optimizer := Lion([w], lr=0.01), steps, recover=True, decay="wso")
    generator, moved = torch.Generator().manual_seed(0), []
    with warnings.catch_warnings(action="ignore"):
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
