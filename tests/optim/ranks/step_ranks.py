"""Ranks of test_distributed.py: steps of 2 and of 4 against those of one process, and how often an oracle is asked."""

import copy
import functools
import math
import os
import pickle
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from autowarm import LMO, Lion, Muon, NormSGD
from autowarm.geometry import Frobenius, Spectral
from autowarm.optim.step import plan, sharing

SIZES = (2, 4)


class Net(nn.Module):
    """Wide, tall and square matrices with rows that 2 and 4 ranks share unevenly, a vector, and a stack of experts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.tall, self.square = nn.Linear(12, 5), nn.Linear(4, 13), nn.Linear(8, 8)
        self.narrow = nn.Linear(6, 3)  # fewer rows than 4 ranks
        self.experts = nn.Parameter(torch.randn(4, 6, 5))


class InSinglePrecision(Frobenius):
    """Somebody's own oracle, which computes in single precision whatever the tensors are."""

    def _lmo(self, g):
        return -g.float() / g.float().norm()


MAKERS = {
    "muon": lambda model, **o: Muon.from_model(model, lr=0.1, dtype=torch.float32, **o),
    "muon, newton-schulz": lambda model, **o: Muon.from_model(
        model, lr=0.1, dtype=torch.float32, method="newton-schulz", **o
    ),
    "muon, blocks": lambda model, **o: Muon.from_model(model, lr=0.1, dtype=torch.float32, blocks={"square": 2}, **o),
    "lion": lambda model, **_: Lion(model.parameters(), lr=0.1, weight_decay=0.1),
    "normsgd": lambda model, **_: NormSGD(model.parameters(), lr=0.1, weight_decay=0.1),
    "rows": lambda model, **_: LMO(model.parameters(), lr=0.1, geometry="rows"),
    "columns": lambda model, **_: LMO(model.parameters(), lr=0.1, geometry="columns"),
    "svd": lambda model, **o: LMO(model.parameters(), lr=0.1, geometry=Spectral("match_rms_adamw"), **o),
}
SUMMED = ["normsgd", "columns"]  # whose norms ranks add up
REPLICATED = [name for name in MAKERS if name.startswith(("muon", "svd"))]


def gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator) for p in model.parameters()]


def train(model, optimizer, put, spoilt=False):
    """Three steps; in the second some gradients have a NaN, in the last rows only, which one rank of several holds."""
    for seed in range(3):
        for p, g in zip(model.parameters(), gradients(model, seed), strict=True):
            if spoilt and seed == 1 and id(p) in {id(model.wide.weight), id(model.experts), id(model.tall.bias)}:
                g[-1] = math.nan
            p.grad = put(p, g)
        optimizer.step()
    assert optimizer.skipped_updates == spoilt
    return model


@functools.cache
def alone(name, spoilt=False):
    model = Net()
    return train(model, MAKERS[name](model), lambda p, g: g, spoilt)


def worst(model, other):
    def whole(p):
        return p.full_tensor() if hasattr(p, "full_tensor") else p

    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((whole(p.detach()) - q.detach()).abs().max().item() for p, q in pairs)


@contextmanager
def counted():
    """Notes the sizes of the matrices that are orthogonalised for others."""
    count, real = [], sharing.orthogonalize_

    def counting(stack, *options):
        count.extend([tuple(stack.shape[1:])] * len(stack))
        return real(stack, *options)

    sharing.orthogonalize_ = counting
    try:
        yield count
    finally:
        sharing.orthogonalize_ = real


@contextmanager
def one_tensor_a_round():
    real = sharing.temporaries
    sharing.temporaries = lambda largest: 0
    try:
        yield
    finally:
        sharing.temporaries = real


def blocks(model, mesh):
    """Shards every tensor of two dimensions or more by its last two, and vectors by both dimensions of the mesh."""
    for module in [model, *model.children()]:
        for name, p in [*module.named_parameters(recurse=False)]:
            cut = [Shard(0), Shard(0)] if p.ndim == 1 else [Shard(p.ndim - 2), Shard(p.ndim - 1)]
            module.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh, cut)))
    return model


def twice(model, mesh):
    """Shards every tensor by its first dimension, and each of its shards again."""
    for module in [model, *model.children()]:
        for name, p in [*module.named_parameters(recurse=False)]:
            module.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0), Shard(0)])))
    return model


def tensor_parallel(model, mesh):
    """As PyTorch's tutorial has it: tensor parallelism, then FSDP2, which takes a tensor's shards apart once more."""
    plan = {"wide": RowwiseParallel(), "tall": ColwiseParallel(), "square": ColwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)
    return fully_shard(model, mesh=mesh["data"])


