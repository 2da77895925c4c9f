"""Checks the arguments that a user passes."""

from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from ..geometry import resolve
from ..optim.known import geometry_of, kappa_of, warn_of_own_rates
from ..optim.wrapped import unwrapped
from .groups import first_peak
from .planning import PEAK_SHARES, Calibration, Plan, clean, plan_of
from .profile import Profile
from .recovery import check_recover
from .shapes import STEPS, name_of


def checked(
    optimizer: Any, *, calibration: Any, warmup: Any, decay: Any, trained: Any, recover: Any, profile: Any, **given: Any
) -> tuple[Optimizer, dict[str, Any], Plan, bool, int | None]:
    """Check what `AdaptiveWarmup` was given; it says which errors that may raise.

    Returns:
        The optimizer inside a trainer's wrapper, which has no step hooks of its own; the settings that ranks must
        share, and a resumed run with the saved one, as plain numbers and text; the plan; whether κ was computed from
        the optimizer's tensors; ``max_nonfinite``.
    """
    if not isinstance(inner := unwrapped(optimizer), Optimizer):
        swapped = ": the optimizer comes first, then total_steps" if isinstance(given["total_steps"], Optimizer) else ""
        raise TypeError(f"the first argument is the optimizer, got a {type(inner).__name__}{swapped}")
    max_nonfinite = clean(max_nonfinite=given.pop("max_nonfinite"))["max_nonfinite"]
    if not (trained is None or isinstance(trained, bool)):
        raise ValueError(f"trained must be True, False, or None to look at the weights, got {trained!r}")
    if decay != "wso":  # which is flat, as the warning recommends
        warn_of_own_rates(optimizer)
    recover = check_recover(recover, inner)
    first_peak(inner)  # raises if there is none
    numbers, counted = clean(**given), False
    if (calibration := Calibration.of(calibration)) is not None:
        geometry = calibration.geometry and resolve(calibration.geometry)
        if calibration.geometry is None and calibration.kappa is None:
            geometry = geometry_of(inner)
        if calibration.kappa is None:
            try:
                calibration, counted = replace(calibration, kappa=kappa_of(inner, geometry)), True
            except ValueError as error:
                raise ValueError(
                    f"{error}. Without calibration=, AdaptiveWarmup (not its paper()) needs no κ"
                ) from None
        calibration = replace(calibration, geometry=geometry)
    names: dict[str, Any] = {"optimizer": type(inner).__name__}
    for name in ("geometry", "kappa", "sigma_f2", "rho"):
        value = getattr(calibration, name, None)
        names[name] = repr(value) if name == "geometry" and value is not None else value
    plan = plan_of(warmup=warmup, decay=decay, trained=trained, profile=profile, calibration=calibration, **numbers)
    kind = "sign" if geometry_of(inner, warn=False).locality == "entry" else "frobenius"
    plan = replace(plan, peak_share=PEAK_SHARES[kind])
    names |= {"warmup": name_of(warmup), "decay": name_of(decay), "profile": None}
    if profile is not None:
        peak_gap: Any = plan.peak_gap
        around = [2.0 * p * peak_gap for p in STEPS[1:]]  # its peak; a gap of 0 has no rate
        names["profile"] = repr(profile) if isinstance(profile, Profile) else name_of(profile, around)
    return inner, names | {"trained": trained, "recover": recover} | numbers, plan, counted, max_nonfinite
