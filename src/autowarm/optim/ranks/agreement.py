"""What ranks that share tensors agree on: which tensors and options they have, which gradients, and whether to step.

Ranks share a tensor if they hold copies of it (``process_group``) or if it is a DTensor on their mesh. The gradients
decide which messages an update exchanges, and copies stay equal only if all ranks skip the same updates. Two ranks that
see different gradients would wait for each other forever or train different models.

Before the first update, and after a group was added or a state loaded, ranks compare their tensors and options, and
copies the sizes of their gradients, which nobody may have averaged.

At each update they exchange one message: two flags, *bad* (a gradient is not finite) and *failed*, and a checksum of
which gradients there are; where checksums differ, all have failed. On the host it is read at once, and every rank
raises before it changes anything. On an accelerator nothing waits for it: a failure masks the whole update, and a rank
raises when the flag arrives, in a later step. Only a rank with other gradients than in its last step reads it at once,
and raises before it sends any matrices. The others then wait for those on the device, and raise in their next step
unless their host waits for the device before: then the backend's timeout ends them.

Not covered on an accelerator: a gradient that must be redistributed (`dtensors.placed`) and is missing on some ranks
only.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..._torch.devices import HostCopy, collective_device, is_capturing
from ..checks import few, name_of
from ..step.nonfinite import measured, read_on_host
from ..step.update import Update
from .dtensors import PLAIN, is_dtensor, local, placed, placements_of


class Agreement:
    """The messages of one optimizer; the ranks given hold copies of the tensors that are not DTensors."""

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._process_group = process_group
        self._who, self.updates = "", 0  # for an error
        self._params: list[Tensor] = []
        self._sharing: dict[Any, list[int]] = {}  # which tensors each group of ranks shares
        self.checked = False  # whether ranks have compared their tensors and options, and copies the gradients' sizes
        # What this rank had in the last update, see `_code`, and its checksums by group of ranks.
        self._codes: list[Any] | None = None
        self._sums: dict[Any, Tensor] = {}
        # On an accelerator: whether ranks have differed so far, this on its way to the host, and whether it is known.
        self._differed: Tensor | None = None
        self._copy: HostCopy | None = None
        self._failed = False

    def reach(
        self, optimizer: Any, updates: Sequence[Update], refused: Exception | None = None
    ) -> tuple[bool | Tensor, Sequence[Tensor]]:
        """Compare this rank's gradients with the other ranks'; RuntimeError on all if they differ. All ranks must call
        this.

        If this rank cannot make the update, ``refused`` says why; it is raised once the other ranks know of it.

        Returns:
            Whether the gradients are finite on all ranks, a number on the host, otherwise a flag on the device; and
            this rank's Σg² in parts. The gradients of the updates then have their parameters' placements.
        """
        groups = optimizer.param_groups
        params = [p for group in groups for p in group["params"]]
        if len(params) != len(self._params) or any(p is not q for p, q in zip(params, self._params, strict=True)):
            self._params, self.checked = params, False
        if torch.compiler.is_compiling():  # what a compiler can trace, which is a comparison of the flags alone
            bad, squares = _bad(updates, params)
            return self._reduced(bad, dist.ReduceOp.MAX).reshape(()) == 0, squares
        self._who = type(optimizer).__name__
        on_host = not params or read_on_host(params[0].device)
        capturing = not on_host and is_capturing(params[0].device)
        first = not (self.checked or capturing)
        if first:
            self._check_tensors(optimizer._options())
        codes = [_code(p) for p in params]
        wait = first or on_host or codes != self._codes
        if first or codes != self._codes:
            self._codes, self._sums = codes, self._checksums(codes)
        if self._copy is not None and not capturing:
            self._failed |= any(self._copy.read() or ())
        if self._failed:
            raise self._difference(groups)
        # Placing gradients takes messages, so ranks must agree before.
        if refused is not None or (wait and any(type(code) is tuple for code in codes)):
            flags = self._exchange(self._sums, torch.tensor([0, refused is not None]))
            if read(flags)[1]:
                self._failed = not on_host
                raise refused or self._difference(groups)
        bad, squares = _bad(updates, params)
        if not on_host and self._differed is None:
            self._differed = torch.zeros_like(bad)
            self._copy = HostCopy(self._differed)
        before = torch.zeros_like(bad) if self._differed is None else self._differed
        flags = self._exchange(self._sums, torch.cat([bad, before]))
        if wait:
            not_finite, failed = read(flags)
            if failed:
                self._failed = not on_host
                raise self._difference(groups)
            if first and not not_finite:
                self._check_sizes(squares)
            if on_host:
                return not not_finite, squares
        assert self._differed is not None
        assert self._copy is not None
        self._differed.copy_(flags[1:])
        if not capturing:
            self._copy.send()
        return flags.sum() == 0, squares

    def _check_tensors(self, options: Sequence[str]) -> None:
        """Raise RuntimeError if ranks have different tensors or options, or share them in groups that overlap."""
        params, self._sharing = self._params, _sharing(self._params, self._process_group)
        meshes = {getattr(params[places[0]], "device_mesh", ranks) for ranks, places in self._sharing.items()}
        pairs = [(_members(one), _members(other)) for one, other in combinations(meshes, 2)]
        overlap = any(not (one <= other or other <= one) for one, other in pairs)
        content = [(tuple(p.shape), str(p.dtype), option) for p, option in zip(params, options, strict=True)]
        # In the form of every update's message, which another rank may send that has no new tensors.
        overlaps, failed = read(self._exchange(self._checksums(content), torch.tensor([overlap, 0])))
        if failed:
            raise RuntimeError(
                f"{self._who}: ranks have different tensors or options, so no rank makes this update; this rank has "
                f"{len(params)} tensors. Build the optimizer from the same model, with the same options, on every rank"
            )
        if overlaps:
            raise RuntimeError(
                f"{self._who}: ranks share tensors in groups that overlap without one holding the other, so they could "
                "not skip the same updates: use one mesh for all tensors, or an optimizer for each group of ranks"
            )
        self.checked = True

    def _check_sizes(self, squares: Sequence[Tensor]) -> None:
        """Raise RuntimeError if copies have gradients of other sizes: they will not stay equal."""
        if [*self._sharing] != [self._process_group]:
            return  # there are shards, of which each rank has its own
        size = round(1024 * math.log2(math.fsum(x for (x,) in map(read, (x.reshape(1) for x in squares))) or 1.0))
        message = torch.tensor([size, -size], device=self._sums[self._process_group].device)
        if sum(read(self._greatest(message, self._process_group))) > 1:  # a thousandth, and no rounding
            raise RuntimeError(
                f"{self._who}: ranks have gradients of different sizes, so no rank makes this update. With "
                "process_group all train copies of one model: wrap it in DistributedDataParallel, or average gradients"
            )

    def total(self, squares: Sequence[Tensor]) -> Sequence[Tensor]:
        """Add up the parts of Σg² over the ranks, in place: a tensor counts as often as there are copies of it."""
        return [self._reduced(each, dist.ReduceOp.SUM) for each in squares]

    def all_of(self, flag: bool | Tensor) -> bool | Tensor:
        """Whether a flag is set on all ranks."""
        bad = self._reduced((~torch.as_tensor(flag)).to(torch.int32).reshape(1), dist.ReduceOp.MAX)
        return bad.reshape(()) == 0 if isinstance(flag, Tensor) else not bad.item()

    def _reduced(self, numbers: Tensor, op: Any) -> Tensor:
        for ranks in _sharing(self._params, self._process_group):
            dist.all_reduce(numbers, op=op, group=ranks)
        return numbers

    def _checksums(self, content: Sequence[Any]) -> dict[Any, Tensor]:
        """By group of ranks, a checksum c of what this rank has of the tensors that they share, as (c, −c)."""
        sums = {}
        for ranks, places in self._sharing.items():
            c = zlib.crc32(repr([content[i] for i in places]).encode())
            sums[ranks] = torch.tensor([c, -c], device=collective_device(ranks, self._params[places[0]].device))
        return sums

    def _exchange(self, sums: Mapping[Any, Tensor], flags: Tensor) -> Tensor:
        """Return the greatest flags (bad, failed) of all ranks; where checksums differ, these have failed.

        The messages follow each other, so that what one of them finds reaches the ranks of all.
        """
        for ranks, both in sums.items():
            message = self._greatest(torch.cat([both, flags.to(both.device)]), ranks)  # (max c, −min c, bad, failed)
            message[3:].add_(message[:2].sum())  # which is never below 0
            flags = message[2:].to(flags.device)
        return flags

    def _greatest(self, message: Tensor, ranks: Any) -> Tensor:
        """The greatest of each number on the ranks, in place."""
        try:
            dist.all_reduce(message, op=dist.ReduceOp.MAX, group=ranks)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {dist.get_rank()} waited in vain for the other ranks, after {self.updates} steps of "
                f"{self._who}: they exchange messages at each step, so every rank must make as many steps; or one of "
                "them has ended. If ranks have uneven inputs, give them equal shards, or the DataLoader drop_last=True"
            ) from error
        return message

    def _difference(self, groups: Iterable[Mapping[str, Any]]) -> RuntimeError:
        """The error for ranks that differ. Another message could tell which tensors do, but it might never arrive."""
        names = [name_of(group, i) for group in groups for i in range(len(group["params"]))]
        codes = [*zip(names, self._codes or (), self._params, strict=True)]
        lacking = [name for name, code, _ in codes if code is None]
        unlike = [f"{name} ({code})" for name, code, p in codes if code is not None and code != p.dtype]
        kinds = (("none for", lacking), ("one that is not its tensor's like for", unlike))
        has = [f"this rank has {kind} {few(some)}" for kind, some in kinds if some]
        return RuntimeError(
            f"{self._who}: ranks have different tensors or gradients, or one rank cannot use its own, so no rank makes "
            f"this update: {'; '.join(has) or 'this rank has one of every tensor, and another says what it lacks'}. "
            "Run the same backward pass on every rank, and give a tensor that a rank does not use a gradient of zeros"
        )


def read(numbers: Tensor) -> list[int]:
    """Numbers on the host; waits for the device."""
    return numbers.tolist()


def _sharing(params: list[Tensor], process_group: Any) -> dict[Any, list[int]]:
    """Which tensors each group of ranks shares, in the same order on all ranks."""
    places: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        if is_dtensor(p):
            mesh = p.device_mesh  # type: ignore[attr-defined]
            for axis in range(mesh.ndim):
                if mesh.size(axis) > 1:
                    places.setdefault(mesh.get_group(axis), []).append(i)
        elif process_group is not None and dist.get_world_size(process_group) > 1:
            places.setdefault(process_group, []).append(i)
    return places


def _members(mesh: Any) -> set[int]:
    return set(mesh.mesh.flatten().tolist() if hasattr(mesh, "mesh") else dist.get_process_group_ranks(mesh))


def _bad(updates: Sequence[Update], params: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Place the gradients like their tensors; return 1, shape (1,), if one of this rank's is not finite, else 0; and
    their Σg² in parts."""
    gs: list[Tensor] = []
    for update in updates:
        update.gs = [placed(x, g) for x, g in zip(update.xs, update.gs, strict=True)]
        gs += map(local, update.gs)
    finite, squares = measured(gs)
    if isinstance(finite, Tensor):
        return (~finite).to(torch.int64).reshape(1), squares
    return torch.tensor([int(not finite)], device=params[0].device if params else None), squares


def _code(p: Tensor) -> Any:
    """What ranks compare of a gradient: its dtype, and its placements if they are not its tensor's; None for none."""
    g = p.grad
    if g is None:
        return None
    moved = type(g) not in PLAIN and placements_of(g) != placements_of(p)
    return (g.dtype, placements_of(g)) if moved else g.dtype
