"""The recipes in docs/integrations.md run; those for timm and torchtitan fit the interfaces they are written for."""

import importlib.util
import io
import re
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from autowarm import AdaptiveWarmup, Lion, Muon

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
STEPS, LR = 12, 0.02


@pytest.mark.parametrize("code", [code for kind, code in BLOCKS if kind == "python"])
def test_a_snippet_runs(code: str, fresh_accelerate: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, "integrations.md", "exec"), {"__name__": "__main__"})


def block(name: str) -> dict[str, Any]:
    """The names that the block which defines ``name`` makes."""
    code = next(code for _, code in BLOCKS if f"class {name}" in code and "pl." not in code)
    names: dict[str, Any] = {}
    exec(compile(code, "integrations.md", "exec"), names)
    return names


def make_parts(name: str = "muon") -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    return model, {"muon": Muon, "lion": Lion}[name].from_model(model, lr=LR)


def micro_loss(model: nn.Module, i: int) -> torch.Tensor:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(i))
    return model(x).square().mean() + 1


def plain_loop(kind: str, micro_batches: int) -> list[float]:
    model, opt = make_parts(kind)
    sched, rates = AdaptiveWarmup(opt, STEPS), []
    for t in range(STEPS):
        rates.append(sched.get_last_lr()[0])
        for i in range(micro_batches):
            loss = micro_loss(model, micro_batches * t + i)
            (loss / micro_batches).backward()
            sched.observe(loss)
        opt.step()
        sched.step()
        opt.zero_grad()
    assert sched.phase == "decay"
    return rates


def test_timms_train_loop() -> None:
    """The calls of timm's train.py: step_update after each update, step after each epoch, the optimizer saved alone."""
    recipe = block("TimmWarmup")["TimmWarmup"]
    model, opt = make_parts()
    lr_scheduler = recipe(opt, STEPS)
    rates = []
    for t in range(STEPS):
        if t in (4, 9):  # the run is killed and starts again from timm's checkpoint
            file = io.BytesIO()
            torch.save({"state_dict": model.state_dict(), "optimizer": opt.state_dict()}, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            model, opt = make_parts()
            lr_scheduler = recipe(opt, STEPS)
            model.load_state_dict(saved["state_dict"])
            opt.load_state_dict(saved["optimizer"])
            lr_scheduler.step_update(t)  # as train.py does on resuming; no update has been made
        rates.append(opt.param_groups[0]["lr"])
        for i in (0, 1):
            loss = micro_loss(model, 2 * t + i)
            loss /= 2
            loss.backward()
            lr_scheduler.observe(loss * 2, weight=8)
        opt.step()
        opt.zero_grad()
        lr_scheduler.step_update(num_updates=t + 1, metric=loss.item())
        if t % 4 == 3:
            lr_scheduler.step(t // 4 + 1, 0.5)
    assert rates == plain_loop("muon", 2)


class ContainerAsDocumented:
    """torchtitan's LRSchedulersContainer, by its documented methods, where torchtitan is not installed."""

    schedulers: list[LRScheduler]

    def __iter__(self) -> Any:
        return iter(self.schedulers)

    def __len__(self) -> int:
        return len(self.schedulers)

    def step(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return self.schedulers[0].state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for scheduler in self.schedulers:
            scheduler.load_state_dict(state_dict)


class TrainerAsDocumented:
    """One step of torchtitan's Trainer: each micro-batch's loss is its share of the update's."""

    gradient_accumulation_steps = 2
    pp_has_last_stage = False
    parallel_dims = SimpleNamespace(pp_enabled=False, get_optional_mesh=lambda name: None)

    def forward_backward_step(self, *, loss_of: Callable[[], torch.Tensor]) -> torch.Tensor:
        loss = loss_of() / self.gradient_accumulation_steps
        loss.backward()
        return loss


INSTALLED = importlib.util.find_spec("torchtitan") is not None


@pytest.mark.parametrize("which", ["as documented", "installed"])
def test_torchtitan(which: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if which == "installed" and not INSTALLED:
        pytest.skip("torchtitan is not installed")
    if which == "as documented":
        home = types.ModuleType("torchtitan.components.lr_scheduler")
        home.LRSchedulersContainer = ContainerAsDocumented
        for name in ("torchtitan", "torchtitan.components"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, home.__name__, home)
    # Its trainer wants GPUs and a dataset: a stand-in makes the same calls.
    trainer_home = types.ModuleType("torchtitan.train")
    trainer_home.Trainer = TrainerAsDocumented
    monkeypatch.setitem(sys.modules, "torchtitan.train", trainer_home)
    build, trainer_type = block("AdaptiveWarmups")["build_lr_schedulers"], block("WarmupTrainer")["WarmupTrainer"]

    model, opt = make_parts("lion")
    trainer = trainer_type()
    trainer.lr_schedulers = build([opt], None, STEPS)
    rates = []
    for t in range(STEPS):
        if t in (4, 9):  # saved and loaded as torchtitan does it
            dcp.save({"lr_scheduler": trainer.lr_schedulers}, checkpoint_id=tmp_path / f"{t}", no_dist=True)
            trainer.lr_schedulers = build([opt], None, STEPS)
            dcp.load({"lr_scheduler": trainer.lr_schedulers}, checkpoint_id=tmp_path / f"{t}", no_dist=True)
        rates.append(trainer.lr_schedulers.schedulers[0].get_last_lr()[0])
        for i in (0, 1):
            trainer.forward_backward_step(loss_of=lambda i=i, t=t: micro_loss(model, 2 * t + i))
        opt.step()
        trainer.lr_schedulers.step()
        opt.zero_grad()
    assert rates == plain_loop("lion", 2)


def test_torchtitans_model_parts_share_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    home = types.ModuleType("torchtitan.components.lr_scheduler")
    home.LRSchedulersContainer = ContainerAsDocumented
    monkeypatch.setitem(sys.modules, home.__name__, home)
    monkeypatch.setitem(sys.modules, "torchtitan", types.ModuleType("torchtitan"))
    monkeypatch.setitem(sys.modules, "torchtitan.components", types.ModuleType("torchtitan.components"))
    parts = [Lion([nn.Parameter(torch.ones(m, m))], lr=LR) for m in (3, 5)]
    schedulers = block("AdaptiveWarmups")["build_lr_schedulers"](parts, None, STEPS)
    for t in range(STEPS):
        for one in parts:
            one.step()
        schedulers.observe(5.0 - 0.3 * t)
        schedulers.step()
        a, b = (scheduler.get_last_lr()[0] for scheduler in schedulers)
        assert a == b
