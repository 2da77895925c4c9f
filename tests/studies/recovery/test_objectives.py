"""The study of losses that rise in success and of objectives that change."""

import math

import pytest
import torch

from studies.recovery import objectives
from studies.recovery.objectives import (
    JUDGE,
    OBJECTIVES,
    POLICIES,
    STEPS,
    Net,
    Run,
    World,
    harm,
    made,
    objectives_table,
)  # fmt: skip
from studies.rows import Rows

from ..conftest import row_of


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


def test_the_table() -> None:
    assert STEPS == 1_000
    runs = [Run(what, "muon", recovers, JUDGE[0]) for what in ("noise", POLICIES[0]) for recovers in (False, True)]
    losses = {("noise", False): (0.5, 0.8), ("noise", True): (0.7, 0.7),
              ("GRPO", False): (9.0, 0.8), ("GRPO", True): (9.0, 0.5)}  # fmt: skip
    rows = Rows(
        row_of(run.planned, losses[run.what, run.recovers][0])
        | {"first_loss": 2.5, "accuracy": losses[run.what, run.recovers][1]}
        | {"recoveries": [[9, 5, "", 1.0, 1.0], [9, None, "", 1.0, 1.0]] if run.recovers else []}
        for run in runs
    )
    assert harm(rows, runs[1]) == pytest.approx(10.0)
    assert objectives_table(rows).splitlines()[1:] == ["noise,10.0,10.0,1 of 1,1,2", "GRPO,30.0,30.0,1 of 1,1,2"]
