"""Gradients of DTensors that are placed otherwise than their parameters: the step, the probe and the rate search."""

import os
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from autowarm import LMO, Lion, Muon, NormSGD, find_rate
from autowarm.geometry import Spectral
from autowarm.optim.ranks import sharing
from autowarm.smoothness import Probe
from tests.geometry.own import Lines
from tests.optim.ranks.checks import TOLERANCE, Cases, apart, error_of, local_part, on_ranks, whole

Named = list[tuple[str, Any]]


class Table:
    """What is elsewhere on each rank."""

    def __repr__(self) -> str:
        return f"<Table at 0x{os.getpid():x}>"


class Tabled(Lines):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.__dict__["table"] = Table()


MAKERS: dict[str, Callable[[Named], LMO]] = {
    "muon": lambda named: Muon(split(named), lr=0.01, dtype=torch.float32),
    "lion": lambda named: Lion(named, lr=0.01, weight_decay=0.1),
    "normsgd": lambda named: NormSGD(named, lr=0.01),
    "rows": lambda named: LMO(named, lr=0.01, geometry="rows"),
    "columns": lambda named: LMO(named, lr=0.01, geometry="columns"),
    "own": lambda named: LMO(named, lr=0.01, geometry=Tabled("original")),
    "svd": lambda named: LMO([(n, p) for n, p in named if p.ndim == 2], lr=0.01, geometry=Spectral()),
}


def split(named: Named) -> list[dict[str, Any]]:
    """Matrices for Muon and vectors for its AdamW."""
    vectors = [(n, p) for n, p in named if p.ndim < 2]
    adamw = [{"params": vectors, "algorithm": "adamw"}] if vectors else []
    return [{"params": [(n, p) for n, p in named if p.ndim == 2]}, *adamw]


# One parameter and one gradient, each in every placement. A sum of parts that differ by rank is the gradient.
PLACED = [(Replicate(),), (Shard(0),), (Shard(1),), (Partial("sum"),), (Partial("avg"),)]
GRID = [
    (Replicate(), Replicate()),
    (Replicate(), Shard(0)),
    (Shard(0), Shard(1)),
    (Partial(), Shard(0)),
    (Partial(), Partial("avg")),
]


def gradient(g: Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> DTensor:
    """The same gradient in any placements, as parts whose sum or mean it is where they are partial."""
    whole_parts = [Replicate() if placed.is_partial() else placed for placed in placements]
    local = distribute_tensor(g, mesh, whole_parts).to_local()
    # What the ranks' parts have beyond the gradient, which cancels in their sum.
    noise = distribute_tensor(torch.randn(g.shape, generator=torch.Generator().manual_seed(2)), mesh, whole_parts)
    for axis, placed in enumerate(placements):
        if placed.is_partial():
            count, rank = mesh.size(axis), mesh.get_coordinate()[axis]
            parts = count if placed.reduce_op == "sum" else 1
            local = local / parts + noise.to_local() * (rank - (count - 1) / 2)
    return DTensor.from_local(local, mesh, placements, run_check=False)


@on_ranks(2, 4)
def any_placement_of_a_gradient_steps_as_one_process_and_stays_as_it_was(mesh: DeviceMesh) -> Cases:
    kinds = PLACED
    if mesh.size() == 4:
        mesh, kinds = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("data", "model")), GRID
    for name, make in MAKERS.items():
        for i, of_p in enumerate(kinds):
            if any(placed.is_partial() for placed in of_p):
                continue
            if sum(placed.is_shard() for placed in of_p) > 1 and name not in ("lion", "normsgd", "rows", "columns"):
                continue  # refused by name
            # Redistribution does not depend on the optimizer: every other pair is enough for all but one.
            for of_g in kinds if name == "lion" else kinds[i % 2 :: 2]:
                generator = torch.Generator().manual_seed(1)
                start = torch.randn(8, 4, generator=generator)
                p, q = nn.Parameter(distribute_tensor(start, mesh, of_p)), nn.Parameter(start.clone())
                optimizer, reference = make([("p", p)]), make([("p", q)])
                untouched = True
                for _ in range(2):
                    q.grad = torch.randn(8, 4, generator=generator)
                    p.grad = given = gradient(q.grad, mesh, of_g)
                    before = given.to_local().clone()
                    optimizer.step()
                    reference.step()
                    untouched &= p.grad is given and given.placements == of_g and given.to_local().equal(before)
                off = (whole(p) - q.detach()).abs().max().item()
                yield (name, of_p, of_g, off), off <= TOLERANCE and untouched


