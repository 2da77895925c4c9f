"""Saved numbers, each declared once: where it lives, with the condition that a whole state meets."""

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from operator import call
from typing import Any

Holds = Callable[[Any], bool]
Checks = Mapping[str, "Holds | Checks"]


def number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def finite(x: Any) -> bool:
    return number(x) and math.isfinite(x)


def count(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def boolean(x: Any) -> bool:
    return isinstance(x, bool)


def text(x: Any) -> bool:
    return isinstance(x, str)


def a_share(x: Any) -> bool:
    return finite(x) and 0 <= x <= 1


def rate(x: Any) -> bool:
    return finite(x) and x >= 0


def list_of(holds: Holds) -> Holds:
    return lambda x: isinstance(x, list | tuple) and all(map(holds, x))


def row_of(*holds: Holds) -> Holds:
    """A list or tuple with one entry for each condition."""
    return lambda x: isinstance(x, list | tuple) and len(x) == len(holds) and all(map(call, holds, x))


def optional(holds: Holds) -> Holds:
    return lambda x: x is None or holds(x)


items: Holds = list_of(row_of(text, lambda _: True))  # a dictionary that is saved as a list or tuple of its items


def saved(holds: Holds, default: Any = None) -> Any:
    """A dataclass's field that a state contains: its condition and its first value."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"holds": holds})
    return field(default=default, metadata={"holds": holds})


def checks_of(kind: type) -> dict[str, Holds]:
    """The condition on each field that a dataclass saves."""
    return {one.name: one.metadata["holds"] for one in fields(kind) if "holds" in one.metadata}


def saved_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Of an object's attributes, or of a state, what a dataclass saves: plain numbers, text, and copies of lists."""
    kept = {name: values[name] for name in checks_of(kind)}
    return {name: list(x) if isinstance(x, list | tuple) else x for name, x in kept.items()}


def check(state: Any, checks: Checks, path: str = "") -> None:
    """Raise ValueError if a state lacks a number or holds one that is invalid; the message names the first."""
    if not isinstance(state, Mapping):
        raise ValueError(f"the saved schedule is damaged: {path.rstrip('.')!r} is {state!r}")
    for name, holds in checks.items():
        if name not in state:
            raise ValueError(f"the saved schedule is damaged: {path + name!r} is missing")
        if not callable(holds):
            check(state[name], holds, f"{path}{name}.")
        elif not holds(state[name]):
            raise ValueError(f"the saved schedule is damaged: {path + name!r} is {state[name]!r}")
