"""The preset `as-the-authors`: whole runs against trajectories written from the formulas."""

import dataclasses
import math
import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from autowarm.lab.commands import main
from autowarm.lab.config import OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.config.build import load_yaml, parse, presets
from autowarm.lab.paper.settings import MAIN, deviations
from autowarm.lab.tasks import make_task
from autowarm.lab.training.loop import train
from autowarm.lab.training.setup import Setup

from ..helpers import ALONE

PAGE = Path(__file__).parents[3] / "docs" / "paper.md"
AUTHORS = load_yaml(presets("train")["as-the-authors"].read_text(encoding="utf-8"))
SEEDED = {"nesterov": True, "momentum_init": "weights"}
BETA1, BETA2, EPS = 0.8, 0.999, 1e-8
LR, DECAY, BETA = 0.02, 0.1, 0.9


@pytest.fixture
def reference(run: RunConfig) -> RunConfig:
    exact = dataclasses.replace(run.engine, precision="float64")
    model = dataclasses.replace(run.model, layers=2, **AUTHORS["model"])
    data, order = dataclasses.replace(run.data, **AUTHORS["data"]), AUTHORS["order"]
    return dataclasses.replace(run, engine=exact, model=model, data=data, order=order, whole_validation=True)


def with_optimizer(run: RunConfig, name: str, **options: Any) -> RunConfig:
    return dataclasses.replace(run, optimizer=OptimizerConfig(name, LR, DECAY, options))


def momentum(step: Callable[[Tensor], Tensor]) -> Any:
    """Decay; b ← βb + g from a copy of the decayed weights; this step of lr along g + βb."""

    def formula(x: Tensor, g: Tensor, state: dict[str, Tensor], decay: float, sign: float = 1.0) -> Tensor:
        x = (1 - LR * decay) * x
        state["b"] = BETA * state.get("b", x) + g
        return x - LR * step(g + sign * BETA * state["b"])

    return formula


def adamw(x: Tensor, g: Tensor, state: dict[str, Tensor], decay: float, sign: float = 1.0) -> Tensor:
    """Decay; m and v; a step lr·√c2/c1·m/(√v + ε), where cᵢ = 1 − βᵢᵗ."""
    t = state["t"] = state.get("t", torch.tensor(0.0)) + 1
    state["m"] = BETA1 * state.get("m", torch.zeros_like(g)) + (1 - BETA1) * g
    state["v"] = BETA2 * state.get("v", torch.zeros_like(g)) + (1 - BETA2) * g * g
    scale = math.sqrt(1 - BETA2 ** t.item()) / (1 - BETA1 ** t.item())
    return (1 - LR * decay) * x - sign * LR * scale * state["m"] / (state["v"].sqrt() + EPS)


def follow(run: RunConfig, formula: Any, named: str, sign: float = 1.0) -> float:
    """Make five updates; return the largest distance of the tensors whose name has `named` from the formula's."""
    task = make_task(run)
    setup = Setup(task, ALONE)
    followed = {name: p for name, p in setup.model.named_parameters() if named in name}
    assert followed
    points = {name: p.detach().clone() for name, p in followed.items()}
    state: dict[str, dict[str, Tensor]] = {name: {} for name in followed}
    decays = {id(p): group["weight_decay"] for group in setup.optimizer.param_groups for p in group["params"]}
    worst = 0.0
    for batch, _ in zip(task.batches(0, slice(None)), range(5), strict=False):
        setup.forward_backward(setup.pieces(batch))
        for name, p in followed.items():
            points[name] = formula(points[name], p.grad, state[name], decays[id(p)], sign)
        setup.optimizer.step()
        setup.optimizer.zero_grad()
        worst = max(worst, *((points[name] - p.detach()).abs().max().item() for name, p in followed.items()))
    return worst


@pytest.mark.parametrize(
    ("optimizer", "options", "formula", "named"),
    [
        ("normsgd", SEEDED | {"momentum": BETA}, momentum(lambda way: way / (way.norm() + EPS)), ""),
        ("signsgd", SEEDED | {"momentum": BETA}, momentum(torch.sign), ""),
        ("muon", AUTHORS["optimizer"]["options"] | {"adamw_betas": [BETA1, BETA2]}, adamw, "norm"),
    ],
)
def test_updates_are_those_of_the_formulas(
    reference: RunConfig, optimizer: str, options: dict[str, Any], formula: Any, named: str
) -> None:
    run = with_optimizer(reference, optimizer, **options)
    assert follow(run, formula, named) < 1e-7
    assert follow(run, formula, named, sign=-1.0) > 1e-3


def test_the_last_evaluation_sees_the_whole_validation_part(reference: RunConfig, tmp_path: Any) -> None:
    reference = dataclasses.replace(reference, steps=4, eval_batches=1)
    task = make_task(reference)
    whole = list(task.validation(slice(None), whole=True))
    assert len(whole) == (len(task.inner.data.val) - 1) // reference.model.seq_len // reference.batch_size > 1
    result = train(reference, tmp_path / "whole")
    few = train(dataclasses.replace(reference, whole_validation=False), tmp_path / "few")
    assert result["train_loss"] == few["train_loss"]
    assert result["val_loss"] != few["val_loss"]


def test_the_command_on_the_page_runs_algorithm_1_with_the_authors_gap_and_batches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (line,) = re.findall(r"`autowarm (train --config as-the-authors[^`]*)`", PAGE.read_text(encoding="utf-8"))
    assert main([*shlex.split(line), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    for words in ("schedule paper, cosine decay, f* 3.3, Δ' 3.1876", "drawn in epochs, order 1337", "κ = 46,848"):
        assert words in plan
    run = parse(["--config", "as-the-authors"], RunConfig, "train", "")
    assert run.schedule == ScheduleConfig(kind="paper", target_loss=3.3, peak_gap=3.1876)
    search = runpy.run_path(str(PAGE.with_name("authors.py")))["authors_peak_gap"](
        10.98 - 3.3, lr=run.optimizer.lr, div=100.0, kappa=46_848.0
    )
    assert run.schedule.peak_gap == pytest.approx(search, abs=1e-4)
    assert (run.model.scaled_residual, run.model.norm_eps, run.model.fused_qkv) == (True, 1e-5, True)
    assert run.optimizer.options["adamw_eps_hat"]
    assert run.whole_validation
    assert [key for key, _ in deviations(run, MAIN)] == ["schedule.peak_gap"]
