"""The loops that a reader copies first: in them, the default is not the worst choice of a warm-up."""

import ast
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import autowarm
from tests.docs.test_pages import fences

ROOT = Path(__file__).parents[2]
SEEDS, LAST = range(5), 50  # losses at the end, on new data, whose mean is judged
HAND_SET = {"none": 0.0, "10%": 0.1, "40%": 0.4}
FIRST = ["README.md", "examples/plain_loop.py"]  # the first page of the documentation includes the second


class Ramp(torch.optim.lr_scheduler.LambdaLR):
    """A linear rise from lr/10 over a share of the run, then a cosine."""

    ended_by, phase, warmup_steps = None, "decay", 0

    def __init__(self, optimizer: torch.optim.Optimizer, total_steps: int, share: float) -> None:
        length = round(share * total_steps)

        def rate(update: int) -> float:
            if update < length:
                return 0.1 + 0.9 * update / length
            return 0.5 * (1 + math.cos(math.pi * min(1.0, (update - length) / (total_steps - length))))

        super().__init__(optimizer, rate)

    def step(self, loss: Any = None) -> None:
        super().step()


def code_of(name: str) -> str:
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    code = text if path.suffix == ".py" else next(code for kind, code in fences(path) if kind == "python")
    return re.sub(r"^torch\.manual_seed.*\n", "", code, flags=re.MULTILINE)


class Quiet(ast.NodeTransformer):
    """Leaves out what an example prints and explains."""

    def visit_For(self, node: ast.For) -> ast.AST:
        node.target = ast.Name("_", ast.Store()) if isinstance(node.target, ast.Name) else node.target
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        shown = isinstance(node.value, ast.Constant) or "print" in ast.dump(node.value)
        return None if shown else node


def final_loss(code: str, seed: int, share: float | None, monkeypatch: pytest.MonkeyPatch) -> float:
    """Run an example with its schedule, or with a hand-set warm-up over this share in its place."""
    losses: list[float] = []
    kind: Any = autowarm.schedule.AdaptiveWarmup if share is None else Ramp

    class Recorded(kind):  # type: ignore[misc]
        def step(self, loss: Any = None) -> None:
            if loss is not None:
                losses.append(float(loss.detach()))
            super().step(loss)

    with monkeypatch.context() as patched:
        options = {} if share is None else {"share": share}
        patched.setattr(autowarm, "AdaptiveWarmup", lambda opt, steps: Recorded(opt, steps, **options))
        torch.manual_seed(seed)
        exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    assert len(losses) >= 1000
    return sum(losses[-LAST:]) / LAST


@pytest.mark.long
def test_the_default_is_not_last_in_the_loops_that_are_copied_first(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {name: code_of(name) for name in FIRST}
    (loop,) = {ast.unparse(Quiet().visit(ast.parse(code))) for code in codes.values()}
    assert "torch.optim.AdamW" in loop
    choices = {"default": None, **HAND_SET}
    means = {
        name: sum(final_loss(loop, seed, share, monkeypatch) for seed in SEEDS) / len(SEEDS)
        for name, share in choices.items()
    }
    print(means)  # README has these: pytest -m long -s
    assert means["default"] < max(means.values())
