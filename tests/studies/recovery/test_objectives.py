"""The study of losses that rise in success and of objectives that change."""

import math

import pytest
import torch

from studies.recovery import objectives
from studies.recovery.objectives import OBJECTIVES, Net, Run, World, made, objectives_table
from studies.rows import Rows

from ..conftest import stored


@pytest.mark.parametrize("what", OBJECTIVES)
@pytest.mark.parametrize("done", [0.0, 0.5, 1.0])
def test_an_objective_trains_the_model(what: str, done: float) -> None:
    torch.manual_seed(0)
    net, kept = Net(), {}
    for _ in range(2):
        net.zero_grad()
        loss = OBJECTIVES[what](net, World(torch.randn(2, 10, 2, 32)), done, kept)
        loss.backward()
    assert math.isfinite(loss.item())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_a_run_and_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "STEPS", 30)
    rows = [made(Run("GRPO, KL", "muon", recovers, 2)) for recovers in (False, True)]
    assert rows[0]["accuracy"] == rows[1]["accuracy"]
    assert rows[1]["recoveries"] == []


def test_an_objective_without_its_runs_has_no_line() -> None:
    rows = stored("objectives")
    missing = Rows(row for row in rows if row["cell"]["task"] != "noise")
    shown = [line for line in objectives_table(rows).splitlines() if not line.startswith("noise,")]
    assert objectives_table(missing).splitlines() == shown
