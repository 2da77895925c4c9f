"""What a step processes at a time: parts of its tensors, and stacks of matrices that are orthogonalised together.

A limit in bytes bounds each stack. On a CPU, a stack's iterations should stay in the cache. On an accelerator, each
launch should do as much as possible, so the limit bounds a step's peak memory, including the stack's products.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ...devices import traced_as_constant
from ...geometry import Rate
from ...orthogonalize import NARROW, working_dtype

# The momentum, direction and step of a part are computed while a CPU has it cached, and temporaries are never larger
# than a part. On accelerators parts are large, and one launch handles all of a part's tensors.
_PART_BYTES = {"cpu": 1 << 20}
_PART_BYTES_ELSEWHERE = 256 << 20
# From this size on, a tensor's kernel takes longer than its launch.
_LARGE = 8 << 20

# Narrow matrices with the same short side share a stack, whatever their long side. Wide ones are transposed, and
# shorter ones are padded with rows of zeros, which do not change the polar factor. A stack may be at most this many
# times as large as the matrices in it.
_PADDING = 1.25

# On a CPU a stack's iterations should stay in the cache, which a megabyte and its products fill. A stack may still hold
# this many matrices, because smaller products would not keep all threads busy.
_STACK_BYTES = {"cpu": 1 << 20}
_FEW = 4

# On other devices, the bytes of temporaries that a step may hold. If the largest matrix is so large that few would fit,
# the limit is this many times its size instead: 1.5 GB at 8 billion parameters.
_TEMPORARIES = 760_000_000
_OF_THE_LARGEST = 13
_LEAST_PART = 1 << 27  # bytes that may always be copied at a time


def parts_of(
    xs: Sequence[Tensor], part_bytes: int | None = None, sizes: Sequence[int] | None = None
) -> Iterator[slice]:
    """Split tensors into slices on one device, each as large as a part, or a single larger tensor.

    The sizes are in bytes; by default those of the tensors.
    """
    start = room = 0
    for i, x in enumerate(xs):
        size = sizes[i] if sizes else x.numel() * x.element_size()
        if start < i and (size > room or x.device != xs[start].device):
            yield slice(start, i)
            start = i
        if start == i:
            room = part_bytes or _PART_BYTES.get(x.device.type, _PART_BYTES_ELSEWHERE)
        room -= size
    if xs:
        yield slice(start, len(xs))


@dataclass(frozen=True)
class Run:
    """Tensors of one shape, stored one after another in a stack."""

    shape: torch.Size
    places: tuple[int, ...]  # indices among all tensors
    tensors: slice  # of the batch's tensors
    matrices: slice  # of the stack's matrices
    each: int  # matrices per tensor
    size: tuple[int, int]  # rows and columns of each matrix
    radius: float


@dataclass(frozen=True)
class Batch:
    """Tensors that are orthogonalised together in one stack."""

    device: torch.device
    dtype: torch.dtype  # of the iterations
    size: tuple[int, int]  # rows and columns of the stack's matrices
    count: int  # of the stack's matrices
    turned: tuple[torch.Size, ...]  # shapes of the tensors that store their matrices as (…, n, m)
    runs: tuple[Run, ...]  # the tensors, in the order of the stack
    members: tuple[int, ...]  # the same, as indices among all tensors
    part_bytes: int | None  # how many bytes of tensors may be copied at a time; None to fit the cache
    padded: bool  # whether some matrices are smaller than the stack's
    plain: bool  # whether each has the shape of its slot


# These are functions, not methods, because `torch.compile` treats a batch as a constant and reads only its attributes.


def empty_stack(batch: Batch) -> Tensor:
    """Allocate the stack of a batch; zeros if it contains padding, otherwise uninitialised."""
    make = torch.zeros if batch.padded else torch.empty
    return make((batch.count, *batch.size), dtype=batch.dtype, device=batch.device)


def slots_of(batch: Batch, stack: Tensor) -> list[Tensor]:
    """Return each member's view of the stack: (count, m, n), or (m, n) if it is one matrix."""
    slots: list[Tensor] = []
    for run in batch.runs:
        matrices = _of_run(batch, stack, run)
        slots += matrices.unbind() if run.each == 1 else matrices.unflatten(0, (len(run.places), run.each)).unbind()
    return slots


def _of_run(batch: Batch, stack: Tensor, run: Run) -> Tensor:
    matrices = stack[run.matrices]
    if run.size == batch.size:
        return matrices
    m, n = run.size
    return (matrices if m >= n else matrices.mT)[:, :m, :n]


