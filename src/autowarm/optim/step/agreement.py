"""What ranks that share tensors agree on before each update: which gradients there are, and which are finite.

Ranks share a tensor if they hold copies of it (``process_group``) or if it is a DTensor on their mesh. The gradients
decide which messages an update exchanges, and copies stay equal only if all ranks skip the same tensors. Two ranks that
see different gradients would wait for each other forever or train different models.

- On the host, ranks first exchange one message of six numbers, whatever tensors they have, and read it at once. If
  they differ, every rank raises before it changes anything.
- On an accelerator, one message carries what each rank has of each tensor, and flags of what is finite. Nothing waits
  for it: a difference masks the whole update, and a rank raises when the numbers arrive, which is in a later step.
  Only a rank whose own gradients are others than in its last step, as they are in the first, reads it at once. If it
  differs from the others, it raises before it sends any matrices. The others then wait for those on the device, and
  raise in their next step unless their host waits for the device before: then the backend's timeout ends them.

Not covered on an accelerator: a parameter group that one rank alone adds after the first step, and a gradient that must
be redistributed (`dtensors.placed`) and is missing on some ranks only.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...devices import HostCopy, collective_device, is_capturing
from .buckets import by_device, flags_at
from .dtensors import PLAIN, is_dtensor, local, placed, placements_of
from .nonfinite import finite_each, read_on_host

# A rank describes a gradient by a number: 0 for none, otherwise its dtype's place in this list, from 1 on, and below
# that a checksum of its placements if they are not the parameter's.
_DTYPES = sorted({dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}, key=str)
_PLACES = {dtype: place for place, dtype in enumerate(_DTYPES, 1)}
_PLACED = 0xFFFF
_REFUSED = 1 << 30
_NAMED = 3  # how many tensors an error names


class Agreed(NamedTuple):
    """What all ranks use in one update."""

    grads: list[Tensor | None]  # the gradient of each tensor of the optimizer, placed like it; None for none
    finite: Tensor | None  # a flag per tensor, set if the gradient is finite on all ranks; None if all are known to be


class Agreement:
    """The exchanges of one optimizer; the ranks given hold copies of the tensors that are not DTensors.

    Attributes:
        steps: the number of steps so far, for a message.
    """

    steps = 0

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._process_group = process_group
        self._who = ""
        self._params: list[Tensor] = []
        self._exchanges: list[_Exchange] = []
        self._last: list[int] | None = None  # the codes of the last update

    def reach(self, who: str, groups: Sequence[Mapping[str, Any]], refused: Exception | None = None) -> Agreed:
        """Compare this rank's gradients with the other ranks'; RuntimeError on all if they differ. All ranks must call
        this.

        If this rank cannot make the update, ``refused`` says why; it is raised once the other ranks know of it.
        """
        params = [p for group in groups for p in group["params"]]
        grads = [p.grad for p in params]
        if torch.compiler.is_compiling():
            return self._traced(params, grads)
        self._look_at(who, params)
        codes = [_code(p, g) if refused is None else _REFUSED for p, g in zip(params, grads, strict=True)]
        on_host = not params or read_on_host(params[0].device)
        reach = self._reach_on_host if on_host else self._reach_on_device
        agreed = reach(params, grads, codes, refused is not None)
        difference = self._difference(who, groups, codes) if agreed is None else ""  # may take a message
        if refused is not None:
            raise refused
        if agreed is None:
            raise RuntimeError(difference)
        return agreed

    def _look_at(self, who: str, params: list[Tensor]) -> None:
        self._who = who
        if len(params) != len(self._params) or any(p is not q for p, q in zip(params, self._params, strict=True)):
            self._params = params
            sharing = _sharing(params, self._process_group)
            self._exchanges = [_Exchange(ranks, places, params) for ranks, places in sharing.items()]

    def _traced(self, params: list[Tensor], grads: list[Tensor | None]) -> Agreed:
        """What a compiler can trace, which is a comparison of the flags alone."""
        grads = _placed(params, grads)
        finite = _finite(grads)
        if finite is None:
            return Agreed(grads, None)
        for ranks, places in _sharing(params, self._process_group).items():
            finite = _finite_everywhere(finite, places, ranks)
        return Agreed(grads, finite)

    def _reach_on_host(
        self, params: list[Tensor], grads: list[Tensor | None], codes: list[int], refused: bool
    ) -> Agreed | None:
        moves = any(code & _PLACED for code in codes)
        # Placing gradients takes messages, so ranks must agree before.
        if (moves or refused) and self._meet(codes, bad=False, failed=refused):
            return None
        grads = _placed(params, grads)
        finite = _finite(grads)
        if self._meet(codes, bad=finite is not None, failed=False):
            return None
        for exchange in self._exchanges:
            if exchange.bad:
                own = torch.ones(len(params), dtype=torch.bool) if finite is None else finite
                finite = _finite_everywhere(own, exchange.places, exchange.ranks)
        return Agreed(grads, finite)

    def _reach_on_device(
        self, params: list[Tensor], grads: list[Tensor | None], codes: list[int], refused: bool
    ) -> Agreed | None:
        capturing = is_capturing(params[0].device)
        if not capturing and any(exchange.is_apart(wait=False) for exchange in self._exchanges):
            return None
        changed = codes != self._last
        # In the first step nothing is known of the other ranks yet, not even how many tensors they have.
        if self._last is None and self._meet(codes, bad=False, failed=refused):
            return None
        self._last = codes
        grads = _placed(params, [None] * len(grads) if refused else grads)
        finite = _finite(grads)
        if finite is None:
            finite = torch.ones(len(params), dtype=torch.bool, device=params[0].device)
        if not self._exchanges:
            return Agreed(grads, finite)
        bad = (~finite).to(torch.int32)
        apart: Tensor | None = None
        for exchange in self._exchanges:
            bad, apart = exchange.send(codes, changed, bad, apart)
        if changed and any(exchange.is_apart(wait=True) for exchange in self._exchanges):
            return None
        for exchange in self._exchanges:
            if exchange.copy is not None and not capturing:
                exchange.copy.send()
        assert apart is not None
        return Agreed(grads, bad + apart == 0)

    def _meet(self, codes: list[int], *, bad: bool, failed: bool) -> bool:
        """Compare codes on the host, and return whether ranks differ.

        The exchanges of a mesh follow each other, so that what one of them finds reaches the ranks of all.
        """
        try:
            for exchange in self._exchanges:
                failed = exchange.meet(codes, bad=bad, failed=failed)
                bad = bad or exchange.bad
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {dist.get_rank()} waited in vain for the other ranks, after {self.steps} steps of {self._who}: "
                "they exchange messages at each step, so every rank must make as many steps; or one of them has ended. "
                "If ranks have uneven inputs, give them equal shards, or the DataLoader drop_last=True"
            ) from error
        return failed

    def _difference(self, who: str, groups: Sequence[Mapping[str, Any]], codes: list[int]) -> str:
        names = [name for group in groups for name in _names(group)]
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

    def __init__(self, ranks: Any, places: list[int], params: list[Tensor]) -> None:
        self.ranks, self.places = ranks, places  # which of the optimizer's tensors they share
        self.bad = False  # whether any of them has a gradient that is not finite, as of the last `meet`
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

    def meet(self, codes: list[int], *, bad: bool, failed: bool) -> bool:
        """Exchange what fits in six numbers; return whether a rank has failed or ranks differ."""
        if self._summed[0] != codes:
            self._summed = codes, _checksum([codes[i] for i in self.places])
        own = self._summed[1]
        *sums, any_bad, any_failed = self._greatest([self._tensors, -self._tensors, own, -own, bad, failed])
        self.other_tensors, self._differs = sums[0] != -sums[1], sums[2] != -sums[3]
        self.bad = bool(any_bad)
        return bool(any_failed) or self.other_tensors or self._differs

    def _greatest(self, numbers: list[int]) -> list[int]:
        """The greatest of each number on the ranks; waits for them."""
        message = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self.ranks)
        return read(message)

    def send(self, codes: list[int], changed: bool, bad: Tensor, apart: Tensor | None) -> tuple[Tensor, Tensor]:
        """Exchange codes and flags on the device, with what the exchange before this one returned as ``apart``.

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
        before = self._apart[count:] if apart is None else apart
        message = torch.cat([code, before, negative, flags_at(bad, self.places)])
        dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self.ranks)
        torch.maximum(self._apart, message[: count + 1] + message[count + 1 : 2 * count + 2], out=self._apart)
        return _with(bad, self.places, message[2 * count + 2 :]), self._apart.amax(0, keepdim=True)

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
            numbers = self._greatest([*own, *(-code for code in own)])
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


