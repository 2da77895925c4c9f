"""Steps that need whole tensors, for tensors that are sharded or copied: one rank computes each.

The ranks form a grid: *shards* along one side, *copies* along the other; either side may have length one. Every tensor
has an owner in the grid. An all-to-all among the shards brings each owner its tensors, the owner orthogonalises them, a
second all-to-all returns the results, and an all-gather among the copies distributes them.

Owners are chosen to balance the work, identically on every rank. Messages have the dtype of the iterations, so the
results are those of a single process. The work is split into *rounds*, which bound the memory; while one round is
orthogonalised, the next one is in transit.

Tensors that are sharded over more dimensions of a mesh, as by tensor parallelism and FSDP2 together, enter the grid
with one: the finer shards are gathered first, some tensors at a time, and the ranks that share them become copies.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ...geometry import Geometry, Rate
from ...orthogonalize import orthogonalize_, working_dtype
from .batches import batches_of, block_of, empty_stack, fill_, parts_of, slots_of, temporaries
from .buckets import Bucket, Tensors

# Peak memory in multiples of the tensors that a rank owns in a round: the next round's messages, sent and received, a
# stack and its products, and the results of the previous round.
_AT_PEAK = 6

Landing = Callable[[], None]


class Taken(Protocol):
    """Updates the momenta of some tensors and returns their directions, unless only the momenta are wanted."""

    def __call__(self, tensors: Tensors, *, wanted: bool = True) -> list[Tensor]: ...


def move_gathered_(geometry: Geometry, bucket: Bucket, tensors: Tensors, taken: Taken, rate: Rate) -> None:
    """Update this rank's part of the tensors of a bucket whose layout is gathered, in place."""
    sharing = _Sharing(geometry, bucket, tensors, taken, rate)
    rounds = sharing.rounds()
    arriving = sharing.send(rounds[0])
    landing: Landing | None = None
    for some, following in zip(rounds, [*rounds[1:], None], strict=True):
        wholes = arriving()
        if following is not None:
            arriving = sharing.send(following)
        answers = sharing.answers(some, wholes)
        if landing is not None:
            landing()
        landing = sharing.send_back(some, answers)
        del answers
    if landing is not None:
        landing()


def move_finer_(geometry: Geometry, bucket: Bucket, tensors: Tensors, taken: Taken, rate: Rate) -> None:
    """Do as `move_gathered_` for tensors whose layout has finer shards, which are gathered and cut again here.

    Between the two, tensors of zeros stand in for the parameters, and so receive the bare answers of the oracle.
    """
    layout = bucket.layout
    (coarse,), dim = layout.axes, layout.dim
    coarsest = [_shard(shape, dim, *_size_and_rank(coarse)) for shape in bucket.shapes]
    for part in _some(bucket.shapes, tensors.xs[0].element_size() / _size_and_rank(coarse)[0]):
        some = tensors.at(part)
        nested = [_nested(coarsest[i], layout.finer) for i in part]
        sent = [direction.to(_dtype_sent(geometry, direction)) for direction in taken(some)]
        directions = _joined(sent, nested, layout.finer)
        answers = [torch.zeros_like(direction, dtype=some.xs[0].dtype) for direction in directions]
        whole = replace(bucket, layout=layout._replace(finer=()), shapes=tuple(bucket.shapes[i] for i in part))
        held = Tensors(some.group, answers, directions, [], checked=True)
        move_gathered_(geometry, whole, held, lambda tensors, wanted=True: tensors.gs, Rate(1.0))
        updates = [_finest(answer, layout.finer) for answer in answers]
        rate.step_each_(some.xs, updates, [1.0] * len(part), part)


def _some(shapes: Sequence[torch.Size], bytes_each: float) -> Iterator[list[int]]:
    """Indices of as many tensors as may be held at a time, the same on all ranks, whose shards may differ."""
    sizes = [int(shape.numel() * bytes_each) for shape in shapes]
    most = temporaries(max(sizes)) // 3  # directions, answers and messages
    part: list[int] = []
    for i, size in enumerate(sizes):
        if part and sum(sizes[j] for j in part) + size > most:
            yield part
            part = []
        part.append(i)
    yield part


