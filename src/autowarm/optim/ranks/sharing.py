"""Updates of tensors that ranks hold shards or copies of: the only place, beside `agreement`, that knows of ranks.

`Shared` calls another rule with what this rank holds. Where an oracle needs no more than that, or sums over the ranks,
that is all. Where it needs whole tensors, or takes long and has copies, one rank computes each:

The ranks form a grid: *shards* along one side, *copies* along the other; either side may have length one. Every tensor
has an owner in the grid. An all-to-all among the shards brings each owner its tensors, the owner computes their oracle,
a second all-to-all returns the results, and an all-gather among the copies distributes them.

Owners are chosen to balance the work, identically on every rank. Messages have the dtype of the iterations, so the
results are those of a single process. The work is split into *rounds*, which bound the memory; while one round is
computed, the next one is in transit.

Tensors that are sharded over more dimensions of a mesh, as by tensor parallelism and FSDP2 together, are redistributed:
they enter the grid as copies, some at a time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...geometry import Geometry, Rate
from ...orthogonalize import held_in, orthogonalize_, working_dtype
from ..step.plan import Plans, Remembered, Whole, cut, temporaries
from ..step.update import Oracle, Rule, Update, block_of, empty_stack, fill_
from .dtensors import is_dtensor, local

# Peak memory in multiples of the tensors that a rank owns in a round: the next round's messages, sent and received, a
# stack and its products, and the results of the previous round.
_AT_PEAK = 6

Owner = tuple[int, int]  # a rank's place among the copies, and among the shards
Round = dict[Owner, list[int]]  # the tensors of each owner, by their indices


class Layout(NamedTuple):
    """How a tensor is distributed over the ranks, which decides the communication that its step needs."""

    axes: tuple[Any, ...] = ()  # the groups of ranks that hold the shards that its step needs
    gathered: bool = False  # whether its step needs the whole tensor, or ranks that hold copies share out the work
    dim: int | None = None  # if gathered: the dimension that is sharded over ``axes``; None if it is not sharded
    copies: Any = None  # if gathered: the ranks that hold the same shard as this one; None if there are none
    redistributed: bool = False  # if gathered: whether it is sharded over more than one dimension of its mesh

    def total(self, numbers: Tensor) -> Tensor:
        """Add up numbers over the ranks that hold the shards."""
        for ranks in self.axes:
            dist.all_reduce(numbers, group=ranks)
        return numbers


@dataclass(frozen=True)
class Share:
    """Tensors of one layout, by their indices."""

    members: tuple[int, ...]
    layout: Layout
    # Of each tensor, its shape and the bytes of a rank's share: ranks that add up numbers must do so for the same
    # tensors at a time, even if their own shards differ.
    wholes: tuple[Whole, ...]


class Shared(Remembered):
    """Another rule's updates, of tensors that are DTensors, or that these ranks hold copies of."""

    def __init__(self, rule: Rule, process_group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.rule, self._process_group = rule, process_group

    def update_(self, update: Update, plans: Plans) -> None:
        """See `update.Rule.update_`."""
        geometry: Geometry = update.group["geometry"]
        for share in self.shares(geometry, update.xs):
            given = update.at(share.members)
            # This rank's pieces, which share the memory of the tensors
            xs, gs, *state = [[local(x) for x in each] for each in (given.xs, given.gs, *given.state)]
            shards = replace(given, xs=xs, gs=gs, state=state)
            if not share.layout.gathered:
                shards.total, shards.wholes = share.layout.total if share.layout.axes else None, share.wholes
                self.rule.update_(shards, plans)
                continue
            assert isinstance(self.rule, Oracle)
            if shards.finite is not None:
                shards.finite = shards.finite.to(xs[0].device, non_blocking=True)
            shapes = [shape for shape, _ in share.wholes]
            if share.layout.redistributed:
                self._redistribute_(given, shards, share.layout, shapes, plans)
            else:
                _Exchange(self.rule, shards, share.layout, shapes, plans).step_()

    def shares(self, geometry: Geometry, xs: Sequence[Tensor]) -> tuple[Share, ...]:
        """Sort tensors by layout; NotImplementedError if one is sharded too much for this geometry."""
        self.geometries[id(geometry)] = geometry
        # What decides a tensor's layout; of a DTensor, whose shape is the whole one, also its mesh and placements
        described = []
        for x in xs:
            sharding = (x.device_mesh, tuple(x.placements)) if is_dtensor(x) else ()  # type: ignore[attr-defined]
            described.append((x.device, x.shape, x.dtype, *sharding))
        return self.recall(id(geometry), tuple(described))

    def find(self, geometry: Geometry, tensors: tuple[Any, ...], wholes: None = None) -> list[Share]:
        together: dict[Any, list[int]] = {}
        for i, (device, shape, dtype, *sharding) in enumerate(tensors):
            if sharding:
                layout = _layout(geometry, shape, *sharding)  # a DTensor
            elif self._process_group is not None and geometry.costly:
                layout = Layout(gathered=True, copies=self._process_group)  # a copy whose oracle takes long
            else:
                layout = Layout()  # this rank computes its own step
            # Messages have one dtype, and are of one device.
            alike = None if layout == Layout() else (device, dtype, _dtype_sent(geometry, shape, dtype, device))
            together.setdefault((layout, alike), []).append(i)
        shares = []
        for (layout, _), members in together.items():
            ranks = math.prod(map(dist.get_world_size, layout.axes))
            sizes = tuple((tensors[i][1], tensors[i][1].numel() * tensors[i][2].itemsize // ranks) for i in members)
            shares.append(Share(tuple(members), layout, sizes))
        return shares

    def _redistribute_(
        self, given: Update, shards: Update, layout: Layout, shapes: list[torch.Size], plans: Plans
    ) -> None:
        """Update tensors that are sharded over several dimensions of a mesh.

        Between gathering and cutting, tensors of zeros stand in for the parameters, and so receive the bare answers of
        the oracle.
        """
        from torch.distributed.tensor import DTensor

        geometry, device = given.group["geometry"], shards.xs[0].device
        rate = Rate.of_group(given.group, device, shards.finite)
        sizes = [shape.numel() * shards.xs[0].element_size() for shape in shapes]
        for part in cut(sizes, device, temporaries(max(sizes)) // 3):  # directions, answers and messages
            wholes = []
            for x, direction in zip(given.xs[part], self.rule.directions(shards[part]), strict=True):  # type: ignore[attr-defined]
                sent = direction.to(_dtype_sent(geometry, x.shape, direction.dtype, device))
                how: Any = {"shape": x.shape, "stride": x.stride(), "run_check": False}
                wholes.append(DTensor.from_local(sent, x.device_mesh, x.placements, **how).full_tensor())  # type: ignore[attr-defined]
            answers = [torch.zeros_like(whole, dtype=shards.xs[0].dtype) for whole in wholes]
            # Without a momentum, an oracle's directions are the gradients.
            group = {"geometry": geometry, "lr": 1.0, "weight_decay": 0.0, "momentum": 0.0}
            _Exchange(Oracle(), Update(group, answers, wholes, [[]]), layout, shapes[part], plans).step_()
            updates = [_cut_like(x, answer) for x, answer in zip(given.xs[part], answers, strict=True)]
            rate.step_each_(shards.xs[part], updates, [1.0] * len(updates))


def _layout(geometry: Geometry, shape: torch.Size, mesh: Any, placements: tuple[Any, ...]) -> Layout:
    sharded = [axis for axis, placed in enumerate(placements) if not placed.is_replicate() and mesh.size(axis) > 1]
    coupled = geometry.coupled(len(shape))  # the dimensions that an entry of the oracle depends on
    # The dimensions of the mesh over which the oracle of an entry needs other shards.
    needed = [axis for axis in sharded if placements[axis].dim in coupled]
    if needed and geometry.sums:
        return Layout(tuple(mesh.get_group(axis) for axis in needed))
    if needed and sum(hasattr(placements[axis], "split_factor") for axis in sharded) > 1:
        raise NotImplementedError(
            f"a tensor of shape {tuple(shape)} is sharded with several strides ({placements}), and "
            f"{type(geometry).__name__} needs the whole"
        )
    redistributed = len(needed) > 0 and len(sharded) > 1
    # If several mesh dimensions hold copies, the longest splits the work; redistributed shards are copies.
    copying = [axis for axis in range(mesh.ndim) if (redistributed or axis not in sharded) and mesh.size(axis) > 1]
    copies = mesh.get_group(max(copying, key=mesh.size)) if copying and geometry.costly else None
    if needed and not redistributed:
        return Layout((mesh.get_group(needed[0]),), True, placements[needed[0]].dim, copies)
    if needed or (copies is not None and not sharded):
        return Layout(gathered=True, copies=copies, redistributed=redistributed)
    return Layout()


class _Exchange:
    """The exchange of one step, of tensors of these whole shapes whose layout is gathered."""

    def __init__(self, rule: Oracle, update: Update, layout: Layout, shapes: list[torch.Size], plans: Plans) -> None:
        self.geometry: Geometry = update.group["geometry"]
        self.rule, self.update, self.shapes, self.plans = rule, update, shapes, plans
        self.xs, self.device, self.dim = update.xs, update.xs[0].device, layout.dim
        self.rate = Rate.of_group(update.group, self.device, update.finite)
        self.shards, self.copies = layout.axes[0] if layout.dim is not None else None, layout.copies
        (self.copied, copy), (self.cut, shard) = (
            (1, 0) if group is None else (dist.get_world_size(group), dist.get_rank(group))
            for group in (self.copies, self.shards)
        )
        self.rank: Owner = copy, shard
        self.dtype = _dtype_sent(self.geometry, shapes[0], self.xs[0].dtype, self.device)
        self.temporaries = temporaries(max(shape.numel() for shape in self.shapes) * self.dtype.itemsize)

    def step_(self) -> None:
        """Update this rank's part of the tensors, in place."""
        rounds = self.rounds()
        coming, returning = self.gather(rounds[0]), None
        for i, owners in enumerate(rounds):
            wholes = self.wholes(owners, coming.wait())  # the directions of this rank's own tensors, (m, n) each
            if i + 1 < len(rounds):
                coming = self.gather(rounds[i + 1])  # in transit while this round's oracle is computed
            answers = self.answers(wholes)  # by shard, then by tensor: (m / shards, n) each, as one flat tensor
            if returning is not None:
                self.move_(rounds[i - 1], returning.wait())  # x ← (1 − λη)x + η·LMO
            received, sent = self._elements(owners)
            returning = _all_to_all(answers, sent, received, self.shards)  # each shard to the rank that holds it
            del answers
        if returning is not None:
            self.move_(rounds[-1], returning.wait())

    def rounds(self) -> list[Round]:
        """Share out tensors, the largest first and each to the least busy owner, in rounds that bound the memory."""
        owners = [*product(range(self.copied), range(self.cut))]
        most = self.temporaries // max(_AT_PEAK, self.copied + 3)
        work = [shape.numel() * (min(shape[-2:]) if len(shape) > 1 else 1) for shape in self.shapes]
        rounds: list[Round] = []
        # Of each owner: all its work, the bytes left in its latest round, and the number of that
        load, room, last = dict.fromkeys(owners, 0), dict.fromkeys(owners, 0), dict.fromkeys(owners, -1)
        for i in sorted(range(len(work)), key=lambda i: (-work[i], i)):
            owner, size = min(owners, key=load.__getitem__), self.shapes[i].numel() * self.dtype.itemsize
            load[owner] += work[i]
            if size > room[owner]:
                last[owner], room[owner] = last[owner] + 1, most
            room[owner] -= size
            if last[owner] == len(rounds):
                rounds.append({place: [] for place in owners})
            rounds[last[owner]][owner].append(i)
        return rounds

    def gather(self, owners: Round) -> "_Transit":
        """Update the momenta, and start sending this rank's parts of the directions to the tensors' owners."""
        mine, others = self._of_copy(owners), [i for owner in owners if owner[0] != self.rank[0] for i in owners[owner]]
        for part in self._parts(others):
            self.rule.directions(self.update.at(part), wanted=False)  # another copy sends these directions
        out = self._empty(sum(self.xs[i].numel() for i in mine))  # by owner, then by tensor: (m / shards, n) each
        views = iter(_unflat(out, [self.xs[i].shape for i in mine]))
        for part in self._parts(mine):
            torch._foreach_copy_([next(views) for _ in part], self.rule.directions(self.update.at(part)))
        sent, received = self._elements(owners)
        return _all_to_all(out, sent, received, self.shards)

    def wholes(self, owners: Round, received: Tensor) -> list[Tensor]:
        """Put this rank's own tensors together from their shards."""
        owned = [self.shapes[i] for i in owners[self.rank]]
        shapes = [_shard(shape, self.dim, self.cut, k)[1] for k in range(self.cut) for shape in owned]
        pieces = _unflat(received, shapes)  # by shard, then by tensor: (m / shards, n) each
        by_tensor = [pieces[i :: len(owned)] for i in range(len(owned))]
        return [ts[0] if len(ts) == 1 else torch.cat(ts, self.dim or 0) for ts in by_tensor]

    def answers(self, wholes: list[Tensor]) -> Tensor:
        """Compute the negated oracle of these tensors as one flat message; the list is emptied to free memory."""
        factors = list(wholes)  # (m, n) each; those without entries are in no stack, and stay
        for plan in self.plans.of(self.geometry, wholes) if self.geometry.polar is not None else ():
            order = plan.order or range(len(wholes))
            for stack in plan.stacks:
                members = order[stack.some]
                X, slots = empty_stack(stack)  # X (count, m, n); slots[i] a view of tensor i
                fill_(stack, slots, [wholes[i] for i in members])
                del slots
                for i in members:  # freed once they are in the stack
                    wholes[i] = factors[i] = self._empty(0)
                X = orthogonalize_(X, *stack.polar)  # X ← UVᵀ
                for run in stack.runs:
                    block = block_of(stack, X, run, slice(0, run.tensors.stop - run.tensors.start))  # (tensors, *shape)
                    for i, factor in zip(members[run.tensors], block.unbind(), strict=True):
                        factors[i] = factor
        if self.geometry.polar is None:
            factors = [answer.neg_() for answer in self.geometry.lmo_each(wholes)]
        wholes.clear()
        pieces = [_cut(factor, self.dim, self.cut, k) for k in range(self.cut) for factor in factors]
        # A geometry may compute in another dtype than its tensors', but ranks send each other bytes of one.
        return torch.cat([piece.reshape(-1) for piece in pieces]).to(self.dtype) if pieces else self._empty(0)

    def move_(self, owners: Round, received: Tensor) -> None:
        """Exchange the answers among the copies, and move this rank's parts of the tensors by them."""
        by_copy = [self._of_copy(owners, copy) for copy in range(self.copied)]
        flats = _all_gather(received, [sum(self.xs[i].numel() for i in places) for places in by_copy], self.copies)
        # By copy, then by owner and tensor: (m / shards, n) each
        updates = [t for flat, places in zip(flats, by_copy, strict=True)
                   for t in _unflat(flat, [self.xs[i].shape for i in places])]  # fmt: skip
        moved = [i for places in by_copy for i in places]
        # An iterated factor has no radius yet, and may be of a coarser dtype than the radius.
        iterated = self.geometry.polar is not None
        scales = [-self.geometry.radius_of(self.shapes[i]) if iterated else -1.0 for i in moved]
        self.rate.step_each_([self.xs[i] for i in moved], updates, scales)

    def _elements(self, owners: Round) -> tuple[list[int], list[int]]:
        """By shard: how many of this rank's elements its rank owns, and how many it has of this owner's tensors."""
        shards, owned = range(self.cut), [self.shapes[i] for i in owners[self.rank]]
        lent = [sum(self.xs[i].numel() for i in owners[self.rank[0], k]) for k in shards]
        return lent, [sum(_shard(shape, self.dim, self.cut, k)[1].numel() for shape in owned) for k in shards]

    def _of_copy(self, owners: Round, copy: int | None = None) -> list[int]:
        """The tensors whose owners are in a copy, or in this rank's, by owner."""
        return [i for k in range(self.cut) for i in owners[self.rank[0] if copy is None else copy, k]]

    def _parts(self, places: Sequence[int]) -> list[Sequence[int]]:
        most = None if self.device.type == "cpu" else self.temporaries // 3
        return [places[part] for part in cut([self.xs[i].nbytes for i in places], self.device, most)]

    def _empty(self, size: int) -> Tensor:
        return torch.empty(size, dtype=self.dtype, device=self.device)


def _dtype_sent(geometry: Any, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of a tensor's stack, to which it would be rounded anyway: rounding first halves the messages."""
    if geometry.polar is None:
        return dtype
    return held_in(geometry.polar.dtype or working_dtype(device), min(geometry.stack_size(shape)))


def _shard(shape: torch.Size, dim: int | None, world: int, rank: int) -> tuple[int, torch.Size]:
    """Where a rank's shard starts, and its shape, split as by `torch.chunk`: the last may be shorter or empty."""
    if dim is None:
        return 0, shape
    size = -(-shape[dim] // world)
    start = min(shape[dim], rank * size)
    return start, torch.Size([*shape[:dim], min(size, shape[dim] - start), *shape[dim + 1 :]])


def _cut(x: Tensor, dim: int | None, world: int, rank: int) -> Tensor:
    """Return a rank's shard of a tensor."""
    start, shape = _shard(x.shape, dim, world, rank)
    return x if dim is None else x.narrow(dim, start, shape[dim])


def _cut_like(x: Any, whole: Tensor) -> Tensor:
    """This rank's shard of a whole tensor, as of a DTensor. A strided shard was split after all others."""
    mesh, placements = x.device_mesh, x.placements
    for axis in sorted(range(mesh.ndim), key=lambda axis: hasattr(placements[axis], "split_factor")):
        if not placements[axis].is_replicate():
            whole = _cut(whole, placements[axis].dim, mesh.size(axis), mesh.get_local_rank(axis))
    return whole


class _Transit:
    """Elements on their way to this rank. It holds those that it sends, whose memory must last until they have gone."""

    def __init__(self, received: Tensor, sent: Tensor | None = None, work: Any = None) -> None:
        self._received: Tensor | None = received
        self._sent, self._work = sent, work

    def wait(self) -> Tensor:
        """Return what has arrived, once."""
        if self._work is not None:
            self._work.wait()
        received, self._received, self._sent = self._received, None, None
        assert received is not None
        return received


def _all_to_all(out: Tensor, sent: list[int], received: list[int], ranks: Any) -> _Transit:
    """Start exchanging so many elements with each rank."""
    if ranks is None:
        return _Transit(out)
    came, size = out.new_empty(sum(received)), out.element_size()  # by rank that sends
    in_bytes = [n * size for n in received], [n * size for n in sent]
    return _Transit(came, out, dist.all_to_all_single(_bytes(came), _bytes(out), *in_bytes, ranks, async_op=True))


def _all_gather(mine: Tensor, sizes: list[int], ranks: Any) -> list[Tensor]:
    """Send this rank's elements to everyone and return what each sent."""
    if ranks is None:
        return [mine]
    # The collective needs messages of equal length, so pad to the longest.
    longest = max(sizes)
    if mine.numel() < longest:
        mine = torch.cat([mine, mine.new_zeros(longest - mine.numel())])
    came = mine.new_empty(len(sizes) * longest)  # rank 0's elements and padding, then rank 1's, …
    dist.all_gather_into_tensor(_bytes(came), _bytes(mine), group=ranks)
    return [part[:size] for part, size in zip(came.view(len(sizes), longest), sizes, strict=True)]


def _unflat(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Views of a message as the tensors of which it holds the elements, one after the other."""
    pieces = flat.split([shape.numel() for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _bytes(x: Tensor) -> Tensor:
    # Some backends do not support every dtype, but all support bytes.
    return x.view(torch.uint8)
