"""x ← keep·x + η·LMO(direction), in as few passes over memory as the geometry allows.

A group's tensors are taken in *parts* that fit a processor's cache: momentum, direction and step of one part follow
each other while it is there, and temporaries are never larger than a part. On accelerators a part is large, and one
launch serves all its tensors.

`move_` steps one part whose directions are known, by the way that its geometry allows; `move_reference` is the plain
one, serves every geometry, and holds the others to it in the tests. Iterated polar factors are found for a whole
`batches.Batch` at once, and `move_by_stack_` takes them from its stack to the tensors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ...geometry import Frobenius, Geometry, Sign, frobenius_norms
from ...orthogonalize import least_norm
from .batches import Batch

__all__ = ["Rate", "move_", "move_by_stack_", "move_reference", "parts_of"]

_PART_BYTES = {"cpu": 1 << 20}
_PART_BYTES_ELSEWHERE = 256 << 20


@dataclass(frozen=True)
class Rate:
    """How far tensors move: x ← keep·x + lr·update.

    Attributes:
        lr: η, a number or a 0-dim tensor for all tensors, or a 1-dim tensor with an entry for each, see `where`.
        keep: 1 − λη, as ``lr`` is, or None for 1.
    """

    lr: float | Tensor
    keep: float | Tensor | None = None

    @classmethod
    def of_group(cls, group: dict[str, Any]) -> Self:
        """The rate of a parameter group with options ``lr`` and ``weight_decay``."""
        lr = group["lr"].reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        return cls(lr, 1 - lr * group["weight_decay"] if group["weight_decay"] else None)

    def where(self, finite: Tensor | None) -> Self:
        """This rate for the tensors whose flag is set, and one that leaves the others where they are; None for all."""
        if finite is None:
            return self
        lr = torch.where(finite, _on(finite.device, self.lr), 0.0)
        return type(self)(lr, None if self.keep is None else torch.where(finite, _on(finite.device, self.keep), 1.0))

    def __getitem__(self, some: slice) -> Self:
        """The rate of a run of the tensors."""
        if not (isinstance(self.lr, Tensor) and self.lr.ndim):
            return self
        return type(self)(self.lr[some], None if self.keep is None else self.keep[some])  # type: ignore[index]

    def of(self, places: Sequence[int]) -> Self:
        """The rate of the tensors at these places."""
        if not (isinstance(self.lr, Tensor) and self.lr.ndim):
            return self
        lr = torch.stack([self.lr[i] for i in places])
        return type(self)(lr, None if self.keep is None else torch.stack([self.keep[i] for i in places]))  # type: ignore[index]

    def step_(self, xs: list[Tensor], updates: list[Tensor], scale: float = 1.0) -> None:
        """x ← keep·x + lr·scale·update, in place; the updates are lost."""
        lr = self.lr * scale
        if self.keep is not None:
            torch._foreach_mul_(xs, _each(self.keep))
        if isinstance(lr, Tensor):
            torch._foreach_mul_(updates, _each(lr))
            torch._foreach_add_(xs, updates)
        else:
            torch._foreach_add_(xs, updates, alpha=lr)


def _on(device: torch.device, number: float | Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number
    return torch.full((), number, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)


def _each(factor: Any) -> Any:
    """What `torch._foreach_mul_` takes: one factor for all tensors, or a list with one for each."""
    return list(factor.unbind()) if isinstance(factor, Tensor) and factor.ndim else factor


def parts_of(xs: Sequence[Tensor]) -> Iterator[slice]:
    """Cut tensors into runs on one device that are together as large as a part, or single."""
    start = room = 0
    for i, x in enumerate(xs):
        size = x.numel() * x.element_size()
        if start < i and (size > room or x.device != xs[start].device):
            yield slice(start, i)
            start = i
        if start == i:
            room = _PART_BYTES.get(x.device.type, _PART_BYTES_ELSEWHERE)
        room -= size
    if xs:
        yield slice(start, len(xs))


def move_(geometry: Geometry, xs: list[Tensor], directions: list[Tensor], rate: Rate, *, owned: bool = False) -> None:
    """Step every tensor by its oracle, in place.

    Args:
        geometry: the norm of each tensor.
        xs: the tensors to move.
        directions: what the oracle is asked about, for each.
        rate: of all.
        owned: the directions are nobody else's, neither gradients nor momenta, and may be overwritten.
    """
    # By exact class: a subclass may define its own oracle.
    if type(geometry) is Sign and not isinstance(geometry.radius, str):
        _move_sign(geometry, xs, directions, rate, owned=owned)
    elif type(geometry) is Frobenius:
        _move_frobenius(geometry, xs, directions, rate)
    else:
        move_reference(geometry, xs, directions, rate)


def move_reference(geometry: Geometry, xs: list[Tensor], directions: list[Tensor], rate: Rate) -> None:
    """`move_` for any geometry: ask the oracle, multiply by the rate, add."""
    rate.step_(xs, geometry.lmo_each(directions))


def _move_sign(geometry: Sign, xs: list[Tensor], directions: list[Tensor], rate: Rate, *, owned: bool) -> None:
    if owned:
        torch._foreach_sign_(directions)
    else:
        directions = list(torch._foreach_sign(directions))
    rate.step_(xs, directions, -geometry.radius_of(()))


def _move_frobenius(geometry: Frobenius, xs: list[Tensor], directions: list[Tensor], rate: Rate) -> None:
    norms = frobenius_norms(directions)
    if any(norm.dtype != g.dtype for norm, g in zip(norms, directions, strict=True)):
        # In half precision the quotient of addcdiv would have a norm that leaves its range.
        move_reference(geometry, xs, directions, rate)
        return
    torch._foreach_clamp_min_(norms, max(map(least_norm, {norm.dtype for norm in norms})))
    lr = rate.lr
    if isinstance(lr, Tensor):
        torch._foreach_div_(norms, _each(lr))  # a rate of 0 makes the norm infinite, and the step 0
        lr = 1.0
    if rate.keep is not None:
        torch._foreach_mul_(xs, _each(rate.keep))
    if isinstance(geometry.radius, str):
        torch._foreach_addcdiv_(xs, directions, norms, [lr * -geometry.radius_of(x.shape) for x in xs])
    else:
        torch._foreach_addcdiv_(xs, directions, norms, lr * -geometry.radius)


def move_by_stack_(xs: list[Tensor], batch: Batch, stack: Tensor, rate: Rate) -> None:
    """Step a batch's tensors by the polar factors in its stack, in place; the stack is lost.

    Args:
        xs: the tensors to move, in the batch's order.
        batch: how they lie in the stack.
        stack: UVᵀ of each matrix.
        rate: of all.
    """
    if batch.device.type != "cpu" or isinstance(rate.lr, Tensor):
        # One launch for all tensors needs equal dtypes, and a rate on the device is multiplied in first, which must not
        # round. Otherwise casting while adding is the shorter way.
        stack = stack.to(xs[0].dtype)
    slots = batch.slots(stack)
    for run, radius in batch.runs:
        for part in parts_of(xs[run]):
            some = xs[run][part]
            rate[run][part].step_(some, batch.taken(slots[run][part], some), -radius)
