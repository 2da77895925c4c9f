"""Steps of 2 and of 4 ranks against those of one process, and how often an oracle is asked."""

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from autowarm import LMO, Lion, Muon, NormSGD
from autowarm.geometry import Frobenius, Spectral
from autowarm.optim.ranks import sharing
from autowarm.optim.step import plan
from tests.optim.ranks.checks import TOLERANCE, Cases, apart, drawn, error_of, on_ranks


class Net(nn.Module):
    """Wide, tall and square matrices with rows that 2 and 4 ranks share unevenly, a vector, and a stack of experts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.tall, self.square = nn.Linear(12, 5), nn.Linear(4, 13), nn.Linear(8, 8)
        self.narrow = nn.Linear(6, 3)  # fewer rows than 4 ranks
        self.experts = nn.Parameter(torch.randn(4, 6, 5))


Made = Callable[..., LMO]
MUON = {"lr": 0.1, "dtype": torch.float32}
MAKERS: dict[str, Made] = {
    "muon": lambda model, **o: Muon.from_model(model, **MUON, **o),
    "muon, newton-schulz": lambda model, **o: Muon.from_model(model, **MUON, method="newton-schulz", **o),
    "muon, blocks": lambda model, **o: Muon.from_model(model, **MUON, blocks={"square": 2}, **o),
    "lion": lambda model, **_: Lion(model.parameters(), lr=0.1, weight_decay=0.1),
    "normsgd": lambda model, **_: LMO(model.parameters(), lr=0.1, geometry=Frobenius(stacked=False)),
    "normsgd, stacked": lambda model, **_: NormSGD.from_model(model, lr=0.1),
    "rows": lambda model, **_: LMO(model.parameters(), lr=0.1, geometry="rows"),
    "columns": lambda model, **_: LMO(model.parameters(), lr=0.1, geometry="columns"),
    "svd": lambda model, **o: LMO(model.parameters(), lr=0.1, geometry=Spectral("match_rms_adamw", stacked=False), **o),
}
SUMMED = ["normsgd", "columns"]  # whose norms ranks add up
REPLICATED = [name for name in MAKERS if name.startswith(("muon", "svd"))]


def train(model: Any, optimizer: LMO, put: Callable[[Any, Tensor], Tensor], spoilt: bool = False) -> Any:
    """Three steps; in the second some gradients have a NaN, in the last rows only, which one rank of several holds."""
    for seed in range(3):
        for p, g in zip(model.parameters(), drawn(model, seed), strict=True):
            if spoilt and seed == 1 and id(p) in {id(model.wide.weight), id(model.experts), id(model.tall.bias)}:
                g[-1] = math.nan
            p.grad = put(p, g)
        optimizer.step()
    assert optimizer.skipped_updates == spoilt
    return model


@functools.cache
def alone(name: str, spoilt: bool = False) -> Net:
    model = Net()
    return train(model, MAKERS[name](model), lambda p, g: g, spoilt)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Notes how many matrices are orthogonalised for others, by stack."""
    asked, real = [], sharing.orthogonalize_

    def counting(stack: Tensor, *options: Any) -> Tensor:
        asked.append(len(stack))
        return real(stack, *options)

    with mock.patch.object(sharing, "orthogonalize_", counting):
        yield asked


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """As PyTorch's tutorial has it: tensor parallelism, then FSDP2, which takes a tensor's shards apart once more."""
    columns = {"tall": ColwiseParallel(), "square": ColwiseParallel()}
    parallelize_module(model, mesh["tensor"], {"wide": RowwiseParallel(), **columns})
    return fully_shard(model, mesh=mesh["data"])


def put(p: Any, g: Tensor) -> Tensor:
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


def stepped(how: str, mesh: DeviceMesh, name: str, spoilt: bool = False) -> tuple[bool, int]:
    """Whether steps are those of one process, and of how many matrices this rank asked the oracle."""
    model: nn.Module = Net()
    if how == "ddp":
        optimizer = MAKERS[name](model, process_group=mesh.get_group())
    else:
        model = SHARDINGS.get(how, lambda model, mesh: fully_shard(model, mesh=mesh))(model, mesh)
        optimizer = MAKERS[name](model)
    with counted() as asked:
        train(model, optimizer, put, spoilt)
    return apart(model, alone(name, spoilt)) <= TOLERANCE, sum(asked)


