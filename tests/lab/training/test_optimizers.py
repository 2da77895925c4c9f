"""Each peer trains in the lab's own loop, and a run that is cut off and taken up again ends with the same bits."""

import dataclasses
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import AutoModelForCausalLM

from autowarm.lab.config import LabError, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.tasks import make_task
from autowarm.lab.tasks.models import token_loss
from autowarm.lab.training.loop import train
from autowarm.lab.training.optimizers import evaluating, keep_ema, make_optimizer
from autowarm.lab.training.setup import Setup
from autowarm.lab.training.stopping import Interrupted

CASES = {
    "adamw": (OptimizerConfig("adamw", 3e-3), ScheduleConfig("linear", 3)),
    "radam": (OptimizerConfig("radam", 3e-3), ScheduleConfig("linear", 0)),
    "untuned": (OptimizerConfig("adamw", 3e-3, options={"betas": [0.9, 0.8]}), ScheduleConfig("untuned")),
    "schedule-free": (OptimizerConfig("schedule-free", 3e-3, options={"warmup_steps": 3}), ScheduleConfig("constant")),
    "soap": (OptimizerConfig("soap", 3e-3, options={"precondition_frequency": 2}), ScheduleConfig("linear", 3)),
    "ademamix": (OptimizerConfig("ademamix", 3e-3, options={"t_alpha_beta3": 10}), ScheduleConfig("linear", 3)),
    "mars": (OptimizerConfig("mars", 3e-3), ScheduleConfig("linear", 3)),
    "adopt": (OptimizerConfig("adopt", 3e-3), ScheduleConfig("linear", 3)),
    "prodigy": (OptimizerConfig("prodigy", 1.0), ScheduleConfig("linear", 1)),
    "d-adaptation": (OptimizerConfig("d-adaptation", 1.0), ScheduleConfig("linear", 1)),
    "dog": (OptimizerConfig("dog", 1.0, options={"reps_rel": 1e-2}), ScheduleConfig("constant")),
    "greedy": (OptimizerConfig("muon", 1e-2), ScheduleConfig("greedy")),
    "warmup-only": (OptimizerConfig("muon", 1e-2), ScheduleConfig("warmup-only", target_loss=1.0)),
    "polyak": (OptimizerConfig("muon", 1e-2), ScheduleConfig("polyak", target_loss=1.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_trains_and_resumes_to_the_bit(run: RunConfig, tmp_path: Path, name: str) -> None:
    optimizer, schedule = CASES[name]
    clip = 0.0 if schedule.kind == "polyak" else run.clip
    run = dataclasses.replace(run, optimizer=optimizer, schedule=schedule, clip=clip)
    straight = train(run, tmp_path / "straight")
    assert straight["val_loss"] is not None
    with pytest.raises(Interrupted):
        train(run, tmp_path / "cut", lambda progress: progress.step == 5)
    resumed = train(run, tmp_path / "cut")
    assert resumed["val_loss"] == straight["val_loss"]
    assert resumed["warmup_steps"] == (schedule.warmup_steps or 0)


def test_matrices_decay_and_the_rest_does_not() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 8))
    for name in CASES.keys() - {"greedy", "untuned", "warmup-only", "polyak"}:
        groups = make_optimizer(model, OptimizerConfig(name, 1.0, weight_decay=0.3)).param_groups  # type: ignore[arg-type]
        assert {id(p): g["weight_decay"] for g in groups for p in g["params"]} == {
            id(model[1].weight): 0.3, id(model[0].weight): 0.0, id(model[1].bias): 0.0,
        }  # fmt: skip


@pytest.mark.parametrize("name", ["schedule-free", "dog"])
def test_an_optimizer_with_an_average_is_judged_there(name: str) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = make_optimizer(model, OptimizerConfig(name, 0.1))  # type: ignore[arg-type]
    for _ in range(3):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    training = model.weight.detach().clone()
    with evaluating(optimizer):
        assert not torch.equal(model.weight, training)
    torch.testing.assert_close(model.weight.detach(), training)


@pytest.mark.parametrize("name", ["muon", "lion", "soap", "prodigy"])
def test_an_average_of_the_weights_is_judged_beside_them_and_resumed(run: RunConfig, tmp_path: Path, name: str) -> None:
    optimizer, schedule = CASES.get(name, (OptimizerConfig(name, 3e-3), ScheduleConfig("linear", 3)))
    run = dataclasses.replace(run, optimizer=optimizer, schedule=schedule, ema=0.5)
    seen: list[torch.Tensor] = []

    class Watched(Setup):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            norm = self.model.get_parameter("model.norm.weight")
            self.optimizer.register_step_post_hook(lambda *_: seen.append(norm.detach().clone()))

    with mock.patch("autowarm.lab.training.loop.Setup", Watched):
        straight = train(run, tmp_path / "straight")
    expected = seen[0]
    for weights in seen[1:]:
        expected = 0.5 * expected + 0.5 * weights
    average = AutoModelForCausalLM.from_pretrained(tmp_path / "straight" / "ema")
    torch.testing.assert_close(average.model.norm.weight.detach(), expected)
    last = AutoModelForCausalLM.from_pretrained(tmp_path / "straight")
    assert torch.equal(last.model.norm.weight, seen[-1])
    plain = train(dataclasses.replace(run, ema=0.0), tmp_path / "plain")
    assert plain["val_loss"] == straight["val_loss"] != straight["metric"]["ema_loss"]
    with pytest.raises(Interrupted):
        train(run, tmp_path / "cut", lambda progress: progress.step == 5)
    assert train(run, tmp_path / "cut")["metric"] == straight["metric"]


@pytest.mark.parametrize("name", ["schedule-free", "dog"])
def test_an_optimizer_with_an_average_needs_no_other(run: RunConfig, tmp_path: Path, name: str) -> None:
    optimizer, schedule = CASES[name]
    with pytest.raises(LabError, match="judged at an average of its own"):
        train(dataclasses.replace(run, optimizer=optimizer, schedule=schedule, ema=0.9), tmp_path)


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prodigyopt", None)
    with pytest.raises(LabError, match=r"pip install 'autowarm\[peers\]'"):
        make_optimizer(torch.nn.Linear(2, 2), OptimizerConfig("prodigy", 1.0))


def test_options_that_the_optimizer_does_not_know_are_named() -> None:
    for name in ("normsgd", "prodigy"):
        with pytest.raises(LabError, match=f"do not suit {name}"):
            make_optimizer(torch.nn.Linear(2, 2), OptimizerConfig(name, options={"bettas": [0.9, 0.9]}))


@pytest.mark.parametrize("name", ["schedule-free", "dog"])
def test_the_stored_weights_are_those_that_were_judged(run: RunConfig, tmp_path: Path, name: str) -> None:
    optimizer, schedule = CASES[name]
    run = dataclasses.replace(run, optimizer=optimizer, schedule=schedule)
    stored = train(run, tmp_path)["val_loss"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    batches = list(make_task(run).validation(slice(None)))
    with torch.no_grad():
        assert sum(token_loss(model, *batch).item() for batch in batches) / len(batches) == pytest.approx(stored)


@pytest.mark.parametrize("name", ["adamw", "muon", "lion"])
def test_an_average_begins_with_a_tensors_first_update(name: str) -> None:
    """An entry before it would be taken for the whole state, by PyTorch's optimizers too."""
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    optimizer = make_optimizer(model, OptimizerConfig(name, 1e-2))
    keep_ema(optimizer, 0.9)
    for used in (1, 1, 2, 2):
        x = torch.ones(2, 4)
        for layer in model[:used]:
            x = layer(x)
        x.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept = ["ema" in optimizer.state.get(layer.weight, {}) for layer in model]
        assert kept == [True, used == 2]
