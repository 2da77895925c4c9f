"""Seals the states that a schedule saves, and opens them again: a checksum tells whether they are whole."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import core
from .planning import Calibrated, check_horizon

STATE_VERSION = 12


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
        given = f"that of {state['class']}" if "checksum" in state else f"a dictionary of {sorted(map(str, state))[:6]}"
        raise ValueError(
            f"not the state of {owner}: it is {given}. A checkpoint made under another scheduler goes on with that one"
        )
    content = {name: value for name, value in state.items() if name not in ("class", "version", "checksum")}
    if _checksum(content) != state.get("checksum"):
        raise ValueError(
            f"the {owner} state is damaged: its checksum is {state.get('checksum')!r}, and its content has another. "
            "Load an earlier checkpoint; to change a length or rate, load it as saved, then extend() or set base_lrs"
        )
    return content


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, default=repr).encode())


def numbers_of(state: core.State) -> dict[str, Any]:
    """A rule's state as plain numbers by name."""
    return {name: list(x) if isinstance(x, tuple) else x for name, x in state._asdict().items()}


def resumed(
    content: Mapping[str, Any], settings: Mapping[str, Any], plan: core.Plan, groups: tuple[int, int], counted: bool
) -> tuple[core.Plan, core.State, str | None]:
    """The plan and state of a saved schedule, and a warning if it was saved under another ``total_steps``.

    ``groups`` are the numbers of parameter groups, saved and here; ``counted``: whether κ was computed here. Raise
    ValueError if settings differ.
    """
    saved, numbers = content["settings"], content["state"]
    rises = {name: None if numbers[name] is None else core.Rise(*numbers[name]) for name in ("ramp", "bound")}
    state = core.State(**numbers | rises | {"opening": tuple(numbers["opening"])})
    ignored = {"total_steps", "chance_loss", "trained", "recover"}  # of the weights, the state knows
    if counted and saved.get("kappa") is not None and state.gap0 is not None and isinstance(plan.peak_gap, Calibrated):
        ignored.add("kappa")  # it was computed before groups were added or frozen, and stays
        calibrated: Any = plan.peak_gap._replace(kappa=saved["kappa"])
        plan = replace(plan, peak_gap=calibrated)
    compared = {name: value for name, value in settings.items() if name not in ignored}
    differ = {name: (saved.get(name), value) for name, value in compared.items() if saved.get(name) != value}
    if groups[0] > groups[1]:
        differ["parameter groups"] = groups
    if differ:
        what = "; ".join(f"{name}: saved {one!r}, here {other!r}" for name, (one, other) in differ.items())
        raise ValueError(f"the saved schedule differs from this one: {what}")
    if None not in (plan.trained, state.trained):
        state = core.settle(plan, state, bool(plan.trained))
    total, planned = plan.total_steps, state.planned_steps
    if total in (saved["total_steps"], planned):
        return plan, state, None
    check_horizon(total, plan.decay, state.updates)
    change = f"the schedule was saved for total_steps={planned} and is loaded for total_steps={total}"
    return plan, core.extend(plan, state, total), f"{change}: it continues to {total}, as after extend({total})"
