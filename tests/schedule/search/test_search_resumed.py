"""``peak="auto"`` saved, loaded and copied: a search goes on where it was, whatever was made or loaded first."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import Optimizer

from autowarm import AdaptiveWarmup
from tests.schedule.search.search_runs import MAKERS, STEPS, Maker, Run, batches

ADAMW: Maker = lambda m, lr: torch.optim.AdamW(m.parameters(), lr=torch.tensor(lr))  # noqa: E731
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@pytest.mark.parametrize("at", [0, 1, 10, "last", "end", 50, 90])
@pytest.mark.parametrize("lr", ["float", "tensor"])
def test_it_resumes_to_the_bit(at: int | str, lr: str) -> None:
    make = MAKERS["muon" if lr == "float" else "muon, tensor lr"]
    updates = at if isinstance(at, int) else Run(make).search().scheduler.last_epoch - (at == "last")
    straight = Run(make).train(updates)
    state = straight.saved()
    resumed = Run(make, lr=3.0)
    resumed.model.load_state_dict(state["model"])
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.scheduler.load_state_dict(state["scheduler"])
    for _ in range(updates):
        next(resumed.data)
    straight.train(STEPS - updates)
    resumed.train(STEPS - updates)
    assert resumed.rates == straight.rates[updates:]
    assert all(torch.equal(a, b) for a, b in zip(resumed.weights(), straight.weights(), strict=True))


def test_without_the_first_weights_it_searches_anew_from_those_of_the_checkpoint() -> None:
    state, resumed = Run().train(10).saved(), Run()
    search = dict(state["scheduler"]["search"]) | {"first": None}  # as where they are sharded
    state["scheduler"]["search"] = tuple(search.items())
    resumed.model.load_state_dict(state["model"])
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.scheduler.load_state_dict(state["scheduler"])
    weights = resumed.weights()
    assert resumed.scheduler.get_last_lr()[0] == resumed.optimizer.param_groups[0]["lr"] == pytest.approx(1e-6)
    resumed.search()
    assert 10 + 20 < resumed.scheduler.last_epoch <= 10 + 30
    assert all(torch.equal(a, b) for a, b in zip(resumed.weights(), weights, strict=True))
    assert 1e-4 < resumed.scheduler.base_lrs[0] < 1


def load(run: Run) -> list[torch.Tensor]:
    """Other weights, loaded into the model."""
    torch.manual_seed(7)
    with torch.no_grad():
        for p in run.model.parameters():
            p.normal_()
    return run.weights()


@pytest.mark.parametrize("make", [MAKERS["muon, tensor lr"], ADAMW], ids=["muon", "adamw"])
@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
def test_weights_may_be_loaded_after_the_scheduler_is_made(make: Maker, compiled: bool) -> None:
    run = Run(make)
    if compiled:
        run.optimizer.step = torch.compile(run.optimizer.step, backend="eager")
    first = load(run)
    run.search()
    assert all(torch.equal(a, b) for a, b in zip(run.weights(), first, strict=True))


@every_optimizer
def test_weights_may_be_loaded_after_a_step_that_only_creates_the_state(make: Maker) -> None:
    """As `torch.distributed.checkpoint` does it."""
    run = Run(make)
    get_optimizer_state_dict(run.model, run.optimizer)
    made = run.saved()["optimizer"]
    first = load(run)
    expected = run.search().scheduler.base_lrs
    assert all(torch.equal(a, b) for a, b in zip(run.weights(), first, strict=True))
    other = Run(make)
    load(other)
    other.optimizer.load_state_dict(made)  # of another process that made such a step
    assert other.search().scheduler.base_lrs == expected


@every_optimizer
def test_a_state_of_one_update_is_used_even_after_a_step_that_only_creates_one(make: Maker) -> None:
    run, used = Run(make), Run(make, peak="given").train(1)
    get_optimizer_state_dict(run.model, run.optimizer)
    run.optimizer.load_state_dict(used.saved()["optimizer"])
    with pytest.raises(ValueError, match="needs an optimizer that has made no update"):
        run.train(1)


def test_an_optimizer_may_be_loaded_before_the_scheduler_is_made() -> None:
    straight = Run().train(60)
    state, resumed = straight.saved(), Run()
    resumed.model.load_state_dict(state["model"])
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.scheduler = AdaptiveWarmup(resumed.optimizer, STEPS, peak="auto")
    resumed.scheduler.load_state_dict(state["scheduler"])
    for _ in range(60):
        next(resumed.data)
    assert resumed.train(60).rates == straight.train(60).rates[60:]


@pytest.mark.parametrize("at", [0, 10, 60])
def test_a_copy_goes_on_by_itself(at: int) -> None:
    run = Run().train(at)
    other = copy.copy(run)
    other.model, other.optimizer, other.scheduler = copy.deepcopy((run.model, run.optimizer, run.scheduler))
    other.rates, other.data = [], batches()
    for _ in range(at):
        next(other.data)
    assert other.train(STEPS - at).rates == run.train(STEPS - at).rates[at:]


@pytest.mark.parametrize("steps", [400, 2000])
def test_it_resumes_under_another_horizon(steps: int) -> None:
    state, resumed = Run(steps=1000).train(40).saved(), Run(steps=steps)
    for name in ("model", "optimizer"):
        getattr(resumed, name).load_state_dict(state[name])
    with pytest.warns(UserWarning, match="total_steps=1000 and is loaded for"):
        resumed.scheduler.load_state_dict(state["scheduler"])
    for _ in range(40):
        next(resumed.data)
    peaks = [float(run.search().scheduler.base_lrs[0]) for run in (Run(steps=1000), resumed)]
    assert peaks[1] == pytest.approx(peaks[0] * math.sqrt(1000 / steps), rel=0.1)  # the rate that goes with the length


class Wrapper(Optimizer):
    """As a trainer's: it passes everything on, and has no hooks of its own."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups


