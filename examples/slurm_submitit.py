"""Runs at three peak rates, each in a Slurm job of its own, by submitit; without Slurm, as processes of this machine.

Usage: python slurm_submitit.py [PARTITION]
"""

import sys

import submitit
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Muon

STEPS = 200


def train(lr: float) -> tuple[float, int]:
    """One run; returns its mean loss over the last tenth and the updates of its warm-up."""
    torch.manual_seed(0)
    x = torch.randn(2048, 32)
    y = (x @ torch.randn(32, 10)).argmax(dim=1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = Muon.from_model(model, lr=lr)
    sched = AdaptiveWarmup(opt, total_steps=STEPS)
    losses = []
    for _ in range(STEPS):
        batch = torch.randint(len(x), (128,))
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        opt.step()
        sched.step(loss)
        opt.zero_grad()
        losses.append(loss.item())
    return sum(losses[-STEPS // 10 :]) / (STEPS // 10), sched.warmup_steps


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="slurm")  # the jobs' output, and what they return
    executor.update_parameters(timeout_min=10, cpus_per_task=1)
    if sys.argv[1:]:
        executor.update_parameters(slurm_partition=sys.argv[1])
    rates = [0.003, 0.03, 0.3]
    for lr, (loss, warmup_steps) in zip(rates, [job.result() for job in executor.map_array(train, rates)], strict=True):
        print(f"peak rate {lr:g}: loss {loss:.3f}, warm-up took {warmup_steps} updates")
