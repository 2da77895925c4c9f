"""The preset `as-the-authors`: its command, and updates against trajectories written from the formulas."""

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
from torch import Tensor, nn

from autowarm.lab.commands import main
from autowarm.lab.config import OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.config.build import load_yaml, parse, presets
from autowarm.lab.paper.settings import MAIN, deviations
from autowarm.lab.tasks import make_task
from autowarm.lab.training.loop import train
from autowarm.lab.training.optimizers import make_optimizer

PAGE = Path(__file__).parents[3] / "docs" / "paper.md"
AUTHORS = load_yaml(presets("train")["as-the-authors"].read_text(encoding="utf-8"))
SEEDED = {"nesterov": True, "momentum_init": "weights"}
BETA1, BETA2, EPS = 0.8, 0.999, 1e-8
LR, DECAY, BETA = 0.02, 0.1, 0.9


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


def follow(name: str, options: dict[str, Any], formula: Any, ndims: set[int], sign: float = 1.0) -> float:
    """Make five updates; return the largest distance of the tensors of these dimensions from the formula's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = make_optimizer(model, OptimizerConfig(name, LR, DECAY, options))
    decays = [(p, group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]]
    followed = [(p, p.detach().clone(), {}, decay) for p, decay in decays if p.ndim in ndims]
    worst = 0.0
    for _ in range(5):
        (model(torch.randn(16, 6).double()) - 1).square().mean().backward()
        for p, x, state, decay in followed:
            x.copy_(formula(x.clone(), p.grad, state, decay, sign))
        optimizer.step()
        optimizer.zero_grad()
        worst = max(worst, *((x - p.detach()).abs().max().item() for p, x, *_ in followed))
    return worst


@pytest.mark.parametrize(
    ("optimizer", "options", "formula", "ndims"),
    [
        ("normsgd", SEEDED | {"momentum": BETA}, momentum(lambda way: way / (way.norm() + EPS)), {1, 2}),
        ("signsgd", SEEDED | {"momentum": BETA}, momentum(torch.sign), {1, 2}),
        ("muon", AUTHORS["optimizer"]["options"] | {"adamw_betas": [BETA1, BETA2]}, adamw, {1}),
    ],
)
def test_updates_are_those_of_the_formulas(
    optimizer: str, options: dict[str, Any], formula: Any, ndims: set[int]
) -> None:
    assert follow(optimizer, options, formula, ndims) < 1e-7
    assert follow(optimizer, options, formula, ndims, sign=-1.0) > 1e-3


def test_the_last_evaluation_sees_the_whole_validation_part(run: RunConfig, tmp_path: Any) -> None:
    run = dataclasses.replace(run, steps=4, eval_batches=1, whole_validation=True)
    task = make_task(run)
    whole = list(task.validation(slice(None), whole=True))
    assert len(whole) == (len(task.inner.data.val) - 1) // run.model.seq_len // run.batch_size > 1
    result = train(run, tmp_path / "whole")
    few = train(dataclasses.replace(run, whole_validation=False), tmp_path / "few")
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
