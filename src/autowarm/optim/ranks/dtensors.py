"""DTensors: this rank's shards, and gradients in their parameters' placements."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

PLAIN = (Tensor, torch.nn.Parameter)


def is_dtensor(x: Tensor) -> bool:
    """Whether a tensor is distributed over a mesh of ranks."""
    # This runs for every tensor in every step, so it tests the usual types first and does not import DTensor.
    return type(x) not in PLAIN and hasattr(x, "placements") and hasattr(x, "device_mesh")


def are_flat_pieces(params: Iterable[Tensor]) -> bool:
    """Whether FSDP1 has cut these tensors into pieces of one dimension. It marks them, also where it leaves them whole,
    as on a single rank."""
    marked = [p for p in params if getattr(p, "_fsdp_flattened", False)]
    return bool(marked) and all(p.ndim < 2 for p in marked)


def local(x: Tensor) -> Tensor:
    """This rank's shard of a tensor, sharing its memory."""
    return x.to_local() if is_dtensor(x) else x  # type: ignore[attr-defined]


def placements_of(x: Tensor) -> Any:
    """How a DTensor is placed on its mesh; None for other tensors."""
    return x.placements if is_dtensor(x) else None  # type: ignore[attr-defined]


def shards(x: Tensor) -> int:
    """How many pieces a tensor is cut into; ranks beside these hold copies of them."""
    if not is_dtensor(x):
        return 1
    return math.prod(x.device_mesh.size(i) for i, place in enumerate(x.placements) if not place.is_replicate())  # type: ignore[attr-defined]


def check_placed(who: str, p: Tensor, g: Tensor) -> None:
    """Raise ValueError if a gradient is not distributed over the same ranks as its parameter."""
    if (is_dtensor(p) or is_dtensor(g)) and not (is_dtensor(p) and is_dtensor(g) and p.device_mesh == g.device_mesh):  # type: ignore[attr-defined]
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
    if type(p) in PLAIN or placements_of(g) == placements_of(p):
        return g
    # A message: all ranks must have this gradient
    return g.redistribute(p.device_mesh, p.placements)  # type: ignore[attr-defined]
