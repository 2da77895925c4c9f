"""The schedule: the profile η(Δ) (`Profile`), its calibration (`calibrate`), and the scheduler that follows it."""

from .adaptive import AdaptiveWarmup
from .calibrate import calibrate, objective
from .profile import Profile

__all__ = ["AdaptiveWarmup", "Profile", "calibrate", "objective"]


def __dir__() -> list[str]:
    return __all__
