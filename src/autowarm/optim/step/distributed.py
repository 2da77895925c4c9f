"""How tensors are distributed over ranks: as shards (FSDP2's DTensors), as copies (DDP), or both (HSDP).

A geometry's `locality` decides what its step needs of other ranks' shards: nothing, sums of squares, or the whole
tensor. Steps that need whole tensors are in `sharing`. `agreement` makes sure that all ranks have gradients for the
same tensors.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...geometry import Geometry
from ...geometry.base import Total

__all__ = [
    "Ask",
    "Layout",
    "by_layout",
    "check_placements",
    "is_dtensor",
    "local",
    "placed",
    "placements_of",
    "total_over",
]

# Updates the momenta of the tensors at these indices and returns their directions, if wanted.
Ask = Callable[[Sequence[int], bool], list[Tensor]]

_PLAIN = (Tensor, torch.nn.Parameter)


def is_dtensor(x: Tensor) -> bool:
    """Whether a tensor is distributed over a mesh of ranks."""
    # This runs for every tensor in every step, so it tests the usual types first and does not import DTensor.
    return type(x) not in _PLAIN and hasattr(x, "placements") and hasattr(x, "device_mesh")


def local(x: Tensor) -> Tensor:
    """This rank's shard of a tensor, sharing its memory."""
    return x.to_local() if is_dtensor(x) else x  # type: ignore[attr-defined]


def placements_of(x: Tensor) -> Any:
    """How a DTensor is placed on its mesh; None for other tensors."""
    return x.placements if is_dtensor(x) else None  # type: ignore[attr-defined]


def check_placements(who: str, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Raise ValueError if a gradient is not distributed over the same ranks as its parameter.

    Args:
        who: name of the optimizer.
        params, grads: the parameters and their gradients.
    """
    for p, g in zip(params, grads, strict=True):
        if type(p) in _PLAIN and type(g) in _PLAIN:
            continue
        if is_dtensor(p) and is_dtensor(g) and p.device_mesh == g.device_mesh:  # type: ignore[attr-defined]
            continue
        if is_dtensor(p) or is_dtensor(g):
            raise ValueError(
                f"{who} needs a gradient on the mesh of its parameter, but a parameter of shape {tuple(p.shape)} is "
                f"{_where(p)} and its gradient {_where(g)}: assign a gradient made by "
                "torch.distributed.tensor.distribute_tensor or DTensor.from_local with the parameter's device_mesh"
            )


def _where(x: Tensor) -> str:
    return f"a DTensor on {x.device_mesh}" if is_dtensor(x) else "a plain tensor"  # type: ignore[attr-defined]


def placed(p: Tensor, g: Tensor) -> Tensor:
    """The gradient with its parameter's placements, so that each rank's part of one belongs to its part of the other.

    Autograd leaves the gradient of a replicated parameter as parts that the ranks have yet to add (`Partial`) if each
    rank saw other inputs, as in sequence parallelism. All ranks must call this together.
    """
    if type(p) in _PLAIN or placements_of(g) == placements_of(p):
        return g
    return g.redistribute(p.device_mesh, p.placements)  # type: ignore[attr-defined]


class Layout(NamedTuple):
    """How a tensor is distributed over the ranks, which decides the communication that its step needs.

    Attributes:
        kind: "alone" if the step needs no other rank, "summed" if it needs sums over ranks, or "gathered".
        axes: the groups of ranks that hold the shards that its step needs.
        dim: for "gathered": the dimension that is sharded over the first of these groups; None if it is not sharded.
        copies: for "gathered": the ranks that hold the same shard as this one; None if there are none.
        dtype: its dtype.
    """

    kind: Literal["alone", "summed", "gathered"]
    axes: tuple[Any, ...]
    dim: int | None
    copies: Any
    dtype: torch.dtype


def by_layout(geometry: Geometry, xs: Sequence[Tensor], group: Any) -> dict[Layout, list[int]]:
    """Return the indices of the tensors by layout.

    Args:
        geometry: the norm of each tensor.
        xs: tensors and DTensors.
        group: ranks that hold copies of the tensors that are not DTensors; None if only this rank does.

    Raises:
        NotImplementedError: a tensor is sharded over several mesh dimensions, and its step needs the whole tensor.
    """
    found: dict[Layout, list[int]] = defaultdict(list)
    for i, x in enumerate(xs):
        if is_dtensor(x):
            layout = _layout_of_dtensor(geometry, x)
        elif group is not None and geometry.costly:
            layout = Layout("gathered", (), None, group, x.dtype)
        else:
            layout = Layout("alone", (), None, None, x.dtype)
        found[layout].append(i)
    return found


def _cut_axes(x: Tensor) -> list[int]:
    """The mesh dimensions over which a DTensor is sharded."""
    mesh, placements = x.device_mesh, x.placements  # type: ignore[attr-defined]
    return [axis for axis, placed in enumerate(placements) if not placed.is_replicate() and mesh.size(axis) > 1]


def _layout_of_dtensor(geometry: Geometry, x: Tensor) -> Layout:
    mesh, placements = x.device_mesh, x.placements  # type: ignore[attr-defined]
    cut = _cut_axes(x)
    coupled = geometry.coupled(x.ndim)
    # The dimensions of the mesh over which the oracle of an entry needs other shards.
    needed = [axis for axis in cut if placements[axis].dim in coupled]
    if needed and geometry.sums:
        return Layout("summed", tuple(mesh.get_group(axis) for axis in needed), None, None, x.dtype)
    if needed and len(cut) > 1:
        raise NotImplementedError(
            f"a tensor of shape {tuple(x.shape)} is sharded over {len(cut)} dimensions of its mesh ({placements}); "
            f"{type(geometry).__name__} needs it sharded over one at most"
        )
    # If several mesh dimensions hold copies, the longest splits the work.
    replicated = [axis for axis in range(mesh.ndim) if axis not in cut and mesh.size(axis) > 1]
    copies = mesh.get_group(max(replicated, key=mesh.size)) if replicated and geometry.costly else None
    if needed:
        return Layout("gathered", (mesh.get_group(cut[0]),), placements[cut[0]].dim, copies, x.dtype)
    if not cut and copies is not None:
        return Layout("gathered", (), None, copies, x.dtype)
    return Layout("alone", (), None, None, x.dtype)


def total_over(axes: Sequence[Any]) -> Total | None:
    """Return what adds up numbers over the ranks of these groups; None without any."""
    if not axes:
        return None

    def total(numbers: Tensor) -> Tensor:
        for ranks in axes:
            dist.all_reduce(numbers, group=ranks)
        return numbers

    return total
