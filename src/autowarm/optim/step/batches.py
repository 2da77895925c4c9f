"""Which tensors' matrices are orthogonalised in one stack: at small widths, that is Muon's speed.

A stack is bounded in bytes. On a processor its iterations should stay in the cache; on an accelerator, where one launch
should do as much as it can, the bound is on what a step holds at its peak, the stack's products included.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ...devices import traced_as_constant
from ...geometry import Geometry, Spectral
from ...orthogonalize import NARROW, working_dtype

__all__ = [
    "Batch",
    "Run",
    "batches_of",
    "block_of",
    "empty_stack",
    "fill_",
    "is_batched",
    "slots_of",
    "taken",
    "temporaries",
]

# Narrow matrices of every shape with the same short side make one stack: wide ones lie in it transposed, shorter ones
# are padded with rows of zeros, which leave the polar factor as it is, as long as that makes the stack no larger than
# this many times what lies in it.
_PADDING = 1.25

# On a processor a stack's iterations should not leave the cache, which a megabyte and its products fill. A few matrices
# stay together all the same, lest products be too small to keep all threads at work.
_STACK_BYTES = {"cpu": 1 << 20}
_FEW = 4

# Elsewhere, what a step may hold in temporaries. Models whose single matrices are large get more, in multiples of the
# largest one, lest every launch be for one matrix: 1.5 GB at 8 billion parameters.
_TEMPORARIES = 760_000_000
_OF_THE_LARGEST = 13
_LEAST_PART = 1 << 27


@dataclass(frozen=True)
class Run:
    """Tensors of one shape, which follow each other in a stack.

    Attributes:
        shape: theirs.
        places: theirs, among all tensors.
        tensors: theirs, among the batch's.
        matrices: of their matrices, among the stack's.
        each: how many matrices a tensor has.
        size: rows and columns of these.
        radius: of their steps.
    """

    shape: torch.Size
    places: tuple[int, ...]
    tensors: slice
    matrices: slice
    each: int
    size: tuple[int, int]
    radius: float


@dataclass(frozen=True)
class Batch:
    """Tensors whose matrices are orthogonalised in one stack.

    Attributes:
        device: theirs.
        dtype: what the iterations compute in.
        size: rows and columns of the stack's matrices.
        count: how many these are.
        transposed: the tensors keep their matrices as (…, n, m).
        runs: the tensors, in the order in which they lie in the stack.
        members: the same, as places among all tensors.
        part_bytes: how many bytes of tensors may be copied at one time; None where the cache decides.
    """

    device: torch.device
    dtype: torch.dtype
    size: tuple[int, int]
    count: int
    transposed: bool
    runs: tuple[Run, ...]
    members: tuple[int, ...]
    part_bytes: int | None


# Functions and not methods: `torch.compile` takes a batch for a constant, of which it reads attributes alone.


def empty_stack(batch: Batch) -> Tensor:
    """An empty one; where there is padding, it is zero."""
    padded = any(sorted(run.size) != sorted(batch.size) for run in batch.runs)
    make = torch.zeros if padded else torch.empty
    return make((batch.count, *batch.size), dtype=batch.dtype, device=batch.device)


def slots_of(batch: Batch, stack: Tensor) -> list[Tensor]:
    """Each member's matrices in a stack: (count, m, n), or (m, n) where every tensor is one matrix."""
    slots: list[Tensor] = []
    single = all(run.each == 1 for run in batch.runs)
    for run in batch.runs:
        matrices = _of_run(batch, stack, run)
        slots += matrices.unbind() if single else matrices.unflatten(0, (len(run.places), run.each)).unbind()
    return slots


def _of_run(batch: Batch, stack: Tensor, run: Run) -> Tensor:
    matrices = stack[run.matrices]
    if run.size == batch.size:
        return matrices
    m, n = run.size
    return (matrices if m >= n else matrices.mT)[:, :m, :n]


def fill_(batch: Batch, slots: list[Tensor], directions: list[Tensor]) -> None:
    """Copy directions to where they lie in the stack, in its dtype."""
    if batch.transposed:
        directions = [g.mT for g in directions]
    torch._foreach_copy_(slots, [_as(g, slot.shape) for g, slot in zip(directions, slots, strict=True)])


