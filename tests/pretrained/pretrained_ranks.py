"""Ranks of test_pretrained.py: one verdict for copies, shards, stages and ranks without tensors."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from autowarm.pretrained import Verdict, detect
from tests.programs import leave


def taught(
    make: Callable[[nn.Module], torch.optim.Optimizer], updates: int, *, norm: bool = False
) -> tuple[nn.Sequential, Verdict, Verdict]:
    """A network that learns from a narrow teacher, and the verdicts on its optimizer before and after."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 64))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    if norm:
        model.append(nn.LayerNorm(64))
    optimizer = make(model)
    before = detect(optimizer)
    for _ in range(updates):
        x = torch.randn(64, 64)
        optimizer.zero_grad()
        (model(x) - 3 * teacher(x).detach()).square().sum(1).mean().backward()
        optimizer.step()
    return model, before, detect(optimizer)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=2e-3)


def adapters(rank: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [w for _ in range(4) for w in (torch.randn(rank, 64), torch.zeros(96, rank))]


def verdicts(rank: int, alone: nn.Module) -> dict[str, Verdict]:
    """`alone` was trained before the ranks met."""
    mesh = DeviceMesh("cpu", [0, 1])
    new = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    by_case = {"new": detect(new), "trained": detect(alone)}
    by_case["stages"] = detect([alone[0].weight] if rank else [alone[2].weight, alone[4].weight])
    by_case["one rank has nothing"] = detect([] if rank else alone.parameters())
    gains = nn.Sequential(*(nn.LayerNorm(64) for _ in range(2)), *(nn.Linear(64, 64) for _ in range(3)))
    # Of adapters of rank 3, one of two ranks has two rows of the first factor, the other one.
    factors = nn.ParameterList(adapters(3))
    for what, model in (("new", new), ("trained", alone), ("gains", gains), ("adapters", factors)):
        by_case[f"shards, {what}"] = detect(torch.optim.SGD(fully_shard(model, mesh=mesh).parameters(), lr=0.1))
    return by_case


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    trained, _, verdict = taught(adam, updates=300)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    leave(folder, {name: tuple(one) for name, one in {"trained, alone": verdict, **verdicts(rank, trained)}.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
