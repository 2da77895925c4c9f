"""x ← keep·x + η·LMO(direction), in as few passes over memory as the geometry allows.

A group's tensors are processed in *parts* that fit a CPU's cache: momentum, direction and step of one part are computed
while it is cached, and temporaries are never larger than a part. On accelerators parts are large, and one launch
handles all of a part's tensors.

`move_` updates one part along known directions, in the fastest way that its geometry allows. `move_reference` is the
plain way, which works for every geometry; tests compare the fast ways with it. Iterative polar factors are computed for
a whole `batches.Batch` at once, and `move_by_stack_` applies them to the tensors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ...geometry import Frobenius, Geometry, Sign, frobenius_norms
from ...orthogonalize import least_norm
from .batches import Batch, block_of, slots_of, taken

__all__ = ["Rate", "by_device", "move_", "move_by_stack_", "move_reference", "parts_of"]

_PART_BYTES = {"cpu": 1 << 20}
_PART_BYTES_ELSEWHERE = 256 << 20
# From this size on, a tensor's kernel takes longer than its launch.
_LARGE = 8 << 20


@dataclass(frozen=True)
class Rate:
    """How far tensors move: x ← keep·x + lr·update.

    Attributes:
        lr: η, as a number or 0-dim tensor for all tensors, or a 1-dim tensor with an entry for each; see `where`.
        keep: 1 − λη, in the same form as ``lr``, or None for 1.
    """

    lr: float | Tensor
    keep: float | Tensor | None = None

    @classmethod
    def of_group(cls, group: dict[str, Any]) -> Self:
        """The rate of a parameter group with options ``lr`` and ``weight_decay``."""
        lr = group["lr"].reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        return cls(lr, 1 - lr * group["weight_decay"] if group["weight_decay"] else None)

    def where(self, finite: Tensor | None) -> Self:
        """This rate for tensors whose flag is set, and one that leaves the others unchanged; None sets all flags."""
        if finite is None:
            return self
        lr = torch.where(finite, _on(finite.device, self.lr), 0.0)
        return type(self)(lr, None if self.keep is None else torch.where(finite, _on(finite.device, self.keep), 1.0))

    def __getitem__(self, some: slice) -> Self:
        """The rate of a slice of the tensors."""
        if not (isinstance(self.lr, Tensor) and self.lr.ndim):
            return self
        return type(self)(self.lr[some], None if self.keep is None else self.keep[some])  # type: ignore[index]

    def of(self, places: Sequence[int]) -> Self:
        """The rate of the tensors at these indices."""
        if not (isinstance(self.lr, Tensor) and self.lr.ndim):
            return self
        lr = torch.stack([self.lr[i] for i in places])
        return type(self)(lr, None if self.keep is None else torch.stack([self.keep[i] for i in places]))  # type: ignore[index]

    def step_(self, xs: list[Tensor], updates: list[Tensor], scale: float = 1.0) -> None:
        """x ← keep·x + lr·scale·update, in place; this overwrites the updates."""
        lr = self.lr * scale
        if self.keep is not None:
            torch._foreach_mul_(xs, _each(self.keep))
        if isinstance(lr, Tensor):
            torch._foreach_mul_(updates, _each(lr))
            torch._foreach_add_(xs, updates)
        else:
            torch._foreach_add_(xs, updates, alpha=lr)

    def step_each_(
        self, xs: list[Tensor], updates: list[Tensor], scales: list[float], places: Sequence[int] | None = None
    ) -> None:
        """`step_` with a scale per tensor and without temporaries: one launch per tensor, whatever the updates' dtype.

        Args:
            xs, updates, scales: the tensors, and the update and scale of each.
            places: indices of these tensors in this rate; None for all.
        """
        if not isinstance(self.lr, Tensor):
            for x, update, scale in zip(xs, updates, scales, strict=True):
                self.step_([x], [update], scale)
            return
        places = range(len(xs)) if places is None else places
        if self.keep is not None:
            torch._foreach_mul_(xs, _at(self.keep, places))
        torch._foreach_addcmul_(xs, updates, _at(self.lr, places), scales)


def _at(factor: Any, places: Sequence[int]) -> list[Tensor]:
    """The factor of each of these tensors."""
    each = factor.unbind() if factor.ndim else [factor] * (max(places, default=-1) + 1)
    return [each[i] for i in places]


def _on(device: torch.device, number: float | Tensor) -> Tensor:
    if isinstance(number, Tensor):
        # One of a model's GPUs may hold the rate of all.
        elsewhere = number.device.type != "cpu" and number.device != device
        return number.to(device, non_blocking=True) if elsewhere else number
    # Double precision is slow on most accelerators, and missing on some.
    return torch.full((), number, dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)


def _each(factor: Any) -> Any:
    """The argument of `torch._foreach_mul_`: one factor for all tensors, or a list with one for each."""
    return list(factor.unbind()) if isinstance(factor, Tensor) and factor.ndim else factor


def by_device(xs: Sequence[Tensor]) -> list[list[int]]:
    """Return the indices of the tensors by device."""
    found: dict[torch.device, list[int]] = {}
    for i, x in enumerate(xs):
        found.setdefault(x.device, []).append(i)
    return list(found.values())


def parts_of(xs: Sequence[Tensor], part_bytes: int | None = None, itemsize: int | None = None) -> Iterator[slice]:
    """Split tensors into slices on one device, each as large as a part, or a single larger tensor.

    Args:
        xs: the tensors.
        part_bytes: size of a part; None for one that suits the device.
        itemsize: bytes per element of the temporaries; None for the tensors' own.
    """
    start = room = 0
    for i, x in enumerate(xs):
        size = x.numel() * (itemsize or x.element_size())
        if start < i and (size > room or x.device != xs[start].device):
            yield slice(start, i)
            start = i
        if start == i:
            room = part_bytes or _PART_BYTES.get(x.device.type, _PART_BYTES_ELSEWHERE)
        room -= size
    if xs:
        yield slice(start, len(xs))


def move_(geometry: Geometry, xs: list[Tensor], directions: list[Tensor], rate: Rate, *, owned: bool = False) -> None:
    """Update every tensor by its oracle, in place.

    Args:
        geometry: the norm of each tensor.
        xs: the tensors to move.
        directions: the oracle's argument for each.
        rate: the rate of all tensors.
        owned: whether the directions may be overwritten, because they are neither gradients nor momenta.
    """
    # By exact class: a subclass may define its own oracle.
    if type(geometry) is Sign and not isinstance(geometry.radius, str):
        _move_sign(geometry, xs, directions, rate, owned=owned)
    elif type(geometry) is Frobenius:
        _move_frobenius(geometry, xs, directions, rate)
    else:
        move_reference(geometry, xs, directions, rate)


def move_reference(geometry: Geometry, xs: list[Tensor], directions: list[Tensor], rate: Rate) -> None:
    """`move_` for any geometry: call the oracle, multiply by the rate, add."""
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
        # In half precision, the norm in addcdiv's quotient could overflow.
        move_reference(geometry, xs, directions, rate)
        return
    torch._foreach_clamp_min_(norms, max(map(least_norm, {norm.dtype for norm in norms})))
    lr = rate.lr
    if isinstance(lr, Tensor):
        torch._foreach_div_(norms, _each(lr))  # a rate of 0 makes the norm infinite and the step 0
        lr = 1.0
    if rate.keep is not None:
        torch._foreach_mul_(xs, _each(rate.keep))
    if isinstance(geometry.radius, str):
        torch._foreach_addcdiv_(xs, directions, norms, [lr * -geometry.radius_of(x.shape) for x in xs])
    else:
        torch._foreach_addcdiv_(xs, directions, norms, lr * -geometry.radius)


def move_by_stack_(xs: list[Tensor], batch: Batch, stack: Tensor, rate: Rate) -> None:
    """Update a batch's tensors by the polar factors in its stack, in place; this overwrites the stack.

    Args:
        xs: the tensors to move, in the batch's order.
        batch: their layout in the stack.
        stack: UVᵀ of each matrix.
        rate: the rate of all tensors.
    """
    slots = slots_of(batch, stack)
    for run in batch.runs:
        run_xs, run_slots, run_rate = xs[run.tensors], slots[run.tensors], rate[run.tensors]
        if isinstance(rate.lr, Tensor) and run_xs[0].nbytes < _LARGE:
            for part in parts_of(run_xs, batch.part_bytes, itemsize=_wide(run_xs[0].dtype).itemsize):
                _move_by_block(run_xs[part], block_of(batch, stack, run, part), run_rate[part], -run.radius)
        elif isinstance(rate.lr, Tensor):
            run_rate.step_each_(run_xs, taken(batch, run_slots, [run.shape] * len(run_xs)), [-run.radius] * len(run_xs))
        else:
            for part in parts_of(run_xs, batch.part_bytes):
                some = run_xs[part]
                run_rate.step_(some, taken(batch, run_slots[part], [run.shape] * len(some)), -run.radius)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _move_by_block(xs: list[Tensor], updates: Tensor, rate: Rate, scale: float) -> None:
    """x ← keep·x + lr·scale·update in few launches, for tensors of one shape with their updates in one tensor.

    Rates on a device differ between tensors if some are skipped, and no `torch._foreach_…` is fast in that case. In one
    tensor the rates are a factor that is broadcast. Only the final result is rounded.
    """
    block = xs[0].new_empty((len(xs), *xs[0].shape), dtype=_wide(xs[0].dtype))
    torch._foreach_copy_(list(block.unbind()), xs)

    def factor(number: Any) -> Tensor:
        return number.to(block.dtype).reshape((-1,) + (1,) * (block.ndim - 1))

    if rate.keep is not None:
        block.mul_(factor(rate.keep))
    block.addcmul_(updates, factor(rate.lr), value=scale)
    torch._foreach_copy_(xs, list(block.unbind()))
