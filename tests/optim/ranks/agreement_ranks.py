"""Ranks of test_agreement.py: whose gradients are not those of the others."""

import math
import os
import pickle
import sys
import warnings
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.optim import Together
from autowarm.optim.step import agreement, nonfinite, outliers

SIZES = (2, 4)
WHERE = ("host", "device")
UNEVEN = ((3, 4), (1, 0))


def net(width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(6, width), nn.Linear(width, 8), nn.Linear(8, 5), nn.Linear(5, 8))


# Of tensors that every rank holds, and of shards.
COPIES = {
    "muon": lambda m, ranks: Muon.from_model(m, lr=0.1, dtype=torch.float32, process_group=ranks),
    "spectral": lambda m, ranks: LMO([m[1].weight, m[2].weight, m[3].weight], lr=0.1, process_group=ranks),
    "sign": lambda m, ranks: LMO(m.named_parameters(), lr=0.1, geometry="sign", process_group=ranks),
    "rows": lambda m, ranks: LMO(m.parameters(), lr=0.1, geometry="rows", process_group=ranks),
}
# The first of several optimizers must not step before all ranks know that the second can.
COPIES["together"] = lambda m, ranks: Together(torch.optim.SGD(m[0].parameters(), lr=0.1), COPIES["muon"](m[1:], ranks))
SHARDS = {
    "muon": lambda m: Muon.from_model(m, lr=0.1, dtype=torch.float32),
    "lion": lambda m: Lion(m.named_parameters(), lr=0.1),
    "signsgd": lambda m: SignSGD(m.parameters(), lr=0.1),
    "normsgd": lambda m: NormSGD(m.parameters(), lr=0.1),
    "rows": lambda m: LMO(m.parameters(), lr=0.1, geometry="rows"),
}
TENSORS = {"an embedding": 0, "a matrix": 3, "a vector": 4}


def no_gradient(p):
    p.grad = None


def another_dtype(p):
    p.grad_dtype = None
    p.grad = p.grad.to(torch.bfloat16)


def sparse(p):
    p.grad = p.grad.to_sparse()


def not_finite(p):
    local = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
    if local.numel():
        local.view(-1)[-1] = math.nan


DIFFERENCES = {"missing": no_gradient, "sparse": sparse}
if hasattr(torch.Tensor, "grad_dtype"):  # before, PyTorch refused other dtypes itself
    DIFFERENCES["dtype"] = another_dtype


def put_gradients(model, seed, put=lambda p, g: g):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = put(p, torch.randn(p.shape, generator=generator))


def weights(model):
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in model.parameters()]


def error_of(step):
    try:
        step()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def differing(model, optimizer, spoil, before, put=lambda p, g: g):
    """The errors of a step that differs, and of the next, after `before` that do not; and whether weights moved."""
    for seed in range(before):
        put_gradients(model, seed, put)
        optimizer.step()
    # Without messages: those of ranks that failed alike would be sent all the same.
    held = [(p.to_local() if hasattr(p, "to_local") else p).detach().clone() for p in model.parameters()]
    put_gradients(model, 7, put)
    spoil()
    errors = [error_of(optimizer.step)]
    for p in model.parameters():
        if p.grad is not None and p.grad.is_sparse:
            p.grad = None
    now = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    same = all(torch.equal(a, b) for a, b in zip(held, now, strict=True))
    put_gradients(model, 8, put)
    errors.append(error_of(optimizer.step))
    return errors, same


@contextmanager
def on(where):
    """On a device nothing is read at once; a processor stands in for one."""
    if where == "host":
        yield
        return
    with ExitStack() as stack:
        for module in (nonfinite, agreement, outliers):
            stack.enter_context(mock.patch.object(module, "read_on_host", return_value=False))
        yield


def alone(make, tensor):
    model = net()
    optimizer = make(model, None)
    for seed in range(3):
        put_gradients(model, seed)
        if seed == 1:
            not_finite([*model.parameters()][tensor])
        optimizer.step()
    return weights(model), optimizer.skipped_updates


def skipping(make, ranks, where, place, spoils):
    """The gap to one process if a gradient of one rank is not finite, and whether it was counted once."""
    with on(where):
        model = net()
        optimizer = make(model, ranks)
        for seed in range(3):
            put_gradients(model, seed)
            if seed == 1 and spoils:
                not_finite([*model.parameters()][place])
            optimizer.step()
        skipped = optimizer.skipped_updates
    expected, skips = alone(make, place)
    gap = max((a - b).abs().max().item() for a, b in zip(weights(model), expected, strict=True))
    return gap, skipped == skips == 1


