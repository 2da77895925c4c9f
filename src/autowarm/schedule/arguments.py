"""Checks the arguments that a user passes."""

import difflib
import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from torch.optim import Optimizer

from ..geometry import Geometry, resolve
from ..optim.known import kappa_of, warn_of_own_rates
from ..optim.wrapped import unwrapped
from .calibration import SIGMA_F2, calibrate
from .checks import check_horizon, clean
from .core import Plan
from .groups import first_peak
from .profile import Profile
from .shapes import Shape, decay_shape, name_of, warmup_shape

Init = TypeVar("Init", bound=Callable[..., None])
# What people write out of habit, and what they mean.
_HABITS = {
    **dict.fromkeys(("num_training_steps", "max_steps", "T_max", "steps", "total_iters"), "total_steps"),
    **dict.fromkeys(("min_lr", "eta_min", "min_lr_ratio"), "final_ratio, a share of the peak rate"),
    **dict.fromkeys(("lr", "max_lr", "base_lr", "peak_lr", "learning_rate"), "the optimizer's lr: it is the peak rate"),
    "peak": "autowarm.find_rate, before the run? rewarm(peak=) changes the peak rate in it",
    **dict.fromkeys(("epoch", "last_epoch", "epochs"), "total_steps, in updates; a state resumes by load_state_dict"),
}  # fmt: skip


_NUMBERS = {field.name for field in fields(Plan)} - {"warmup", "decay", "trained", "profile"}


class Calibrated(NamedTuple):
    """Δ' as a function of Δ0, as the paper calibrates it."""

    kappa: float
    sigma_f2: float
    div: float
    target: tuple[Shape, Shape]

    def __call__(self, gap0: float) -> float:
        return calibrate(
            gap0, lr=1.0, div=self.div, kappa=self.kappa, sigma_f2=self.sigma_f2, target=self.target
        ).peak_gap


class Arguments(NamedTuple):
    """A scheduler's arguments, checked."""

    optimizer: Optimizer  # the one inside a trainer's wrapper, which has no step hooks of its own
    settings: dict[str, Any]  # what ranks must share, and a resumed run with the saved one, in plain numbers and text
    plan: Plan  # what the rule follows
    kappa_counted: bool  # whether κ was computed from the optimizer's tensors
    max_nonfinite: int | None  # how many non-finite losses in a row raise an error; None for never


def checked(
    optimizer: Any, *, geometry: Any, warmup: Any, decay: Any, trained: Any, recover: Any, profile: Any, **given: Any
) -> Arguments:
    """Check what `AdaptiveWarmup` was given; it says which errors that may raise."""
    if not isinstance(inner := unwrapped(optimizer), Optimizer):
        swapped = ": the optimizer comes first, then total_steps" if isinstance(given["total_steps"], Optimizer) else ""
        raise TypeError(f"the first argument is the optimizer, got a {type(inner).__name__}{swapped}")
    max_nonfinite = clean(max_nonfinite=given.pop("max_nonfinite"))["max_nonfinite"]
    if not (trained is None or isinstance(trained, bool)):
        raise ValueError(f"trained must be True, False, or None to look at the weights, got {trained!r}")
    warn_of_own_rates(optimizer)
    check_recover(recover, inner)
    first_peak(inner)  # raises if there is none
    numbers = clean(**given)
    geometry, counted = None if geometry is None else resolve(geometry), False
    if geometry is not None and numbers["kappa"] is None and numbers["peak_gap"] is None:
        numbers["kappa"], counted = _kappa(inner, geometry), True
    settings = {
        "optimizer": type(inner).__name__,
        "geometry": None if geometry is None else repr(geometry),
        "warmup": name_of(warmup),
        "decay": name_of(decay),
        "trained": trained,
        "recover": recover,
        "profile": profile and (repr(profile) if isinstance(profile, Profile) else name_of(profile)),
        **numbers,
    }
    plan = plan_of(warmup=warmup, decay=decay, trained=trained, profile=profile, **numbers)
    return Arguments(inner, settings, plan, counted, max_nonfinite)