def fill_(batch: Batch, slots: list[Tensor], directions: list[Tensor]) -> None:
    """Copy the directions into their slots of the stack, in its dtype."""
    if batch.turned:
        directions = [g.mT if g.shape in batch.turned else g for g in directions]
    if not batch.plain:
        directions = [g.reshape(slot.shape) for g, slot in zip(directions, slots, strict=True)]
    torch._foreach_copy_(slots, directions)


def block_of(batch: Batch, stack: Tensor, run: Run, part: slice) -> Tensor:
    """Return the stack's contents for some tensors of a run as one tensor (tensors, *shape)."""
    count, shape = part.stop - part.start, run.shape
    matrices = _of_run(batch, stack, run)[part.start * run.each : part.stop * run.each]
    if shape not in batch.turned:
        return matrices.reshape(count, *shape)
    return matrices.reshape(count, *shape[:-2], shape[-1], shape[-2]).mT


def move_by_stack_(xs: list[Tensor], batch: Batch, stack: Tensor, rate: Rate) -> None:
    """Update a batch's tensors, in its order, by the polar factors in its stack, which this overwrites."""
    for run in batch.runs:
        run_xs, run_rate = xs[run.tensors], rate[run.tensors]
        if isinstance(rate.lr, Tensor) and run_xs[0].nbytes < _LARGE:
            wide = torch.promote_types(run_xs[0].dtype, torch.float32)
            for part in parts_of(run_xs, batch.part_bytes, [x.numel() * wide.itemsize for x in run_xs]):
                _move_by_block(run_xs[part], block_of(batch, stack, run, part), run_rate[part], -run.radius)
        elif isinstance(rate.lr, Tensor):
            updates = block_of(batch, stack, run, slice(0, len(run_xs))).unbind()
            run_rate.step_each_(run_xs, list(updates), [-run.radius] * len(run_xs))
        else:
            for part in parts_of(run_xs, batch.part_bytes):
                run_rate.step_(run_xs[part], list(block_of(batch, stack, run, part).unbind()), -run.radius)


def _move_by_block(xs: list[Tensor], updates: Tensor, rate: Rate, scale: float) -> None:
    """x ← keep·x + lr·scale·update in few launches, for tensors of one shape with their updates in one tensor.

    Rates on a device differ between tensors if some are skipped, and no `torch._foreach_…` is fast in that case. In one
    tensor the rates are a factor that is broadcast. Only the final result is rounded.
    """
    wide = torch.promote_types(xs[0].dtype, torch.float32)
    block = xs[0].new_empty((len(xs), *xs[0].shape), dtype=wide)
    torch._foreach_copy_(list(block.unbind()), xs)

    def factor(number: Any) -> Tensor:
        return number.to(block.dtype).reshape((-1,) + (1,) * (block.ndim - 1))

    if rate.keep is not None:
        block.mul_(factor(rate.keep))
    block.addcmul_(updates, factor(rate.lr), value=scale)
    torch._foreach_copy_(xs, list(block.unbind()))


Tensors = tuple[tuple[torch.device, torch.Size], ...]


@traced_as_constant
def batches_of(geometry: Any, tensors: Tensors) -> tuple[Batch, ...]:
    """Group tensors of these devices and shapes into stacks, for a geometry whose oracle is `polar`."""
    return _batches_of(geometry, tensors)


@lru_cache(maxsize=256)
def _batches_of(geometry: Any, tensors: Tensors) -> tuple[Batch, ...]:
    alike: dict[tuple[torch.device, torch.Size], list[int]] = defaultdict(list)
    elements: dict[tuple[torch.device, tuple[int, int]], int] = defaultdict(int)
    for i, (device, shape) in enumerate(tensors):
        alike[device, shape].append(i)
        elements[device, geometry.stack_size(shape)] += shape.numel()
    bounds = {device: _Bounds.of(geometry, device, tensors) for device, _ in alike}
    together: dict[tuple[torch.device, tuple[int, int]], list[torch.Size]] = defaultdict(list)
    filled: dict[tuple[torch.device, tuple[int, int]], int] = defaultdict(int)  # elements without the padding
    rows: dict[tuple[torch.device, tuple[int, int]], int] = defaultdict(int)
    longest_first = sorted(alike, key=lambda tensor: -max(geometry.stack_size(tensor[1])))
    for device, shape in longest_first:
        matrix = geometry.stack_size(shape)
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
            # Both orientations share stacks; the less common one is transposed.
            stack = (device, max(matrix, matrix[::-1], key=lambda size: (elements[device, size], size)))
        together[stack].append(shape)
    return tuple(
        _batch(geometry, size, part, bounds[device])
        for (device, size), shapes in together.items()
        for part in _cut({shape: alike[device, shape] for shape in shapes}, bounds[device].most(size), geometry)
    )


