"""A schedule's settings, and what each of them must be. Neither torch nor numpy is needed, but for a calibration."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from .shapes import Shape, cosine, decay_shape, is_flat, linear, warmup_shape


def _whole(x: Any) -> int:
    if isinstance(x, bool):
        raise TypeError
    return int(x) if isinstance(x, float) and x.is_integer() else operator.index(x)  # also 1e4


def _updates_or_share(x: Any) -> float | int | str:
    """An int is a number of updates, and a float a share of the run."""
    if x == "auto" or isinstance(x, bool | str):
        return x
    return float(x) if isinstance(x, float) else operator.index(x)


_POSITIVE = (float, lambda x: x > 0 and math.isfinite(x), "must be positive and finite")
# What a number that users give must be: how it becomes a plain one, the condition on it, and that condition in words.
NUMBERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], bool], str]] = {
    "total_steps": (
        _whole, lambda x: x >= 1,
        "must be a whole number of updates ≥ 1 (or None with decay=\"wso\" for a run that decay_now(steps) ends)",
    ),
    "max_warmup": (
        _updates_or_share,
        lambda x: x == "auto" or (x >= 2 if isinstance(x, int) else 0 < x <= 1),
        'is a share of the run, in (0, 1] (1.0: all of it), a whole number of updates ≥ 2, "auto", or None',
    ),
    "final_ratio": (float, lambda x: 0 <= x <= 1, "must be in [0, 1]"),
    "target_loss": (float, math.isfinite, "must be finite"),
    "chance_loss": _POSITIVE,
    "smoothing": (
        lambda x: x if x == "auto" else float(x),
        lambda x: x == "auto" or 0 <= x < 1,
        'is a share of the run, in [0, 1), or "auto"',
    ),
    "div": (float, lambda x: x > 1 and math.isfinite(x), "must be greater than 1 and finite"),
    "peak_gap": _POSITIVE,
    "kappa": _POSITIVE,
    "sigma_f2": _POSITIVE,
    "rho": (float, lambda x: x > 1 and math.isfinite(x), "must be above 1 and finite"),
    "peak_limit": _POSITIVE,
    "max_nonfinite": (_whole, lambda x: x >= 1, "must be at least 1, or None"),
    "steps": (_whole, lambda x: x >= 1, "must be a whole number ≥ 1"),
}  # fmt: skip
_MAY_BE_NONE = {"total_steps", "max_warmup", "target_loss", "chance_loss", "peak_gap", "kappa", "peak_limit",
                "max_nonfinite"}  # fmt: skip
# Δ'/Δ0 by geometry. The paper's calibration of its LLaMA-124M gives 0.10 (sign), 0.32 (spectral) and 0.22 (Frobenius).
# On the authors' own runs at 124M and 210M (`studies.published`), Lion diverges unless the share is 0.05, as in their
# quadrature, and normSGD needs no more than a third of the gap; where steps have equal entries, 0.05, else a third.
PEAK_SHARES = {"sign": 0.05, "spectral": 1 / 3, "frobenius": 1 / 3}
# The longest warm-up and the average's span where they are "auto": shares of a short run and of a long one, and updates
# in between. Lion at 210M needs 31 % of 64,000 updates, and 5 % of them is more than Muon's whole warm-up.
MAX_WARMUPS, AVERAGES = (0.5, 4_000, 1 / 3), (0.05, 200, 0.01)


@dataclass(frozen=True)
class Plan:
    """A schedule's settings, as `AdaptiveWarmup` describes them."""

    total_steps: int | None
    div: float = 10.0
    target_loss: float | None = None
    # Δ', or a function of Δ0 that calibrates it; None takes `peak_share` of Δ0
    peak_gap: float | Callable[[float], float] | None = None
    warmup: Shape = linear
    decay: Shape = cosine
    final_ratio: float = 0.0
    max_warmup: float | int | Literal["auto"] | None = "auto"
    trained: bool | None = None
    chance_loss: float | None = None
    smoothing: float | Literal["auto"] = "auto"
    profile: Callable[[float], float] | None = None  # η(Δ) of one's own, highest at ``peak_gap``
    peak_share: float = PEAK_SHARES["sign"]
    rho: float = 2.0  # ρ of the profile otherwise


_NUMBERS_OF_A_PLAN = NUMBERS.keys() & {field.name for field in fields(Plan)} - {"rho"}


def clean(**given: Any) -> dict[str, Any]:
    """Return the arguments as plain numbers; ValueError names the first that is none or out of range."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        convert, holds, words = NUMBERS[name]
        try:
            number = checked[name] = None if value is None and name in _MAY_BE_NONE else convert(value)
            read = isinstance(value, str) and number != value  # as `float` reads "3"
            if read or isinstance(number, bool) or not (number is None or holds(number)):
                raise ValueError
        except (TypeError, ValueError, OverflowError):  # float(10**400)
            if isinstance(value, str):  # YAML reads 1e-3 as a string
                raise ValueError(f"{name} is the text {value!r}: it {words}") from None
            got = repr(value) if isinstance(value, int | float | None) else f"a {type(value).__name__}"
            raise ValueError(f"{name} {words}, got {got}") from None
    return checked


def by_length(given: Any, limits: tuple[float, int, float], length: int) -> Any:
    """A share of the run as given, or the one that "auto" means for this length."""
    short, middling, long = limits
    return min(short, max(long, middling / length)) if given == "auto" else given


def peak_share(geometry: str) -> float:
    """Δ'/Δ0 for a geometry by name, or ValueError."""
    if geometry not in PEAK_SHARES:
        raise ValueError(f"geometry is one of {', '.join(PEAK_SHARES)}, got {geometry!r}")
    return PEAK_SHARES[geometry]