def taken(batch: Batch, slots: list[Tensor], shapes: Iterable[torch.Size]) -> list[Tensor]:
    """What lies in the slots, of the shapes of the tensors that it belongs to."""
    if batch.transposed:
        return [_as(slot, _flipped(shape)).mT for slot, shape in zip(slots, shapes, strict=True)]
    return [_as(slot, shape) for slot, shape in zip(slots, shapes, strict=True)]


def _flipped(shape: torch.Size) -> torch.Size:
    return torch.Size([*shape[:-2], shape[-1], shape[-2]])


def block_of(batch: Batch, stack: Tensor, run: Run, part: slice) -> Tensor:
    """What lies in the stack for these tensors of a run, in one piece: (tensors, *shape)."""
    matrices = _of_run(batch, stack, run)[part.start * run.each : part.stop * run.each]
    if not batch.transposed:
        return matrices.reshape(part.stop - part.start, *run.shape)
    return matrices.reshape(part.stop - part.start, *_flipped(run.shape)).mT


def _as(x: Tensor, shape: torch.Size) -> Tensor:
    return x if x.shape == shape else x.reshape(shape)


def is_batched(geometry: Geometry) -> bool:
    """Whether its oracle is an iteration on stacks; a subclass of `Spectral` may define its own."""
    return type(geometry) is Spectral and geometry.method != "svd"


Tensors = tuple[tuple[torch.device, torch.Size], ...]


def batches_of(geometry: Spectral, tensors: Tensors) -> tuple[Batch, ...]:
    """What is orthogonalised together; a pure function of devices and shapes, as a step has little time to think."""
    g = geometry
    return _batches_for((g.radius, g.stacked, g.method, g.steps, g.blocks, g.dtype, g.transposed), tensors)


@traced_as_constant
def _batches_for(settings: tuple[Any, ...], tensors: Tensors) -> tuple[Batch, ...]:
    return _batches_of(settings, tensors)


@lru_cache(maxsize=256)
def _batches_of(settings: tuple[Any, ...], tensors: Tensors) -> tuple[Batch, ...]:
    geometry = Spectral(*settings)
    alike: dict[tuple[torch.device, torch.Size], list[int]] = defaultdict(list)
    elements: dict[tuple[torch.device, tuple[int, int]], int] = defaultdict(int)
    for i, (device, shape) in enumerate(tensors):
        alike[device, shape].append(i)
        elements[device, geometry.matrix_shape(shape)] += shape.numel()
    bounds = {device: _Bounds.of(geometry, device, tensors) for device, _ in alike}
    together: dict[tuple[torch.device, tuple[int, int]], list[torch.Size]] = defaultdict(list)
    filled: dict[tuple[torch.device, tuple[int, int]], int] = defaultdict(int)  # elements without the padding
    rows: dict[tuple[torch.device, tuple[int, int]], int] = defaultdict(int)
    longest_first = sorted(alike, key=lambda tensor: -max(geometry.matrix_shape(tensor[1])))
    for device, shape in longest_first:
        matrix = geometry.matrix_shape(shape)
        size = shape.numel() * len(alike[device, shape])
        stack = (device, matrix)
        if 0 < min(matrix) <= NARROW:
            long, short = max(matrix), min(matrix)
            count = size // (long * short)
            stack = (device, (long, short))
            for other in together:
                padded = (rows[other] + count * other[1][0]) * short
                if other[0] == device and other[1][1] == short and padded <= _PADDING * (filled[other] + size):
                    stack = other
                    break
            rows[stack] += count * stack[1][0]
            filled[stack] += size
        elif bounds[device].joins(matrix, elements[device, matrix], elements[device, matrix[::-1]]):
            # The fewer lie transposed beside the others.
            stack = (device, max(matrix, matrix[::-1], key=lambda size: (elements[device, size], size)))
        together[stack].append(shape)
    return tuple(
        _batch(geometry, device, size, part, bounds[device])
        for (device, size), shapes in together.items()
        for part in _cut({shape: alike[device, shape] for shape in shapes}, bounds[device].most(size), geometry)
    )


