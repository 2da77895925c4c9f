"""How tensors lie over ranks: in parts (FSDP2: DTensors) or as copies (DDP), or both (HSDP).

Signs need no exchange, Frobenius norms the sum of one number for each tensor. What needs the whole of a tensor is in
`sharing`. All ranks must have gradients for the same tensors.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...geometry import Frobenius, Geometry, Sign, Spectral, frobenius_norms, unit
from .move import Rate, parts_of

__all__ = ["Ask", "Layout", "by_device_and_axes", "by_layout", "local", "needs_sharing", "step_parts_"]

# Brings momenta of the tensors at these places up to date and returns, if it is wanted, what their oracles are asked.
Ask = Callable[[Sequence[int], bool], list[Tensor]]

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
        dim: of "gathered": the dimension that is cut over the first of these; None where the tensor is not cut.
        copies: of "gathered": the ranks that hold the same as this one; None if there are none.
        dtype: its own.
    """

    kind: Literal["alone", "elementwise", "normed", "gathered"]
    axes: tuple[Any, ...]
    dim: int | None
    copies: Any
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
            layout = Layout("gathered", (), None, group, x.dtype)
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
    # Along several dimensions of copies, the longest shares the work.
    replicated = [axis for axis in range(mesh.ndim) if axis not in cut and mesh.size(axis) > 1]
    copies = mesh.get_group(max(replicated, key=mesh.size)) if replicated and isinstance(geometry, Spectral) else None
    if cut:
        dim = placements[cut[0]].dim
        holds_whole_matrices = isinstance(geometry, Spectral) and geometry.stacked and dim < x.ndim - 2
        if not holds_whole_matrices:
            return Layout("gathered", axes, dim, copies, x.dtype)
    elif copies is not None:
        return Layout("gathered", (), None, copies, x.dtype)
    return Layout("alone", axes, None, None, x.dtype)


def step_parts_(
    geometry: Geometry, layout: Layout, shapes: Sequence[torch.Size], xs: list[Tensor], ask: Ask, rate: Rate
) -> None:
    """Step tensors whose oracles need little or nothing of the other ranks ("elementwise" and "normed"), in place.

    Args:
        geometry: the norm of each tensor.
        layout: theirs.
        shapes: of the whole tensors.
        xs: this rank's part of each.
        ask: see `Ask`.
        rate: of all.
    """
    for part in parts_of(xs):
        directions = ask(range(part.start, part.stop), True)
        if layout.kind == "elementwise":
            updates = list(torch._foreach_sign(directions))
        else:
            updates = _normalised(directions, layout.axes)
        del directions
        rate[part].step_each_(xs[part], updates, [-geometry.radius_of(shape) for shape in shapes[part]])


def _normalised(gs: Sequence[Tensor], axes: Sequence[Any]) -> list[Tensor]:
    """g/‖g‖ for the norm over all shards, which lie along these axes of the mesh."""
    squares = torch.stack(frobenius_norms(gs)).square_()
    for ranks in axes:
        dist.all_reduce(squares, group=ranks)
    return [unit(g, norm) for g, norm in zip(gs, squares.sqrt_(), strict=True)]
