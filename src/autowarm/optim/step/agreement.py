"""What ranks that share tensors agree on before each update: which gradients there are, and whether all are finite.

Ranks share a tensor if they hold copies of it (``process_group``) or if it is a DTensor on their mesh. The gradients
decide which messages an update exchanges, and copies stay equal only if all ranks skip the same updates. Two ranks that
see different gradients would wait for each other forever or train different models.

- On the host, ranks first exchange one message of six numbers, whatever tensors they have, and read it at once. If
  they differ, every rank raises before it changes anything.
- On an accelerator, one message carries what each rank has of each tensor, and the flag of what is finite. Nothing
  waits for it: a difference masks the whole update, and a rank raises when the numbers arrive, which is in a later
  step. Only a rank whose own gradients are others than in its last step, as they are in the first, reads it at once. If
  it differs from the others, it raises before it sends any matrices. The others then wait for those on the device, and
  raise in their next step unless their host waits for the device before: then the backend's timeout ends them.

Ranks that share some tensors with one group and some with another pass on what they learn, see `_turns`.

Not covered on an accelerator: a parameter group that one rank alone adds after the first step, and a gradient that must
be redistributed (`dtensors.placed`) and is missing on some ranks only.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...devices import HostCopy, collective_device, is_capturing
from .dtensors import PLAIN, is_dtensor, local, placed, placements_of
from .nonfinite import measured, read_on_host
from .update import Update

# A rank describes a gradient by a number: 0 for none, otherwise its dtype's place in this list, from 1 on, and below
# that a checksum of its placements if they are not the parameter's.
_DTYPES = sorted({dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}, key=str)
_PLACES = {dtype: place for place, dtype in enumerate(_DTYPES, 1)}
_PLACED = 0xFFFF
_REFUSED = 1 << 30
_NAMED = 3  # how many tensors an error names


class Agreement:
    """The exchanges of one optimizer; the ranks given hold copies of the tensors that are not DTensors."""

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._process_group = process_group
        self._who, self.steps = "", 0  # for a message
        self._groups: Sequence[Mapping[str, Any]] = []
        self._params: list[Tensor] = []
        self._exchanges: list[_Exchange] = []
        self._turns = 1  # how often a message goes through all exchanges
        self._last: list[int] | None = None  # the codes of the last update

    def begin(self, who: str, groups: Sequence[Mapping[str, Any]]) -> None:
        """Note whose tensors these are; must be called before each `reach`."""
        params = [p for group in groups for p in group["params"]]
        self._who, self._groups = who, groups
        if len(params) != len(self._params) or any(p is not q for p, q in zip(params, self._params, strict=True)):
            self._params, self._exchanges = params, []

    def reach(self, updates: Sequence[Update], refused: Exception | None = None) -> bool | Tensor:
        """Compare this rank's gradients with the other ranks'; RuntimeError on all if they differ. All ranks must call
        this.

        If this rank cannot make the update, ``refused`` says why; it is raised once the other ranks know of it.

        Returns:
            Whether the gradients are finite on all ranks: a number on the host, otherwise a flag on the device. Those
            of the updates then have their parameters' placements.
        """
        params = self._params
        if torch.compiler.is_compiling():  # what a compiler can trace, which is a comparison of the flags alone
            bad = _bad(updates, params)
            for ranks in _sharing(params, self._process_group):
                dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=ranks)
            return bad.reshape(()) == 0
        if not self._exchanges:
            shared = _sharing(params, self._process_group).items()
            self._exchanges = [_Exchange(ranks, places, params, self._done) for ranks, places in shared]
            self._turns = _turns(self._exchanges)
        codes = [_REFUSED if refused is not None else _code(p) for p in params]
        on_host = not params or read_on_host(params[0].device)
        reach = self._reach_on_host if on_host else self._reach_on_device
        finite = reach(updates, codes, refused is not None)
        difference = self._difference(codes) if finite is None else ""  # may take a message
        if refused is not None:
            raise refused
        if finite is None:
            raise RuntimeError(difference)
        return finite

    def total(self, updates: Sequence[Update]) -> list[Tensor]:
        """Σg² over the ranks, a tensor as often as there are copies of it; after `reach`."""
        _, squares = measured([local(g) for update in updates for g in update.gs])
        for ranks in _sharing(self._params, self._process_group):
            for each in squares:
                dist.all_reduce(each, group=ranks)
        return squares

    def all_of(self, flag: bool | Tensor) -> bool | Tensor:
        """Whether a flag is set on all ranks."""
        bad = (~torch.as_tensor(flag)).to(torch.int32).reshape(1)
        for _ in range(self._turns):
            for ranks in _sharing(self._params, self._process_group):
                dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=ranks)
        return bad.reshape(()) == 0 if isinstance(flag, Tensor) else not bad.item()

    def _reach_on_host(self, updates: Sequence[Update], codes: list[int], refused: bool) -> bool | None:
        """Whether all gradients are finite; None if ranks differ."""
        # Placing gradients takes messages, so ranks must agree before.
        if (any(code & _PLACED for code in codes) or refused) and self._meet(codes, bad=False, failed=refused)[0]:
            return None
        failed, bad = self._meet(codes, bad=bool(_bad(updates, self._params)), failed=False)
        return None if failed else not bad

    def _reach_on_device(self, updates: Sequence[Update], codes: list[int], refused: bool) -> Tensor | None:
        """The flag of whether all gradients are finite; None if it is known that ranks differ."""
        capturing = is_capturing(self._params[0].device)
        if not capturing and any(exchange.is_apart(wait=False) for exchange in self._exchanges):
            return None
        changed = codes != self._last
        # In the first step nothing is known of the other ranks yet, not even how many tensors they have.
        if self._last is None and self._meet(codes, bad=False, failed=refused)[0]:
            return None
        self._last = codes
        bad = _bad([] if refused else updates, self._params)
        apart = torch.zeros_like(bad)
        for _ in range(self._turns):
            for exchange in self._exchanges:
                bad, apart = exchange.send(codes, changed, bad, apart)
        if changed and any(exchange.is_apart(wait=True) for exchange in self._exchanges):
            return None
        for exchange in self._exchanges:
            if exchange.copy is not None and not capturing:
                exchange.copy.send()
        return (bad + apart).reshape(()) == 0

    def _meet(self, codes: list[int], *, bad: bool, failed: bool) -> tuple[bool, bool]:
        """Compare codes on the host; return whether ranks differ or one has failed, and whether a gradient is bad.

        The exchanges follow each other, so that what one of them finds reaches the ranks of all.
        """
        for _ in range(self._turns):
            for exchange in self._exchanges:
                failed, bad = exchange.meet(codes, bad=bad, failed=failed)
        return failed, bad

    def _done(self) -> str:
        return f"{self.steps} steps of {self._who}"

    def _difference(self, codes: list[int]) -> str:
        who, names = self._who, [name for group in self._groups for name in _names(group)]
        found = [f"{names[i]}: {what}" for exchange in self._exchanges for i, what in exchange.differing(codes)]
        if any(exchange.other_tensors for exchange in self._exchanges):
            return (
                f"{who}: ranks have different tensors, so no rank makes this update; this rank has {len(names)}. Build "
                "the optimizer from the same model on every rank"
            )
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        what = "; ".join(found[:_NAMED]) + more if found else "this rank agrees with those it shares tensors with"
        return (
            f"{who}: ranks have different gradients, so no rank makes this update: {what}. Run the same backward pass "
            "on every rank, and give a tensor that a rank does not use a gradient of zeros"
        )


class _Exchange:
    """Messages among some ranks."""

    def __init__(self, ranks: Any, places: list[int], params: list[Tensor], done: Callable[[], str]) -> None:
        self._done = done
        self.ranks, self.places = ranks, places  # which of the optimizer's tensors they share
        self.mesh: Any = getattr(params[places[0]], "device_mesh", ranks)
        self.other_tensors = False  # whether they found that their tensors differ
        self._differs = False
        self._device = collective_device(ranks)
        self._tensors = _checksum([(tuple(params[i].shape), str(params[i].dtype)) for i in places])
        self._summed: tuple[list[int], int] = ([], 0)
        # On an accelerator: this rank's half of the message, and the greatest differences so far, of each tensor and of
        # the other exchanges.
        self._codes: tuple[Tensor, Tensor] | None = None
        self._apart: Tensor | None = None
        self.copy: HostCopy | None = None  # of these differences, on its way to the host
        self._arrived: list[int] | None = None

    def meet(self, codes: list[int], *, bad: bool, failed: bool) -> tuple[bool, bool]:
        """Exchange what fits in six numbers; return whether ranks differ or one has failed, and whether one is bad."""
        if self._summed[0] != codes:
            self._summed = codes, _checksum([codes[i] for i in self.places])
        own = self._summed[1]
        *sums, any_bad, any_failed = self.greatest([self._tensors, -self._tensors, own, -own, bad, failed])
        self.other_tensors, self._differs = sums[0] != -sums[1], sums[2] != -sums[3]
        return bool(any_failed) or self.other_tensors or self._differs, bool(any_bad)

    def greatest(self, numbers: list[int]) -> list[int]:
        """The greatest of each number on the ranks; waits for them."""
        message = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        try:
            dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self.ranks)
            return read(message)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {dist.get_rank()} waited in vain for the other ranks, after {self._done()}: they exchange "
                "messages at each step, so every rank must make as many steps; or one of them has ended. If ranks have "
                "uneven inputs, give them equal shards, or the DataLoader drop_last=True"
            ) from error

    def send(self, codes: list[int], changed: bool, bad: Tensor, apart: Tensor) -> tuple[Tensor, Tensor]:
        """Exchange codes and the flag on the device, with what the exchange before this one returned as ``apart``.

        Returns:
            ``bad`` as the greatest on all ranks, and a number above 0 if ranks differ here or in an exchange before.
        """
        count = len(self.places)
        if self._apart is None:
            self._apart = torch.zeros(count + 1, dtype=torch.int32, device=bad.device)
            self.copy = HostCopy(self._apart)
        if changed or self._codes is None:
            own = torch.tensor([codes[i] for i in self.places], dtype=torch.int32)
            self._codes = own.to(bad.device), torch.cat([-own, own.new_zeros(1)]).to(bad.device)
        code, negative = self._codes
        message = torch.cat([code, torch.maximum(apart, self._apart[count:]), negative, bad])
        dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self.ranks)
        torch.maximum(self._apart, message[: count + 1] + message[count + 1 : 2 * count + 2], out=self._apart)
        return message[2 * count + 2 :], self._apart.amax(0, keepdim=True)

    def is_apart(self, *, wait: bool) -> bool:
        """Whether an update is known to have differed: this one too if the host waits for the device."""
        if wait:
            numbers = [] if self._apart is None else read(self._apart)
        else:
            arrived = self.copy and self.copy.read()
            numbers = arrived[1] if arrived else []
        if any(numbers):
            self._arrived = numbers
        return self._arrived is not None

    def differing(self, codes: list[int]) -> Iterator[tuple[int, str]]:
        """The tensors whose gradients differ, and what the ranks have of them."""
        if self._arrived is not None:
            for i, apart in zip(self.places, self._arrived, strict=False):
                if apart:
                    yield i, f"{_said(codes[i])} on this rank and not on another"
        elif self._differs and not self.other_tensors:
            own = [codes[i] for i in self.places]
            numbers = self.greatest([*own, *(-code for code in own)])
            for i, high, low in zip(self.places, numbers[: len(own)], numbers[len(own) :], strict=True):
                if high != -low:
                    yield i, f"{_said(-low)} on one rank and {_said(high)} on another"


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


def _turns(exchanges: list[_Exchange]) -> int:
    """How often a message must go through these, in their order, to reach all ranks that they connect.

    Once, through the dimensions of a mesh, or where one mesh holds the others. Otherwise, as of {0, 1}, {1, 2} and
    {2, 3}, what rank 3 knows reaches rank 2 in the first turn, 1 in the second and 0 in the third. Only the ranks
    together can find out, by sending each other whom they have heard of.
    """

    def members(mesh: Any) -> set[int]:
        return set(mesh.mesh.flatten().tolist() if hasattr(mesh, "mesh") else dist.get_process_group_ranks(mesh))

    pairs = combinations({exchange.mesh for exchange in exchanges}, 2)
    tangled = [int(any(not (members(a) <= members(b) or members(b) <= members(a)) for a, b in pairs))]
    for exchange in exchanges:
        tangled = exchange.greatest(tangled)
    if not tangled[0]:
        return 1
    size, turns = dist.get_world_size(), [1]
    heard = [int(rank == dist.get_rank()) for rank in range(size)]
    for turn in range(1, size):
        before = heard
        for exchange in exchanges:
            heard = exchange.greatest(heard)
        if heard != before:
            turns = [turn]
    for _ in range(1, size):
        for exchange in exchanges:
            turns = exchange.greatest(turns)
    return turns[0]


def _bad(updates: Sequence[Update], params: list[Tensor]) -> Tensor:
    """Place the gradients like their tensors; return 1 if one of this rank's is not finite, else 0, shape (1,)."""
    gs: list[Tensor] = []
    for update in updates:
        update.gs = [placed(x, g) for x, g in zip(update.xs, update.gs, strict=True)]
        gs += map(local, update.gs)
    finite, _ = measured(gs)
    if isinstance(finite, Tensor):
        return (~finite).to(torch.int32).reshape(1)
    return torch.tensor([int(not finite)], dtype=torch.int32, device=params[0].device if params else None)


def _code(p: Tensor) -> int:
    g = p.grad
    if g is None:
        return 0
    moved = type(g) not in PLAIN and placements_of(g) != placements_of(p)
    return _PLACES[g.dtype] * (_PLACED + 1) + (_checksum(placements_of(g)) & _PLACED | 1 if moved else 0)


def _said(code: int) -> str:
    if code == _REFUSED:
        return "one that cannot be used"
    if not code:
        return "none"
    return str(_DTYPES[code // (_PLACED + 1) - 1]) + (" placed otherwise" if code & _PLACED else "")


def _names(group: Mapping[str, Any]) -> list[str]:
    shapes = [f"a tensor of shape {tuple(p.shape)}" for p in group["params"]]
    return list(group.get("param_names", shapes))


def _checksum(content: Any) -> int:
    return zlib.crc32(repr(content).encode())
