"""Trainers on two CPU processes: rates are the same on both, and a plain loop's that sees the losses of both.

They are imported by the processes alone, for in the long tests that would take longer here than what is checked.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion

from ..conftest import TwoProcesses

STEPS, LR = 12, 0.02


def test_trainer(accelerated: list[dict[str, Any]]) -> None:
    a, b = (rank["trainer"] for rank in accelerated)
    assert a["rates"] == b["rates"] == a["resumed"] == b["resumed"]
    assert a["losses"] != b["losses"]
    opt = Lion([nn.Parameter(torch.zeros(4, 4))], lr=LR)
    sched, rates = AdaptiveWarmup(opt, STEPS, kappa=a["kappa"], geometry="spectral"), []
    for of_a, of_b in zip(a["losses"], b["losses"], strict=True):
        rates.append(sched.get_last_lr()[0])
        for micro in (of_a, of_b):
            sched.observe(sum(micro) / len(micro), weight=len(micro))
        opt.step()
        sched.step()
    assert a["rates"] == rates
    assert a["phase"] == "decay"


def test_accelerate(accelerated: list[dict[str, Any]]) -> None:
    a, b = (rank["loop"] for rank in accelerated)
    assert a["rates"] == b["rates"]
    assert a["losses"] != b["losses"]
    # A plain loop with the same losses; κ is the Trainer's model's, which is the same.
    opt = Lion([nn.Parameter(torch.zeros(4, 4))], lr=LR)
    kappa = accelerated[0]["trainer"]["kappa"]
    sched, rates = AdaptiveWarmup(opt, STEPS, kappa=kappa, geometry="spectral"), []
    for of_a, of_b in zip(a["losses"], b["losses"], strict=True):
        rates.append(sched.get_last_lr()[0])
        for micro in (of_a, of_b):
            sched.observe(sum(micro) / 2, weight=48)
        opt.step()
        sched.step()
    assert a["rates"] == rates


def test_the_guard_notices_what_prepare_would_break(accelerated: list[dict[str, Any]]) -> None:
    for rank in accelerated:
        assert "steps it once for each of the 2 processes: leave it out of prepare" in rank["loop"]["noticed"]
        # What it guards against: the schedule stops before the run does.
        assert rank["loop"]["counted"] < STEPS


@pytest.mark.parametrize("by", ["forked", pytest.param("itself", marks=pytest.mark.long)])
def test_lightning(by: str, two_processes: TwoProcesses, tmp_path: Path) -> None:
    a, b = two_processes.run("lightning_devices.py", tmp_path, by)
    assert a["rates"] == b["rates"] == a["resumed"] == b["resumed"]
    assert a["losses"] != b["losses"]
    opt = Lion([nn.Parameter(torch.zeros(4, 4))], lr=LR)
    sched, rates = AdaptiveWarmup(opt, STEPS, kappa=a["kappa"], geometry="spectral"), []
    for of_a, of_b in zip(a["losses"], b["losses"], strict=True):
        rates.append(sched.get_last_lr()[0])
        sched.observe(of_a, weight=6)
        sched.observe(of_b, weight=6)
        opt.step()
        sched.step()
    assert a["rates"] == rates
