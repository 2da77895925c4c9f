"""Ranks of test_probe.py: the same steps with and without the probe, their weights, and what it measured."""

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from autowarm.smoothness import Probe
from tests.programs import leave

KINDS = ["ddp", "ddp-views", "fsdp"]


def batches(count=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(12, 6, generator=generator), torch.randn(12, 3, generator=generator)) for _ in range(count)]


def closure_for(model, x, y, parts=1):
    def closure():
        total = 0.0
        for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
            loss = nn.functional.mse_loss(model(xs), ys) / parts
            loss.backward()
            total = total + loss.detach()
        return total

    return closure


def train_on_rank(rank, kind, probed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    if kind == "fsdp":
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
    elif kind.startswith("ddp"):
        model = DistributedDataParallel(model, gradient_as_bucket_view=kind == "ddp-views")
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = Probe(model, opt, geometry="spectral")
    for x, y in batches(4):
        # Unequal shares would weigh ranks' losses differently; these are equal. "single" is one process with it all.
        own = slice(None) if kind == "single" else slice(6 * rank, 6 * rank + 6)
        closure = closure_for(model, x[own], torch.nn.functional.pad(y, (0, 1))[own])
        with probe(closure) if probed else nullcontext(closure()):
            opt.step()
        assert all(p.grad is not None for p in model.parameters())
        opt.zero_grad()
    weights = [p.full_tensor() if kind == "fsdp" else p.detach() for p in model.parameters()]
    return weights, [(p.loss, p.loss_after, p.smoothness, p.slope, p.slope_after) for p in probe.points]


def main(folder):
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    found = {}
    for kind in KINDS:
        (weights, points), (plain, _) = (train_on_rank(rank, kind, probed) for probed in (True, False))
        found[kind] = (all(torch.equal(a, b) for a, b in zip(weights, plain, strict=True)), points)
    leave(folder, found)


if __name__ == "__main__":
    main(sys.argv[1])
