"""Ranks whose gradients are not those of the others: all of them skip the same updates, or all raise an error."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor

from autowarm import LMO, Lion, Muon
from autowarm.optim import Together
from autowarm.optim.ranks import agreement
from autowarm.optim.step import nonfinite, outliers
from tests.optim.ranks.checks import Cases, drawn, error_of, local_part, on_ranks

WHERE = ("host", "device")


@contextmanager
def on(where: str) -> Iterator[None]:
    """On a device nothing is read at once; a processor stands in for one."""
    with ExitStack() as stack:
        for module in (nonfinite, agreement, outliers) if where == "device" else ():
            stack.enter_context(mock.patch.object(module, "read_on_host", return_value=False))
        yield


def net(width: int = 8) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(6, width), nn.Linear(width, 8), nn.Linear(8, 5), nn.Linear(5, 8))


# Of tensors that every rank holds, and of shards.
COPIES: dict[str, Callable[..., Any]] = {
    "muon": lambda m, ranks: Muon.from_model(m, lr=0.1, dtype=torch.float32, process_group=ranks),
    "spectral": lambda m, ranks: LMO([m[1].weight, m[2].weight, m[3].weight], lr=0.1, process_group=ranks),
    "sign": lambda m, ranks: LMO(m.named_parameters(), lr=0.1, geometry="sign", process_group=ranks),
    "rows": lambda m, ranks: LMO(m.parameters(), lr=0.1, geometry="rows", process_group=ranks),
    # The first of several optimizers must not step before all ranks know that the second can.
    "together": lambda m, ranks: Together(torch.optim.SGD(m[0].parameters(), lr=0.1), COPIES["muon"](m[1:], ranks)),
}
SHARDS: dict[str, Callable[[Any], Any]] = {
    "muon": lambda m: Muon.from_model(m, lr=0.1, dtype=torch.float32),
    "lion": lambda m: Lion(m.named_parameters(), lr=0.1),
}
# The tensors whose gradients differ, by place; not all optimizers have them all.
TENSORS = {0: "0.weight", 3: "2.weight", 4: "2.bias"}
PLACES = dict.fromkeys(COPIES, (0, 3, 4)) | {"spectral": (3,), "together": (3, 4)}
CASES = [(name, where, place) for where in WHERE for name in COPIES for place in PLACES[name]]


def no_gradient(p: Any) -> None:
    p.grad = None


def sparse(p: Any) -> None:
    p.grad = p.grad.to_sparse()


def not_finite(p: Any) -> None:
    if (local := local_part(p.grad)).numel():
        local.view(-1)[-1] = math.nan


# What one rank's gradient is, and what that rank says of it.
DIFFERENCES = {"missing": (no_gradient, "this rank lacks that of {}"), "sparse": (sparse, "")}


def give(model: nn.Module, seed: int, put: Callable[[Any, Tensor], Tensor] = lambda p, g: g) -> None:
    for p, g in zip(model.parameters(), drawn(model, seed), strict=True):
        p.grad = put(p, g)


def last_of(ranks: Any) -> bool:
    return dist.get_rank(ranks) == dist.get_world_size(ranks) - 1


def differing(
    model: Any, optimizer: Any, spoil: Callable[[], None], before: int, put: Callable = lambda p, g: g
) -> tuple[list[str], bool]:
    """The errors of a step that differs, and of the next, after some that do not; and whether no weight moved."""
    for seed in range(before):
        give(model, seed, put)
        optimizer.step()
    # Without messages: those of ranks that failed alike would be sent all the same.
    was = [local_part(p).clone() for p in model.parameters()]
    give(model, 7, put)
    spoil()
    errors = [error_of(optimizer.step)]
    for p in model.parameters():
        if p.grad is not None and p.grad.is_sparse:
            p.grad = None
    same = all(torch.equal(a, local_part(p)) for a, p in zip(was, model.parameters(), strict=True))
    give(model, 8, put)
    return [*errors, error_of(optimizer.step)], same


@on_ranks(2, 4)
def other_gradients_on_one_rank_are_an_error_on_every_rank_and_nothing_moves(mesh: DeviceMesh) -> Cases:
    ranks = mesh.get_group()
    for name, where, place in CASES:
        for what, (spoil, says) in DIFFERENCES.items():
            for before in (0, 1):
                # The rank that differs sends no matrices, and these ranks would wait for them.
                if where == "device" and before and name in ("muon", "spectral", "together"):
                    continue
                model = net()
                optimizer = COPIES[name](model, ranks)
                p = [*model.parameters()][place]
                with on(where):
                    errors, same = differing(model, optimizer, lambda: spoil(p) if last_of(ranks) else None, before)  # noqa: B023
                case = what, name, where, place, before, errors
                # On a device a rank whose own gradients have not changed learns of it a step later.
                yield case, same and any(errors[: 1 if where == "host" else 2])
                if where == "host":  # ranks that agree again go on
                    yield case, not errors[1]
                if where == "host" and says and name in ("muon", "sign"):
                    expected = says.format(TENSORS[place])
                    yield case, (expected if last_of(ranks) else "another says what it lacks") in errors[0]


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "shape": lambda: net(9),
    "dtype": lambda: net().bfloat16(),
    "count": lambda: net()[:3],
}


@on_ranks(2, 4)
def other_models_options_or_groups_are_an_error_on_every_rank(mesh: DeviceMesh) -> Cases:
    ranks = mesh.get_group()
    options = {"weight_decay": 0.3, "radius": 1.0, "skip_outliers": 6.0}
    for where, what in product(WHERE, (*OTHERS, *options)):
        model = OTHERS.get(what, net)() if last_of(ranks) else net()
        other = {what: options[what]} if what in options and last_of(ranks) else {}
        optimizer = Muon.from_model(model, lr=0.1, dtype=torch.float32, process_group=ranks, **other)
        give(model, 0, lambda p, g: g.to(p.dtype))
        with on(where):
            error = error_of(optimizer.step)
        yield (what, where, error), "ranks have different tensors or options" in error
    for scale in (1.0, 1.01):
        model = net()
        optimizer = COPIES["muon"](model, ranks)
        give(model, 0, lambda p, g: g * scale if last_of(ranks) else g)  # noqa: B023
        error = error_of(optimizer.step)
        yield ("sizes", scale, error), ("gradients of different sizes" in error) == (scale > 1)
    for on_all in (False, True):
        model, more = net(), nn.Parameter(torch.ones(4, 4))
        optimizer = COPIES["muon"](model, ranks)
        for seed in range(2):
            give(model, seed)
            if seed and (on_all or last_of(ranks)):
                more.grad = torch.ones(4, 4)
                optimizer.add_param_group({"params": [more]})
            error = error_of(optimizer.step)
        yield ("a group", on_all, error), ("ranks have different tensors" in error) != on_all


@on_ranks(2, 4)
def a_shard_without_a_gradient_is_an_error_on_every_rank(mesh: DeviceMesh) -> Cases:
    grid = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("copies", "shards")) if mesh.size() == 4 else mesh
    for (name, make), place in product(SHARDS.items(), TENSORS):
        model = fully_shard(net(), mesh=grid)
        p = [*model.parameters()][place]
        spoil = (lambda p=p: no_gradient(p)) if last_of(mesh.get_group()) else lambda: None
        errors, same = differing(model, make(model), spoil, 1, lambda p, g: distribute_tensor(g, grid, p.placements))
        yield (name, place, errors), bool(errors[0]) and same and not errors[1]


NESTED, OVERLAPPING = ([0, 1], [0, 1, 2, 3]), ([0, 1], [1, 2], [2, 3])


def copies_on(groups: Sequence[list[int]]) -> list[nn.Parameter]:
    """A tensor for each group of ranks that this one is in."""
    meshes = [DeviceMesh("cpu", group) for group in groups]  # which all ranks make
    of_this_rank = [mesh for mesh, group in zip(meshes, groups, strict=True) if dist.get_rank() in group]
    return [nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])) for mesh in of_this_rank]


def draw_on(params: list[nn.Parameter], seed: int, scale: float = 1.0) -> None:
    g = scale * torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
    for p in params:
        p.grad = distribute_tensor(g, p.device_mesh, [Replicate()], src_data_rank=None)


@on_ranks(4)
def a_flag_reaches_all_ranks_of_nested_groups_and_others_are_refused(mesh: DeviceMesh) -> Cases:
    """Of NaN on one rank, and of an outlier on the last. Each group of ranks has a tensor."""
    rank = dist.get_rank()
    for where, spoilt in product(WHERE, (0, 3, "outlier")):
        params, outlier = copies_on(NESTED), spoilt == "outlier"
        optimizer = Lion(params, lr=0.1, skip_outliers=6.0) if outlier else Muon(params, lr=0.1, dtype=torch.float32)
        with on(where):
            for seed in range(72 if outlier else 3):
                draw_on(params, seed, 100 if outlier and (seed, rank) == (70, 3) else 1)
                if (seed, rank) == (1, spoilt):
                    not_finite(params[0])
                optimizer.step()
        # Every rank made the same updates, so all tensors, which were equal, still are.
        every: list[Any] = [None] * 4
        dist.all_gather_object(every, [local_part(p).tolist() for p in params])
        same = all(content == every[0][0] for one in every for content in one)
        yield (where, spoilt), optimizer.skipped_updates == 1 and same
    params = copies_on(OVERLAPPING)
    draw_on(params, 0)
    error = error_of(Muon(params, lr=0.1, dtype=torch.float32).step)
    yield error, "overlap without one holding the other" in error