@on_ranks(2)
def only_what_an_oracle_depends_on_travels(mesh: DeviceMesh) -> Cases:
    """Ranks share out the work on copies, too, if an oracle takes long."""
    for name in ("own", "rows", "columns", "lion", "svd"):
        for of_p in PLACED[:3]:
            p = nn.Parameter(distribute_tensor(torch.randn(8, 4), mesh, of_p))
            p.grad = distribute_tensor(torch.randn(8, 4), mesh, of_p)
            with mock.patch.object(sharing, "_all_to_all", wraps=sharing._all_to_all) as sent:
                MAKERS[name]([("p", p)]).step()
            yield (name, of_p), bool(sent.call_count) == (name == "svd" or (name, of_p) == ("own", (Shard(1),)))


class Block(nn.Module):
    """A residual block as PyTorch's tutorial on tensor parallelism shards it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).tanh())


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.LayerNorm(8)).double()


def planned(mesh: DeviceMesh, last: dict[str, Any], columns: dict[str, Any], rows: dict[str, Any]) -> nn.Module:
    plan = dict(last)
    for i in (0, 1):
        plan[f"{i}.up"] = ColwiseParallel(use_local_output=False, **columns)
        plan[f"{i}.down"] = RowwiseParallel(use_local_output=False, **rows)
    return parallelize_module(net(), mesh, plan)


def in_sequence(mesh: DeviceMesh) -> nn.Module:
    norms = {name: SequenceParallel() for name in ("0.norm", "1.norm", "2")}
    return planned(mesh, norms, {"input_layouts": Shard(1)}, {"output_layouts": Shard(1)})


# How a model is parallelised, and how its batches lie.
PLANS: dict[str, tuple[Callable[[DeviceMesh], nn.Module], Any]] = {
    "sequence": (in_sequence, Shard(1)),
    "data": (lambda mesh: distribute_module(net(), mesh), Shard(0)),
    "columns and rows": (lambda mesh: distribute_module(planned(mesh, {}, {}, {}), mesh), Replicate()),
    "alone": (lambda mesh: net(), None),
    # Each rank has rows of its own, and ranks are found by the default.
    "ddp": (lambda mesh: DistributedDataParallel(net()), "own"),
    "ddp, views": (lambda mesh: DistributedDataParallel(net(), gradient_as_bucket_view=True), "own"),
    "fsdp": (lambda mesh: fully_shard(net()), "own"),
}


def closure_of(model: nn.Module, seed: int, mesh: DeviceMesh, placed: Any) -> Callable[[], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(4, 8, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    if placed == "own":
        x, y = (t.chunk(mesh.size())[mesh.get_local_rank()] for t in (x, y))
    elif placed is not None:
        x, y = (distribute_tensor(t, mesh, [placed]) for t in (x, y))

    def closure() -> Tensor:
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    return closure


def trained(plan: str, name: str, mesh: DeviceMesh) -> nn.Module:
    make, placed = PLANS[plan]
    model = make(mesh)
    optimizer = MAKERS[name]([*model.named_parameters()])
    for seed in range(2):
        optimizer.zero_grad()
        closure_of(model, seed, mesh, placed)()
        optimizer.step()
    return model


@on_ranks(2, 4)
def a_parallelised_model_trains_as_one_process(mesh: DeviceMesh) -> Cases:
    """Under one optimizer of each kind of step."""
    for name in ("muon", "lion", "rows"):
        single = trained("alone", name, mesh)
        for plan in ("sequence", "data", "columns and rows") if mesh.size() == 2 else ("sequence",):
            model = trained(plan, name, mesh)
            partial = any(at.is_partial() for p in model.parameters() for at in getattr(p.grad, "placements", ()))
            yield (plan, name), apart(model, single) <= TOLERANCE
            yield (plan, name), partial is (plan != "columns and rows")  # whose inputs are the same on all ranks


def trained_and_probed(plan: str, mesh: DeviceMesh) -> tuple[nn.Module, list[Any]]:
    make, placed = PLANS[plan]
    model = make(mesh)
    optimizer = MAKERS["lion"]([*model.named_parameters()])
    probe = Probe(model, optimizer, geometry="spectral", process_group=None if placed == "own" else mesh.get_group())
    for seed in range(2):
        with probe(closure_of(model, seed, mesh, placed)):
            optimizer.step()
        optimizer.zero_grad()
    return model, [x for p in probe.points for x in (p.loss, p.loss_after, p.gradient_change, p.step_norm, p.slope,
                                                     p.slope_after)]  # fmt: skip


def probed(plan: str, mesh: DeviceMesh) -> list[Any]:
    return trained_and_probed(plan, mesh)[1]


def searched(plan: str, mesh: DeviceMesh) -> list[float]:
    make, placed = PLANS[plan]
    model = make(mesh)
    optimizer, seeds = MAKERS["lion"]([*model.named_parameters()]), iter(range(1000))
    how: Any = {"total_steps": 1000, "lowest": 1e-4, "highest": 1e-1, "steps": 20, "process_group": mesh.get_group()}
    return find_rate(model, optimizer, lambda: closure_of(model, next(seeds), mesh, placed)(), **how).losses.tolist()


@on_ranks(2)
def what_is_measured_is_what_one_process_measures(mesh: DeviceMesh) -> Cases:
    for measure, plans in ((probed, ("sequence", "data", "columns and rows")), (searched, ("sequence",))):
        alone = measure("alone", mesh)
        for plan in plans:
            measured = measure(plan, mesh)
            yield (measure.__name__, plan), len(alone) > 0 and measured == pytest.approx(alone, rel=1e-6)


@on_ranks(4)
def a_probe_measures_what_one_process_does_and_changes_no_bit(mesh: DeviceMesh) -> Cases:
    alone = probed("alone", mesh)
    for plan in ("ddp", "ddp, views", "fsdp"):
        model, measured = trained_and_probed(plan, mesh)
        pairs = zip(model.parameters(), trained(plan, "lion", mesh).parameters(), strict=True)
        yield (plan, measured, alone), measured == pytest.approx(alone, rel=1e-6)
        yield (plan, "weights"), all(torch.equal(local_part(p), local_part(q)) for p, q in pairs)


@on_ranks(4)
def a_gradient_on_other_ranks_than_its_parameter_is_refused_by_name(mesh: DeviceMesh) -> Cases:
    other = DeviceMesh("cpu", [3, 2, 1, 0])
    ones = torch.ones(4, 4)
    for name, make in MAKERS.items():
        p, q = nn.Parameter(distribute_tensor(ones, mesh, [Replicate()])), nn.Parameter(ones.clone())
        optimizer = make([("p", p), ("q", q)])
        grads = {
            "plain": (ones, ones),
            "not plain": (distribute_tensor(ones, mesh), distribute_tensor(ones, mesh)),
            "another mesh": (distribute_tensor(ones, other), ones),
        }
        for what, (p.grad, q.grad) in grads.items():
            error = error_of(optimizer.step)
            yield (name, what, error), "needs a gradient on the mesh of its parameter" in error and "(4, 4)" in error
            yield (name, what, "moved"), whole(p).equal(ones) and q.equal(ones)
