"""What a step processes at a time: parts of its tensors, and stacks of matrices that are orthogonalised together.

A plan depends on devices, shapes, dtypes and the geometry alone, so all steps share it. A limit in bytes bounds each
stack. On a CPU, a stack's iterations should stay in the cache. On an accelerator, each launch should do as much as
possible, so the limit bounds a step's peak memory, including the stack's products.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._torch.devices import traced_as_constant
from ...geometry import Geometry
from ...orthogonalize import NARROW, held_in, working_dtype

# The momentum, direction and step of a part are computed while a CPU has it cached, and temporaries are never larger
# than a part. On accelerators parts are large, and one launch handles all of a part's tensors.
_PART_BYTES = {"cpu": 1 << 20}
_PART_BYTES_ELSEWHERE = 256 << 20

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

_KNOWN = 64  # how many sets of tensors are remembered


Tensors = tuple[tuple[torch.device, torch.Size, torch.dtype], ...]
Whole = tuple[torch.Size, int]
"""Of a shard: the shape of the whole tensor, and bytes by which all ranks cut parts alike."""
Wholes = tuple[Whole, ...] | None


class Part(NamedTuple):
    """Tensors that are stepped at a time, in a geometry whose oracle is no iterated polar factor."""

    some: slice  # of the plan's tensors
    radii: float | list[float]  # one number if it is the same for all


@dataclass(frozen=True)
class Run:
    """Tensors of one shape, stored one after another in a stack."""

    shape: torch.Size
    tensors: slice  # of the stack's tensors
    matrices: slice  # of the stack's matrices
    each: int  # matrices per tensor
    size: tuple[int, int]  # rows and columns of each matrix
    radius: float
    parts: tuple[slice, ...]  # of the run's tensors: which are moved at a time


@dataclass(frozen=True)
class Stack:
    """Tensors that are orthogonalised together."""

    device: torch.device
    dtype: torch.dtype  # of the stack
    polar: Any  # arguments of `orthogonalize_`: method, steps, dtype of the iterations
    size: tuple[int, int]  # rows and columns of the stack's matrices
    count: int  # of the stack's matrices
    turned: tuple[torch.Size, ...]  # shapes of the tensors that store their matrices as (…, n, m)
    runs: tuple[Run, ...]  # the tensors, in the order of the stack
    some: slice  # the same, of the plan's tensors
    parts: tuple[slice, ...]  # of the stack's tensors: which are copied into the stack at a time
    padded: bool  # whether some matrices are smaller than the stack's
    plain: bool  # whether each has the shape of its slot


class Plan(NamedTuple):
    """How to step the tensors on one device."""

    device: torch.device
    order: tuple[int, ...] | None  # of the tensors here, as indices among all; None if these are all, as they are
    parts: tuple[Part, ...]
    stacks: tuple[Stack, ...]  # instead of parts, if the oracle is a polar factor that is iterated


class Remembered(ABC):
    """What is worked out of a geometry's tensors, from their devices, shapes and such, remembered for later steps.

    Attributes:
        geometries: by id, which stays theirs while they are in it. `recall` knows no others.
    """

    def __init__(self) -> None:
        self.geometries: dict[int, Geometry] = {}
        self._known: dict[Any, tuple[Any, ...]] = {}

    @abstractmethod
    def find(self, geometry: Geometry, tensors: Any, wholes: Any) -> Iterable[Any]:
        """Work it out, for tensors of this description."""

    # Its id stands for the geometry: `torch.compile` of PyTorch 2.11 gives a constant's function no objects.
    @traced_as_constant
    def recall(self, geometry: int, tensors: Any, wholes: Any = None) -> tuple[Any, ...]:
        """What `find` returned for these, or returns now."""
        known = self._known.get((geometry, tensors, wholes))
        if known is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            known = self._known[geometry, tensors, wholes] = tuple(
                self.find(self.geometries[geometry], tensors, wholes)
            )
        return known


class Plans(Remembered):
    """The plans of an optimizer's groups."""

    def of(self, geometry: Geometry, xs: Sequence[Tensor], wholes: Wholes = None) -> tuple[Plan, ...]:
        """Return a plan for each device of these tensors, or shards of these wholes."""
        key = []
        for x in xs:
            key.append((x.device, x.shape, x.dtype))  # noqa: PERF401  (a comprehension is a call of its own)
        return self.recall(id(geometry), tuple(key), wholes)

    def find(self, geometry: Geometry, tensors: Tensors, wholes: Wholes) -> Iterator[Plan]:
        by_device: dict[torch.device, list[int]] = defaultdict(list)  # a model may be spread over several
        for i, (device, *_) in enumerate(tensors):
            by_device[device].append(i)
        for device, places in by_device.items():
            parts: list[Part] = []
            stacks: list[Stack] = []
            if geometry.polar is not None:
                stacks, order = stacks_of(geometry, tuple(tensors[i] for i in places))
                places = [places[i] for i in order]
            else:
                shapes = [wholes[i][0] if wholes else tensors[i][1] for i in places]
                sizes = [wholes[i][1] if wholes else tensors[i][1].numel() * tensors[i][2].itemsize for i in places]
                parts = [Part(some, geometry.radii(shapes[some])) for some in cut(sizes, device)]
            whole = places == [*range(len(tensors))]
            yield Plan(device, None if whole else tuple(places), tuple(parts), tuple(stacks))


def cut(sizes: Sequence[int], device: torch.device, most: int | None = None) -> tuple[slice, ...]:
    """Split tensors of these sizes into slices, each as large as a part, or a single larger tensor."""
    most = most or _PART_BYTES.get(device.type, _PART_BYTES_ELSEWHERE)
    starts: list[int] = []
    room = 0  # bytes left in the present slice
    for i, size in enumerate(sizes):
        if not starts or size > room:
            starts.append(i)
            room = most
        room -= size
    return tuple(slice(*ends) for ends in pairwise([*starts, len(sizes)]))


