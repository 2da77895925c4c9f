"""Which peak rate? A range test that leaves no trace.

`find_rate` trains a few steps at rates that rise from far too small to far too large, and puts everything back.
`RateSearch` is the curve it saw: where the loss fell, the rate that this suggests, an interval for it, and a picture.
"""

from .curve import RateSearch
from .find import find_rate

__all__ = ["RateSearch", "find_rate"]


def __dir__() -> list[str]:
    return __all__
