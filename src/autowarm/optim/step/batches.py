"""Which tensors' matrices are orthogonalised in one stack: at small widths, that is Muon's speed."""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ...geometry import Geometry, Spectral
from ...orthogonalize import NARROW, working_dtype

__all__ = ["Batch", "batches_of", "is_batched"]

# Narrow matrices of every shape with the same short side make one stack: wide ones lie in it transposed, shorter ones
# are padded with rows of zeros, which leave the polar factor as it is, as long as that makes the stack no larger than
# this many times what lies in it.
_PADDING = 1.25

# On a processor a stack's iterations should not leave the cache, which a megabyte and its products fill. A few matrices
# stay together all the same, lest products be too small to keep all threads at work.
_STACK_BYTES = {"cpu": 1 << 20}
_FEW = 4


Shapes = tuple[tuple[torch.Size, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Batch:
    """Tensors whose matrices are orthogonalised in one stack.

    Attributes:
        geometry: theirs.
        device: theirs.
        size: rows and columns of the stack's matrices.
        by_shape: shape of a tensor, and the places of those that have it.
    """

    geometry: Spectral
    device: torch.device
    size: tuple[int, int]
    by_shape: Shapes

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Places of the tensors, in the order in which they lie in the stack."""
        return tuple(i for _, members in self.by_shape for i in members)

    @cached_property
    def runs(self) -> tuple[tuple[slice, float], ...]:
        """Which of the members have one shape, and the radius of their steps."""
        ends = accumulate((len(members) for _, members in self.by_shape), initial=0)
        return tuple(
            (slice(start, end), self.geometry.radius_of(shape))
            for (start, end), (shape, _) in zip(pairwise(ends), self.by_shape, strict=True)
        )

    @cached_property
    def _matrices(self) -> tuple[tuple[int, int], ...]:
        """Of each member, rows and columns of its matrices."""
        return tuple(self.geometry.matrix_shape(shape) for shape, members in self.by_shape for _ in members)

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        """Of each member, how many matrices it has."""
        sizes = (shape.numel() for shape, members in self.by_shape for _ in members)
        return tuple(size // max(1, m * n) for size, (m, n) in zip(sizes, self._matrices, strict=True))

    def stack(self) -> Tensor:
        """An empty one, of the dtype that is computed in; where there is padding, it is zero."""
        padded = any(sorted(matrix) != sorted(self.size) for matrix in self._matrices)
        make = torch.zeros if padded else torch.empty
        dtype = self.geometry.dtype or working_dtype(self.device)
        return make((sum(self._counts), *self.size), dtype=dtype, device=self.device)

    def slots(self, stack: Tensor) -> list[Tensor]:
        """Each member's matrices in a stack: (count, m, n), or (m, n) where every tensor is one matrix."""
        single = all(count == 1 for count in self._counts)
        cuts = stack.unbind() if single else stack.split(self._counts)
        found = []
        for cut, (m, n) in zip(cuts, self._matrices, strict=True):
            if (m, n) != self.size:
                cut = (cut if m >= n else cut.mT)[..., :m, :n]
            found.append(cut)
        return found

    def fill_(self, slots: list[Tensor], directions: list[Tensor]) -> None:
        """Copy directions to where they lie in the stack, in its dtype."""
        if self.geometry.transposed:
            directions = [g.mT for g in directions]
        torch._foreach_copy_(slots, [_as(g, slot.shape) for g, slot in zip(directions, slots, strict=True)])

    def taken(self, slots: list[Tensor], like: list[Tensor]) -> list[Tensor]:
        """What lies in the slots, of the shapes of the tensors that it belongs to."""
        if self.geometry.transposed:
            return [_as(slot, x.mT.shape).mT for slot, x in zip(slots, like, strict=True)]
        return [_as(slot, x.shape) for slot, x in zip(slots, like, strict=True)]


def _as(x: Tensor, shape: torch.Size) -> Tensor:
    return x if x.shape == shape else x.reshape(shape)


def is_batched(geometry: Geometry) -> bool:
    """Whether its oracle is an iteration on stacks; a subclass of `Spectral` may define its own."""
    return type(geometry) is Spectral and geometry.method != "svd"


@lru_cache(maxsize=256)
def batches_of(geometry: Spectral, tensors: tuple[tuple[torch.device, torch.Size], ...]) -> tuple[Batch, ...]:
    """What is orthogonalised together; a pure function of devices and shapes, as a step has little time to think."""
    alike: dict[tuple[torch.device, torch.Size], list[int]] = defaultdict(list)
    for i, tensor in enumerate(tensors):
        alike[tensor].append(i)
    together: dict[tuple[torch.device, tuple[int, int]], list[torch.Size]] = defaultdict(list)
    filled: dict[tuple[torch.device, tuple[int, int]], int] = defaultdict(int)  # elements without the padding
    rows: dict[tuple[torch.device, tuple[int, int]], int] = defaultdict(int)
    longest_first = sorted(alike, key=lambda tensor: -max(geometry.matrix_shape(tensor[1])))
    for device, shape in longest_first:
        matrix = geometry.matrix_shape(shape)
        elements = shape.numel() * len(alike[device, shape])
        stack = (device, matrix)
        if 0 < min(matrix) <= NARROW:
            long, short = max(matrix), min(matrix)
            count = elements // (long * short)
            stack = (device, (long, short))
            for other in together:
                padded = (rows[other] + count * other[1][0]) * short
                if other[0] == device and other[1][1] == short and padded <= _PADDING * (filled[other] + elements):
                    stack = other
                    break
            rows[stack] += count * stack[1][0]
            filled[stack] += elements
        together[stack].append(shape)
    return tuple(
        Batch(geometry, device, size, part)
        for (device, size), shapes in together.items()
        for part in _cut({shape: alike[device, shape] for shape in shapes}, _most(geometry, device, size), geometry)
    )


def _most(geometry: Spectral, device: torch.device, size: tuple[int, int]) -> int:
    """How many matrices may make one stack."""
    if device.type not in _STACK_BYTES:
        return sys.maxsize
    element = torch.finfo(geometry.dtype or working_dtype(device)).bits // 8
    return max(_FEW, _STACK_BYTES[device.type] // max(1, math.prod(size) * element))


def _cut(by_shape: dict[torch.Size, list[int]], most: int, geometry: Spectral) -> Iterator[Shapes]:
    """Cut the tensors into parts of equal numbers of matrices, each where it starts."""
    count = {shape: max(1, shape.numel() // max(1, math.prod(geometry.matrix_shape(shape)))) for shape in by_shape}
    total = sum(count[shape] * len(places) for shape, places in by_shape.items())
    fair = math.ceil(total / math.ceil(total / most))
    parts: dict[int, dict[torch.Size, list[int]]] = defaultdict(lambda: defaultdict(list))
    before = 0
    for shape, places in by_shape.items():
        for i in places:
            parts[before // fair][shape].append(i)
            before += count[shape]
    for part in parts.values():
        yield tuple((shape, tuple(places)) for shape, places in part.items())
