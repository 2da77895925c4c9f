"""The profile η(Δ) (`Profile`), its calibration (`calibrate`), the scheduler that follows it, and its recovery alone."""

from .adaptive import AdaptiveWarmup
from .calibrate import calibrate, objective
from .profile import Profile
from .recovery.beside import SpikeGuard

__all__ = ["AdaptiveWarmup", "Profile", "SpikeGuard", "calibrate", "objective"]


def __dir__() -> list[str]:
    return __all__
