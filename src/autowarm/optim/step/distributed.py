"""`move_` where ranks hold parts of the tensors (FSDP2: DTensors) or copies of them (DDP), each oracle asked once.

- Sharded tensors whose oracle needs the whole: every tensor has an owner. One all-to-all brings each owner the shards
  of its tensors, it asks their oracles, a second all-to-all takes the results back to the shards.
- Copies: each owner asks the oracles of its tensors, one all-gather hands out the results.
- Signs need no exchange, Frobenius norms the sum of one number for each tensor.

Owners are chosen for equal work, the same on every rank. Shards travel in the dtype the oracle computes in, so results
are those of one process. All ranks must have gradients for the same tensors.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...geometry import Frobenius, Geometry, Sign, Spectral, frobenius_norms, unit
from ...orthogonalize import orthogonalize_each, working_dtype
from .move import Rate

__all__ = ["Layout", "by_device_and_axes", "by_layout", "local", "move_shared_", "needs_sharing"]

_PLAIN = (Tensor, torch.nn.Parameter)


def _is_dtensor(x: Tensor) -> bool:
    # Its module is imported by whoever made one. Asked of every tensor in every step, so the usual types go first.
    return type(x) not in _PLAIN and hasattr(x, "placements") and hasattr(x, "device_mesh")


def local(x: Tensor) -> Tensor:
    """What this rank holds of a tensor, sharing its memory."""
    return x.to_local() if _is_dtensor(x) else x  # type: ignore[attr-defined]


def needs_sharing(geometry: Geometry, xs: Sequence[Tensor], group: Any) -> bool:
    """Whether some tensor is a DTensor, or copies are to be shared out and their oracle is worth it."""
    return any(_is_dtensor(x) for x in xs) or (group is not None and isinstance(geometry, Spectral))


class Layout(NamedTuple):
    """How a tensor lies over the ranks, and so what it takes to ask its oracle.

    Attributes:
        kind: "alone" if this rank can do it by itself, "elementwise", "normed" or "gathered".
        axes: the groups of ranks that its shards lie over; empty for copies.
        ranks: of "gathered": the ranks that the oracles are shared out over.
        dim: of "gathered": the dimension that is cut over them, None for copies.
        dtype: its own.
    """

    kind: Literal["alone", "elementwise", "normed", "gathered"]
    axes: tuple[Any, ...]
    ranks: Any
    dim: int | None
    dtype: torch.dtype


def by_layout(geometry: Geometry, xs: Sequence[Tensor], group: Any) -> dict[Layout, list[int]]:
    """Places of the tensors by layout.

    Args:
        geometry: theirs.
        xs: tensors and DTensors.
        group: the ranks that hold copies of the tensors which are no DTensors; None if only this one.

    Raises:
        NotImplementedError: a tensor is sharded over several dimensions of its mesh and the oracle needs the whole.
    """
    found: dict[Layout, list[int]] = defaultdict(list)
    for i, x in enumerate(xs):
        if _is_dtensor(x):
            layout = _layout_of_dtensor(geometry, x)
        elif group is not None and isinstance(geometry, Spectral):
            layout = Layout("gathered", (), group, None, x.dtype)
        else:
            layout = Layout("alone", (), None, None, x.dtype)
        found[layout].append(i)
    return found


def by_device_and_axes(xs: Sequence[Tensor]) -> dict[tuple[torch.device, tuple[Any, ...]], list[int]]:
    """Places of the tensors by device and by the groups of ranks that their shards lie over."""
    found: dict[tuple[torch.device, tuple[Any, ...]], list[int]] = defaultdict(list)
    for i, x in enumerate(xs):
        axes = tuple(x.device_mesh.get_group(axis) for axis in _cut_axes(x)) if _is_dtensor(x) else ()  # type: ignore[attr-defined]
        found[x.device, axes].append(i)
    return found


def _cut_axes(x: Tensor) -> list[int]:
    """The dimensions of a DTensor's mesh that its shards lie along."""
    mesh, placements = x.device_mesh, x.placements  # type: ignore[attr-defined]
    return [axis for axis, placed in enumerate(placements) if not placed.is_replicate() and mesh.size(axis) > 1]