def temporaries(largest: int) -> int:
    """Return how many bytes of temporaries a step may hold on an accelerator, given the bytes of its largest tensor."""
    return max(_TEMPORARIES, _OF_THE_LARGEST * largest)


class _Bounds(NamedTuple):
    """Limits on the size of a stack on a device."""

    device: torch.device
    dtype: torch.dtype
    temporaries: int

    @classmethod
    def of(cls, geometry: Any, device: torch.device, tensors: Tensors) -> Self:
        dtype = geometry.dtype or working_dtype(device)
        largest = max(shape.numel() for where, shape in tensors if where == device) * dtype.itemsize
        return cls(device, dtype, temporaries(largest))

    def most(self, size: tuple[int, int]) -> int:
        """Return how many matrices of this size a stack may hold."""
        matrix = max(1, math.prod(size) * self.dtype.itemsize)
        if self.device.type in _STACK_BYTES:
            return max(_FEW, _STACK_BYTES[self.device.type] // matrix)
        return max(1, int(self.temporaries / (matrix * _stacks_at_peak(size))))

    def joins(self, matrix: tuple[int, int], elements: int, transposed: int) -> bool:
        """Whether matrices of both orientations share stacks: on an accelerator, if this saves a stack."""
        if self.device.type in _STACK_BYTES or not transposed:
            return False
        most = self.most(matrix) * math.prod(matrix)
        return math.ceil((elements + transposed) / most) < math.ceil(elements / most) + math.ceil(transposed / most)

    def part_bytes(self, size: tuple[int, int], count: int) -> int | None:
        """Return how many bytes may be copied at a time: as many as the iterations will need anyway."""
        if self.device.type in _STACK_BYTES:
            return None
        return max(_LEAST_PART, int(math.prod(size) * self.dtype.itemsize * count * (_stacks_at_peak(size) - 1)))


def _stacks_at_peak(size: tuple[int, int]) -> float:
    """The peak memory of the iterations on a stack, in units of the stack itself.

    It is either a product with its factors, or the stack with the Gram matrices of a segment: two, or four in longer
    segments, which `orthogonalize.iterate.plan` chooses from an aspect of 1.5 on in single precision.
    """
    short, long = sorted(size)
    gram = short / max(1, long)
    return max(2 + gram, 1 + (4 if gram <= 2 / 3 else 2) * gram)


def _batch(geometry: Any, size: tuple[int, int], by_shape: dict[torch.Size, list[int]], bounds: _Bounds) -> Batch:
    each = [_matrices(geometry, shape) for shape in by_shape]
    tensors = pairwise(accumulate((len(places) for places in by_shape.values()), initial=0))
    matrices = pairwise(accumulate((n * len(p) for n, p in zip(each, by_shape.values(), strict=True)), initial=0))
    runs = tuple(
        Run(shape, tuple(places), slice(*t), slice(*m), n, geometry.stack_size(shape), geometry.radius_of(shape))
        for (shape, places), t, m, n in zip(by_shape.items(), tensors, matrices, each, strict=True)
    )
    count = runs[-1].matrices.stop
    members = tuple(i for run in runs for i in run.places)
    part_bytes = bounds.part_bytes(size, count)
    turned = tuple(shape for shape in by_shape if geometry.turns(shape))
    padded = any(sorted(run.size) != sorted(size) for run in runs)
    plain = not turned and all(run.each == 1 and run.shape == run.size for run in runs)
    return Batch(bounds.device, bounds.dtype, size, count, turned, runs, members, part_bytes, padded, plain)


def _matrices(geometry: Any, shape: torch.Size) -> int:
    """Return the number of matrices in a tensor of this shape."""
    return shape.numel() // max(1, math.prod(geometry.stack_size(shape)))


def _cut(by_shape: dict[torch.Size, list[int]], most: int, geometry: Any) -> Iterator[dict[torch.Size, list[int]]]:
    """Split the tensors into parts with about equal numbers of matrices; a tensor goes to the part where it starts."""
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
