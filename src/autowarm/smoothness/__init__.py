"""Measures the curvature of the loss along a run, in the optimizer's own norms, and how it depends on the gap to f*.

`Probe` measures points (Δ^t, K^t) in any training loop, and `fit` fits the paper's K0 + K1Δ + K2Δ² to them.
"""

from .fits import Fit, Interval, fit
from .measure import Point
from .probe import Probe

__all__ = ["Fit", "Interval", "Point", "Probe", "fit"]
