"""Gradients of DTensors that are placed otherwise than their parameters: the step and the probe."""

import math
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from autowarm import LMO, Lion, Muon, NormSGD
from autowarm.geometry import Spectral
from autowarm.optim.ranks import sharing
from autowarm.smoothness import Probe
from tests.geometry.own import Lines
from tests.optim.ranks.checks import TOLERANCE, Cases, error_of, local_part, on_ranks, whole
from tests.reference import lmo_step_

Named = list[tuple[str, Any]]


MAKERS: dict[str, Callable[[Named], LMO]] = {
    "muon": lambda named: Muon(split(named), lr=0.01, dtype=torch.float32),
    "lion": lambda named: Lion(named, lr=0.01, weight_decay=0.1),
    "normsgd": lambda named: NormSGD(named, lr=0.01),
    "rows": lambda named: LMO(named, lr=0.01, geometry="rows"),
    "columns": lambda named: LMO(named, lr=0.01, geometry="columns"),
    "own": lambda named: LMO(named, lr=0.01, geometry=Lines("original")),
    "svd": lambda named: LMO([(n, p) for n, p in named if p.ndim == 2], lr=0.01, geometry=Spectral()),
}


def split(named: Named) -> list[dict[str, Any]]:
    """Matrices for Muon and vectors for its AdamW."""
    vectors = [(n, p) for n, p in named if p.ndim < 2]
    adamw = [{"params": vectors, "algorithm": "adamw"}] if vectors else []
    return [{"params": [(n, p) for n, p in named if p.ndim == 2]}, *adamw]


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
    local = distribute_tensor(g, mesh, whole_parts).to_local().clone()
    # What the ranks' parts have beyond the gradient, which cancels in their sum.
    noise = distribute_tensor(torch.randn(g.shape, generator=torch.Generator().manual_seed(2)), mesh, whole_parts)
    for axis, placed in enumerate(placements):
        if placed.is_partial():
            count, rank = mesh.size(axis), mesh.get_coordinate()[axis]
            parts = count if placed.reduce_op == "sum" else 1
            local = local / parts + noise.to_local() * (rank - (count - 1) / 2)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=g.shape, stride=g.stride())


def random_case(number: int, mesh: DeviceMesh, grid: DeviceMesh | None) -> tuple[Any, bool]:
    """Three steps, whose second may have a NaN on one rank, against the plain code; gradients stay as they were."""
    pick = random.Random(number)
    name = list(MAKERS)[number % len(MAKERS)]
    where, kinds = (grid, GRID) if grid is not None and pick.random() < 0.6 else (mesh, PLACED)
    of_p, of_g = pick.choice([one for one in kinds if not any(at.is_partial() for at in one)]), pick.choice(kinds)
    spoils, drawing = pick.random() < 0.4, torch.Generator().manual_seed(number)
    shapes = [(pick.randint(1, 9), pick.randint(2, 9)) for _ in range(pick.randint(1, 4))]
    plain = [torch.randn(shape, generator=drawing) for shape in shapes]
    params = [nn.Parameter(distribute_tensor(x, where, of_p)) for x in plain]
    optimizer, states = MAKERS[name]([(str(i), p) for i, p in enumerate(params)]), [{} for _ in plain]
    right = True
    for step in range(3):
        gs = [torch.randn(shape, generator=drawing) for shape in shapes]
        given = [gradient(g, where, of_g) for g in gs]
        if spoilt := spoils and step == 1:
            for local in [g.to_local() for g in given] if dist.get_rank() == 1 else []:
                local[-1:] = math.nan
            # A rank's part may be empty, or a copy that is not finite left out.
            parts = [g.redistribute(where, of_p).to_local() for g in given]
            bad = torch.tensor(float(not all(part.isfinite().all() for part in parts)))
            dist.all_reduce(bad, dist.ReduceOp.MAX, group=mesh.get_group())
            spoilt = bool(bad)
        before = [g.to_local().clone() for g in given]
        for p, g in zip(params, given, strict=True):
            p.grad = g
        optimizer.step()
        for p, g, was in zip(params, given, before, strict=True):
            right &= p.grad is g and g.placements == of_g and g.to_local().nan_to_num().equal(was.nan_to_num())
        for x, g, state in zip(plain, gs, states, strict=True) if not spoilt else ():
            lmo_step_(optimizer.param_groups[0], x, g, state)
    off = max((whole(p) - x).abs().max().item() for p, x in zip(params, plain, strict=True))
    return (number, name, of_p, of_g, shapes, off), right and off <= TOLERANCE


@on_ranks(2, 4)
def steps_drawn_at_random_are_those_of_the_plain_code(mesh: DeviceMesh) -> Cases:
    """Optimizer × placements × shapes, some of them with fewer rows than ranks."""
    grid = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("data", "model")) if mesh.size() == 4 else None
    for number in range(42):
        yield random_case(number, mesh, grid)


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


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.LayerNorm(8), nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8), nn.LayerNorm(8)]
    return nn.Sequential(*layers).double()


# How a model is parallelised, and how its batches lie.
PLANS: dict[str, tuple[Callable[[DeviceMesh], nn.Module], Any]] = {
    "data": (lambda mesh: distribute_module(net(), mesh), Shard(0)),
    "alone": (lambda mesh: net(), None),
    # Each rank has rows of its own, and ranks are those of the default group.
    "ddp, views": (lambda mesh: DistributedDataParallel(net(), gradient_as_bucket_view=True), "by rank"),
    "fsdp": (lambda mesh: fully_shard(net()), "by rank"),
}


def closure_of(model: nn.Module, seed: int, mesh: DeviceMesh, placed: Any) -> Callable[[], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(4, 8, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    if placed == "by rank":
        x, y = (t.chunk(mesh.size())[mesh.get_local_rank()] for t in (x, y))
    elif placed is not None:
        x, y = (distribute_tensor(t, mesh, [placed]) for t in (x, y))

    def closure() -> Tensor:
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    return closure


def trained(plan: str, mesh: DeviceMesh, probed: bool = True) -> tuple[nn.Module, list[Any]]:
    make, placed = PLANS[plan]
    model = make(mesh)
    optimizer = MAKERS["lion"]([*model.named_parameters()])
    ranks = None if placed == "by rank" else mesh.get_group()
    probe = Probe(model, optimizer, geometry="spectral", process_group=ranks)
    for seed in range(2):
        closure = closure_of(model, seed, mesh, placed)
        with probe(closure) if probed else nullcontext(closure()):
            optimizer.step()
        optimizer.zero_grad()
    names = ("loss", "loss_after", "gradient_change", "step_norm", "slope", "slope_after")
    return model, [getattr(point, name) for point in probe.points for name in names]


@on_ranks(2, 4)
def a_probe_measures_what_one_process_does_and_changes_no_bit(mesh: DeviceMesh) -> Cases:
    alone = trained("alone", mesh)[1]
    for plan in ("data",) if mesh.size() == 2 else ("ddp, views", "fsdp"):
        model, measured = trained(plan, mesh)
        pairs = zip(model.parameters(), trained(plan, mesh, probed=False)[0].parameters(), strict=True)
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
