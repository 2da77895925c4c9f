"""``recover=``: real runs with faults, with it and without it."""

import copy
import math
import warnings
from collections import deque
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup
from autowarm.rate.restore import Snapshot
from tests.schedule.recovery.recovery_runs import Run


def test_buffers_go_back_but_not_a_cache_that_has_grown_or_joined_since_on_which_the_module_counts() -> None:
    """And what an optimizer keeps as an attribute, in a tuple or in a deque."""
    model = nn.Linear(2, 2)
    for name, buffer in {"cache": torch.ones(4), "mean": torch.ones(4), "expanded": torch.ones(1).expand(4)}.items():
        model.register_buffer(name, buffer)
    optimizer: Any = torch.optim.SGD(model.parameters())
    optimizer.moment, pair, past = torch.ones(()), (torch.ones(1),), deque([torch.ones(1)], maxlen=3)
    optimizer.state[model.weight] = {"pair": pair, "past": past}
    snapshot = Snapshot(optimizer, model)
    model.cache, model.mean, model.expanded = torch.zeros(8), torch.zeros(4), torch.zeros(4)
    model.register_buffer("other", torch.zeros(1))
    moment = optimizer.moment.fill_(math.nan)
    pair[0].zero_()
    past[0].zero_()
    past.append(torch.zeros(1))
    snapshot.restore(optimizer)
    state = optimizer.state[model.weight]
    assert (state["pair"], [*state["past"]], state["past"].maxlen) == ((torch.ones(1),), [torch.ones(1)], 3)
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
    with warnings.catch_warnings(action="ignore"):
        while not run.scheduler.recoveries:
            run.train(1)
    assert run.scheduler.recoveries[0].restored == update
    assert run.scheduler._state.average == average
    torch.testing.assert_close(
        [run.model.state_dict(), run.optimizer.state_dict()["state"]], kept, rtol=0, atol=0, equal_nan=True
    )
    assert [id(p) for p in run.model.parameters()] == tensors  # in place
    assert run.scheduler.last_epoch == 102  # and time goes on


def test_a_state_may_be_loaded_with_and_without_recover() -> None:
    run = Run(recover=True).train(50)
    assert "recoveries" not in run.resumed().scheduler.metrics()
    assert run.resumed().train(10).scheduler.recoveries == []
    assert Run().train(50).resumed(recover=True).train(10).scheduler.metrics()["recoveries"] == 0
