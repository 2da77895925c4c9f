"""Saved numbers, each declared once: where it lives, with the condition that a whole state meets."""

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any

Holds = Callable[[Any], bool]
Convert = Callable[[Any], Any]
Checks = Mapping[str, "Holds | Checks"]


def number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def finite(x: Any) -> bool:
    return number(x) and math.isfinite(x)


def count(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def boolean(x: Any) -> bool:
    return isinstance(x, bool)


def positive_share(x: Any) -> bool:
    return finite(x) and 0 < x <= 1


def rate(x: Any) -> bool:
    return finite(x) and x >= 0


def list_of(holds: Holds) -> Holds:
    return lambda x: isinstance(x, list | tuple) and all(map(holds, x))


def optional(holds: Holds) -> Holds:
    return lambda x: x is None or holds(x)


def saved(holds: Holds, default: Any = None, *, write: Convert | None = None, read: Convert | None = None) -> Any:
    """A dataclass's field that a state contains: its condition, its first value, and how it becomes plain numbers."""
    about = {"holds": holds, "write": write, "read": read}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=about)
    return field(default=default, metadata=about)


def checks_of(kind: type) -> dict[str, Holds]:
    """The condition on each field that a dataclass saves."""
    return {one.name: one.metadata["holds"] for one in fields(kind) if "holds" in one.metadata}


def to_plain(content: Any) -> dict[str, Any]:
    """The saved fields of a dataclass's instance, as plain numbers and text."""
    kept = [one for one in fields(content) if "holds" in one.metadata]
    return {one.name: _through(one.metadata["write"], getattr(content, one.name)) for one in kept}


def from_plain(kind: type, state: Mapping[str, Any]) -> dict[str, Any]:
    """The saved fields of a dataclass, as its arguments."""
    kept = [one for one in fields(kind) if "holds" in one.metadata]
    return {one.name: _through(one.metadata["read"], state[one.name]) for one in kept}


def _through(convert: Convert | None, value: Any) -> Any:
    if convert is not None and value is not None:
        return convert(value)
    return list(value) if isinstance(value, list) else value  # a copy


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
