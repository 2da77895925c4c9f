"""FSDP2 by torchrun: weights, gradients and momenta are sharded, the rate is the same on every rank.

torchrun --nproc_per_node 2 fsdp2.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from autowarm import AdaptiveWarmup, Muon

on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, ranks, STEPS = dist.get_rank(), dist.get_world_size(), 100

torch.manual_seed(0)
teacher = torch.randn(32, 10, device=device)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
mesh = init_device_mesh(device.type, (ranks,))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)

opt = Muon.from_model(model, lr=1e-2)  # after sharding: it steps the shards
sched = AdaptiveWarmup(opt, total_steps=STEPS)
torch.manual_seed(1 + rank)  # each rank its own data, and its own loss
for _ in range(STEPS):
    x = torch.randn(64, 32, device=device)
    loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(dim=1))
    loss.backward()
    opt.step()
    sched.step(loss)  # averaged over the ranks
    opt.zero_grad()
if rank == 0:
    print(f"{ranks} ranks: warm-up took {sched.warmup_steps} of {STEPS} steps; final loss {loss.item():.3f}")
dist.destroy_process_group()
