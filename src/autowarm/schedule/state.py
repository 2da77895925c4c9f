"""Seals the states that a schedule saves, and opens them again: a checksum tells whether they are whole."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from .core import Rise, State

STATE_VERSION = 10


def sealed(owner: str, content: dict[str, Any]) -> dict[str, Any]:
    """A state to save: plain numbers and text, with the name of the class, the version and a checksum."""
    return {"class": owner, "version": STATE_VERSION, **content, "checksum": _checksum(content)}


def opened(owner: str, state: Any) -> dict[str, Any]:
    """The content of a saved state, which stays as it is. ValueError says whose it is, of which version, or damaged."""
    if not isinstance(state, Mapping):
        raise ValueError(f"not the state of {owner}: it is a {type(state).__name__}, not a dictionary")
    if (version := state.get("version")) != STATE_VERSION and ("rule" in state or "checksum" in state):
        raise ValueError(
            f"the {owner} state has version {version!r}, and this autowarm reads version {STATE_VERSION}: resume the "
            "run with the autowarm that saved it"
        )
    if state.get("class") != owner:
        seen = f"that of {state['class']}" if "checksum" in state else f"a dictionary of {sorted(map(str, state))[:6]}"
        raise ValueError(f"not the state of {owner}: it is {seen}")
    content = {name: value for name, value in state.items() if name not in ("class", "version", "checksum")}
    if _checksum(content) != state.get("checksum"):
        raise ValueError(
            f"the {owner} state is damaged: its checksum is {state.get('checksum')!r}, and its content's is "
            f"{_checksum(content)}. Load an earlier checkpoint; to change a run's length or rate, load the state as "
            "it was saved and call extend() or rewarm()"
        )
    return content


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, default=repr).encode())


def differences(saved: Mapping[str, Any], here: Mapping[str, Any], ignored: set[str], groups: tuple[int, int]) -> None:
    """Raise ValueError if a state was saved under other settings, or for more parameter groups."""
    differ = {
        name: f"saved {saved.get(name)!r}, here {value!r}"
        for name, value in here.items()
        if name not in ignored and saved.get(name) != value
    }
    if groups[0] > groups[1]:
        differ["parameter groups"] = f"saved {groups[0]}, here {groups[1]}"
    if differ:
        what = "; ".join(f"{name}: {how}" for name, how in differ.items())
        raise ValueError(f"the saved schedule differs from this one: {what}")


def numbers_of(state: State) -> dict[str, Any]:
    """A rule's state as plain numbers by name."""
    return {name: list(x) if isinstance(x, tuple) else x for name, x in state._asdict().items()}


def state_of(numbers: dict[str, Any]) -> State:
    """The state that `numbers_of` returned."""
    rises = {name: None if numbers[name] is None else Rise(*numbers[name]) for name in ("ramp", "bound")}
    return State(**numbers | rises | {"opening": tuple(numbers["opening"])})
