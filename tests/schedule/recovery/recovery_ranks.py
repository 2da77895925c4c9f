"""One rank of test_ranks_recover.py: a model under DDP, FSDP2 or HSDP; what goes wrong on one rank makes it recover."""

import math
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from autowarm import AdaptiveWarmup, Lion, SpikeGuard
from tests.programs import leave

rank, ranks, folder, kind = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1], sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store-{kind}", rank=rank, world_size=ranks)
warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
target = torch.randn(8, 4)
sharded = {"fsdp": (2,), "hsdp": (2, 2)}  # replicas by shards
if kind in sharded:
    names = ("replicate", "shard")[-len(sharded[kind]) :]
    whole = fully_shard(model, mesh=dist.init_device_mesh("cpu", sharded[kind], mesh_dim_names=names))
else:
    whole = nn.parallel.DistributedDataParallel(model)
lr = torch.tensor(0.003, dtype=torch.float64) if kind == "tensor" else 0.003
broken = kind in ("ddp", "beside", "gradient")
if broken:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
else:
    optimizer = Lion(model.parameters(), lr=lr)
if kind == "beside":
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    guard = SpikeGuard(optimizer, 300)
else:
    scheduler = guard = AdaptiveWarmup(optimizer, 300, recover=True)
generator, rates = torch.Generator().manual_seed(rank), []
for t in range(200):
    x = torch.randn(16, 8, generator=generator)
    y = x @ target
    bad = rank == 1 and t in range(120, 124)
    if bad and kind != "gradient":
        y = y * (math.nan if broken else 1e3)
    loss = (whole(x) - y).square().mean()
    # DDP sums the gradients after this.
    spoilt = model[0].weight.register_hook(lambda g: g * math.nan) if bad and kind == "gradient" else None
    loss.backward()
    if spoilt is not None:
        spoilt.remove()
    optimizer.step()
    guard.step(loss)
    if kind == "beside":
        scheduler.step()
    optimizer.zero_grad()
    rates.append(guard.factor if kind == "beside" else float(scheduler.get_last_lr()[0]))
weights = [p.detach().full_tensor() if kind in sharded else p.detach() for p in model.parameters()]
found = [(one.update, one.restored) for one in guard.recoveries]
leave(folder, [weights, rates, found, float(loss)], kind)