def _nested(shape: torch.Size, finer: Sequence[tuple[Any, int]]) -> list[torch.Size]:
    """The shapes of this rank's shards of a shard, from the coarsest to the finest."""
    shapes = [shape]
    for ranks, dim in reversed(finer):
        shapes.append(_shard(shapes[-1], dim, *_size_and_rank(ranks)))
    return shapes


def _joined(xs: list[Tensor], nested: list[list[torch.Size]], finer: Sequence[tuple[Any, int]]) -> list[Tensor]:
    """The coarsest shards of which ranks hold these finest ones."""
    for level, (ranks, dim) in enumerate(finer):
        wholes = [shapes[-2 - level] for shapes in nested]
        count, _ = _size_and_rank(ranks)
        parts = [[_shard(whole, dim, count, rank) for whole in wholes] for rank in range(count)]
        flats = _all_gather(torch.cat([x.reshape(-1) for x in xs]), [sum(s.numel() for s in ss) for ss in parts], ranks)
        held = [_unflat(flat, [shapes])[0] for flat, shapes in zip(flats, parts, strict=True)]
        xs = [torch.cat(pieces, dim) for pieces in zip(*held, strict=True)]
    return xs


def _finest(x: Tensor, finer: Sequence[tuple[Any, int]]) -> Tensor:
    """This rank's finest shard of its coarsest one."""
    for ranks, dim in reversed(finer):
        x = _cut(x, dim, *_size_and_rank(ranks))
    return x


