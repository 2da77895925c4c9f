"""A plain loop under torchrun: both ranks have the rates of one process that sees the losses of both."""

from pathlib import Path

import pytest
import torch

from autowarm import AdaptiveWarmup, Lion

from ..conftest import TwoProcesses

STEPS, LR = 12, 0.02


@pytest.mark.parametrize("by", ["forked", pytest.param("torchrun", marks=pytest.mark.long)])
def test_two_ranks(by: str, two_processes: TwoProcesses, tmp_path: Path) -> None:
    a, b = two_processes.run("plain_ranks.py", tmp_path, by)
    assert a["rates"] == b["rates"] == a["resumed"] == b["resumed"]
    assert a["losses"] == a["resumed losses"] != b["losses"] == b["resumed losses"]
    assert a["phase"] == "decay"
    opt = Lion([torch.nn.Parameter(torch.zeros(4, 4))], lr=LR)
    sched, rates = AdaptiveWarmup(opt, STEPS, kappa=a["kappa"], geometry="spectral"), []
    for of_a, of_b in zip(a["losses"], b["losses"], strict=True):
        rates.append(sched.get_last_lr()[0])
        for loss in of_a + of_b:
            sched.observe(loss, weight=6)
        opt.step()
        sched.step()
    assert a["rates"] == rates
