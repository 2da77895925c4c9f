"""The optimizers inside a wrapper, and hooks on them."""

import re
import weakref
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .._torch.devices import traced_as_constant
from ..optim.together import Together

# What copies the rates in its groups to the optimizer inside before each step.
_COPIES_RATES = re.compile(r"^(ZeroRedundancyOptimizer|OSS)$")
_together: "weakref.WeakKeyDictionary[Optimizer, Together]" = weakref.WeakKeyDictionary()


def named(optimizer: Optimizer, pattern: re.Pattern[str]) -> bool:
    """Whether the name of an optimizer's class, or of a class that it derives from, matches."""
    return any(pattern.search(cls.__name__) for cls in type(optimizer).__mro__)


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside a wrapper (a trainer's, Lookahead, SAM), or the optimizer itself.

    The scheduler hooks into this one, because its step hooks fire exactly when it makes an update. An optimizer that
    only stands for others, such as one per tensor, each stepped during the backward pass, is followed to a `Together`
    of them.
    """
    while (inner := wrapped_by(optimizer)) is not None:
        optimizer = inner
    return optimizer


def wrapped_by(optimizer: Optimizer) -> Optimizer | None:
    """The optimizer that this one steps, if its parameter groups are this one's, or a `Together` of several.

    Raises:
        ValueError: the optimizers that it keeps have this one's tensors in groups of their own.
    """
    if isinstance(optimizer, LRScheduler):  # a mistake, though it has an optimizer
        return None
    if isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        return inner
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, Together):
        return None
    groups = _groups(optimizer)
    for name, several in _inner_of(optimizer).items():
        inner_groups = {group for one in several for group in _groups(one)}
        alone = several[0] is vars(optimizer)[name]
        if inner_groups <= groups:
            if alone and inner_groups == groups:
                return several[0]
        elif not any(_tensors(one) & _tensors(optimizer) for one in several):
            if not alone:
                if optimizer not in _together:
                    _together[optimizer] = Together(*several)
                return _together[optimizer]
        elif not named(optimizer, _COPIES_RATES):
            # Writing a rate into such a wrapper's groups would silently change nothing.
            kinds = " and ".join(dict.fromkeys(type(one).__name__ for one in several))
            raise ValueError(
                f"{type(optimizer).__name__} steps by the rates of the {kinds} that it keeps as {name!r}, and not by "
                "those in its own param_groups, so no scheduler can reach them: give the scheduler what it keeps, "
                "of several an autowarm.optim.Together(...) of them, which you step"
            )
    return None


def _inner_of(optimizer: Optimizer) -> dict[str, list[Optimizer]]:
    """The optimizers that this one keeps, by attribute; also those in a list or a dictionary."""
    by_name = {}
    for name, value in vars(optimizer).items():
        if name in ("state", "param_groups", "defaults"):  # of tensors, and maybe large
            continue
        several = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        unique = {id(one): one for one in several if isinstance(one, Optimizer)}
        if unique and id(optimizer) not in unique:  # among siblings, it is none that steps them
            by_name[name] = list(unique.values())
    return by_name


def _groups(optimizer: Optimizer) -> set[int]:
    return {id(group) for group in optimizer.param_groups}


def _tensors(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def inside(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizers that make the updates: those inside a wrapper, or the optimizer itself."""
    optimizer = unwrapped(optimizer)
    groups = _groups(optimizer)
    inner_ones = [one for several in _inner_of(optimizer).values() for one in several if _groups(one) <= groups]
    makers = {id(inner): inner for one in inner_ones for inner in inside(one)}
    return list(makers.values()) or [optimizer]


def hook(register: Callable[..., Any], owner: object, call: Callable[..., None]) -> None:
    """Register a hook by an optimizer's method: it calls ``call(owner, …)`` for as long as its owner lives."""
    this = weakref.ref(owner)

    def fire(*args: Any) -> None:
        alive = this()
        if alive is not None:
            call(alive, *args)

    fire.owner = this  # type: ignore[attr-defined]
    weakref.finalize(owner, register(fire).remove)


def hook_once_compiled(register: Callable[..., Any], owner: object, call: Callable[[Any], None]) -> None:
    """As `hook`, for a ``call(owner)`` that a compiler makes itself as it compiles, before the first step."""
    this = weakref.ref(owner)

    @traced_as_constant
    def fire() -> None:
        if (alive := this()) is not None:
            call(alive)

    hook(register, owner, lambda *_: fire())


def is_ours(call: Callable[..., Any]) -> bool:
    """Whether a hook was registered by `hook`."""
    return isinstance(getattr(call, "owner", None), weakref.ref)