SHARDINGS = {"tensor_parallel": tensor_parallel}
# By way to hold a model, how often three steps of Muon ask an oracle, on all ranks together. FSDP's sharded experts are
# whole matrices on their ranks and do not travel. The ranks along one side of a grid share the work on its shards.
ASKED = {"ddp": 3 * 8, "fsdp": 3 * 4, "hsdp": 3 * 4, "tensor_parallel": 6 * 4}


def ways(mesh: DeviceMesh) -> dict[str, DeviceMesh]:
    meshes = {"ddp": mesh, "fsdp": mesh}
    if mesh.size() == 4:
        grid = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("data", "tensor"))
        meshes |= {"hsdp": grid, **dict.fromkeys(SHARDINGS, grid)}
    return meshes


@on_ranks(2, 4)
def steps_are_those_of_one_process_and_skip_the_same_updates(mesh: DeviceMesh) -> Cases:
    """Also in rounds of one tensor, where two would go in one."""
    for how, where in ways(mesh).items():
        names = REPLICATED if how == "ddp" else [*MAKERS]
        for name in names:
            yield (how, name), stepped(how, where, name)[0]
        for name in names if how in ("ddp", "fsdp") else ["muon"]:
            yield (how, name, "spoilt"), stepped(how, where, name, spoilt=True)[0]
        with mock.patch.object(sharing, "temporaries", return_value=0):
            yield (how, "in rounds"), stepped(how, where, "muon")[0]
    with mock.patch.dict(plan._PART_BYTES, cpu=200):  # a few tensors at a time
        for name in SUMMED:
            yield ("in parts", name), stepped("fsdp", mesh, name)[0]


@on_ranks(2, 4)
def no_oracle_is_asked_twice_and_every_rank_asks_some(mesh: DeviceMesh) -> Cases:
    for how, where in ways(mesh).items():
        counts = [0] * mesh.size()
        dist.all_gather_object(counts, stepped(how, where, "muon")[1], group=mesh.get_group())
        yield (how, counts), sum(counts) == ASKED[how]
        yield (how, counts), all(counts) or how in SHARDINGS


class InSinglePrecision(Frobenius):
    """Somebody's own oracle, which computes in single precision whatever the tensors are."""

    def _lmo(self, g: Tensor) -> Tensor:
        return -g.float() / g.float().norm()


@on_ranks(2, 4)
def an_oracle_may_compute_in_another_dtype_than_its_tensors(mesh: DeviceMesh) -> Cases:
    """Of a single tensor, so that the other ranks have nothing to compute."""
    torch.manual_seed(0)
    whole = nn.Linear(8, 6, bias=False, dtype=torch.bfloat16)
    model = fully_shard(copy.deepcopy(whole), mesh=mesh)
    for one, place in ((whole, lambda p, g: g), (model, put)):
        optimizer = LMO(one.parameters(), lr=0.1, geometry=InSinglePrecision())
        train(one, optimizer, lambda p, g, place=place: place(p, g.bfloat16()))
    yield "own", apart(model, whole) <= 2**-6  # rounding of bfloat16


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def three_steps(model: nn.Module, optimizer: LMO) -> None:
    for seed in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
        optimizer.step()


# And when its optimizer must be made if FSDP1 cuts a model.
FSDP1: Mapping[str, tuple[Made, tuple[str, ...]]] = {
    "muon": (lambda m: Muon.from_model(m, lr=0.1, method="svd"), ()),
    "rows": (lambda m: LMO(m.parameters(), lr=0.1, geometry="rows", momentum=0.0), ()),
    "lion": (lambda m: Lion(m.parameters(), lr=0.1, weight_decay=0.1), ("before", "after")),
    "lion, decay by role": (lambda m: Lion.from_model(m, lr=0.1, weight_decay=0.1), ("after",)),
}


@on_ranks(2, 4)
def what_fsdp1_has_cut_is_refused_unless_each_entry_steps_by_itself(mesh: DeviceMesh) -> Cases:
    for name, (make, right) in FSDP1.items():
        for when in ("before", "after"):
            inner = small()
            early = make(inner) if when == "after" else None
            ranks, how = mesh.get_group(), {"use_orig_params": True, "device_id": torch.device("cpu")}
            model = FullyShardedDataParallel(inner, ranks, **how)
            error = error_of(lambda: three_steps(model, early or make(model)))  # noqa: B023
            if when not in right:
                yield (name, when, error), "FSDP1" in error and "fully_shard" in error
                continue
            single = small()
            three_steps(single, make(single))
            with FullyShardedDataParallel.summon_full_params(model):
                yield (name, when, error), apart(model, single) <= TOLERANCE