class _Sharing:
    """The exchange of one step. A *round* is a list with the indices of each owner's tensors."""

    def __init__(self, geometry: Geometry, bucket: Bucket, tensors: Tensors, taken: Taken, rate: Rate) -> None:
        self.geometry, self.tensors, self.taken, self.rate = geometry, tensors, taken, rate
        self.shapes, self.xs, layout = bucket.shapes, tensors.xs, bucket.layout
        self.device, self.dim = self.xs[0].device, layout.dim
        self.shards = layout.axes[0] if layout.dim is not None else None
        self.copies = layout.copies
        self.cut, self.piece = _size_and_rank(self.shards)
        self.copied, self.copy = _size_and_rank(self.copies)
        self.polar, self.dtype = geometry.polar, _dtype_sent(geometry, self.xs[0])
        self.temporaries = temporaries(max(shape.numel() for shape in self.shapes) * self.dtype.itemsize)

    def rounds(self) -> list[list[list[int]]]:
        """Return the tensors' indices by round and by owner. Owners are ordered by copy, then by shard."""
        owners = share_out([_work(shape) for shape in self.shapes], self.cut * self.copied)
        most = self.temporaries // max(_AT_PEAK, self.copied + 3)
        rounds: list[list[list[int]]] = []
        room = [0] * (self.cut * self.copied)
        last = [-1] * len(room)  # each owner's latest round
        for i in sorted(range(len(owners)), key=lambda i: (-_work(self.shapes[i]), i)):
            owner, size = owners[i], self.shapes[i].numel() * self.dtype.itemsize
            if size > room[owner]:
                last[owner], room[owner] = last[owner] + 1, most
            room[owner] -= size
            if last[owner] == len(rounds):
                rounds.append([[] for _ in room])
            rounds[last[owner]][owner].append(i)
        return rounds

    def send(self, some: list[list[int]]) -> Callable[[], list[list[Tensor]]]:
        """Start sending this round's tensors to their owners; the result waits for this rank's own, by sending rank."""
        mine = self._of_copy(some, self.copy)
        copies = [self._of_copy(some, copy) for copy in range(self.copied) if copy != self.copy]
        others = [i for owners in copies for places in owners for i in places]
        for part in self._parts(others):
            self.taken(self.tensors.at(part), wanted=False)  # only updates their momenta
        outgoing = [i for places in mine for i in places]
        out = self._empty(sum(self.xs[i].numel() for i in outgoing))
        views = iter(self._unflat(out, outgoing))
        for part in self._parts(outgoing):
            torch._foreach_copy_([next(views) for _ in part], self.taken(self.tensors.at(part)))
        sizes = [sum(self.xs[i].numel() for i in places) for places in mine]
        shapes = [[self._shard(i, rank) for i in mine[self.piece]] for rank in range(self.cut)]
        came, wait = _all_to_all(out, sizes, [sum(s.numel() for s in ss) for ss in shapes], self.shards)

        def arrived() -> list[list[Tensor]]:
            wait()
            return _unflat(came, shapes)

        return arrived

    def answers(self, some: list[list[int]], parts: list[list[Tensor]]) -> Tensor:
        """Compute the negated oracle for this rank's own tensors, split into the ranks' parts, as one flat message.

        The parts, by sending rank, are emptied to free memory.
        """
        places = self._of_copy(some, self.copy)[self.piece]
        wholes = [ts[0] if len(ts) == 1 else torch.cat(ts, self.dim or 0) for ts in zip(*parts, strict=True)]
        parts.clear()
        if self.polar is not None:
            found = self._orthogonalized(places, wholes)
        else:
            found = [answer.neg_() for answer in self.geometry.lmo_each(wholes)]
        cut = [_cut(answer, self.dim, self.cut, rank) for rank in range(self.cut) for answer in found]
        # A geometry may compute in another dtype than its tensors', but ranks send each other bytes of one.
        return torch.cat([t.reshape(-1) for t in cut]).to(self.dtype) if cut else self._empty(0)

    def _orthogonalized(self, places: list[int], wholes: list[Tensor]) -> list[Tensor]:
        found: list[Tensor] = [self._empty(0)] * len(places)
        for batch in batches_of(self.geometry, tuple((self.device, self.shapes[i]) for i in places)):
            stack = empty_stack(batch)
            fill_(batch, slots_of(batch, stack), [wholes[i] for i in batch.members])
            for i in batch.members:
                wholes[i] = self._empty(0)
            stack = orthogonalize_(stack, method=self.polar.method, steps=self.polar.steps)
            for run in batch.runs:
                answers = block_of(batch, stack, run, slice(0, len(run.places))).unbind()
                for i, answer in zip(run.places, answers, strict=True):
                    found[i] = answer
        return found

    def send_back(self, some: list[list[int]], answers: Tensor) -> Landing:
        """Start sending the answers back to the tensors' ranks; call the result to receive them and make the step."""
        mine = self._of_copy(some, self.copy)
        sizes = [sum(self._shard(i, rank).numel() for i in mine[self.piece]) for rank in range(self.cut)]
        came, wait = _all_to_all(answers, sizes, [sum(self.xs[i].numel() for i in p) for p in mine], self.shards)

        def land() -> None:
            wait()
            by_copy = [[i for places in self._of_copy(some, copy) for i in places] for copy in range(self.copied)]
            sizes = [sum(self.xs[i].numel() for i in places) for places in by_copy]
            flats = _all_gather(came, sizes, self.copies)
            updates = [t for flat, ps in zip(flats, by_copy, strict=True) for t in self._unflat(flat, ps)]
            places = [i for ps in by_copy for i in ps]
            # An iterated factor has no radius yet, and may be of a coarser dtype than the radius.
            scales = [-1.0 if self.polar is None else -self.geometry.radius_of(self.shapes[i]) for i in places]
            self.rate.step_each_([self.xs[i] for i in places], updates, scales, places)

        return land

    def _of_copy(self, some: list[list[int]], copy: int) -> list[list[int]]:
        return some[copy * self.cut : (copy + 1) * self.cut]

    def _parts(self, places: Sequence[int]) -> Iterator[Sequence[int]]:
        on_device = None if self.device.type == "cpu" else self.temporaries // 3
        for part in parts_of([self.xs[i] for i in places], on_device):
            yield places[part]

    def _unflat(self, flat: Tensor, places: Sequence[int]) -> list[Tensor]:
        """This rank's parts of these tensors, in message order."""
        return _unflat(flat, [[self.xs[i].shape for i in places]])[0]

    def _empty(self, size: int) -> Tensor:
        return torch.empty(size, dtype=self.dtype, device=self.device)

    def _shard(self, i: int, rank: int) -> torch.Size:
        return _shard(self.shapes[i], self.dim, self.cut, rank)