def plan_of(
    total_steps: int | None,
    *,
    warmup: str | Shape = "linear",
    decay: str | Shape = "cosine",
    trained: bool | None = None,
    profile: Callable[[float], float] | None = None,
    geometry: Any = None,
    kappa: float | None = None,
    sigma_f2: float = SIGMA_F2,
    **numbers: Any,
) -> Plan:
    """The plan that these arguments of `AdaptiveWarmup` make; ``geometry`` calibrates Δ', and then needs ``kappa``.

    Raises:
        TypeError: an argument is unknown, or says something about an optimizer.
        ValueError: as for `AdaptiveWarmup`.
    """
    if unknown := numbers.keys() - _NUMBERS:
        known = ", ".join(sorted({*_NUMBERS, "warmup", "decay", "trained", "geometry", "kappa", "sigma_f2"}))
        raise TypeError(f"without an optimizer, AdaptiveWarmup has no {min(unknown)}: give some of {known}")
    cleaned = clean(total_steps=total_steps, kappa=kappa, sigma_f2=sigma_f2, **numbers)
    kappa, sigma_f2 = cleaned.pop("kappa"), cleaned.pop("sigma_f2")
    shapes = warmup_shape(warmup), decay_shape(decay)
    check_horizon(cleaned["total_steps"], shapes[1])
    if geometry is not None and resolve(geometry) and kappa is None and cleaned.get("peak_gap") is None:
        raise ValueError(f"geometry={geometry!r} calibrates with the κ of a model, which is not here: give kappa, too")
    if kappa is None and sigma_f2 != SIGMA_F2:
        raise ValueError("sigma_f2 belongs to the calibration of Δ': give the geometry to calibrate for, too")
    if profile is not None:
        cleaned["peak_gap"] = _peak_of(profile, kappa, cleaned.get("peak_gap"))
    if cleaned.get("peak_gap") is None and kappa is not None:
        cleaned["peak_gap"] = Calibrated(kappa, sigma_f2, cleaned.get("div", Plan.div), shapes)
    return Plan(warmup=shapes[0], decay=shapes[1], trained=trained, profile=profile, **cleaned)


def _peak_of(profile: Any, kappa: float | None, peak_gap: float | None) -> float:
    """Δ' of a profile of one's own: as given, or its own."""
    if not callable(profile):
        raise ValueError(f"a profile is a function of the gap Δ, got {profile!r}")
    if kappa is not None:
        raise ValueError("geometry and kappa calibrate the paper's profile: leave them out, or leave out profile")
    found = peak_gap or getattr(profile, "peak_gap", None)
    if found is None:
        raise ValueError("a profile of your own needs peak_gap, the gap at which it is highest and the warm-up ends")
    return float(found)


def check_recover(recover: Any, optimizer: Optimizer) -> None:
    """Raise ValueError if ``recover`` is unknown, or the optimizer's updates may be replays of a captured graph."""
    if not (isinstance(recover, bool) or recover == "warn"):
        raise ValueError(f'recover must be True, False, or "warn" to warn only, got {recover!r}')
    if recover is True and any(group.get("capturable") for group in optimizer.param_groups):
        raise ValueError(
            "recover=True restores weights between updates, which the replays of a captured graph (capturable=True) do "
            'not see: use recover="warn", or an optimizer that is not captured'
        )


def _kappa(optimizer: Optimizer, geometry: Geometry) -> float:
    try:
        return kappa_of(optimizer, geometry)
    except ValueError as error:
        raise ValueError(
            f"{error}. By default, AdaptiveWarmup needs no κ: leave out geometry=, and use it instead of "
            "AdaptiveWarmup.paper"
        ) from None


def plain_words(init: Init) -> Init:
    """Let a class that is given arguments by other names, or too many, say which ones it takes."""
    known = inspect.signature(init).parameters
    positional = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in known.values())
    open_ended = any(one.kind is one.VAR_KEYWORD for one in known.values())

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        ours, none = type(self).__name__, "the warm-up sets its own length, and AdaptiveWarmup's max_warmup= limits it"
        if len(args) >= positional and not open_ended:
            raise TypeError(f"{ours} takes (optimizer, total_steps) and then names, got {len(args)} values: {none}")
        for name in options.keys() - known.keys():
            if "warmup" in name.lower().replace("_", ""):
                raise TypeError(f"{ours} has no {name}: {none}")
            if not open_ended:
                close = difflib.get_close_matches(name, known, 1)
                meant = _HABITS.get(name) or (f"{close[0]}?" if close else f"one of {', '.join(list(known)[1:])}")
                raise TypeError(f"{ours} has no {name}: do you mean {meant}")
        init(self, *args, **options)

    return checked  # type: ignore[return-value]
