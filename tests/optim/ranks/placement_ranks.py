"""Ranks of test_placements.py: gradients that are placed otherwise than their parameters, against one process."""

import os
import pickle
import sys
import warnings
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from autowarm import LMO, Lion, Muon, NormSGD, find_rate
from autowarm.geometry import Geometry, Spectral
from autowarm.optim.step import sharing
from autowarm.smoothness import Probe

SIZES = (2, 4)


class Lines(Geometry):
    """Somebody's own geometry of rows."""

    locality = "row"

    def _norm(self, x):
        return x.norm(dim=1).amax()

    def _dual(self, g):
        return g.norm(dim=1).sum()

    def _lmo(self, g):
        return -g / g.norm(dim=1, keepdim=True).clamp_min(1e-30)

    def _kappa(self, shape):
        return float(shape[0])


# One optimizer of each kind of step trains whole models.
TRAINED = ("muon", "lion", "rows")
MAKERS = {
    "muon": lambda named: Muon(split(named), lr=0.01, dtype=torch.float32),
    "lion": lambda named: Lion(named, lr=0.01, weight_decay=0.1),
    "normsgd": lambda named: NormSGD(named, lr=0.01),
    "rows": lambda named: LMO(named, lr=0.01, geometry="rows"),
    "columns": lambda named: LMO(named, lr=0.01, geometry="columns"),
    "own": lambda named: LMO(named, lr=0.01, geometry=Lines("original")),
    "svd": lambda named: LMO([(n, p) for n, p in named if p.ndim == 2], lr=0.01, geometry=Spectral()),
}


def split(named):
    """Matrices for Muon and vectors for its AdamW."""
    groups = [{"params": [(n, p) for n, p in named if p.ndim == 2]}]
    vectors = [(n, p) for n, p in named if p.ndim < 2]
    return [*groups, {"params": vectors, "algorithm": "adamw"}] if vectors else groups


def whole(x):
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach()


def apart(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((whole(p) - q.detach()).abs().max().item() for p, q in pairs)


# One parameter and one gradient, each in every placement. A sum of parts that differ by rank is the gradient.
PLACED = (Replicate(), Shard(0), Shard(1), Partial("sum"), Partial("avg"))
GRID = [
    (Replicate(), Replicate()),
    (Replicate(), Shard(0)),
    (Shard(0), Shard(1)),
    (Partial(), Shard(0)),
    (Partial(), Partial("avg")),
]


def gradient(g, mesh, placements):
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


def every_placement(mesh, kinds):
    """By optimizer and placements: the deviation from one process, and whether gradients stayed what they were."""
    found = {}
    for name, make in MAKERS.items():
        for i, of_p in enumerate(kinds):
            if any(placed.is_partial() for placed in of_p):
                continue
            cuts = sum(placed.is_shard() for placed in of_p)
            if cuts > 1 and name not in ("lion", "normsgd", "rows", "columns"):
                continue  # refused by name
            # Redistribution does not depend on the optimizer: every other pair is enough for all but one.
            for of_g in kinds if name == "lion" else kinds[i % 2 :: 2]:
                generator = torch.Generator().manual_seed(1)
                start = torch.randn(8, 4, generator=generator)
                p = nn.Parameter(distribute_tensor(start, mesh, of_p))
                q = nn.Parameter(start.clone())
                optimizer, reference = make([("p", p)]), make([("p", q)])
                untouched = True
                for _ in range(2):
                    q.grad = torch.randn(8, 4, generator=generator)
                    p.grad = given = gradient(q.grad, mesh, of_g)
                    before = given.to_local().clone()
                    optimizer.step()
                    reference.step()
                    untouched &= p.grad is given and given.placements == of_g and given.to_local().equal(before)
                found[name, str(of_p), str(of_g)] = (whole(p) - q.detach()).abs().max().item(), untouched
    return found


class Block(nn.Module):
    """A residual block as PyTorch's tutorial on tensor parallelism shards it."""

    def __init__(self, width=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).tanh())


def net():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.LayerNorm(8)).double()


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 8, 8, generator=generator, dtype=torch.float64) for _ in range(2)]


def gathers(mesh, kinds):
    """By optimizer and placements: how often a step of a sharded tensor gathers it."""
    found = {}
    for name in ("own", "rows", "columns", "lion", "svd"):
        for of_p in kinds:
            if any(placed.is_partial() for placed in of_p):
                continue
            p = nn.Parameter(distribute_tensor(torch.randn(8, 4), mesh, of_p))
            p.grad = distribute_tensor(torch.randn(8, 4), mesh, of_p)
            with mock.patch.object(sharing, "_all_to_all", wraps=sharing._all_to_all) as counted:
                MAKERS[name]([("p", p)]).step()
            found[name, str(of_p)] = counted.call_count
    return found


