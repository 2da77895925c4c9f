"""The snippets of docs/integrations.md run; the recipes in examples/recipes fit what they are written for."""

import re
import sys
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from autowarm import AdaptiveWarmup, Lion

from .plain import rates_of as plain_rates
from .plain import train

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
RECIPES = ROOT / "examples" / "recipes"
CODES = [re.findall(r"^```python\n(.*?)^```", part, re.DOTALL | re.MULTILINE) for part in PAGE.split("\n## ")]
STEPS, LR = 12, 0.02


@pytest.mark.parametrize("code", ["\n".join(codes) for codes in CODES if codes])
def test_the_snippets_of_a_part_run(
    code: str, fresh_accelerate: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(action="ignore"):
        exec(compile(code, "integrations.md", "exec"), {"__name__": "__main__"})


def block(name: str, package: str = "") -> dict[str, Any]:
    """The names that the recipe which defines ``name``, and imports from ``package``, makes."""
    codes = (path.read_text(encoding="utf-8") for path in sorted(RECIPES.glob("*.py")))
    code = next(code for code in codes if f"class {name}" in code and f"from {package}" in code)
    names: dict[str, Any] = {}
    exec(compile(code, "recipe", "exec"), names)
    return names


def make_parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    return model, Lion.from_model(model, lr=LR)


def micro_loss(model: nn.Module, i: int) -> torch.Tensor:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(i))
    return model(x).square().mean() + 1


def test_timm_saves_the_schedule_with_its_optimizer_and_keeps_layer_decay() -> None:
    """timm's `CheckpointSaver` and `resume_checkpoint` write and load the optimizer's state, and no scheduler's."""

    def made() -> tuple[torch.optim.Optimizer, Any]:
        torch.manual_seed(0)
        groups = [{"params": [nn.Parameter(torch.zeros(3, 5))], "lr_scale": scale} for scale in (1.0, 0.25)]
        opt = Lion(groups, lr=LR)
        return opt, block("TimmWarmup")["TimmWarmup"](opt, STEPS)

    def rates_of(opt: torch.optim.Optimizer, scheduler: Any, updates: range) -> list[float]:
        rates = []
        for t in updates:
            first, second = (group["lr"] for group in opt.param_groups)
            assert first == 4 * second
            rates.append(first)
            for weight, loss in ((3, 4.0 - t / 9), (1, 8.0 - t / 9)):
                scheduler.observe(loss, weight=weight)
            opt.step()
            scheduler.step_update(num_updates=t + 1, metric=0.0)
        scheduler.step(1, 0.0)  # the end of an epoch, which is no update
        return rates

    plain = AdaptiveWarmup(Lion([nn.Parameter(torch.zeros(3, 5))], lr=LR), STEPS)
    expected = plain_rates(plain, [[(4.0 - t / 9, 3), (8.0 - t / 9, 1)] for t in range(STEPS)])
    opt, scheduler = made()
    rates = rates_of(opt, scheduler, range(4))
    resumed, scheduler = made()
    resumed.load_state_dict(opt.state_dict())
    scheduler.step_update(4)  # as train.py does after it has resumed; no update has been made
    assert rates + rates_of(resumed, scheduler, range(4, STEPS)) == expected


# torchtitan as it is documented: it needs GPUs to be made, and is no requirement of ours.


class ContainerAsDocumented:
    """Its LRSchedulersContainer."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        warmup_steps: int = 200
        total_steps: int | None = None

    schedulers: list[LRScheduler]

    def step(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()


class TrainerAsDocumented:
    """Of its Trainer a step of two micro-batches: the loss of each is its share of the update's."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass

    gradient_accumulation_steps = 2
    parallel_dims = SimpleNamespace(pp_enabled=False, get_optional_mesh=lambda name: None)

    def __init__(self, model: nn.Module, optimizers: list[torch.optim.Optimizer], lr_schedulers: Any) -> None:
        self.model, self.optimizers, self.lr_schedulers = model, optimizers, lr_schedulers

    def forward_backward_step(self, *, input_dict: int, labels: torch.Tensor, global_valid_tokens: int) -> torch.Tensor:
        loss = micro_loss(self.model, input_dict) * labels.numel() / global_valid_tokens
        loss.backward()
        return loss

    def train_step(self, t: int) -> None:
        for one in self.optimizers:
            one.zero_grad()
        for i in (2 * t, 2 * t + 1):
            self.forward_backward_step(input_dict=i, labels=torch.zeros(8), global_valid_tokens=16)
        for one in self.optimizers:
            one.step()
        self.lr_schedulers.step()


@pytest.fixture
def torchtitan(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the recipe makes."""
    stand_ins = {
        "torchtitan": {},
        "torchtitan.components": {},
        "torchtitan.components.optimizer": {"LRSchedulersContainer": ContainerAsDocumented},
        "torchtitan.trainer": {"Trainer": TrainerAsDocumented},
    }
    for name, names in stand_ins.items():
        module = types.ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    return block("AdaptiveWarmups")


def test_torchtitan(torchtitan: dict[str, Any], tmp_path: Path) -> None:
    """With a second optimizer, of biases, say, whose rate keeps its ratio."""
    model, opt = make_parts()
    optimizers = [opt, torch.optim.AdamW([nn.Parameter(torch.ones(5))], lr=LR / 4)]

    def made() -> Any:
        schedulers = torchtitan["AdaptiveWarmups"].Config().build(optimizers=optimizers, training_steps=STEPS)
        return torchtitan["WarmupTrainer"](model, optimizers, schedulers)

    trainer, rates = made(), []
    for t in range(STEPS):
        if t in (4, 9):  # saved and loaded as torchtitan does it; the weights go on
            dcp.save({"lr_scheduler": trainer.lr_schedulers}, checkpoint_id=tmp_path / f"{t}", no_dist=True)
            trainer = made()
            dcp.load({"lr_scheduler": trainer.lr_schedulers}, checkpoint_id=tmp_path / f"{t}", no_dist=True)
        rates.append(trainer.lr_schedulers.schedulers[0].get_last_lr()[0])
        assert all(rates[-1] == 4 * one.get_last_lr()[0] for one in trainer.lr_schedulers.schedulers[1:])
        trainer.train_step(t)
    assert [one.last_epoch for one in trainer.lr_schedulers.schedulers] == [STEPS] * 2
    assert rates == train(*make_parts(), micro_loss, 2)
