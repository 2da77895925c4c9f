"""Checks the arguments that a user passes."""

from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from ..geometry import resolve
from ..optim.known import geometry_of, kappa_of, warn_of_own_rates
from ..optim.wrapped import unwrapped
from .groups import first_peak
from .planning import PEAK_SHARES, Plan, clean, plan_of
from .profile import Profile
from .recovery import check_recover
from .shapes import name_of


def checked(
    optimizer: Any, *, geometry: Any, warmup: Any, decay: Any, trained: Any, recover: Any, profile: Any, **given: Any
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
    check_recover(recover, inner)
    first_peak(inner)  # raises if there is none
    numbers = clean(**given)
    geometry, counted = None if geometry is None else resolve(geometry), False
    if geometry is not None and numbers["kappa"] is None and numbers["peak_gap"] is None:
        try:
            numbers["kappa"], counted = kappa_of(inner, geometry), True
        except ValueError as error:
            raise ValueError(f"{error}. Without geometry=, AdaptiveWarmup (not its paper()) needs no κ") from None
    names = {"optimizer": type(inner).__name__, "geometry": None if geometry is None else repr(geometry)}
    names |= {"warmup": name_of(warmup), "decay": name_of(decay)}
    names["profile"] = profile and (repr(profile) if isinstance(profile, Profile) else name_of(profile))
    plan = plan_of(warmup=warmup, decay=decay, trained=trained, profile=profile, **numbers)
    kind = "sign" if geometry_of(inner, warn=False).locality == "entry" else "frobenius"
    plan = replace(plan, peak_share=PEAK_SHARES[kind])
    return inner, names | {"trained": trained, "recover": recover} | numbers, plan, counted, max_nonfinite
