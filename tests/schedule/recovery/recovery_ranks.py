"""One rank of test_ranks_recover.py: a model under DDP or FSDP2 that meets bad batches on one rank, and recovers."""

import math
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from autowarm import AdaptiveWarmup, Lion

rank, folder, kind = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store-{kind}", rank=rank, world_size=2)
warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
target = torch.randn(8, 4)
if kind == "fsdp":
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    whole = model
else:
    whole = nn.parallel.DistributedDataParallel(model)
lr = torch.tensor(0.003, dtype=torch.float64) if kind == "tensor" else 0.003
if kind == "ddp":
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
else:
    optimizer = Lion(model.parameters(), lr=lr)
scheduler = AdaptiveWarmup(optimizer, 300, recover=True)
generator, rates = torch.Generator().manual_seed(rank), []
for t in range(200):
    x = torch.randn(16, 8, generator=generator)
    y = x @ target
    if t in range(120, 124) and rank == 1:
        y = y * (math.nan if kind == "ddp" else 1e3)
    loss = (whole(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step(loss)
    optimizer.zero_grad()
    rates.append(float(scheduler.get_last_lr()[0]))
weights = [p.detach().full_tensor() if kind == "fsdp" else p.detach() for p in model.parameters()]
found = [(one.update, one.restored) for one in scheduler.recoveries]
torch.save([weights, rates, found, float(loss)], f"{folder}/{kind}-{rank}.part")
os.rename(f"{folder}/{kind}-{rank}.part", f"{folder}/{kind}-{rank}.pt")
# A rank that leaves while the other is still reading from it can take it down: both wait, by no collective, and go.
while not all(os.path.exists(f"{folder}/{kind}-{r}.pt") for r in (0, 1)):
    time.sleep(0.02)
os._exit(0)
