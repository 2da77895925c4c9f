"""Errors that the user can fix, each described in one line."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .._version import install


class LabError(Exception):
    """An error that the user can fix. The command line shows only its message, without a traceback."""


class UsageError(LabError):
    """The command line or a config file is wrong."""


@contextmanager
def as_usage_error(prefix: str = "") -> Iterator[None]:
    """Re-raise what a config or a scheduler objects to as UsageError."""
    try:
        yield
    except (TypeError, ValueError, LabError) as error:
        raise UsageError(f"{prefix}{error}") from None


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Say what to install if an import within the block fails."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0] or error
        raise LabError(f"{what} needs the package {package}: {install(extra)}") from None


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def nearest(name: str, choices: Iterable[str], otherwise: str = "", prefix: str = "") -> str:
    """Suggest the known name nearest to an unknown one. If none is near, list all known names, or say `otherwise`."""
    choices = {choice.lower(): choice for choice in sorted(choices)}
    if close := difflib.get_close_matches(name.lower(), choices):
        best = max(close, key=lambda choice: choice.startswith(name.lower()))  # of adam: adamw, not radam
        return f"did you mean {prefix + choices[best]!r}?"
    return otherwise or f"known are {', '.join(choices.values())}"


def printable(text: str) -> str:
    """Remove escape sequences and other control characters, which a name from a config file may contain."""
    return "".join(letter for letter in text if letter.isprintable() or letter == "\n")


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List `key: old → new` for every key in which two nested mappings differ."""
    changes = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            changes += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            changes.append(f"{prefix}{key}: {a} → {b}")
    return changes