def _finite_everywhere(finite: Tensor, places: Sequence[int], ranks: Any) -> Tensor:
    """The flags, cleared at these places where any rank's is."""
    bad = (~flags_at(finite, places)).to(torch.int32)
    dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=ranks)
    return _with(finite, places, bad == 0)


def _with(flags: Tensor, places: Sequence[int], some: Tensor) -> Tensor:
    """The flags, with others at these places."""
    if len(places) == len(flags):
        return some
    each = list(flags.unbind())
    for i, flag in zip(places, some.unbind(), strict=True):
        each[i] = flag
    return torch.stack(each)


def _placed(params: list[Tensor], grads: list[Tensor | None]) -> list[Tensor | None]:
    """The gradients in the dtypes and the placements of their tensors."""
    return [None if g is None else placed(p, g.to(p.dtype)) for p, g in zip(params, grads, strict=True)]


def _finite(grads: list[Tensor | None]) -> Tensor | None:
    """Which gradients are finite on this rank, where there are any; None if the host knows that all are."""
    there = [i for i, g in enumerate(grads) if g is not None]
    locals_ = [local(g) for g in grads if g is not None]
    each: list[Tensor | None] = [None] * len(grads)
    for places in by_device(locals_):
        finite = finite_each([locals_[i] for i in places])
        if finite is not None and len(places) == len(grads):
            return finite
        for i, flag in zip(places, [] if finite is None else finite.unbind(), strict=False):
            each[there[i]] = flag
    first = next((flag for flag in each if flag is not None), None)
    if first is None:
        return None
    yes = torch.ones((), dtype=torch.bool, device=first.device)
    return torch.stack([yes if f is None else f.to(yes.device, non_blocking=not yes.is_cpu) for f in each])


def _code(p: Tensor, g: Tensor | None) -> int:
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
