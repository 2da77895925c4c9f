"""Chooses Δ' as the script of the paper's authors does, whose quadrature stops too early.

It integrates eq. 10 (constr_3), in units of lr², to the absolute tolerance of `scipy.integrate.quad`, larger than the
integral. So the first estimate, from 21 nodes on [0, Δ0], stays. How much of the spike in the weight it sees depends on
where a candidate lies between two nodes.
"""

import warnings

import numpy as np
from scipy.integrate import quad

from autowarm.schedule import Profile
from autowarm.schedule.shapes import decay_shape, warmup_shape


def authors_peak_gap(
    gap0: float, *, lr: float, div: float, kappa: float, sigma_f2: float = 1e3, target: str = "linear-cosine"
) -> float:
    """Return the authors' Δ'; the arguments are those of `autowarm.schedule.calibrate`, and lr matters, too.

    Example:
        >>> [round(authors_peak_gap(first - 3.3, lr=1e-3, div=100, kappa=46848), 2) for first in (10.98, 10.99)]
        [3.19, 3.78]
    """
    if not gap0 > 0.02:
        raise ValueError(f"the authors' candidates need f(x0) − f* above 0.02, got {gap0:.6g}")
    first, second = target.split("-", 1)
    warmup, decay = warmup_shape(first), decay_shape(second)

    def objective(peak: float) -> float:
        def integrand(gap: float) -> float:
            rise = 1 / div + (1 - 1 / div) * warmup((gap - peak) / (gap0 - peak)) if gap >= peak else 0.0
            wanted = lr * (rise or decay(1 - gap / peak))
            return float(np.exp(-((gap - peak) ** 2) * kappa / (2 * sigma_f2)) * (profile(gap) - wanted) ** 2)

        profile = Profile(lr, div, gap0, peak)
        return float(quad(integrand, 0.0, gap0)[0])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns where it cannot reach the tolerance
        return float(min(np.linspace(0.01, gap0 - 0.01, 500), key=objective))
