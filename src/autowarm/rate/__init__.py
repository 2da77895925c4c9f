"""Which peak rate? A range test that restores everything afterwards.

`find_rate` trains a few steps at rates that rise from far too small to far too large, then restores everything. It
returns a `RateSearch`: the losses it saw, the peak rate that they suggest, an interval for it, and a plot.
"""

from .find import find_rate
from .search import RateSearch

__all__ = ["RateSearch", "find_rate"]