def temporaries(largest: int) -> int:
    """Return how many bytes of temporaries a step may hold on an accelerator, given the bytes of its largest tensor."""
    return max(_TEMPORARIES, _OF_THE_LARGEST * largest)


def stacks_of(geometry: Any, tensors: Tensors) -> tuple[list[Stack], list[int]]:
    """Group tensors of one device into stacks; return these, and the tensors' indices in the order of the stacks.

    Tensors without entries are in none: there is nothing to step.
    """
    alike: dict[torch.Size, list[int]] = defaultdict(list)
    elements: dict[tuple[int, int], int] = defaultdict(int)
    for i, (_, shape, _) in enumerate(tensors):
        if shape.numel():
            alike[shape].append(i)
            elements[geometry.stack_size(shape)] += shape.numel()
    # Which shapes share a stack: the largest first, because smaller ones may join theirs
    device = tensors[0][0]
    dtype = held_in(geometry.dtype or working_dtype(device), NARROW)  # of all stacks but those of few rows
    bounds = _Bounds(device, dtype, temporaries(max(shape.numel() for _, shape, _ in tensors) * dtype.itemsize))
    together: dict[tuple[int, int], list[torch.Size]] = defaultdict(list)
    filled: dict[tuple[int, int], int] = defaultdict(int)  # elements without the padding
    rows: dict[tuple[int, int], int] = defaultdict(int)
    for shape in sorted(alike, key=lambda shape: -max(geometry.stack_size(shape))):
        matrix: tuple[int, int] = geometry.stack_size(shape)
        stack = matrix
        size = shape.numel() * len(alike[shape])
        if min(matrix) <= NARROW:
            long, short = max(matrix), min(matrix)
            stack = long, short
            count = size // (long * short)
            for other in together:
                padded = (rows[other] + count * other[0]) * short
                if other[1] == short and padded <= _PADDING * (filled[other] + size):
                    stack = other
                    break
            rows[stack] += count * stack[0]
            filled[stack] += size
        elif bounds.joins(matrix, elements[matrix], elements[matrix[::-1]]):
            # Both orientations share stacks; the less common one is transposed.
            stack = max(matrix, matrix[::-1], key=lambda size: (elements[size], size))
        together[stack].append(shape)
    # The stacks, each within its bound, and their tensors one after the other
    stacks: list[Stack] = []
    order: list[int] = []
    for matrix, shapes in together.items():
        # Single precision at least, because a step is added in no less.
        for by_shape in _split({shape: alike[shape] for shape in shapes}, bounds.most(matrix), geometry):
            places = [i for some in by_shape.values() for i in some]
            nbytes = [tensors[i][1].numel() * max(4, tensors[i][2].itemsize) for i in places]
            stacks.append(_stack(geometry, matrix, by_shape, bounds, len(order), nbytes))
            order += places
    return stacks, order


def _stack(
    geometry: Any, size: tuple[int, int], by_shape: Mapping[torch.Size, list[int]], bounds: "_Bounds", start: int,
    nbytes: list[int],
) -> Stack:  # fmt: skip
    """A stack of the tensors from this one on, which hold so many bytes."""
    count = sum(_matrices(geometry, shape) * len(places) for shape, places in by_shape.items())
    most = bounds.part_bytes(size, count)
    runs: list[Run] = []
    t = m = 0  # tensors and matrices in the runs so far
    for shape, places in by_shape.items():
        each = _matrices(geometry, shape)
        some, matrices = slice(t, t + len(places)), slice(m, m + each * len(places))
        radius, parts = geometry.radius_of(shape), cut(nbytes[some], bounds.device, most)
        runs.append(Run(shape, some, matrices, each, geometry.stack_size(shape), radius, parts))
        t, m = some.stop, matrices.stop
    turned = tuple(shape for shape in by_shape if geometry.turns(shape))
    return Stack(
        device=bounds.device,
        dtype=held_in(bounds.dtype, min(size)),
        polar=geometry.polar,
        size=size,
        count=count,
        turned=turned,
        runs=tuple(runs),
        some=slice(start, start + t),
        parts=cut(nbytes, bounds.device, most),
        padded=any(sorted(run.size) != sorted(size) for run in runs),
        plain=not turned and all(run.each == 1 and run.shape == run.size for run in runs),
    )


class _Bounds(NamedTuple):
    """Limits on the size of a stack on a device."""

    device: torch.device
    dtype: torch.dtype
    temporaries: int

    def most(self, size: tuple[int, int]) -> int:
        """Return how many matrices of this size a stack may hold."""
        matrix = math.prod(size) * self.dtype.itemsize
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
    gram = min(size) / max(size)
    return max(2 + gram, 1 + (4 if gram <= 2 / 3 else 2) * gram)


def _matrices(geometry: Any, shape: torch.Size) -> int:
    """Return the number of matrices in a tensor of this shape."""
    return shape.numel() // math.prod(geometry.stack_size(shape))


def _split(by_shape: Mapping[torch.Size, list[int]], most: int, geometry: Any) -> Iterable[dict[torch.Size, list[int]]]:
    """Split the tensors into parts with about equal numbers of matrices; a tensor goes to the part where it starts."""
    each = [(shape, i, _matrices(geometry, shape)) for shape, places in by_shape.items() for i in places]
    total = sum(count for *_, count in each)
    fair = math.ceil(total / math.ceil(total / most))
    parts: dict[int, dict[torch.Size, list[int]]] = defaultdict(lambda: defaultdict(list))
    before = 0
    for shape, i, count in each:
        parts[before // fair][shape].append(i)
        before += count
    return parts.values()
