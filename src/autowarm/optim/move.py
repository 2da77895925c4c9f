"""x ← keep·x + η·LMO(direction) for all tensors of a group, in as few passes over memory as the geometry allows.

`move_` picks the way by geometry; `move_reference` is the plain one, serves every geometry, and holds the others to it
in the tests. Tensors are taken in *parts* that fit a processor's cache: momentum, direction and step of one part follow
each other while it is there, and temporaries are never larger than a part. On accelerators a part is large, and one
launch serves all its tensors.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from ..geometry import Frobenius, Geometry, Sign, Spectral
from ..orthogonalize import least_norm, orthogonalize_, working_dtype
from .batches import batches_of

__all__ = ["Directions", "Rate", "add_", "move_", "move_reference"]

# Updates the momentum of the tensors at these places and returns what the oracle is asked about, in order.
Directions = Callable[[Sequence[int]], list[Tensor]]
Rate = float | Tensor

_PART_BYTES = {"cpu": 1 << 20}
_PART_BYTES_ELSEWHERE = 256 << 20


def move_(
    geometry: Geometry,
    xs: Sequence[Tensor],
    directions: Directions,
    lr: Rate,
    keep: Rate | None = None,
    *,
    owned: bool = False,
) -> None:
    """Step every tensor by its oracle, in place.

    Args:
        geometry: the norm of each tensor.
        xs: the tensors to move.
        directions: called once for each place in ``xs``, with places grouped as the geometry likes.
        lr: η, a float or a tensor of no dimensions.
        keep: what the tensors are multiplied by first, 1 − λη; None leaves them.
        owned: the directions are nobody else's, neither gradients nor momenta, and may be overwritten.
    """
    way = _way(geometry)
    if way is _move_sign:
        _move_sign(geometry, xs, directions, lr, keep, owned=owned)
    else:
        way(geometry, xs, directions, lr, keep)


def _way(geometry: Geometry) -> Callable[..., None]:
    # By exact class: a subclass may define its own oracle.
    if type(geometry) is Sign and not isinstance(geometry.radius, str):
        return _move_sign
    if type(geometry) is Frobenius:
        return _move_frobenius
    if type(geometry) is Spectral and geometry.method != "svd":
        return _move_spectral
    return move_reference


def move_reference(
    geometry: Geometry, xs: Sequence[Tensor], directions: Directions, lr: Rate, keep: Rate | None = None
) -> None:
    """`move_` for any geometry: ask the oracle, multiply by the rate, add."""
    for part in _parts(xs, range(len(xs))):
        updates = geometry.lmo_each(directions(part))
        add_([xs[i] for i in part], updates, lr, keep)


def _move_sign(
    geometry: Geometry,
    xs: Sequence[Tensor],
    directions: Directions,
    lr: Rate,
    keep: Rate | None,
    *,
    owned: bool = False,
) -> None:
    radius = geometry.radius_of(())
    for part in _parts(xs, range(len(xs))):
        signs = directions(part)
        if owned:
            torch._foreach_sign_(signs)
        else:
            signs = list(torch._foreach_sign(signs))
        add_([xs[i] for i in part], signs, lr * -radius, keep)
        del signs  # before the next part's are made


def _move_frobenius(
    geometry: Frobenius, xs: Sequence[Tensor], directions: Directions, lr: Rate, keep: Rate | None
) -> None:
    for part in _parts(xs, range(len(xs))):
        some, gs = [xs[i] for i in part], directions(part)
        norms = list(torch._foreach_norm(gs))
        torch._foreach_clamp_min_(norms, max(map(least_norm, {norm.dtype for norm in norms})))
        if isinstance(lr, Tensor):
            torch._foreach_div_(norms, lr)
        if keep is not None:
            torch._foreach_mul_(some, keep)
        rate = 1.0 if isinstance(lr, Tensor) else lr
        if isinstance(geometry.radius, str):
            torch._foreach_addcdiv_(some, gs, norms, [rate * -geometry.radius_of(x.shape) for x in some])
        else:
            torch._foreach_addcdiv_(some, gs, norms, rate * -geometry.radius)


def _move_spectral(
    geometry: Spectral, xs: Sequence[Tensor], directions: Directions, lr: Rate, keep: Rate | None
) -> None:
    for batch in batches_of(geometry, tuple((x.device, x.shape) for x in xs)):
        held = [batch.stack(geometry.dtype or working_dtype(batch.device))]
        slots = batch.slots(held[0])
        for part in _parts(xs, batch.members):
            gs = directions(part)
            torch._foreach_copy_([slots[i] for i in part], [_as(g, slots[i]) for i, g in zip(part, gs, strict=True)])
            del gs
        del slots
        stack = orthogonalize_(held, method=geometry.method, steps=geometry.steps)
        if batch.device.type != "cpu" or isinstance(lr, Tensor):
            # One launch for all tensors needs equal dtypes, and a rate on the device is multiplied in first, which must
            # not round. Otherwise casting while adding is the shorter way.
            stack = stack.to(xs[batch.members[0]].dtype)
        slots = batch.slots(stack)
        for shape, members in batch.by_shape:
            rate = lr * -geometry.radius_of(shape)
            for part in _parts(xs, members):
                some = [xs[i] for i in part]
                add_(some, [_as(slots[i], x) for i, x in zip(part, some, strict=True)], rate, keep)
        del stack, slots  # before the next batch's are made


def _as(x: Tensor, like: Tensor) -> Tensor:
    return x if x.shape == like.shape else x.reshape(like.shape)


def add_(xs: list[Tensor], updates: list[Tensor], rate: Rate, keep: Rate | None) -> None:
    """x ← keep·x + rate·update; the updates are lost."""
    if keep is not None:
        torch._foreach_mul_(xs, keep)
    if isinstance(rate, Tensor):
        torch._foreach_mul_(updates, rate)
        torch._foreach_add_(xs, updates)
    else:
        torch._foreach_add_(xs, updates, alpha=rate)


def _parts(xs: Sequence[Tensor], places: Iterable[int]) -> Iterator[list[int]]:
    """Split places into runs whose tensors are together as large as a part, or single."""
    part: list[int] = []
    room = 0
    for i in places:
        size = xs[i].numel() * xs[i].element_size()
        if part and size > room:
            yield part
            part = []
        if not part:
            room = _PART_BYTES.get(xs[i].device.type, _PART_BYTES_ELSEWHERE)
        part.append(i)
        room -= size
    if part:
        yield part
