"""What ranks that share tensors agree on: their tensors, options and gradients, and whether to step.

Ranks share a tensor if they hold copies of it (``process_group``) or if it is a DTensor on their mesh. Ranks with
different gradients would wait for each other forever, and copies stay equal only if all skip the same updates.

Before the first update, and after a group was added or a state loaded, ranks compare their tensors and options, and
copies the sizes of their gradients, which nobody may have averaged.

At each update they exchange one message, (c, −c, bad, differed), and keep the greatest of each number: a checksum c of
which gradients there are, whether one is not finite, and whether ranks differed before. Where they differ no rank makes
the update. On the host every rank raises at once. On an accelerator nothing waits for the message: it masks the update,
and a rank raises when it arrives, in a later step. Only a rank with other gradients than in its last step reads it at
once, before it sends any matrices. The others then wait for those on the device, and raise in their next step unless
their host waits before: then the backend's timeout ends them.

Not covered on an accelerator: a gradient that must be redistributed (`dtensors.placed`) and is missing on some ranks
only.
"""

import math
import zlib
from collections.abc import Sequence
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

_MAX, _SUM = dist.ReduceOp.MAX, dist.ReduceOp.SUM


class Agreement:
    """The messages of one optimizer; the ranks given hold copies of the tensors that are not DTensors."""

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._process_group = process_group
        self._params: list[Tensor] = []
        self._sharing: dict[Any, list[int]] = {}  # which tensors each group of ranks shares
        self.checked = False  # whether ranks have compared their tensors and options, and copies the gradients' sizes
        self._codes: list[Any] | None = None  # of the last update's gradients, see `_code`
        self._sums: dict[Any, Tensor] = {}  # (c, −c) of these, by group of ranks
        # Whether ranks have differed so far, (1,): on an accelerator, on its way to the host, and arrived there.
        self._differed: Tensor | None = None
        self._copy: HostCopy | None = None
        self._failed = False

    def collect(self, optimizer: Any) -> tuple[list[Update], bool | Tensor, list[Tensor]]:
        """Collect the optimizer's gradients, and compare them with the other ranks'. All ranks must call this together.

        Returns:
            The updates, whose gradients have their parameters' placements; whether these are finite on all ranks, a
            number on the host, otherwise a flag on the device; and this rank's Σg² in parts.

        Raises:
            RuntimeError: ranks differ.
            ValueError: this rank cannot make the update; it is raised once the other ranks know of it.
        """
        params = [p for group in optimizer.param_groups for p in group["params"]]
        device = params[0].device if params else torch.device("cpu")
        if len(params) != len(self._params) or any(p is not q for p, q in zip(params, self._params, strict=True)):
            self._params, self.checked = params, False
        if torch.compiler.is_compiling():  # which traces no call of `_init_group` that may raise: the flags alone
            updates = optimizer._collect()
            bad, squares = _bad(updates, device)
            return updates, self._reduced(bad, _MAX).reshape(()) == 0, squares
        refused: Exception | None = None
        try:
            updates = optimizer._collect()
        except Exception as error:
            updates, refused = [], error
        on_host, capturing = read_on_host(device), is_capturing(device)
        if self._differed is None:
            self._differed = torch.zeros(1, dtype=torch.int64, device=device)
            self._copy = None if on_host else HostCopy(self._differed)
        # Once: tensors and options
        if first := not (self.checked or capturing):
            self._check_tensors(optimizer)
        # At each update: which gradients there are. A rank that refuses its own has none that others could have.
        codes = [_code(p) if refused is None else "refused" for p in params]
        changed = first or codes != self._codes
        if changed:
            self._codes, self._sums = codes, self._checksums(codes)
        wait = on_host or changed
        if self._copy is not None and not capturing:  # of an earlier step
            self._failed |= any(self._copy.read() or ())
        if self._failed:
            raise self._difference(optimizer)
        # Placing gradients takes messages of its own, so ranks must agree before it.
        if refused is not None or (wait and any(type(code) is tuple for code in codes)):
            self._read(self._exchange(self._differed.new_zeros(2), self._sums), optimizer, refused)
        bad, squares = _bad(updates, device)
        # (2,): not finite somewhere, different somewhere
        flags = self._exchange(torch.cat([bad, self._differed]), self._sums)
        not_finite = wait and self._read(flags, optimizer)
        if first and not not_finite:
            self._check_sizes(optimizer, squares)
        if self._copy is None:
            return updates, not not_finite, squares
        self._differed.copy_(flags[1:])
        if not capturing:
            self._copy.send()
        return updates, flags.sum() == 0, squares

    def _read(self, flags: Tensor, optimizer: Any, refused: Exception | None = None) -> bool:
        """Wait for a message, and return whether a gradient is not finite; raise if ranks differ."""
        not_finite, differ = read(flags)
        if differ or refused is not None:
            self._failed = self._copy is not None  # on an accelerator for good: other ranks may wait for matrices
            raise refused or self._difference(optimizer)
        return bool(not_finite)

    def _check_tensors(self, optimizer: Any) -> None:
        """Raise RuntimeError if ranks have different tensors or options, or share them in groups that overlap."""
        params, self._sharing = self._params, _sharing(self._params, self._process_group)
        # Ranks of overlapping groups cannot skip the same updates, unless one group holds the other.
        meshes = {getattr(params[places[0]], "device_mesh", ranks) for ranks, places in self._sharing.items()}
        several = meshes if len(meshes) > 1 else ()  # one is not looked into, which may have no values to read
        members = [
            {*(m.mesh.flatten().tolist() if hasattr(m, "mesh") else dist.get_process_group_ranks(m))} for m in several
        ]
        overlap = any(not (one <= other or other <= one) for one, other in combinations(members, 2))
        pairs = zip(params, optimizer._options(), strict=True)
        content = [(tuple(p.shape), str(p.dtype), option) for p, option in pairs]
        # In the form of every update's message, which another rank may send that has no new tensors.
        if read(self._exchange(torch.tensor([0, overlap]), self._checksums(content)))[1]:
            raise RuntimeError(
                f"{type(optimizer).__name__}: ranks have different tensors or options, or share tensors in groups that "
                f"overlap without one holding the other, so no rank makes this update; this rank has {len(params)} "
                "tensors. Build the optimizer from the same model, on one mesh, with the same options, on every rank"
            )
        self.checked = True

    def _check_sizes(self, optimizer: Any, squares: Sequence[Tensor]) -> None:
        """Raise RuntimeError if copies have gradients of other sizes: they will not stay equal."""
        if [*self._sharing] != [self._process_group]:
            return  # there are shards, of which each rank has its own
        size = round(1024 * math.log2(math.fsum(read(part.reshape(1))[0] for part in squares) or 1.0))
        message = torch.tensor([size, -size], device=self._sums[self._process_group].device)
        dist.all_reduce(message, op=_MAX, group=self._process_group)
        if sum(read(message)) > 1:  # a thousandth, and no rounding
            raise RuntimeError(
                f"{type(optimizer).__name__}: ranks have gradients of different sizes, so no rank makes this update. "
                "With process_group all train copies of one model: wrap it in DistributedDataParallel, or average "
                "gradients"
            )

    def total(self, squares: Sequence[Tensor]) -> Sequence[Tensor]:
        """Add up the parts of Σg² over the ranks, in place: a tensor counts as often as there are copies of it."""
        return [self._reduced(part, _SUM) for part in squares]

    def all_of(self, flag: bool | Tensor) -> bool | Tensor:
        """Whether a flag is set on all ranks."""
        bad = self._reduced((~torch.as_tensor(flag)).to(torch.int32).reshape(1), _MAX)
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

    def _exchange(self, flags: Tensor, sums: dict[Any, Tensor]) -> Tensor:
        """Return the greatest flags (bad, differed) of all ranks; where checksums differ, ranks do.

        The messages follow each other, so that what one of them tells reaches the ranks of all.
        """
        for ranks, pair in sums.items():
            message = torch.cat([pair, flags.to(pair.device)])  # (4,): c, −c, bad, differed
            dist.all_reduce(message, op=_MAX, group=ranks)
            message[3:].add_(message[:2].sum())  # max c − min c, never below 0
            flags = message[2:].to(flags.device)
        return flags

    def _difference(self, optimizer: Any) -> RuntimeError:
        """The error for ranks that differ. Another message could tell which tensors do, but it might never arrive."""
        names = [name_of(group, i) for group in optimizer.param_groups for i in range(len(group["params"]))]
        lacking = [name for name, p in zip(names, self._params, strict=True) if p.grad is None]
        which = f"lacks that of {few(lacking)}" if lacking else "has all, and another says what it lacks"
        return RuntimeError(
            f"{type(optimizer).__name__}: ranks have different tensors or gradients, or one rank cannot use its own, "
            f"so no rank makes this update; of the gradients, this rank {which}. Run the same backward pass on every "
            "rank, and give a tensor that a rank does not use a gradient of zeros"
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


def _bad(updates: Sequence[Update], device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Place the gradients like their tensors; return 1, shape (1,), if one of this rank's is not finite, and Σg²."""
    gs: list[Tensor] = []
    for update in updates:
        update.gs = [placed(x, g) for x, g in zip(update.xs, update.gs, strict=True)]
        gs += map(local, update.gs)
    finite, squares = measured(gs)
    if isinstance(finite, Tensor):
        return (~finite).to(device, torch.int64).reshape(1), squares
    return torch.tensor([int(not finite)], device=device), squares


def _code(p: Tensor) -> Any:
    """What ranks compare of a gradient: whether there is one, and its placements if they are not its tensor's."""
    g = p.grad
    if g is None:
        return "none"
    return placements_of(g) if type(g) not in PLAIN and placements_of(g) != placements_of(p) else ""
