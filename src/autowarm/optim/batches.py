"""Which tensors' matrices are orthogonalised in one stack: at small widths, that is Muon's speed."""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from ..geometry import Spectral
from ..orthogonalize import NARROW, working_dtype

__all__ = ["Batch", "batches_of"]

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
        device: theirs.
        size: rows and columns of the stack's matrices.
        by_shape: shape of a tensor, and the places of those that have it.
        matrices: of each shape, rows and columns of its matrices.
    """

    device: torch.device
    size: tuple[int, int]
    by_shape: Shapes
    matrices: tuple[tuple[int, int], ...]

    @cached_property
    def members(self) -> tuple[int, ...]:
        return tuple(i for _, members in self.by_shape for i in members)

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        """Of each tensor, how many matrices it has."""
        return tuple(
            shape.numel() // max(1, m * n)
            for (shape, members), (m, n) in zip(self.by_shape, self.matrices, strict=True)
            for _ in members
        )

    def stack(self, dtype: torch.dtype) -> Tensor:
        """An empty one; where there is padding, it is zero."""
        padded = any(sorted(matrix) != sorted(self.size) for matrix in self.matrices)
        make = torch.zeros if padded else torch.empty
        return make((sum(self._counts), *self.size), dtype=dtype, device=self.device)

    def slots(self, stack: Tensor) -> dict[int, Tensor]:
        """By a tensor's place, its matrices in a stack: (count, m, n), or (m, n) where every tensor is one matrix."""
        single = all(count == 1 for count in self._counts)
        cuts = iter(stack.unbind() if single else stack.split(self._counts))
        found = {}
        for (_, members), (m, n) in zip(self.by_shape, self.matrices, strict=True):
            for i, cut in zip(members, cuts, strict=False):
                if (m, n) != self.size:
                    cut = (cut if m >= n else cut.mT)[..., :m, :n]
                found[i] = cut
        return found


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
        Batch(device, size, part, tuple(geometry.matrix_shape(shape) for shape, _ in part))
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