def temporaries(largest: int) -> int:
    """How many bytes a step may hold on an accelerator, by those of its largest tensor."""
    return max(_TEMPORARIES, _OF_THE_LARGEST * largest)


class _Bounds(NamedTuple):
    """How large a stack may be on a device."""

    device: torch.device
    dtype: torch.dtype
    temporaries: int

    @classmethod
    def of(cls, geometry: Spectral, device: torch.device, tensors: Tensors) -> Self:
        dtype = geometry.dtype or working_dtype(device)
        largest = max(shape.numel() for where, shape in tensors if where == device) * dtype.itemsize
        return cls(device, dtype, temporaries(largest))

    def most(self, size: tuple[int, int]) -> int:
        """How many matrices may make one stack."""
        matrix = max(1, math.prod(size) * self.dtype.itemsize)
        if self.device.type in _STACK_BYTES:
            return max(_FEW, _STACK_BYTES[self.device.type] // matrix)
        return max(1, int(self.temporaries / (matrix * _stacks_at_peak(size))))

    def joins(self, matrix: tuple[int, int], elements: int, transposed: int) -> bool:
        """Whether matrices of both orientations share stacks: where that saves one, and launches count."""
        if self.device.type in _STACK_BYTES or not transposed:
            return False
        most = self.most(matrix) * math.prod(matrix)
        return math.ceil((elements + transposed) / most) < math.ceil(elements / most) + math.ceil(transposed / most)

    def part_bytes(self, size: tuple[int, int], count: int) -> int | None:
        """What may be copied at one time: as much as the iterations will need anyway."""
        if self.device.type in _STACK_BYTES:
            return None
        return max(_LEAST_PART, int(math.prod(size) * self.dtype.itemsize * count * (_stacks_at_peak(size) - 1)))


def _stacks_at_peak(size: tuple[int, int]) -> float:
    """What iterations on a stack hold at one time, in units of the stack itself.

    That is a product beside its factors, or the Gram matrices of a segment: two, or four of longer segments, which
    `orthogonalize.iterate.plan` chooses from an aspect of 1.5 on.
    """
    short, long = sorted(size)
    gram = short / max(1, long)
    return max(2 + gram, 1 + (4 if gram <= 2 / 3 else 2) * gram)


def _batch(
    geometry: Spectral,
    device: torch.device,
    size: tuple[int, int],
    by_shape: dict[torch.Size, list[int]],
    bounds: _Bounds,
) -> Batch:
    each = [_matrices(geometry, shape) for shape in by_shape]
    tensors = pairwise(accumulate((len(places) for places in by_shape.values()), initial=0))
    matrices = pairwise(accumulate((n * len(p) for n, p in zip(each, by_shape.values(), strict=True)), initial=0))
    runs = tuple(
        Run(shape, tuple(places), slice(*t), slice(*m), n, geometry.matrix_shape(shape), geometry.radius_of(shape))
        for (shape, places), t, m, n in zip(by_shape.items(), tensors, matrices, each, strict=True)
    )
    count = runs[-1].matrices.stop
    members = tuple(i for run in runs for i in run.places)
    part_bytes = bounds.part_bytes(size, count)
    return Batch(device, bounds.dtype, size, count, geometry.transposed, runs, members, part_bytes)


def _matrices(geometry: Spectral, shape: torch.Size) -> int:
    """How many matrices a tensor of this shape has."""
    return shape.numel() // max(1, math.prod(geometry.matrix_shape(shape)))


def _cut(by_shape: dict[torch.Size, list[int]], most: int, geometry: Spectral) -> Iterator[dict[torch.Size, list[int]]]:
    """Cut the tensors into parts of equal numbers of matrices, each where it starts."""
    count = {shape: max(1, _matrices(geometry, shape)) for shape in by_shape}
    total = sum(count[shape] * len(places) for shape, places in by_shape.items())
    fair = math.ceil(total / math.ceil(total / most))
    parts: dict[int, dict[torch.Size, list[int]]] = defaultdict(lambda: defaultdict(list))
    before = 0
    for shape, places in by_shape.items():
        for i in places:
            parts[before // fair][shape].append(i)
            before += count[shape]
    yield from parts.values()
