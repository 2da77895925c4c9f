"""Arithmetic that does not depend on the modes of the caller: autocast and inference mode.

Some trainers step the optimizer inside `torch.autocast`, which would compute our matrix products in half precision.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def autocast_off() -> AbstractContextManager[object]:
    """Return a context that turns autocast off on every device; entering it costs nothing outside autocast."""
    return torch._C._DisableAutocast() if torch._C._is_any_autocast_enabled() else nullcontext()


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function ignore the caller's autocast, also where `torch.compile` traces it."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch._C._is_any_autocast_enabled():
            return function(*args, **kwargs)
        if torch.compiler.is_compiling():  # the compiler does not know the context of all devices
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                return function(*args, **kwargs)
        with torch._C._DisableAutocast():
            return function(*args, **kwargs)

    return run


def in_normal_mode(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function ignore the caller's autocast and inference mode.

    State that is created in inference mode could never be changed outside of it.
    """

    in_full_precision = without_autocast(function)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # The compiler leaves inference mode by itself, and cannot trace the question.
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            if not torch._C._is_any_autocast_enabled():
                return function(*args, **kwargs)
            return in_full_precision(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return in_full_precision(*args, **kwargs)

    return run
