"""Measures the curvature of the loss along a run, in the optimizer's own norms, and how it depends on the gap to f*.

`Probe` measures points (Δ^t, K^t) in any training loop. `study` fits the paper's K0 + K1Δ + K2Δ² and rival models to
them and states the result in words; `plot_study` plots it. `sharpness` computes the Hessian's largest eigenvalue, to
compare with K^t.
"""

from .fits import Fit, Interval, fit
from .measure import Point
from .probe import Probe
from .sharpness import sharpness
from .study import Study, plot_study, study

__all__ = ["Fit", "Interval", "Point", "Probe", "Study", "fit", "plot_study", "sharpness", "study"]
