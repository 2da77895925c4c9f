"""A plain loop under torchrun: both ranks have the rates of one process that sees the losses of both."""

import json
import sys
from pathlib import Path

import torch

from autowarm import AdaptiveWarmup, Lion

from .conftest import run

STEPS, LR = 12, 0.02


def test_two_ranks(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    run([*torchrun, str(Path(__file__).parent / "two_ranks.py"), str(tmp_path)], tmp_path)
    a, b = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
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