def check_horizon(total_steps: int | None, decay: Shape, updates: int = 0) -> None:
    """Raise ValueError if the decay needs an end and there is none, or if the end is over."""
    if total_steps is None and not is_flat(decay):
        raise ValueError(
            "total_steps=None leaves the run's end open, which needs a flat decay: give total_steps, or use "
            'decay="wso" and call decay_now(steps) when the run should end'
        )
    if total_steps is not None and total_steps < updates:
        raise ValueError(f"total_steps={total_steps} is over: {updates} updates were made already")


@dataclass(frozen=True)
class Calibration:
    """How Δ' is calibrated at the first loss, as in the paper's Algorithm 1; see `autowarm.schedule.calibrate`.

    Args:
        geometry: the norm of the optimizer's steps, see `autowarm.geometry`; None takes the optimizer's own.
        kappa: κ; None computes it as the paper does, from all matrices under ``geometry`` at radius 1.
        sigma_f2: σ_F².
        rho: ρ of the profile η(Δ); the paper has 2.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> import torch
        >>> from autowarm import AdaptiveWarmup, Lion
        >>> from autowarm.schedule import Calibration
        >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=1e-3)
        >>> sched = AdaptiveWarmup(opt, 100, calibration=Calibration("sign", sigma_f2=500.0))
    """

    geometry: Any = None
    kappa: float | None = None
    sigma_f2: float = 1e3
    rho: float = 2.0

    def __post_init__(self) -> None:
        vars(self).update(clean(kappa=self.kappa, sigma_f2=self.sigma_f2, rho=self.rho))

    @classmethod
    def of(cls, given: Any) -> "Calibration | None":
        """A calibration as given: None, one of these, or a geometry or its name alone."""
        return given if given is None or isinstance(given, Calibration) else cls(given)


class Calibrated(NamedTuple):
    """Δ' as a function of Δ0, as the paper calibrates it."""

    kappa: float
    sigma_f2: float
    rho: float
    div: float
    target: tuple[Shape, Shape]

    def __call__(self, gap0: float) -> float:
        from .calibration import calibrate  # which needs numpy

        return calibrate(gap0, lr=1.0, **self._asdict()).peak_gap


def plan_of(
    total_steps: int | None,
    *,
    warmup: str | Shape = "linear",
    decay: str | Shape = "cosine",
    trained: bool | None = None,
    profile: Callable[[float], float] | None = None,
    calibration: Any = None,
    geometry: str = "sign",
    **numbers: Any,
) -> Plan:
    """The plan that these arguments of `AdaptiveWarmup` make, for an optimizer of this geometry; a ``calibration``
    needs κ.

    Raises:
        TypeError: an argument is unknown, or says something about an optimizer.
        ValueError: as for `AdaptiveWarmup`.
    """
    if unknown := numbers.keys() - _NUMBERS_OF_A_PLAN:
        others = {"warmup", "decay", "trained", "profile", "calibration", "geometry"}
        known = ", ".join(sorted(_NUMBERS_OF_A_PLAN | others))
        raise TypeError(f"without an optimizer, AdaptiveWarmup has no {min(unknown)}: give some of {known}")
    cleaned, rho = clean(total_steps=total_steps, **numbers), 2.0
    shapes = warmup_shape(warmup), decay_shape(decay)
    check_horizon(cleaned["total_steps"], shapes[1])
    if (calibration := Calibration.of(calibration)) is not None:
        if profile is not None or cleaned.get("peak_gap") is not None:
            name = "peak_gap" if profile is None else "profile"
            raise ValueError(f"calibration= chooses Δ', and so does {name}=: leave out one of them")
        if calibration.kappa is None:
            raise ValueError("a calibration needs the κ of a model, which is not here: give Calibration(kappa=...)")
        rho = calibration.rho
        numbers = {"kappa": calibration.kappa, "sigma_f2": calibration.sigma_f2, "rho": rho}
        cleaned["peak_gap"] = Calibrated(**numbers, div=cleaned.get("div", Plan.div), target=shapes)
    if profile is not None:
        if not callable(profile):
            raise ValueError(f"a profile is a function of the gap Δ, got {profile!r}")
        cleaned["peak_gap"] = cleaned.get("peak_gap") or getattr(profile, "peak_gap", None)
        if cleaned["peak_gap"] is None:
            raise ValueError("a profile of your own needs peak_gap, the gap at which it peaks and the warm-up ends")
    cleaned |= {"rho": rho, "peak_share": peak_share(geometry)}
    return Plan(warmup=shapes[0], decay=shapes[1], trained=trained, profile=profile, **cleaned)