def test_it_resumes_after_a_trainer_has_wrapped_the_optimizer() -> None:
    straight = Run().train(10)
    state, resumed = straight.saved(), Run()
    for name in ("model", "optimizer"):
        getattr(resumed, name).load_state_dict(state[name])
    resumed.scheduler.optimizer = Wrapper(resumed.optimizer)
    resumed.scheduler.load_state_dict(state["scheduler"])
    for _ in range(10):
        next(resumed.data)
    assert resumed.search().scheduler.base_lrs == straight.search().scheduler.base_lrs


def test_a_checkpoint_of_the_first_update_before_its_loss() -> None:
    run = Run()
    loss = run.update()
    state, resumed = run.saved(), Run()
    for name in ("model", "optimizer", "scheduler"):
        getattr(resumed, name).load_state_dict(state[name])
    next(resumed.data)
    for one in (run, resumed):
        one.scheduler.step(loss)
    assert resumed.search().scheduler.base_lrs == run.search().scheduler.base_lrs


def test_a_group_added_during_the_search_starts_over_too() -> None:
    def joined(run: Run) -> Run:
        torch.manual_seed(1)
        more = nn.Linear(8, 1)
        run.optimizer.add_param_group({"params": list(more.parameters()), "lr": 0.01})
        old, run.model = run.model, nn.ModuleList([run.model, more])
        run.model.forward = lambda x: old(x) + more(x)  # type: ignore[method-assign]
        return run

    make = MAKERS["adamw"]
    run = joined(Run(make, kappa=1.0).train(5))
    added = [p.detach().clone() for p in run.optimizer.param_groups[1]["params"]]
    state = run.train(10).saved()
    resumed = joined(Run(make, kappa=1.0))
    for name in ("model", "optimizer", "scheduler"):
        getattr(resumed, name).load_state_dict(state[name])
    for _ in range(15):
        next(resumed.data)
    run.search()
    assert all(torch.equal(p, q) for p, q in zip(run.optimizer.param_groups[1]["params"], added, strict=True))
    assert resumed.search().scheduler.base_lrs == run.scheduler.base_lrs
    assert all(torch.equal(a, b) for a, b in zip(resumed.weights(), run.weights(), strict=True))


def test_a_state_is_not_loaded_into_another_kind_of_run() -> None:
    state = Run().train(3).scheduler.state_dict()
    with pytest.raises(ValueError, match="peak: saved 'auto', here 'given'"):
        Run(peak="given").scheduler.load_state_dict(state)
