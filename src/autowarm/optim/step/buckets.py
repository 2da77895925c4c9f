"""What is updated together: the tensors of a group that are on one device and need the same of other ranks.

Buckets depend on shapes, devices, placements and the geometry alone, so all steps share them.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...devices import traced_as_constant
from ...geometry import Geometry
from .batches import Batch, batches_of
from .dtensors import PLAIN, is_dtensor

_KNOWN = 64  # how many sets of tensors an optimizer remembers the buckets of


@dataclass
class Tensors:
    """Tensors that one rule updates, and what it needs of each, all lists in the same order."""

    group: dict[str, Any]
    xs: list[Tensor]  # parameters, or this rank's shards of them
    gs: list[Tensor]  # their gradients
    state: list[list[Tensor]]  # a list for each entry of a tensor's state: momenta, or AdamW's averages and step counts
    checked: bool = False  # whether it is known which gradients are finite, because ranks have agreed on it
    finite: Any = None  # if so, a flag for each gradient, as one tensor or a list; None if all are finite

    def at(self, places: Sequence[int]) -> "Tensors":
        """The tensors at these indices."""
        finite: Any = self.finite
        if finite is not None:
            finite = flags_at(finite, places) if isinstance(finite, Tensor) else [finite[i] for i in places]
        xs, gs, *state = [[each[i] for i in places] if each else [] for each in (self.xs, self.gs, *self.state)]
        return Tensors(self.group, xs, gs, state, self.checked, finite)

    def __getitem__(self, some: slice) -> "Tensors":
        finite = self.finite if self.finite is None else self.finite[some]
        state = [each[some] for each in self.state]
        return Tensors(self.group, self.xs[some], self.gs[some], state, self.checked, finite)


class Layout(NamedTuple):
    """How a tensor is distributed over the ranks, which decides the communication that its step needs."""

    axes: tuple[Any, ...] = ()  # the groups of ranks that hold the shards that its step needs
    gathered: bool = False  # whether its step needs the whole tensor, or ranks that hold copies share out the work
    dim: int | None = None  # if gathered: the dimension that is sharded over ``axes``; None if it is not sharded
    copies: Any = None  # if gathered: the ranks that hold the same shard as this one; None if there are none
    # If gathered and sharded further: the ranks that share this rank's shard, and its dimension that they split, from
    # the finest shards to the coarsest.
    finer: tuple[tuple[Any, int], ...] = ()

    def total(self, numbers: Tensor) -> Tensor:
        """Add up numbers over the ranks that hold the shards."""
        for ranks in self.axes:
            dist.all_reduce(numbers, group=ranks)
        return numbers


@dataclass(frozen=True)
class Bucket:
    """Tensors of one device and one layout."""

    members: tuple[int, ...]  # indices in the group; those of a stack follow each other, so that lists can be sliced
    layout: Layout
    shapes: tuple[torch.Size, ...]  # of the whole tensors
    radii: float | list[float]  # one number if it is the same for all
    batches: tuple[Batch, ...]  # stacks to orthogonalise, if the oracle is a polar factor and needs no other rank
    # Bytes of each rank's share of each tensor, if they add up numbers over ranks, which must then do so for the same
    # tensors at a time, even if their own shards differ. None if they do not.
    sizes: tuple[int, ...] | None
    whole: bool  # whether these are all of the group's tensors with a gradient, in their order


class Buckets:
    """The buckets of an optimizer's groups; the ranks given hold copies of the tensors that are not DTensors."""

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._process_group = process_group
        self._geometries: dict[int, Geometry] = {}  # by id, which stays their own while they are here
        self._known: dict[Any, tuple[Bucket, ...]] = {}

    def expects(self, geometry: Geometry) -> bool:
        """Whether `expect` knows this geometry."""
        return id(geometry) in self._geometries

    def expect(self, geometry: Geometry) -> None:
        """Must be called before `of` asks for this geometry; not traced, which `of` may be."""
        self._geometries[id(geometry)] = geometry

    def of(self, geometry: Geometry, xs: Sequence[Tensor]) -> tuple[Bucket, ...]:
        """Return the buckets of tensors in this geometry; NotImplementedError if one is sharded too much for it."""
        key = [(x.device, x.shape, x.dtype) if type(x) in PLAIN else _described(x) for x in xs]
        # Its id stands for the geometry: `torch.compile` of PyTorch 2.11 gives a constant's function no objects.
        return self._of(id(geometry), tuple(key))

    @traced_as_constant
    def _of(self, geometry: int, key: tuple[Any, ...]) -> tuple[Bucket, ...]:
        known = self._known.get((geometry, key))
        if known is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[geometry, key] = known = self._made(self._geometries[geometry], key)
        return known

    def _made(self, geometry: Geometry, key: tuple[Any, ...]) -> tuple[Bucket, ...]:
        together: dict[Any, list[int]] = defaultdict(list)
        for i, (device, shape, dtype, *sharding) in enumerate(key):
            if sharding:
                layout = _layout(geometry, shape, *sharding[1:])
            elif self._process_group is not None and geometry.costly:
                layout = Layout(gathered=True, copies=self._process_group)
            else:
                layout = Layout()
            # Messages have one dtype.
            together[device, layout, None if layout == Layout() else dtype].append(i)
        found = []
        for (device, layout, _), members in together.items():
            batches: tuple[Batch, ...] = ()
            if geometry.polar is not None and not layout.gathered:
                held = tuple((device, key[i][3] if len(key[i]) > 3 else key[i][1]) for i in members)
                batches = batches_of(geometry, held)
                members = [members[i] for batch in batches for i in batch.members]
            shapes = tuple(key[i][1] for i in members)
            sizes = None
            if layout.axes and not layout.gathered:
                ranks = math.prod(map(dist.get_world_size, layout.axes))
                sizes = tuple(key[i][1].numel() * key[i][2].itemsize // ranks for i in members)
            whole = members == [*range(len(key))]
            found.append(Bucket(tuple(members), layout, shapes, geometry.radii(shapes), batches, sizes, whole))
        return tuple(found)


def _described(x: Any) -> tuple[Any, ...]:
    """What decides a tensor's bucket: device, whole shape, dtype, and of a DTensor its shard's shape and placements."""
    if not is_dtensor(x):
        return x.device, x.shape, x.dtype
    return x.device, x.shape, x.dtype, x.to_local().shape, x.device_mesh, tuple(x.placements)


def _layout(geometry: Geometry, shape: torch.Size, mesh: Any, placements: tuple[Any, ...]) -> Layout:
    cut = [axis for axis, placed in enumerate(placements) if not placed.is_replicate() and mesh.size(axis) > 1]
    coupled = geometry.coupled(len(shape))
    # The dimensions of the mesh over which the oracle of an entry needs other shards.
    needed = [axis for axis in cut if placements[axis].dim in coupled]
    if needed and geometry.sums:
        return Layout(tuple(mesh.get_group(axis) for axis in needed))
    # Shards are counted from the coarsest. A strided one was split after those of later dimensions of the mesh.
    cut.sort(key=lambda axis: (hasattr(placements[axis], "split_factor"), axis))
    if needed and sum(hasattr(placements[axis], "split_factor") for axis in cut) > 1:
        raise NotImplementedError(
            f"a tensor of shape {tuple(shape)} is sharded with several strides ({placements}), and "
            f"{type(geometry).__name__} needs the whole"
        )
    finer = cut[1:] if needed else []
    # If several mesh dimensions hold copies, the longest splits the work; gathered shards are copies.
    copying = [axis for axis in range(mesh.ndim) if (axis not in cut or axis in finer) and mesh.size(axis) > 1]
    copies = mesh.get_group(max(copying, key=mesh.size)) if copying and geometry.costly else None
    if needed:
        first, *_ = cut
        shared = tuple((mesh.get_group(axis), placements[axis].dim) for axis in reversed(finer))
        return Layout((mesh.get_group(first),), True, placements[first].dim, copies, shared)
    return Layout() if cut or copies is None else Layout(gathered=True, copies=copies)


def by_device(xs: Sequence[Tensor]) -> list[list[int]]:
    """Return the indices of the tensors by device."""
    found: dict[torch.device, list[int]] = {}
    for i, x in enumerate(xs):
        found.setdefault(x.device, []).append(i)
    return list(found.values())


def flags_at(flags: Tensor, places: Sequence[int]) -> Tensor:
    """The flags at these indices, in few launches."""
    first = places[0]
    for i, place in enumerate(places):
        if place != first + i:
            each = flags.unbind()
            return torch.stack([each[place] for place in places])
    return flags[first : first + len(places)]
