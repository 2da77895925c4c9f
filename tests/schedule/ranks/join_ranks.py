"""One rank of test_join.py: the scenarios it is told, and what it saw of each, in a file of its own."""

import json
import math
import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

from autowarm import LMO, AdaptiveWarmup, Lion, Muon, find_rate
from autowarm.pretrained import detect
from autowarm.smoothness import Probe


def loss_at(rank: int, t: int) -> float:
    return 1 + 9 * math.exp(-t / 20) + (0.3 if rank else -0.3) * math.sin(t)


def update(scenario: dict, t: int, sched: AdaptiveWarmup, loss: torch.Tensor) -> None:
    """One step in the scenario's order, with or without an update."""
    if scenario["order"] == "before":
        sched.step(loss)
    if t not in scenario["skipped"]:
        sched.optimizer.step()
    if scenario["order"] == "after":
        sched.step(loss)


def life(scenario: dict, rank: int) -> dict:
    """The rates after each of this rank's own steps, and the state once all ranks have joined."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    model = DistributedDataParallel(layer) if scenario["model"] else None
    layer.requires_grad_(True)
    lr = torch.tensor(0.01, dtype=torch.float64) if scenario["tensor"] else 0.01
    opt = Lion(layer.parameters(), lr=lr)
    sched = AdaptiveWarmup(opt, 50 if scenario["peak"] == "given" else 100, peak=scenario["peak"])
    rates = []
    with Join([sched] if model is None else [model, sched]):
        for t in range(scenario["inputs"][rank]):
            loss = torch.tensor(loss_at(rank, t), dtype=torch.float64, requires_grad=True)
            if model is not None:
                model(torch.ones(4, 8)).square().mean().backward()
            else:
                for p in layer.parameters():
                    p.grad = torch.ones_like(p)
            update(scenario, t, sched, loss)
            opt.zero_grad()
            rates.append(float(sched.get_last_lr()[0]))
    state = sched.state_dict()
    for own in ("clock", "step_count"):  # whether this rank itself has stepped
        del state[own]
    if state["search"] is not None:
        state["search"] = [x for x in state["search"] if x[0] != "first"]
    return {
        "rates": rates,
        "state": json.loads(json.dumps(state)),
        "weights": [p.sum().item() for p in layer.parameters()],
    }


def uneven(scenario: dict, rank: int, folder: str) -> dict:
    """The error of a rank that makes more steps than the other, without Join."""
    ranks = dist.new_group([0, 1], timeout=timedelta(milliseconds=500))
    p = nn.Parameter(torch.zeros(4, 4))
    p.grad = torch.ones(4, 4)
    lr = torch.tensor(0.01, dtype=torch.float64) if scenario["tensor"] else 0.01
    opt = Lion([p], lr=lr)
    sched = AdaptiveWarmup(opt, 60, process_group=ranks)
    try:
        for t in range(scenario["inputs"][rank]):
            opt.step()
            sched.step(loss_at(rank, t))
        error = None
    except RuntimeError as problem:
        error = str(problem)
    dist.barrier()  # of all ranks, which wait for each other longer
    return {"error": error}


def outside(rank: int) -> dict:
    """What a rank is told that hands over a group which it is not in."""
    ranks, layer = dist.new_group([0]), nn.Linear(8, 8)

    def closure() -> torch.Tensor:
        loss = layer(torch.ones(2, 8)).square().mean()
        loss.backward()
        return loss

    calls = {
        "AdaptiveWarmup": lambda: AdaptiveWarmup(Lion(layer.parameters()), 10, process_group=ranks),
        "tensor lr": lambda: AdaptiveWarmup(Lion(layer.parameters(), torch.tensor(0.1)), 10, process_group=ranks),
        "Muon": lambda: Muon(layer.parameters() if rank else [layer.weight], process_group=ranks),
        "LMO": lambda: LMO([layer.weight], process_group=ranks),
        "detect": lambda: detect(layer, process_group=ranks),
        "find_rate": lambda: find_rate(layer, Lion(layer.parameters()), closure, total_steps=9, process_group=ranks),
        "Probe": lambda: Probe(layer, Lion(layer.parameters()), process_group=ranks),
    }
    told = {}
    for name, call in calls.items():
        try:
            call()
        except (ValueError, TypeError) as error:
            told[name] = str(error)
    return told


def main(folder: str, scenarios: list[dict]) -> None:
    rank = int(os.environ["RANK"])
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    seen = [life(one, rank) if one["join"] else uneven(one, rank, folder) for one in scenarios]
    seen.append(outside(rank))
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(seen, file)
    dist.barrier()
    os._exit(0)  # a group that has timed out is not to be waited for


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
