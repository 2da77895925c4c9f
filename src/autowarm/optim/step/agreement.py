"""What ranks that share tensors agree on: which tensors and options they have, which gradients, and whether to step.

Ranks share a tensor if they hold copies of it (``process_group``) or if it is a DTensor on their mesh. The gradients
decide which messages an update exchanges, and copies stay equal only if all ranks skip the same updates. Two ranks that
see different gradients would wait for each other forever or train different models.

Before the first update, and after a group was added or a state loaded, ranks compare their tensors and options, and
copies the sizes of their gradients, which nobody may have averaged.

Before each update they exchange one message: checksums of the tensors and of which gradients there are, and two flags.
On the host they are read at once. If ranks differ, every rank raises before it changes anything, and says what it has.
On an accelerator nothing waits for the message: a difference masks the whole update, and a rank raises when the flag
arrives, which is in a later step. Only a rank whose own gradients are others than in its last step, as they are in the
first, reads it at once. If it differs from the others, it raises before it sends any matrices. The others then wait for
those on the device, and raise in their next step unless their host waits for the device before: then the backend's
timeout ends them.

Not covered on an accelerator: a gradient that must be redistributed (`dtensors.placed`) and is missing on some ranks
only.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...devices import HostCopy, collective_device, is_capturing
from .dtensors import PLAIN, is_dtensor, local, placed, placements_of
from .nonfinite import measured, read_on_host
from .update import Update

_NAMED = 3  # how many tensors an error names


class Agreement:
    """The exchanges of one optimizer; the ranks given hold copies of the tensors that are not DTensors."""

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._process_group = process_group
        self._who, self.steps = "", 0  # for a message
        self._groups: Sequence[Mapping[str, Any]] = []
        self._params: list[Tensor] = []
        self._exchanges: list[_Exchange] = []
        self.checked = False  # whether ranks have compared their tensors and options, and copies the gradients' sizes
        self._last: list[Any] | None = None  # what this rank had in the last update, see `_code`
        # On an accelerator: whether ranks have differed so far, this on its way to the host, and whether it is known.
        self._apart: Tensor | None = None
        self._copy: HostCopy | None = None
        self._failed = False

    def begin(self, who: str, groups: Sequence[Mapping[str, Any]], options: Callable[[], list[str]]) -> None:
        """Note whose tensors these are, and what tells the options of each; must be called before each `reach`."""
        params = [p for group in groups for p in group["params"]]
        self._who, self._groups, self._options = who, groups, options
        if len(params) != len(self._params) or any(p is not q for p, q in zip(params, self._params, strict=True)):
            self._params, self.checked = params, False

    def reach(
        self, updates: Sequence[Update], refused: Exception | None = None
    ) -> tuple[bool | Tensor, Sequence[Tensor]]:
        """Compare this rank's gradients with the other ranks'; RuntimeError on all if they differ. All ranks must call
        this.

        If this rank cannot make the update, ``refused`` says why; it is raised once the other ranks know of it.

        Returns:
            Whether the gradients are finite on all ranks, a number on the host, otherwise a flag on the device; and
            this rank's Σg² in parts. The gradients of the updates then have their parameters' placements.
        """
        params = self._params
        if torch.compiler.is_compiling():  # what a compiler can trace, which is a comparison of the flags alone
            bad, squares = _bad(updates, params)
            for ranks in _sharing(params, self._process_group):
                dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=ranks)
            return bad.reshape(()) == 0, squares
        codes = [_code(p) for p in params]
        on_host = not params or read_on_host(params[0].device)
        capturing = not on_host and is_capturing(params[0].device)
        first = not (self.checked or capturing)
        if first:
            self._check_tensors(codes)
        if self._copy is not None and not capturing and (arrived := self._copy.read()):
            self._failed |= any(arrived)
        if self._failed:
            raise self._difference(codes)
        wait = on_host or codes != self._last
        self._last = codes
        # Placing gradients takes messages, so ranks must agree before.
        if refused is not None or (wait and any(type(code) is tuple for code in codes)):
            _, failed = self._meet(codes, torch.tensor([0, refused is not None]))
            if read(failed)[0]:
                self._failed = not on_host
                raise refused or self._difference(codes)
        bad, squares = _bad(updates, params)
        if not on_host and self._apart is None:
            self._apart = torch.zeros_like(bad)
            self._copy = HostCopy(self._apart)
        before = torch.zeros_like(bad) if self._apart is None else self._apart
        bad, failed = self._meet(codes, torch.cat([bad, before]))
        if wait and read(failed)[0]:
            self._failed = not on_host
            raise self._difference(codes)
        if first and not read(bad)[0]:
            self._compare(squares)
        if self._apart is None or self._copy is None:
            return not read(bad)[0], squares
        self._apart.copy_(failed)
        if not capturing:
            self._copy.send()
        return (bad + self._apart).reshape(()) == 0, squares

    def _check_tensors(self, codes: list[Any]) -> None:
        """Raise RuntimeError if ranks have different tensors or options, or share them in groups that overlap."""
        sharing, options = _sharing(self._params, self._process_group), self._options()
        self._exchanges = [
            _Exchange(ranks, places, self._params, options, lambda: f"{self.steps} steps of {self._who}")
            for ranks, places in sharing.items()
        ]
        meshes = combinations({exchange.mesh for exchange in self._exchanges}, 2)
        pairs = ((_members(one), _members(other)) for one, other in meshes)
        overlap = any(not (one <= other or other <= one) for one, other in pairs)
        # In the form of every step's message, which another rank may send that has no new tensors.
        overlaps, failed = self._meet([], torch.tensor([overlap, 0]))
        if read(failed)[0]:
            raise self._difference(codes)
        if read(overlaps)[0]:
            raise RuntimeError(
                f"{self._who}: ranks share tensors in groups that overlap without one holding the other, so they could "
                "not skip the same updates: use one mesh for all tensors, or an optimizer for each group of ranks"
            )
        self.checked = True

    def _compare(self, squares: Sequence[Tensor]) -> None:
        """Raise RuntimeError if copies have gradients of other sizes: they will not stay equal."""
        if [exchange.ranks for exchange in self._exchanges] != [self._process_group]:
            return  # there are shards, of which each rank has its own
        size = round(1024 * math.log2(math.fsum(x for (x,) in map(read, (x.reshape(1) for x in squares))) or 1.0))
        most, least = self._exchanges[0].greatest([size, -size])
        if most + least > 1:  # a thousandth, and no rounding
            raise RuntimeError(
                f"{self._who}: ranks have gradients of different sizes, so no rank makes this update. With "
                "process_group all train copies of one model: wrap it in DistributedDataParallel, or average gradients"
            )

    def total(self, squares: Sequence[Tensor]) -> Sequence[Tensor]:
        """Add up the parts of Σg² over the ranks, in place: a tensor counts as often as there are copies of it."""
        for ranks in _sharing(self._params, self._process_group):
            for each in squares:
                dist.all_reduce(each, group=ranks)
        return squares

    def all_of(self, flag: bool | Tensor) -> bool | Tensor:
        """Whether a flag is set on all ranks."""
        bad = (~torch.as_tensor(flag)).to(torch.int32).reshape(1)
        for ranks in _sharing(self._params, self._process_group):
            dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=ranks)
        return bad.reshape(()) == 0 if isinstance(flag, Tensor) else not bad.item()

    def _meet(self, codes: list[Any], flags: Tensor) -> tuple[Tensor, Tensor]:
        """Compare codes; return whether a gradient is bad anywhere, and whether ranks differ or one has failed.

        The exchanges follow each other, so that what one of them finds reaches the ranks of all.
        """
        for exchange in self._exchanges:
            flags = exchange.meet(codes, flags)
        return flags[:1], flags[1:]

    def _difference(self, codes: list[Any]) -> RuntimeError:
        """The error for ranks that differ. Another message could tell which tensors do, but it might never arrive."""
        if any(read(exchange.apart)[0] for exchange in self._exchanges):
            return RuntimeError(
                f"{self._who}: ranks have different tensors or options, so no rank makes this update; this rank has "
                f"{len(codes)} tensors. Build the optimizer from the same model, with the same options, on every rank"
            )
        names = [name for group in self._groups for name in _names(group)]
        alike = [(p.dtype, code, name) for p, code, name in zip(self._params, codes, names, strict=True)]
        none = [name for _, code, name in alike if code is None]
        other = [f"{name} ({code})" for dtype, code, name in alike if code is not None and code != dtype]
        said = [
            f"this rank has {what} {', '.join(some[:_NAMED])}"
            + (f" and {len(some) - _NAMED} more" if len(some) > _NAMED else "")
            for what, some in (("none for", none), ("one that is not its tensor's like for", other))
            if some
        ]
        return RuntimeError(
            f"{self._who}: ranks have different gradients, or one rank cannot use its own, so no rank makes this "
            f"update: {'; '.join(said) or 'this rank has one of every tensor, and another says what it lacks'}. Run "
            "the same backward pass on every rank, and give a tensor that a rank does not use a gradient of zeros"
        )


class _Exchange:
    """Messages among some ranks."""

    def __init__(
        self, ranks: Any, places: list[int], params: list[Tensor], options: list[str], done: Callable[[], str]
    ) -> None:
        self._done, self._places = done, places  # which of the optimizer's tensors they share
        self.ranks, self.mesh = ranks, getattr(params[places[0]], "device_mesh", ranks)
        self._device = collective_device(ranks, params[places[0]].device)
        self._tensors = _checksum([*_shapes(params[i] for i in places), *(options[i] for i in places)])
        self._codes: list[Any] = []
        self._sums = torch.empty(0)  # of the tensors and of these codes
        self.apart = torch.zeros(2, dtype=torch.int64)  # whether the latest message's tensors and codes differed

    def meet(self, codes: list[Any], flags: Tensor) -> Tensor:
        """Exchange checksums and the flags, *bad* and *failed*; return the greatest flags. Ranks that differ fail."""
        if self._codes != codes or not len(self._sums):
            sums = self._tensors, _checksum([codes[i] for i in self._places if codes])
            self._codes, self._sums = codes, torch.tensor([*sums, *(-n for n in sums)], device=self._device)
        message = self._max(torch.cat([self._sums, flags.to(self._device)]))
        self.apart = message[:2] + message[2:4]
        message[5:].add_(self.apart.sum())  # which are differences of the greatest and the least, so never below 0
        return message[4:].to(flags.device)

    def greatest(self, numbers: list[int]) -> list[int]:
        """The greatest of each number on the ranks; waits for them."""
        return read(self._max(torch.tensor(numbers, device=self._device)))

    def _max(self, message: Tensor) -> Tensor:
        try:
            dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self.ranks)
            return message
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {dist.get_rank()} waited in vain for the other ranks, after {self._done()}: they exchange "
                "messages at each step, so every rank must make as many steps; or one of them has ended. If ranks have "
                "uneven inputs, give them equal shards, or the DataLoader drop_last=True"
            ) from error


def read(numbers: Tensor) -> list[int]:
    """Numbers on the host; waits for the device."""
    return numbers.tolist()


def _sharing(params: list[Tensor], process_group: Any) -> dict[Any, list[int]]:
    """Which tensors each group of ranks shares, in the same order on all ranks."""
    found: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        if is_dtensor(p):
            mesh = p.device_mesh  # type: ignore[attr-defined]
            for axis in range(mesh.ndim):
                if mesh.size(axis) > 1:
                    found.setdefault(mesh.get_group(axis), []).append(i)
        elif process_group is not None and dist.get_world_size(process_group) > 1:
            found.setdefault(process_group, []).append(i)
    return found


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


def _names(group: Mapping[str, Any]) -> list[str]:
    shapes = [f"a tensor of shape {tuple(p.shape)}" for p in group["params"]]
    return list(group.get("param_names", shapes))


def _shapes(params: Iterable[Tensor]) -> list[Any]:
    return [(tuple(p.shape), str(p.dtype)) for p in params]


def _checksum(content: Any) -> int:
    return zlib.crc32(repr(content).encode())
