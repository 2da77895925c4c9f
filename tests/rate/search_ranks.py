"""One rank of test_ranks.py: searches under DDP and with arguments that differ; what it saw, in a file of its own."""

import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autowarm import AdaptiveWarmup, Muon, find_rate
from tests.programs import leave
from tests.rate.test_find import snapshot


def main(folder):
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    model = DistributedDataParallel(bare)
    optimizer = Muon.from_model(bare, lr=0.01, process_group=dist.group.WORLD)
    scheduler = AdaptiveWarmup(optimizer, 50)
    torch.manual_seed(rank)  # each rank has data and dropout of its own

    own = []

    def closure():
        x = torch.randn(256, 8)
        loss = (model(x) - x[:, :1] - 1).square().mean() + rank  # one rank alone would see another level
        loss.backward()
        own.append(loss.item())
        return loss

    def train(steps):
        """With the scheduler and the optimizer there are now."""
        for _ in range(steps):
            loss = closure()
            optimizer.step()
            scheduler.step(loss)
            optimizer.zero_grad()

    train(3)
    was = snapshot(bare, optimizer)
    own.clear()
    found = find_rate(model, optimizer, closure, steps=60)
    seen = {"same": snapshot(bare, optimizer) == was, "losses": found.losses.tolist(), "reason": found.reason,
            "own": list(own), "suggestion": found.suggestion, "interval": found.interval}  # fmt: skip
    train(3)
    seen["rate"] = optimizer.param_groups[0]["lr"]

    calls = 0

    def spoilt():
        nonlocal calls
        calls += 1
        loss = closure()
        return math.nan if calls > 30 else loss  # on both, for both end the search here

    seen["spoilt"] = len(find_rate(model, optimizer, spoilt, steps=60).losses)
    elementwise, calls = torch.optim.AdamW(bare.parameters(), lr=1.0), 0

    def bad_once():
        nonlocal calls
        calls += 1
        assert all(p.isfinite().all() for p in bare.parameters())
        loss = (model(torch.randn(256, 8)).square().mean() + 1) * (math.nan if (calls, rank) == (10, 1) else 1)
        loss.backward()
        return loss

    seen["bad once"] = len(find_rate(model, elementwise, bad_once, steps=20, highest=1e-3).losses), calls
    try:
        find_rate(model, optimizer, closure, steps=60 + rank)
    except RuntimeError as error:
        seen["error"] = str(error)
    leave(folder, seen)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