def _layout_of_dtensor(geometry: Geometry, x: Tensor) -> Layout:
    mesh, placements = x.device_mesh, x.placements  # type: ignore[attr-defined]
    cut = _cut_axes(x)
    axes = tuple(mesh.get_group(axis) for axis in cut)
    if type(geometry) is Sign:
        return Layout("elementwise", axes, None, None, x.dtype)
    if cut and type(geometry) is Frobenius:
        return Layout("normed", axes, None, None, x.dtype)
    if len(cut) > 1:
        raise NotImplementedError(
            f"a tensor of shape {tuple(x.shape)} is sharded over {len(cut)} dimensions of its mesh ({placements}); "
            f"{type(geometry).__name__} needs it sharded over one at most"
        )
    if cut:
        dim = placements[cut[0]].dim
        holds_whole_matrices = isinstance(geometry, Spectral) and geometry.stacked and dim < x.ndim - 2
        if not holds_whole_matrices:
            return Layout("gathered", axes, axes[0], dim, x.dtype)
    elif isinstance(geometry, Spectral):
        axis = max(range(mesh.ndim), key=mesh.size)
        return Layout("gathered", (), mesh.get_group(axis), None, x.dtype)
    return Layout("alone", axes, None, None, x.dtype)


def move_shared_(
    geometry: Geometry,
    layout: Layout,
    shapes: Sequence[torch.Size],
    xs: Sequence[Tensor],
    directions: list[Tensor],
    rate: Rate,
) -> None:
    """Step tensors of one layout other than "alone", in place.

    Args:
        geometry: the norm of each tensor.
        layout: theirs.
        shapes: of the whole tensors.
        xs: this rank's part of each.
        directions: this rank's part of what each oracle is asked about.
        rate: of all.
    """
    if layout.kind == "gathered":
        updates, radii = _gather_orthogonalize_scatter(geometry, directions, shapes, layout.ranks, layout.dim)
    else:
        radii = [geometry.radius_of(shape) for shape in shapes]
        if layout.kind == "elementwise":
            updates = list(torch._foreach_sign(directions))
        else:
            updates = _normalised(directions, layout.axes)
    for i, (x, update, radius) in enumerate(zip(xs, updates, radii, strict=True)):
        rate[i : i + 1].step_([x], [update], -radius)


def _normalised(gs: Sequence[Tensor], axes: Sequence[Any]) -> list[Tensor]:
    """g/‖g‖ for the norm over all shards, which lie along these axes of the mesh."""
    squares = torch.stack(frobenius_norms(gs)).square_()
    for ranks in axes:
        dist.all_reduce(squares, group=ranks)
    return [unit(g, norm) for g, norm in zip(gs, squares.sqrt_(), strict=True)]


def _gather_orthogonalize_scatter(
    geometry: Geometry, gs: Sequence[Tensor], shapes: Sequence[torch.Size], ranks: Any, dim: int | None
) -> tuple[list[Tensor], list[float]]:
    """This rank's part of every oracle's answer, less its sign, and the factor it still needs."""
    world, me = dist.get_world_size(ranks), dist.get_rank(ranks)
    owners = share_out([_work(shape) for shape in shapes], world)
    owned_by = [[i for i, owner in enumerate(owners) if owner == rank] for rank in range(world)]
    mine = owned_by[me]
    iterative = isinstance(geometry, Spectral) and geometry.method != "svd"
    # The oracle would round its argument to this anyway; rounded before, half as much travels.
    dtype = (geometry.dtype or working_dtype(gs[0].device)) if isinstance(geometry, Spectral) and iterative else None
    gs = [g.to(dtype or g.dtype) for g in gs]
    shards = [[_shard(shape, dim, world, rank) for shape in shapes] for rank in range(world)]

    wholes = [gs[i] for i in mine]
    if dim is not None:
        by_owner = [[gs[i] for i in places] for places in owned_by]
        arrived = _all_to_all(by_owner, [[shards[rank][i] for i in mine] for rank in range(world)], ranks)
        wholes = [torch.cat(pieces, dim) for pieces in zip(*arrived, strict=True)]

    if isinstance(geometry, Spectral) and iterative:
        matrices = [geometry.matrices(g) for g in wholes]
        factors = orthogonalize_each(matrices, method=geometry.method, steps=geometry.steps, dtype=geometry.dtype)
        answers = [geometry.tensor(factor, g.shape) for factor, g in zip(factors, wholes, strict=True)]
        radii = [geometry.radius_of(shape) for shape in shapes]
    else:
        answers, radii = geometry.lmo_each(wholes), [-1.0] * len(shapes)

    # A rank's answers go out cut as each of the others holds the tensors; of copies everyone gets everything.
    outgoing: list[list[Tensor]] = [[] for _ in range(world)]
    for i, answer in zip(mine, answers, strict=True):
        pieces = [answer] * world if dim is None else answer.split([of_rank[i][dim] for of_rank in shards], dim)
        for rank, piece in enumerate(pieces):
            outgoing[rank].append(piece)
    exchange: Callable[..., list[list[Tensor]]] = _all_to_all if dim is not None else _all_gather
    returned = exchange(outgoing, [[shards[me][i] for i in places] for places in owned_by], ranks, like=gs[0])
    updates = dict(zip((i for places in owned_by for i in places), (t for ts in returned for t in ts), strict=True))
    return [updates[i] for i in range(len(shapes))], radii


