"""The profile η(Δ) (`Profile`), its calibration (`calibrate`), its scheduler, and the recovery by itself."""

from .adaptive import AdaptiveWarmup
from .calibrate import calibrate, objective
from .profile import Profile
from .recovery.beside import SpikeGuard

__all__ = ["AdaptiveWarmup", "Profile", "SpikeGuard", "calibrate", "objective"]


def __dir__() -> list[str]:
    return __all__