def _dtype_sent(geometry: Geometry, x: Tensor) -> torch.dtype:
    """The iterations' dtype, to which they would round anyway: rounding first halves the messages."""
    return x.dtype if geometry.polar is None else geometry.polar.dtype or working_dtype(x.device)


def _size_and_rank(group: Any) -> tuple[int, int]:
    return (1, 0) if group is None else (dist.get_world_size(group), dist.get_rank(group))


def share_out(work: Sequence[float], ranks: int) -> list[int]:
    """Choose an owner for each piece of work: largest first, each to the least busy rank."""
    loads, owners = [0.0] * ranks, [0] * len(work)
    for i in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] += work[i]
    return owners


def _work(shape: torch.Size) -> float:
    rows, columns = shape[-2:] if len(shape) > 1 else (shape.numel(), 1)
    return float(shape.numel() * min(rows, columns))


def _shard(shape: torch.Size, dim: int | None, world: int, rank: int) -> torch.Size:
    """Return the shape of a rank's shard, split as by `torch.chunk`: the last ones may be shorter or empty."""
    if dim is None:
        return shape
    size = -(-shape[dim] // world)
    held = max(0, min(size, shape[dim] - rank * size))
    return torch.Size([*shape[:dim], held, *shape[dim + 1 :]])


def _cut(x: Tensor, dim: int | None, world: int, rank: int) -> Tensor:
    """Return a rank's shard of a tensor."""
    if dim is None:
        return x
    start = min(x.shape[dim], rank * -(-x.shape[dim] // world))
    return x.narrow(dim, start, _shard(x.shape, dim, world, rank)[dim])


def _all_to_all(out: Tensor, sent: list[int], received: list[int], ranks: Any) -> tuple[Tensor, Callable[[], Any]]:
    """Start exchanging so many elements with each rank; return what will have arrived once the function has waited."""
    if ranks is None:
        return out, lambda: None
    came = out.new_empty(sum(received))
    size = out.element_size()
    work = dist.all_to_all_single(
        _bytes(came), _bytes(out), [n * size for n in received], [n * size for n in sent], group=ranks, async_op=True
    )
    kept = [out]  # keeps the memory until it has been sent

    def wait() -> None:
        assert work is not None  # it is None only on ranks outside the group
        work.wait()
        kept.clear()

    return came, wait


def _all_gather(mine: Tensor, sizes: list[int], ranks: Any) -> list[Tensor]:
    """Send this rank's elements to everyone and return what each sent."""
    if ranks is None:
        return [mine]
    # The collective needs messages of equal length, so pad to the longest.
    longest = max(sizes)
    if mine.numel() < longest:
        mine = torch.cat([mine, mine.new_zeros(longest - mine.numel())])
    came = mine.new_empty(len(sizes) * longest)
    dist.all_gather_into_tensor(_bytes(came), _bytes(mine), group=ranks)
    return [part[:size] for part, size in zip(came.view(len(sizes), longest), sizes, strict=True)]


def _unflat(flat: Tensor, shapes: Sequence[Sequence[torch.Size]]) -> list[list[Tensor]]:
    parts = iter(flat.split([shape.numel() for ss in shapes for shape in ss]))
    return [[next(parts).view(shape) for shape in ss] for ss in shapes]


def _bytes(x: Tensor) -> Tensor:
    # Some backends do not support every dtype, but all support bytes.
    return x.view(torch.uint8)
