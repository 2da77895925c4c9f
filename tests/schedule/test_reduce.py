"""Ranks with losses of their own, in real processes."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = """
import json, math, sys
import torch
import torch.distributed as dist
from autowarm import AdaptiveWarmup, Lion

scenario, out = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
w = torch.nn.Parameter(torch.zeros(2, 2))
w.grad = torch.ones(2, 2)
opt = Lion([w], lr=0.01)
sched = AdaptiveWarmup(opt, 60, div=50.0 if scenario == "settings" and rank else 100.0)
rates, error = [], None
try:
    for t in range(40):
        loss = 1 + 9 * math.exp(-t / 20) + (0.3 if rank else -0.3) * math.sin(t)
        if scenario == "nan" and rank and t % 3 == 0:
            loss = math.nan
        opt.step()
        if scenario == "steps" and rank and t == 5:
            sched.last_epoch += 1
        if scenario == "missing" and rank:
            sched.step()
        else:
            sched.observe(loss, weight=1 + rank)
            sched.step()
        rates.append(sched.get_last_lr()[0])
except RuntimeError as problem:
    error = str(problem)
with open(f"{out}/{rank}.json", "w") as file:
    json.dump({"rates": rates, "error": error, "switch": sched.warmup_steps}, file)
dist.destroy_process_group()
"""


def on_two_ranks(scenario: str, folder: Path) -> list[dict]:
    script = folder / "worker.py"
    script.write_text(WORKER)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script), scenario, str(folder)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("scenario", ["plain", "nan", "missing"])
def test_rates_are_the_same_to_the_bit(scenario: str, tmp_path: Path) -> None:
    a, b = on_two_ranks(scenario, tmp_path)
    assert a == b
    assert a["error"] is None
    assert len(set(a["rates"])) > 20


def test_the_mean_is_weighted_over_ranks(tmp_path: Path) -> None:
    from torch import nn, ones, zeros

    from autowarm import AdaptiveWarmup, Lion

    w = nn.Parameter(zeros(2, 2))
    w.grad = ones(2, 2)
    opt = Lion([w], lr=0.01)
    alone = AdaptiveWarmup(opt, 60)
    rates = []
    for t in range(40):
        base = 1 + 9 * math.exp(-t / 20)
        opt.step()
        alone.step((base - 0.3 * math.sin(t) + 2 * (base + 0.3 * math.sin(t))) / 3)
        rates += alone.get_last_lr()
    assert on_two_ranks("plain", tmp_path)[0]["rates"] == pytest.approx(rates, rel=1e-9)


@pytest.mark.parametrize("scenario", ["settings", "steps"])
def test_ranks_that_disagree_fail_together(scenario: str, tmp_path: Path) -> None:
    results = on_two_ranks(scenario, tmp_path)
    assert all(f"ranks disagree: AdaptiveWarmup has different {scenario}" in r["error"] for r in results)