def share_out(work: Sequence[float], ranks: int) -> list[int]:
    """An owner for each piece of work, for loads as equal as giving the largest first to the least busy makes them.

    Example:
        >>> from autowarm.optim.step.distributed import share_out
        >>> share_out([1.0, 4.0, 2.0, 2.0], 2)
        [0, 0, 1, 1]
    """
    loads, owners = [0.0] * ranks, [0] * len(work)
    for i in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] += work[i]
    return owners


def _work(shape: torch.Size) -> float:
    rows, columns = shape[-2:] if len(shape) > 1 else (shape.numel(), 1)
    return float(shape.numel() * min(rows, columns))


def _shard(shape: torch.Size, dim: int | None, world: int, rank: int) -> torch.Size:
    """The shape of a rank's shard: as `torch.chunk` cuts, with the last ones shorter or empty."""
    if dim is None:
        return shape
    size = -(-shape[dim] // world)
    held = max(0, min(size, shape[dim] - rank * size))
    return torch.Size([*shape[:dim], held, *shape[dim + 1 :]])


def _all_to_all(
    sent: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[torch.Size]], ranks: Any, like: Tensor | None = None
) -> list[list[Tensor]]:
    """Send ``sent[r]`` to rank r and return what each sent here, of ``shapes[r]``."""
    example = like if like is not None else next(t for ts in sent for t in ts)
    out = _flat([t for ts in sent for t in ts], example)
    came = out.new_empty(sum(shape.numel() for ss in shapes for shape in ss))
    dist.all_to_all_single(
        _bytes(came),
        _bytes(out),
        [sum(shape.numel() for shape in ss) * came.element_size() for ss in shapes],
        [sum(t.numel() for t in ts) * out.element_size() for ts in sent],
        group=ranks,
    )
    return _unflat(came, shapes)


def _all_gather(
    sent: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[torch.Size]], ranks: Any, like: Tensor
) -> list[list[Tensor]]:
    """Send ``sent[0]`` to everyone and return what each sent, of ``shapes[r]``."""
    sizes = [sum(shape.numel() for shape in ss) for ss in shapes]
    # Everyone's message has the length of the longest, as the collective wants.
    out = like.new_zeros(max(sizes))
    flat = _flat(sent[0], like)
    out[: flat.numel()] = flat
    came = out.new_empty(len(sizes) * out.numel())
    dist.all_gather_into_tensor(_bytes(came), _bytes(out), group=ranks)
    return _unflat(
        torch.cat([t[:size] for t, size in zip(came.split(max(1, out.numel())), sizes, strict=True)]), shapes
    )


def _flat(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors]) if tensors else like.new_empty(0)


def _unflat(flat: Tensor, shapes: Sequence[Sequence[torch.Size]]) -> list[list[Tensor]]:
    sizes = [shape.numel() for ss in shapes for shape in ss]
    starts = iter(accumulate(sizes, initial=0))
    return [[flat[(at := next(starts)) : at + shape.numel()].view(shape) for shape in ss] for ss in shapes]


def _bytes(x: Tensor) -> Tensor:
    # Not every backend knows every dtype, and bytes all of them.
    return x.view(torch.uint8)
