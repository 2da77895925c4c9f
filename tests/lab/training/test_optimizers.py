"""Each peer trains in the lab's own loop, and a run that is cut off and taken up again ends with the same bits."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from autowarm.lab.config import LabError, OptimizerConfig, RunConfig, ScheduleConfig, UsageError
from autowarm.lab.tasks import make_task
from autowarm.lab.tasks.models import token_loss
from autowarm.lab.training.loop import train
from autowarm.lab.training.optimizers import evaluating, make_optimizer

from ..helpers import resumed

CASES = {
    "adamw": (OptimizerConfig("adamw", 3e-3), ScheduleConfig("linear", 3)),
    "radam": (OptimizerConfig("radam", 3e-3), ScheduleConfig("linear", 0)),
    "untuned": (OptimizerConfig("adamw", 3e-3, options={"betas": [0.9, 0.8]}), ScheduleConfig("untuned")),
    "schedule-free": (OptimizerConfig("schedule-free", 3e-3, options={"warmup_steps": 3}), ScheduleConfig("constant")),
    "prodigy": (OptimizerConfig("prodigy", 1.0), ScheduleConfig("linear", 1)),
    "d-adaptation": (OptimizerConfig("d-adaptation", 1.0), ScheduleConfig("linear", 1)),
    "greedy": (OptimizerConfig("muon", 1e-2), ScheduleConfig("greedy")),
}


@pytest.mark.parametrize("name", CASES)
def test_it_trains_and_resumes_to_the_bit(run: RunConfig, tmp_path: Path, name: str) -> None:
    optimizer, schedule = CASES[name]
    run = dataclasses.replace(run, optimizer=optimizer, schedule=schedule)
    straight = train(run, tmp_path / "straight")
    assert straight["val_loss"] is not None
    again = resumed(run, tmp_path / "cut", 5)
    assert again["val_loss"] == straight["val_loss"]
    assert again["warmup_steps"] == (schedule.warmup_steps or 0)


def test_matrices_decay_and_the_rest_does_not() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 8))
    for name in CASES.keys() - {"greedy", "untuned"}:
        groups = make_optimizer(model, OptimizerConfig(name, 1.0, weight_decay=0.3)).param_groups  # type: ignore[arg-type]
        assert {id(p): g["weight_decay"] for g in groups for p in g["params"]} == {
            id(model[1].weight): 0.3, id(model[0].weight): 0.0, id(model[1].bias): 0.0,
        }  # fmt: skip


def test_an_optimizer_with_an_average_is_judged_there() -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = make_optimizer(model, OptimizerConfig("schedule-free", 0.1))
    for _ in range(3):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    training = model.weight.detach().clone()
    with evaluating(optimizer):
        assert not torch.equal(model.weight, training)
    torch.testing.assert_close(model.weight.detach(), training)


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prodigyopt", None)
    with pytest.raises(LabError, match=r"prodigy needs the package prodigyopt: pip install '\.\[peers\]'"):
        make_optimizer(torch.nn.Linear(2, 2), OptimizerConfig("prodigy", 1.0))


def test_the_stored_weights_are_those_that_were_judged(run: RunConfig, tmp_path: Path) -> None:
    optimizer, schedule = CASES["schedule-free"]
    run = dataclasses.replace(run, optimizer=optimizer, schedule=schedule)
    stored = train(run, tmp_path)["val_loss"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    batches = list(make_task(run).validation(slice(None)))
    with torch.no_grad():
        assert sum(token_loss(model, *batch).item() for batch in batches) / len(batches) == pytest.approx(stored)


@pytest.mark.parametrize("options", [{"momentum_init": "ones"}, {"momentum_init": True}])
def test_what_is_no_start_of_a_momentum_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="momentum_init is zeros or weights"):
        make_optimizer(torch.nn.Linear(3, 3), OptimizerConfig("normsgd", 0.1, 0.1, options))
    with pytest.raises(UsageError, match="adamw_eps_hat true or false"):
        make_optimizer(torch.nn.Linear(3, 3), OptimizerConfig("muon", 0.1, 0.1, {"adamw_eps_hat": "no"}))
