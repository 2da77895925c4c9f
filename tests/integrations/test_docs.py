"""The snippets of docs/integrations.md run; the recipes in examples/recipes fit what they are written for."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion

from .plain import rates_of as plain_rates

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