def put(p, g):
    """The gradient, cut as its parameter is: by strides last, which `distribute_tensor` cannot do."""
    if not isinstance(p, DTensor):
        return g
    mesh, part = p.device_mesh, g
    for axis in sorted(range(mesh.ndim), key=lambda axis: hasattr(p.placements[axis], "split_factor")):
        if not p.placements[axis].is_replicate():
            dim, rank = p.placements[axis].dim, mesh.get_local_rank(axis)
            parts = part.chunk(mesh.size(axis), dim)
            part = parts[rank] if rank < len(parts) else part.narrow(dim, 0, 0)
    assert part.shape == p.to_local().shape
    return DTensor.from_local(part.contiguous(), mesh, p.placements, shape=g.shape, stride=g.stride())


def copied(name, ranks):
    model = Net()
    return model, MAKERS[name](model, process_group=ranks)


def cut_by(shard):
    def made(name, mesh):
        model = shard(Net(), mesh=mesh)
        return model, MAKERS[name](model)

    return made


def stepped(make, name, ranks, spoilt=False):
    """The largest deviation from one process, and the matrices whose oracle this rank asked."""
    model, optimizer = make(name, ranks)
    with counted() as count:
        train(model, optimizer, put, spoilt)
    return worst(model, alone(name, spoilt)), count


def every_way(ranks, mesh):
    """By (how, name): the result of `stepped`."""
    warnings.simplefilter("ignore")  # of gradients that are not finite
    ways = {"ddp": (copied, REPLICATED, ranks), "fsdp": (cut_by(fully_shard), MAKERS, mesh)}
    if mesh.size() == 4:
        copies = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("copies", "shards"))
        grid = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("data", "tensor"))
        ways["hsdp"] = (cut_by(fully_shard), MAKERS, copies)
        ways |= {shard.__name__: (cut_by(shard), MAKERS, grid) for shard in (blocks, twice, tensor_parallel)}
    found = {}
    for how, (make, names, where) in ways.items():
        for name in names:
            found[how, name] = stepped(make, name, where)
        for name in names if how in ("ddp", "fsdp") else ["muon"]:
            found[f"{how}, spoilt", name] = stepped(make, name, where, spoilt=True)
        with one_tensor_a_round():
            found[f"{how}, in rounds", "muon"] = stepped(make, "muon", where)
    with mock.patch.dict(plan._PART_BYTES, cpu=200):  # a few tensors at a time
        for name in SUMMED:
            found["fsdp, in parts", name] = stepped(cut_by(fully_shard), name, mesh)
    # A single tensor, so that the other ranks have nothing to compute.
    torch.manual_seed(0)
    whole = nn.Linear(8, 6, bias=False, dtype=torch.bfloat16)
    model = fully_shard(copy.deepcopy(whole), mesh=mesh)
    make = lambda m: LMO(m.parameters(), lr=0.1, geometry=InSinglePrecision())  # noqa: E731
    train(whole, make(whole), lambda p, g: g.bfloat16())
    train(model, make(model), lambda p, g: put(p, g.bfloat16()))
    found["fsdp, in single precision", "own"] = worst(model, whole), []
    return found


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def three_steps(model, optimizer):
    for seed in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
        optimizer.step()
    return model


def under_fsdp1(ranks):
    """By name: what is said of a model that FSDP1 has cut before or after its optimizer was made, or its deviation."""
    found = {}
    for name, make in FSDP1_MAKERS.items():
        for when in ("before", "after"):
            inner = small()
            early = make(inner) if when == "after" else None
            model = FullyShardedDataParallel(inner, ranks, use_orig_params=True, device_id=torch.device("cpu"))
            try:
                three_steps(model, early or make(model))
            except ValueError as error:
                found[name, when] = str(error)
                continue
            alone = small()
            three_steps(alone, make(alone))
            with FullyShardedDataParallel.summon_full_params(model):
                found[name, when] = worst(model, alone)
    return found


FSDP1_MAKERS = {
    "muon": lambda m: Muon.from_model(m, lr=0.1, method="svd"),
    "rows": lambda m: LMO(m.parameters(), lr=0.1, geometry="rows", momentum=0.0),
    "normsgd": lambda m: NormSGD(m.parameters(), lr=0.1),
    "lion": lambda m: Lion(m.parameters(), lr=0.1, weight_decay=0.1),
    "lion, decay by role": lambda m: Lion.from_model(m, lr=0.1, weight_decay=0.1),
}


def main(folder):
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=max(SIZES))
    for size in SIZES:
        ranks = dist.new_group(list(range(size)))
        mesh = DeviceMesh("cpu", list(range(size)))
        if rank < size:
            gathered = [None] * size
            found = every_way(ranks, mesh) | {"fsdp1": under_fsdp1(ranks)}
            dist.all_gather_object(gathered, found, group=ranks)
            if rank == 0:
                (folder / f"{size}.pickle").write_bytes(pickle.dumps(gathered))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
