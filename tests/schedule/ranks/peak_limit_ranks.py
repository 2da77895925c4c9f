"""Ranks of test_peak_limit.py: one limit for copies, shards and stages."""

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from autowarm import AdaptiveWarmup, Lion, Muon
from tests.programs import leave


def network() -> nn.Sequential:
    """Its rows do not divide by two."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5))


def limit(optimizer: Optimizer, trained: bool | None = None) -> float | None:
    """What lowers the peak of a run of 100 updates, from its first one on."""
    scheduler = AdaptiveWarmup(optimizer, 100, trained=trained, peak_limit=2.5)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    with warnings.catch_warnings(action="ignore"):
        optimizer.step()
        scheduler.step(1.0)
    factor = scheduler.metrics().get("peak_limit")
    assert scheduler.get_last_lr()[0] == optimizer.param_groups[0]["lr"]
    return factor


def limits(rank: int) -> dict[str, float | None]:
    mesh = DeviceMesh("cpu", [0, 1])
    found = {"copies": limit(Lion(network().parameters(), lr=0.1))}
    found["copies of trained weights"] = limit(Lion(network().parameters(), lr=0.1), trained=True)
    for name, make in (("lion", Lion.from_model), ("muon", Muon.from_model)):
        model = network()
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        found[f"shards, {name}"] = limit(make(model, lr=0.1))
    found["stages"] = limit(Lion(network()[2 * rank].parameters(), lr=0.1))
    alone = nn.Parameter(torch.ones(2, 2, device="meta" if rank else "cpu"))
    found["one without values"] = limit(Lion([alone], lr=0.1))
    return found


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    leave(folder, limits(rank))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
