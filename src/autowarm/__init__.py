"""Learning-rate warm-up that sets itself, for norm-constrained optimizers.

`AdaptiveWarmup` schedules the rate, `find_rate` suggests its peak; `Muon`, `Lion`, `SignSGD`, `NormSGD` and `LMO` take
the steps. `geometry` holds the norms that they are stated in, `theory` the theorems behind them. The experiments live
in `autowarm.lab`, which nothing outside it imports.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from .optim import LMO as LMO
    from .optim import Lion as Lion
    from .optim import Muon as Muon
    from .optim import NormSGD as NormSGD
    from .optim import SignSGD as SignSGD
    from .rate import find_rate as find_rate
    from .schedule import AdaptiveWarmup as AdaptiveWarmup

__all__ = ["LMO", "AdaptiveWarmup", "Lion", "Muon", "NormSGD", "SignSGD", "find_rate"]

_HOMES = dict.fromkeys(__all__, "optim") | {"AdaptiveWarmup": "schedule", "find_rate": "rate"}


def __getattr__(name: str) -> object:
    # torch takes seconds to import, and `autowarm --help` needs none of it: names are fetched at their first use.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
