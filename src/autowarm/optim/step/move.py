"""x ← keep·x + η·LMO(direction), in as few passes over memory as the geometry allows.

A group's tensors are processed in *parts* that fit a CPU's cache: momentum, direction and step of one part are computed
while it is cached, and temporaries are never larger than a part. On accelerators parts are large, and one launch
handles all of a part's tensors.

A geometry's `step_` updates one part along known directions. `move_reference` is the plain way; tests compare the fast
ways with it. Iterative polar factors are computed for a whole `batches.Batch` at once, and `move_by_stack_` applies
them to the tensors.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...geometry import Geometry, Rate
from .batches import Batch, block_of, slots_of, taken

__all__ = ["by_device", "move_by_stack_", "move_reference", "parts_of"]

_PART_BYTES = {"cpu": 1 << 20}
_PART_BYTES_ELSEWHERE = 256 << 20
# From this size on, a tensor's kernel takes longer than its launch.
_LARGE = 8 << 20


def by_device(xs: Sequence[Tensor]) -> list[list[int]]:
    """Return the indices of the tensors by device."""
    found: dict[torch.device, list[int]] = {}
    for i, x in enumerate(xs):
        found.setdefault(x.device, []).append(i)
    return list(found.values())


def parts_of(xs: Sequence[Tensor], part_bytes: int | None = None, itemsize: int | None = None) -> Iterator[slice]:
    """Split tensors into slices on one device, each as large as a part, or a single larger tensor.

    Args:
        xs: the tensors.
        part_bytes: size of a part; None for one that suits the device.
        itemsize: bytes per element of the temporaries; None for the tensors' own.
    """
    start = room = 0
    for i, x in enumerate(xs):
        size = x.numel() * (itemsize or x.element_size())
        if start < i and (size > room or x.device != xs[start].device):
            yield slice(start, i)
            start = i
        if start == i:
            room = part_bytes or _PART_BYTES.get(x.device.type, _PART_BYTES_ELSEWHERE)
        room -= size
    if xs:
        yield slice(start, len(xs))


def move_reference(geometry: Geometry, xs: list[Tensor], directions: list[Tensor], rate: Rate) -> None:
    """The step of any geometry by its definition: call the oracle, multiply by the rate, add."""
    rate.step_(xs, [geometry.lmo(g) for g in directions])


def move_by_stack_(xs: list[Tensor], batch: Batch, stack: Tensor, rate: Rate) -> None:
    """Update a batch's tensors by the polar factors in its stack, in place; this overwrites the stack.

    Args:
        xs: the tensors to move, in the batch's order.
        batch: their layout in the stack.
        stack: UVᵀ of each matrix.
        rate: the rate of all tensors.
    """
    slots = slots_of(batch, stack)
    for run in batch.runs:
        run_xs, run_slots, run_rate = xs[run.tensors], slots[run.tensors], rate[run.tensors]
        if isinstance(rate.lr, Tensor) and run_xs[0].nbytes < _LARGE:
            for part in parts_of(run_xs, batch.part_bytes, itemsize=_wide(run_xs[0].dtype).itemsize):
                _move_by_block(run_xs[part], block_of(batch, stack, run, part), run_rate[part], -run.radius)
        elif isinstance(rate.lr, Tensor):
            run_rate.step_each_(run_xs, taken(batch, run_slots, [run.shape] * len(run_xs)), [-run.radius] * len(run_xs))
        else:
            for part in parts_of(run_xs, batch.part_bytes):
                some = run_xs[part]
                run_rate.step_(some, taken(batch, run_slots[part], [run.shape] * len(some)), -run.radius)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _move_by_block(xs: list[Tensor], updates: Tensor, rate: Rate, scale: float) -> None:
    """x ← keep·x + lr·scale·update in few launches, for tensors of one shape with their updates in one tensor.

    Rates on a device differ between tensors if some are skipped, and no `torch._foreach_…` is fast in that case. In one
    tensor the rates are a factor that is broadcast. Only the final result is rounded.
    """
    block = xs[0].new_empty((len(xs), *xs[0].shape), dtype=_wide(xs[0].dtype))
    torch._foreach_copy_(list(block.unbind()), xs)

    def factor(number: Any) -> Tensor:
        return number.to(block.dtype).reshape((-1,) + (1,) * (block.ndim - 1))

    if rate.keep is not None:
        block.mul_(factor(rate.keep))
    block.addcmul_(updates, factor(rate.lr), value=scale)
    torch._foreach_copy_(xs, list(block.unbind()))