def tensor_parallel(mesh):
    model = net()
    plan = {}
    for i in (0, 1):
        plan[f"{i}.norm"] = SequenceParallel()
        plan[f"{i}.up"] = ColwiseParallel(input_layouts=Shard(1), use_local_output=False)
        plan[f"{i}.down"] = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    plan["2"] = SequenceParallel()
    return parallelize_module(model, mesh, plan), [Shard(1)]


def replicated(mesh):
    return distribute_module(net(), mesh), [Shard(0)]


def columns_and_rows(mesh):
    plan = {}
    for i in (0, 1):
        plan[f"{i}.up"] = ColwiseParallel(use_local_output=False)
        plan[f"{i}.down"] = RowwiseParallel(use_local_output=False)
    return distribute_module(parallelize_module(net(), mesh, plan), mesh), [Replicate()]


def alone(mesh):
    return net(), None


ALONE = ("alone", alone)
PLANS = {"sequence": tensor_parallel, "data": replicated, "columns and rows": columns_and_rows}


def closure_of(model, seed, mesh, placements):
    x, y = batch(seed)
    if placements is not None:
        x, y = (distribute_tensor(t, mesh, placements) for t in (x, y))

    def closure():
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    return closure


def trained(make_model, make, mesh, steps=2):
    model, placements = make_model(mesh)
    optimizer = make([*model.named_parameters()])
    for seed in range(steps):
        optimizer.zero_grad()
        closure_of(model, seed, mesh, placements)()
        optimizer.step()
    partial = any(placed.is_partial() for p in model.parameters() for placed in getattr(p.grad, "placements", ()))
    return model, partial


def probed(make_model, mesh):
    model, placements = make_model(mesh)
    optimizer = MAKERS["lion"]([*model.named_parameters()])
    probe = Probe(model, optimizer, geometry="spectral", process_group=mesh.get_group())
    for seed in range(2):
        with probe(closure_of(model, seed, mesh, placements)):
            optimizer.step()
        optimizer.zero_grad()
    return [(p.loss, p.loss_after, p.gradient_change, p.step_norm, p.slope, p.slope_after) for p in probe.points]


def searched(make_model, mesh):
    model, placements = make_model(mesh)
    optimizer = MAKERS["lion"]([*model.named_parameters()])
    seeds = iter(range(1000))

    def closure():
        return closure_of(model, next(seeds), mesh, placements)()

    found = find_rate(
        model, optimizer, closure, total_steps=1000, lowest=1e-4, highest=1e-1, steps=20, process_group=mesh.get_group()
    )
    return found.losses.tolist()


def refusal(step):
    try:
        step()
    except ValueError as error:
        return str(error)
    return ""


def refused(mesh, other):
    """What cannot be redistributed, by optimizer."""
    found = {}
    for name, make in MAKERS.items():
        p = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]))
        q = nn.Parameter(torch.ones(4, 4))
        optimizer = make([("p", p), ("q", q)])
        grads = {
            "plain": (torch.ones(4, 4), torch.ones(4, 4)),
            "not plain": (distribute_tensor(torch.ones(4, 4), mesh), distribute_tensor(torch.ones(4, 4), mesh)),
            "another mesh": (distribute_tensor(torch.ones(4, 4), other), torch.ones(4, 4)),
        }
        for what, (p.grad, q.grad) in grads.items():
            said = refusal(optimizer.step)
            found[name, what] = said, whole(p).equal(torch.ones(4, 4)) and q.equal(torch.ones(4, 4))
    return found


def main(folder):
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=max(SIZES))
    for size in SIZES:
        mesh, other = DeviceMesh("cpu", list(range(size))), DeviceMesh("cpu", [*range(size)][::-1])
        grid = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("data", "model")) if size == 4 else None
        if rank < size:
            if grid is None:
                found = {"placements": every_placement(mesh, [(placed,) for placed in PLACED])}
                found["gathers"] = gathers(mesh, [(placed,) for placed in PLACED])
                found["probe"] = {plan: probed(make_model, mesh) for plan, make_model in [*PLANS.items(), ALONE]}
                found["rate"] = {plan: searched(PLANS[plan], mesh) for plan in ("sequence",)}
                found["rate"]["alone"] = searched(alone, mesh)
                plans = PLANS
            else:
                found = {"placements": every_placement(grid, GRID)}
                plans = {"sequence": tensor_parallel}
            trainers = {name: MAKERS[name] for name in TRAINED}
            references = {name: trained(alone, make, mesh)[0] for name, make in trainers.items()}
            ours = found["plans"] = {}
            for plan, make_model in plans.items():
                for name, make in trainers.items():
                    model, partial = trained(make_model, make, mesh)
                    ours[plan, name] = apart(model, references[name]), partial
            found["refused"] = refused(mesh, other)
            gathered = [None] * size
            dist.all_gather_object(gathered, found, group=mesh.get_group())
            if rank == 0:
                (folder / f"{size}.pickle").write_bytes(pickle.dumps(gathered))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
