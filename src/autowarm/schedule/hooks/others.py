"""Finds the schedulers that set an optimizer's rates beside ours."""

import gc
import re
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ...optim.wrapped import inside, unwrapped

# Not all schedulers are PyTorch's: timm's, for example, are classes of their own.
_SCHEDULER = re.compile(r"(Scheduler|LR)$")


def schedulers_beside(ours: LRScheduler) -> list[Any]:
    """The other schedulers of our optimizer, or of one inside it.

    PyTorch keeps no list of an optimizer's schedulers, so this goes through all live objects. It takes up to a few
    tenths of a second, and is called only when a rate is not what we have written. Before the first update it has dead
    ones collected and looks again: those of a rate finder may be dead, in a cycle.
    """
    found = _schedulers(ours.optimizer, ours)
    if found and ours.last_epoch == 0:
        found.clear()
        gc.collect()
        found = _schedulers(ours.optimizer, ours)
    return found


def are_schedulers(optimizer: Optimizer) -> bool:
    """Whether a live scheduler wrote the rates in the groups, as far as it can be told. Waits for the device."""
    return any(_wrote_last(one, optimizer, waits=True) for one in _schedulers(optimizer))


def _schedulers(ours: Optimizer, but: LRScheduler | None = None) -> list[Any]:
    optimizers = {id(one) for one in (ours, *inside(ours))}
    is_scheduler: dict[type, bool] = {}
    found = []
    for one in gc.get_objects():
        kind = type(one)  # `isinstance` would ask the objects, and proxies of dead ones raise
        if kind not in is_scheduler:
            is_scheduler[kind] = issubclass(kind, LRScheduler) or bool(_SCHEDULER.search(kind.__name__))
        if not is_scheduler[kind] or one is but:
            continue
        optimizer = getattr(one, "__dict__", {}).get("optimizer")
        if isinstance(optimizer, Optimizer) and id(unwrapped(optimizer)) in optimizers:
            found.append(one)
    return found


def unwanted(found: list[Any], ours: LRScheduler) -> list[str]:
    """Name those that nobody asked to share our optimizer, and whose rates are in its groups now.

    A `ReduceLROnPlateau`, and what shares a `ChainedScheduler` or `SequentialLR` with ours, is there on purpose.
    """
    wanted = {id(member) for one in found if _is_chained(one, ours) for member in _members(one)}
    return sorted(
        type(one).__name__
        for one in found
        if id(one) not in wanted and not isinstance(one, ReduceLROnPlateau) and _wrote_last(one, ours.optimizer)
    )


def may_have_written(found: list[Any], ours: LRScheduler) -> bool:
    """Whether the rates in the groups may be those of one of these, and not a user's.

    A `ReduceLROnPlateau` writes none before the first update, nor does one that has been replaced.
    """
    return any(_is_chained(one, ours) for one in found) or bool(unwanted(found, ours))


def chained_with(ours: LRScheduler) -> list[LRScheduler]:
    """The schedulers that share a `ChainedScheduler` or `SequentialLR` with ours and have peak rates of their own."""
    families = [_members(one) for one in schedulers_beside(ours) if _is_chained(one, ours)]
    found = {id(one): one for family in families for one in family if one is not ours}
    return [one for one in found.values() if isinstance(getattr(one, "base_lrs", None), list)]


def _is_chained(scheduler: Any, ours: LRScheduler) -> bool:
    return any(member is ours for member in _members(scheduler))


def _members(scheduler: Any) -> list[Any]:
    inner = getattr(scheduler, "_schedulers", ())
    return [scheduler, *(member for one in inner for member in _members(one))]


def _wrote_last(scheduler: Any, optimizer: Optimizer, *, waits: bool = False) -> bool:
    """Whether the rates in the groups are this scheduler's, as far as it can be told; tensors only if it waits."""
    last = getattr(scheduler, "_last_lr", None)
    if scheduler.optimizer is not optimizer or not isinstance(last, list):
        return True
    return all(
        bool(rate == group["lr"])
        for rate, group in zip(last, optimizer.param_groups, strict=False)
        if waits or not (isinstance(rate, Tensor) or isinstance(group["lr"], Tensor))
    )
