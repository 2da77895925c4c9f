"""The rule (`core`), the profile η(Δ), its calibration, the scheduler, and the recovery by itself."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adaptive import AdaptiveWarmup as AdaptiveWarmup
    from .calibration import calibrate as calibrate
    from .calibration import objective as objective
    from .planning import Calibration as Calibration
    from .profile import Profile as Profile
    from .recovery.beside import SpikeGuard as SpikeGuard

__all__ = ["AdaptiveWarmup", "Calibration", "Profile", "SpikeGuard", "calibrate", "objective"]

_ROOMS = ("adaptive", "planning", "profile", "recovery.beside", "calibration", "calibration")
_HOMES = dict(zip(__all__, _ROOMS, strict=True))


def __getattr__(name: str) -> object:
    # The rule needs neither torch nor numpy, and is used without them: each name is imported at its first use.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
