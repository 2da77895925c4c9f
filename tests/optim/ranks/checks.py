"""What the checks of several ranks share: each is called on the first two of four processes, or on all of them."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

SIZES = (2, 4)
TOLERANCE = 1e-5  # of steps of about 0.1: stacks of other sizes are multiplied, and summed, in another order
Cases = Iterator[tuple[Any, bool]]  # what a check has looked at, and whether it is right on this rank
Check = Callable[[DeviceMesh], Cases]  # of a mesh of one dimension
CHECKS: dict[tuple[str, int], Check] = {}


def on_ranks(*sizes: int) -> Callable[[Check], Check]:
    """Let a check be made on so many ranks."""

    def add(check: Check) -> Check:
        CHECKS.update({(check.__name__, size): check for size in sizes})
        return check

    return add


def whole(x: Tensor) -> Tensor:
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach()


def local_part(p: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return (p.to_local() if isinstance(p, DTensor) else p).detach()


def apart(model: nn.Module, other: nn.Module) -> float:
    """The largest difference of two models' entries, of which the second is whole."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((whole(p) - q.detach()).abs().max().item() for p, q in pairs)


def drawn(model: nn.Module, seed: int) -> list[Tensor]:
    """A gradient for each tensor."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator) for p in model.parameters()]


def error_of(step: Callable[[], Any]) -> str:
    """What a call is refused with, or nothing."""
    try:
        step()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
