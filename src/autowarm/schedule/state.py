"""What a schedule is given and what it saves, as plain numbers and text: checked, sealed, opened again."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from ..geometry import resolve
from ..others.known import geometry_of, kappa_of, warn_of_own_rates
from ..others.wrapped import unwrapped
from . import core
from .groups import first_peak
from .planning import PEAK_SHARES, Calibration, Plan, check_horizon, clean, plan_of
from .profile import Profile
from .recovery import check_recover
from .shapes import STEPS, name_of

STATE_VERSION = 13


def checked(
    optimizer: Any, *, calibration: Any, warmup: Any, decay: Any, trained: Any, recover: Any, profile: Any, **given: Any
) -> tuple[Optimizer, dict[str, Any], Plan, int | None]:
    """Check what `AdaptiveWarmup` was given; it says which errors that may raise.

    Returns:
        The optimizer inside a trainer's wrapper, which has no step hooks of its own; the settings that ranks must
        share, and a resumed run with the saved one, as plain numbers and text; the plan; ``max_nonfinite``.
    """
    if not isinstance(inner := unwrapped(optimizer), Optimizer):
        then = "then total_steps" if isinstance(given["total_steps"], Optimizer) else "such as torch.optim.AdamW(...)"
        kind = type(inner).__name__
        raise TypeError(f"the first argument is the optimizer, got a {kind}: the optimizer comes first, {then}")
    limits = clean(max_nonfinite=given.pop("max_nonfinite"), peak_limit=given.pop("peak_limit"))  # no plan holds them
    if not (trained is None or isinstance(trained, bool)):
        raise ValueError(f"trained must be True, False, or None to look at the weights, got {trained!r}")
    if decay != "wso":  # which is flat, as the warning recommends
        warn_of_own_rates(optimizer)
    recover = check_recover(recover, inner)
    first_peak(inner)  # raises if there is none
    numbers = clean(**given)
    # κ and the geometry of a calibration, from the optimizer where they are not given.
    if (calibration := Calibration.of(calibration)) is not None:
        geometry = calibration.geometry and resolve(calibration.geometry)
        if calibration.geometry is None and calibration.kappa is None:
            geometry = geometry_of(inner)
        if calibration.kappa is None:
            try:
                calibration = replace(calibration, kappa=kappa_of(inner, geometry))
            except ValueError as error:
                raise ValueError(
                    f"{error}. Without calibration=, AdaptiveWarmup (not its paper()) needs no κ"
                ) from None
        calibration = replace(calibration, geometry=geometry)
    # The settings by name, as numbers and text: functions by their values.
    names: dict[str, Any] = {"optimizer": type(inner).__name__}
    for name in ("geometry", "kappa", "sigma_f2", "rho"):
        value = getattr(calibration, name, None)
        names[name] = repr(value) if name == "geometry" and value is not None else value
    plan = plan_of(warmup=warmup, decay=decay, trained=trained, profile=profile, calibration=calibration, **numbers)
    like_signs = geometry_of(inner, warn=False).locality == "entry"
    plan = replace(plan, peak_share=PEAK_SHARES["sign" if like_signs else "frobenius"])
    names |= {"warmup": name_of(warmup), "decay": name_of(decay), "profile": profile and repr(profile)}
    if profile is not None and not isinstance(profile, Profile):
        peak_gap: Any = plan.peak_gap
        names["profile"] = name_of(profile, [2.0 * p * peak_gap for p in STEPS[1:]])  # a gap of 0 has no rate
    names |= {"trained": trained, "recover": recover, "peak_limit": limits["peak_limit"]}
    return inner, names | numbers, plan, limits["max_nonfinite"]


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
        raise ValueError(f"not the state of {owner}: it is {given}. Resume it with the scheduler that saved it")
    content = {name: value for name, value in state.items() if name not in ("class", "version", "checksum")}
    if _checksum(content) != state.get("checksum"):
        raise ValueError(
            f"the {owner} state is damaged: its checksum is {state.get('checksum')!r}, and its content has another. "
            "Load an earlier checkpoint; to change a length or rate, load it as saved, then extend() or set base_lrs"
        )
    return content


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, default=repr).encode())


def resumed(
    content: Mapping[str, Any], settings: Mapping[str, Any], plan: core.Plan, groups: tuple[int, int]
) -> tuple[core.Plan, core.State, str | None]:
    """The plan and state of a saved schedule, and a warning if it was saved under another ``total_steps``.

    ``groups`` are the numbers of parameter groups, saved and here. Raise ValueError if settings differ.
    """
    saved, numbers = content["settings"], content["state"]
    rises = {name: None if numbers[name] is None else core.Rise(*numbers[name]) for name in ("ramp", "bound")}
    state = core.State(**numbers | rises | {"opening": tuple(numbers["opening"])})
    ignored = {"total_steps", "chance_loss", "trained", "recover"}  # of the weights, the state knows
    compared = {name: value for name, value in settings.items() if name not in ignored}
    differ = {name: (saved.get(name), value) for name, value in compared.items() if saved.get(name) != value}
    if groups[0] > groups[1]:
        differ["parameter groups"] = groups
    if differ:
        what = "; ".join(f"{name}: saved {one!r}, here {other!r}" for name, (one, other) in differ.items())
        raise ValueError(f"the saved schedule differs from this one: {what}")
    if None not in (plan.trained, state.trained):  # what is said of the weights counts over what was seen
        state = core.settle(plan, state, bool(plan.trained))
    total, planned = plan.total_steps, state.planned_steps
    if total in (saved["total_steps"], planned):
        return plan, state, None
    check_horizon(total, plan.decay, state.updates)
    change = f"the schedule was saved for total_steps={planned} and is loaded for total_steps={total}"
    return plan, core.extend(plan, state, total), f"{change}: it continues to {total}, as after extend({total})"
