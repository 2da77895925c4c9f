"""Trainers on two processes: the rates of a plain loop that sees the losses of both.

They are imported by the processes alone, for in the long tests that would take longer here than what is checked.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion
from autowarm.schedule import Calibration

from ..conftest import TwoProcesses
from ..plain import rates_of

STEPS, LR = 12, 0.02


def rates_of_a_plain_loop(kappa: float, updates: list[list[tuple[float, float]]]) -> list[float]:
    opt = Lion([nn.Parameter(torch.zeros(4, 4))], lr=LR)
    return rates_of(AdaptiveWarmup(opt, STEPS, calibration=Calibration("spectral", kappa=kappa)), updates)


def test_trainer(accelerated: list[dict[str, Any]]) -> None:
    a, b = (rank["trainer"] for rank in accelerated)
    assert a["rates"] == b["rates"] == a["resumed"] == b["resumed"]
    assert a["losses"] != b["losses"]
    seen = [[(sum(m) / len(m), len(m)) for m in both] for both in zip(a["losses"], b["losses"], strict=True)]
    assert a["rates"] == rates_of_a_plain_loop(a["kappa"], seen)
    assert a["phase"] == "decay"


def test_accelerate(accelerated: list[dict[str, Any]]) -> None:
    a, b = (rank["loop"] for rank in accelerated)
    assert a["rates"] == b["rates"]
    assert a["losses"] != b["losses"]
    seen = [[(sum(m) / 2, 48) for m in both] for both in zip(a["losses"], b["losses"], strict=True)]
    # κ is the Trainer's model's, which is the same.
    assert a["rates"] == rates_of_a_plain_loop(accelerated[0]["trainer"]["kappa"], seen)


@pytest.mark.parametrize("by", ["forked", pytest.param("itself", marks=pytest.mark.long)])
def test_lightning(by: str, two_processes: TwoProcesses, tmp_path: Path) -> None:
    a, b = two_processes.run("lightning_devices.py", tmp_path, by)
    assert a["rates"] == b["rates"] == a["resumed"] == b["resumed"]
    assert a["losses"] != b["losses"]
    seen = [[(loss, 6) for loss in both] for both in zip(a["losses"], b["losses"], strict=True)]
    assert a["rates"] == rates_of_a_plain_loop(a["kappa"], seen)
