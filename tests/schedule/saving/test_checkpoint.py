"""Saved by `torch.distributed.checkpoint`, which loads a state only into one with the same entries."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from autowarm import AdaptiveWarmup, Muon

STEPS = 120
Lr = float | torch.Tensor
PHASES = {"fresh": 0, "warm-up": 34, "decay": 90}  # updates made
MAKERS: dict[str, Callable[[], Lr]] = {
    "float lr": lambda: 0.01,
    "tensor lr": lambda: torch.tensor(0.01, dtype=torch.float64),
}


class Run:
    def __init__(self, lr: Lr) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Linear(1, 1))
        self.optimizer = Muon.from_model(self.model, lr=lr)
        self.scheduler = AdaptiveWarmup(self.optimizer, STEPS, max_warmup=60)

    def train(self, steps: range) -> list[float]:
        rates = []
        for t in steps:
            x = torch.randn(64, 8, generator=torch.Generator().manual_seed(t))
            loss = (self.model(x) - x[:, :1] - 2).square().mean()
            loss.backward()
            rates.append(float(self.optimizer.param_groups[0]["lr"]))
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step(loss.detach())
        return rates

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "scheduler": self.scheduler}  # it loads itself

    def save(self, folder: Path) -> None:
        with warnings.catch_warnings(action="ignore"):  # that there are no other ranks
            dcp.save(self.state(), checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        with warnings.catch_warnings(action="ignore"):
            model, optimizer = get_state_dict(self.model, self.optimizer)
            parts = {"model": model, "optimizer": optimizer}
            dcp.load(parts, checkpoint_id=folder)
            set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
            dcp.load({"scheduler": self.scheduler}, checkpoint_id=folder)


@pytest.mark.parametrize("lr", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_run_of_every_phase_goes_on_to_the_bit(phase: str, lr: Callable[[], Lr], tmp_path: Path) -> None:
    at = PHASES[phase]
    straight = Run(lr())
    straight.train(range(at))
    straight.save(tmp_path)
    kept = repr(straight.scheduler.state_dict())
    later = range(at, min(at + 26, STEPS))
    rates = straight.train(later)
    for made in (0, 34):  # into a fresh run, and into one in another phase
        resumed = Run(lr())
        resumed.train(range(made))
        resumed.load(tmp_path)
        assert repr(resumed.scheduler.state_dict()) == kept
        assert resumed.train(later) == rates


def test_a_state_has_the_same_entries_for_life() -> None:
    run = Run(0.01)
    phases, entries = set(), set()
    for t in range(STEPS):
        phases.add(run.scheduler.phase)
        state = run.scheduler.state_dict()
        entries.add(tuple(sorted((name, *sorted(x)) if isinstance(x, dict) else (name,) for name, x in state.items())))
        if t == 50:
            run.scheduler.observe(3.0)
        if t == 60:
            run.scheduler.decay_now(20)
        if t == 70:
            run.scheduler.rewarm(STEPS)
        run.train(range(t, t + 1))
    assert phases == {"warmup", "decay"}
    assert len(entries) == 1