def copies(ranks):
    rank, last = dist.get_rank(ranks), dist.get_world_size(ranks) - 1
    found = {}
    held = {"spectral": ["a matrix"], "together": ["a matrix", "a vector"]}
    for where in WHERE:
        for name, make in COPIES.items():
            for tensor, place in TENSORS.items():
                if tensor not in held.get(name, TENSORS):
                    continue
                if name != "together":
                    found["not finite", where, name, tensor] = skipping(make, ranks, where, place, rank == last)
                for what, spoil in DIFFERENCES.items():
                    for before in (0, 1):
                        # The rank that differs sends no matrices, and these ranks would wait for them.
                        if where == "device" and before and name in ("muon", "spectral", "together"):
                            continue
                        model = net()
                        optimizer = make(model, ranks)
                        p = [*model.parameters()][place]
                        with on(where):
                            result = differing(model, optimizer, lambda: spoil(p) if rank == last else None, before)  # noqa: B023
                        found[what, where, name, tensor, before] = result
    others = {"shape": lambda: net(9), "dtype": lambda: net().bfloat16(), "count": lambda: net()[:3]}
    for where in WHERE:
        for what, other in others.items():
            model = other() if rank == last else net()
            optimizer = COPIES["muon"](model, ranks)
            put_gradients(model, 0, lambda p, g: g.to(p.dtype))
            with on(where):
                found["model", where, what] = error_of(optimizer.step)
    return found


def shards(mesh):
    last = mesh.size() - 1
    rank = dist.get_rank()
    found = {}
    for name, make in SHARDS.items():
        for tensor, place in TENSORS.items():
            model = fully_shard(net(), mesh=mesh)
            optimizer = make(model)
            p = [*model.parameters()][place]
            spoil = lambda p=p: no_gradient(p) if rank == last else None  # noqa: E731
            result = differing(model, optimizer, spoil, 1, lambda p, g: distribute_tensor(g, mesh, p.placements))
            found["missing", name, tensor] = result
    return found


CHAINS = {"nested": ([0, 1], [0, 1, 2, 3]), "chain": ([0, 1], [1, 2], [2, 3]), "grid": ([0, 1], [2, 3], [0, 2], [1, 3])}


def of_groups(groups):
    """A tensor for each group that this rank is in, which its ranks hold."""
    meshes = [DeviceMesh("cpu", group) for group in groups]
    return [
        (f"{i}", nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])))
        for i, (mesh, group) in enumerate(zip(meshes, groups, strict=True))
        if dist.get_rank() in group
    ]


def outcome(optimizer, params):
    return optimizer.skipped_updates, [p.to_local().detach().clone() for _, p in params]


def overlapping(groups, spoilt, where):
    """Steps of tensors of which each group of ranks has one; the second gradient of one rank is not finite."""
    params = of_groups(groups)
    with on(where):
        optimizer = Muon(params, lr=0.1, dtype=torch.float32)
        for seed in range(3):
            for _, p in params:
                p.grad = distribute_tensor(torch.ones(4, 4) + seed * torch.eye(4), p.device_mesh, [Replicate()])
            if seed == 1 and dist.get_rank() == spoilt:
                not_finite(params[0][1])
            optimizer.step()
        return outcome(optimizer, params)


def outlier(groups, where):
    """The same steps, where the gradient of rank 3 is far larger than those before, once."""
    params = of_groups(groups)
    with on(where):
        optimizer = Lion(params, lr=0.1, skip_outliers=6.0)
        for seed in range(72):
            size = 100.0 if seed == 70 and dist.get_rank() == 3 else 1.0
            for _, p in params:
                g = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)) * size
                p.grad = distribute_tensor(g, p.device_mesh, [Replicate()], src_data_rank=None)
            optimizer.step()
        return outcome(optimizer, params)


def uneven(steps):
    """What a rank is told that makes more steps than the other."""
    two = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    rank = dist.get_rank()
    if rank > 1:
        return None
    model = net()
    optimizer = COPIES["muon"](model, two)

    def run():
        for t in range(steps[rank]):
            put_gradients(model, t)
            optimizer.step()

    return error_of(run)


def main(folder):
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=max(SIZES))
    for size in SIZES:
        ranks = dist.new_group(list(range(size)))
        meshes = {"fsdp": DeviceMesh("cpu", list(range(size)))}
        if size == 4:
            meshes["hsdp"] = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("copies", "shards"))
        if rank < size:
            found = {"copies": copies(ranks)} | {how: shards(mesh) for how, mesh in meshes.items()}
            gathered = [None] * size
            dist.all_gather_object(gathered, found, group=ranks)
            if rank == 0:
                (folder / f"{size}.pickle").write_bytes(pickle.dumps(gathered))
    found = {
        (name, spoilt, where): overlapping(groups, spoilt, where)
        for name, groups in CHAINS.items()
        for spoilt in range(4)
        for where in WHERE
    }
    found |= {(name, "outlier", where): outlier(groups, where) for name, groups in CHAINS.items() for where in WHERE}
    for steps in UNEVEN:
        dist.barrier()
        found[steps] = uneven(steps)
    dist.barrier()
    (folder / f"uneven-{rank}.pickle").write_bytes(pickle.dumps(found))
    dist.barrier()
    os._exit(0)  # a group that has timed out is not to be waited for


if __name__ == "__main__":
    main(Path(sys.argv[1]))
