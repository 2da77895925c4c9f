"""Trainers on two processes: the rates of a plain loop that sees the losses of both.

They are imported by the processes alone, for in the long tests that would take longer here than what is checked.
"""

from pathlib import Path

import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion
from autowarm.schedule import Calibration

from ..conftest import OnTwo
from ..plain import rates_of

STEPS, LR = 12, 0.02


def rates_of_a_plain_loop(kappa: float, updates: list[list[tuple[float, float]]]) -> list[float]:
    opt = Lion([nn.Parameter(torch.zeros(4, 4))], lr=LR)
    return rates_of(AdaptiveWarmup(opt, STEPS, calibration=Calibration("spectral", kappa=kappa)), updates)


def test_trainer_and_accelerate(on_two_processes: OnTwo, tmp_path: Path) -> None:
    both = on_two_processes("accelerated.py", tmp_path)
    a, b = (rank["trainer"] for rank in both)
    assert a["rates"] == b["rates"] == a["resumed"] == b["resumed"]
    assert a["losses"] != b["losses"]
    seen = [[(sum(m) / len(m), len(m)) for m in two] for two in zip(a["losses"], b["losses"], strict=True)]
    assert a["rates"] == rates_of_a_plain_loop(a["kappa"], seen)
    assert a["phase"] == "decay"
    kappa = a["kappa"]
    a, b = (rank["loop"] for rank in both)
    assert a["rates"] == b["rates"]
    assert a["losses"] != b["losses"]
    seen = [[(sum(m) / 2, 48) for m in two] for two in zip(a["losses"], b["losses"], strict=True)]
    assert a["rates"] == rates_of_a_plain_loop(kappa, seen)  # of the same model


def test_lightning(on_two_processes: OnTwo, tmp_path: Path) -> None:
    a, b = on_two_processes("lightning_devices.py", tmp_path)
    assert a["rates"] == b["rates"] == a["resumed"] == b["resumed"]
    assert a["losses"] != b["losses"]
    seen = [[(loss, 6) for loss in two] for two in zip(a["losses"], b["losses"], strict=True)]
    assert a["rates"] == rates_of_a_plain_loop(a["kappa"], seen)
