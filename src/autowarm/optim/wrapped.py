"""The optimizers inside a wrapper, and hooks on them."""

import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from .together import Together

# What copies the rates in its groups to the optimizer inside before each step.
_COPIES_RATES = re.compile(r"^(ZeroRedundancyOptimizer|OSS)$")
_together: "weakref.WeakKeyDictionary[Optimizer, Together]" = weakref.WeakKeyDictionary()


def named(optimizer: Optimizer, pattern: re.Pattern[str]) -> bool:
    """Whether the name of an optimizer's class, or of a class that it derives from, matches."""
    return any(pattern.search(cls.__name__) for cls in type(optimizer).__mro__)


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside a wrapper (a trainer's, Lookahead, SAM), or the optimizer itself.

    The scheduler hooks into this one, because its step hooks fire exactly when it makes an update. An optimizer that
    stands for one per tensor, each stepped during the backward pass, is followed to a `Together` of them.
    """
    while (inner := wrapped_by(optimizer)) is not None:
        optimizer = inner
    return optimizer


def wrapped_by(optimizer: Optimizer) -> Optimizer | None:
    """The optimizer that this one steps, if its parameter groups are this one's."""
    if isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        return inner
    if not isinstance(optimizer, Optimizer):
        return None
    for name, inner in vars(optimizer).items():
        if isinstance(inner, Mapping) and inner and all(isinstance(one, Optimizer) for one in inner.values()):
            if optimizer not in _together:  # one for each tensor
                _together[optimizer] = Together(*{id(one): one for one in inner.values()}.values())
            return _together[optimizer]
        if not isinstance(inner, Optimizer):
            continue
        if {id(group) for group in inner.param_groups} == {id(group) for group in optimizer.param_groups}:
            return inner
        if _tensors(inner) & _tensors(optimizer) and not named(optimizer, _COPIES_RATES):
            raise ValueError(
                f"{type(optimizer).__name__} steps by the rates of the {type(inner).__name__} that it keeps as "
                f"{name!r}, and not by those in its own param_groups, so no scheduler can reach them: give the "
                f"scheduler that one, optimizer.{name}"
            )
    return None


def _tensors(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def inside(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizers that make the updates: those inside a wrapper, or the optimizer itself."""
    optimizer = unwrapped(optimizer)
    several = getattr(optimizer, "optimizers", None)
    if not isinstance(several, (list, tuple)):
        return [optimizer]
    seen = {id(group) for group in optimizer.param_groups}
    if not all(id(group) in seen for one in several for group in one.param_groups):
        # Writing a rate into such a wrapper's groups would silently change nothing.
        raise ValueError(
            f"{type(optimizer).__name__} does not step by the rates in its own param_groups, so no scheduler can reach "
            "them: hand autowarm.optim.Together(*optimizer.optimizers) to the scheduler, and step that"
        )
    return [inner for one in several for inner in inside(one)]


def hook(register: Callable[..., Any], owner: object, call: Callable[..., None]) -> None:
    """Register a hook by an optimizer's method: it calls ``call(owner, …)`` for as long as its owner lives."""
    this = weakref.ref(owner)

    def fire(*args: Any) -> None:
        alive = this()
        if alive is not None:
            call(alive, *args)

    fire.owner = this  # type: ignore[attr-defined]
    handle = register(fire)
    weakref.finalize(owner, handle.remove)


def is_ours(call: Callable[..., Any]) -> bool:
    """Whether a hook was registered by `hook`."""
    return isinstance(getattr(call, "owner", None), weakref.ref)
