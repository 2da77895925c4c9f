"""Checks the arguments that a user passes."""

import functools
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch.optim import Optimizer

from ..geometry import Geometry, resolve
from ..optim.known import kappa_of, warn_of_own_rates
from ..optim.wrapped import unwrapped
from .calibrate import SIGMA_F2
from .hooks.groups import first_peak
from .rule import Plan
from .shapes import Decay, Shape, Warmup, decay_shape, is_flat, name_of, warmup_shape

Init = TypeVar("Init", bound=Callable[..., None])

LEAST_STEPS = 100  # the shortest run that has room for a search for the peak rate


def _whole(x: Any) -> int:
    if isinstance(x, bool):
        raise TypeError
    return operator.index(x)


def _whole_number(x: Any) -> int:
    """Also of a float, such as 1e4."""
    return int(x) if isinstance(x, float) and x.is_integer() else _whole(x)


def _share_or_updates(x: Any) -> float | int:
    """An int is a number of updates and a float a share of the run, except that 1 means the whole run, like 1.0."""
    try:
        updates = _whole(x)
    except TypeError:
        if isinstance(x, bool):
            raise
        return float(x)
    return 1.0 if updates == 1 else updates


# What an argument must be: the conversion to a plain number, the condition on it, and that condition in words.
_Rule = tuple[Callable[[Any], Any], Callable[[Any], bool], str]
_POSITIVE: _Rule = (float, lambda x: x > 0 and math.isfinite(x), "must be positive and finite")
_COUNT: _Rule = (_whole_number, lambda x: x >= 1, "must be a whole number ≥ 1")
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("total_steps", "steps"), _COUNT),
    **dict.fromkeys(("kappa", "sigma_f2", "peak_gap", "chance_loss", "peak"), _POSITIVE),
    "target_loss": (float, math.isfinite, "must be finite"),
    "div": (float, lambda x: x > 1 and math.isfinite(x), "must be greater than 1 and finite"),
    "final_ratio": (float, lambda x: 0 <= x <= 1, "must be in [0, 1]"),
    "max_warmup": (
        lambda x: x if x == "auto" else _share_or_updates(x),
        lambda x: x == "auto" or (x >= 2 if isinstance(x, int) else 0 < x <= 1),
        'is a share of the run, in (0, 1], a whole number of updates ≥ 2, "auto", or None',
    ),
    "smoothing": (float, lambda x: 0 <= x < 1, "is a share of the run, in [0, 1)"),
    "max_nonfinite": (_whole, lambda x: x >= 1, "must be at least 1, or None"),
}
_OPTIONAL = {
    "total_steps", "target_loss", "kappa", "peak_gap", "max_warmup", "max_nonfinite", "chance_loss", "peak",
}  # fmt: skip


def clean(**given: Any) -> dict[str, Any]:
    """Return the arguments as plain numbers; ValueError names the first that is none or out of range."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        convert, holds, need = _RULES[name]
        if value is None and name in _OPTIONAL:
            checked[name] = None
            continue
        try:
            checked[name] = convert(value)
            if not holds(checked[name]):
                raise ValueError
        except (TypeError, ValueError, OverflowError):  # float(10**400)
            raise ValueError(f"{name} {need}, got {value!r}") from None
    return checked


class Arguments(NamedTuple):
    """A scheduler's arguments, checked."""

    optimizer: Optimizer  # the one inside a trainer's wrapper, which has no step hooks of its own
    settings: dict[str, Any]  # what ranks must share, and a resumed run with the saved one, in plain numbers and text
    plan: Plan  # what the rule follows
    kappa_counted: bool  # whether κ was computed from the optimizer's tensors
    max_nonfinite: int | None  # how many non-finite losses in a row raise an error; None for never

    @classmethod
    def of(
        cls,
        optimizer: Optimizer,
        *,
        peak: str,
        geometry: str | Geometry | None,
        warmup: Warmup,
        decay: Decay | Shape,
        trained: bool | None,
        recover: bool | str,
        **numbers: Any,
    ) -> "Arguments":
        """Check what `AdaptiveWarmup` was given; it says which errors that may raise."""
        given = clean(**numbers)
        max_nonfinite = given.pop("max_nonfinite")
        _check_peak(peak, given["total_steps"])
        if not (trained is None or isinstance(trained, bool)):
            raise ValueError(f"trained must be True, False, or None to look at the weights, got {trained!r}")
        if not isinstance(inner := unwrapped(optimizer), Optimizer):
            raise TypeError(f"the first argument is the optimizer, got a {type(inner).__name__}")
        warn_of_own_rates(optimizer)
        check_recover(recover, inner)
        shapes: dict[str, Any] = {"warmup": warmup_shape(warmup), "decay": decay_shape(decay)}
        check_horizon(given["total_steps"], shapes["decay"])
        geometry, counted = None if geometry is None else resolve(geometry), False
        if geometry is not None and given["kappa"] is None and given["peak_gap"] is None:
            given["kappa"], counted = _kappa(inner, geometry), True
        if given["kappa"] is None and given["sigma_f2"] != SIGMA_F2:
            raise ValueError("sigma_f2 belongs to the calibration of Δ': give the geometry to calibrate for, too")
        settings = {
            "optimizer": type(inner).__name__,
            "peak": peak,
            "geometry": None if geometry is None else repr(geometry),
            "warmup": warmup,
            "decay": name_of(decay),
            "trained": trained,
            "recover": recover,
            **given,
        }
        numbers = {name: x for name, x in given.items() if name != "total_steps"}
        plan = Plan(first_peak(inner), **shapes, **numbers, trained=trained)
        return cls(inner, settings, plan, counted, max_nonfinite)


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


def _check_peak(peak: str, total_steps: int | None) -> None:
    """Raise ValueError if ``peak`` is unknown, or the run has no room for a search."""
    if peak not in ("given", "auto"):
        raise ValueError(f'peak must be "given" (the lr of the groups) or "auto", got {peak!r}')
    if peak == "auto" and total_steps is not None and total_steps < LEAST_STEPS:
        raise ValueError(
            f'peak="auto" needs a run of at least {LEAST_STEPS} updates to search in, got total_steps={total_steps}'
        )


def check_horizon(total_steps: int | None, decay: Shape, updates: int = 0) -> None:
    """Raise ValueError if the decay needs an end and there is none, or if the end is over."""
    if total_steps is None and not is_flat(decay):
        raise ValueError(
            "total_steps=None leaves the run's end open, which needs a flat decay: give total_steps, or use "
            'decay="wso" and call decay_now(steps) when the run should end'
        )
    if total_steps is not None and total_steps < updates:
        raise ValueError(f"total_steps={total_steps} is over: {updates} updates were made already")


def without_warmup_steps(init: Init) -> Init:
    """Let a class that is given ``warmup_steps``, or such a length by another name, say that there is none."""
    known = inspect.signature(init).parameters

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        for name in options:
            if "warmup" in name.lower().replace("_", "") and name not in known:
                raise TypeError(
                    f"{type(self).__name__} has no {name}: the warm-up sets its own length, and AdaptiveWarmup's "
                    "max_warmup= limits it"
                )
        init(self, *args, **options)

    return checked  # type: ignore[return-value]
