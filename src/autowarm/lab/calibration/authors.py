"""Chooses Δ' as the script of the paper's authors does, whose quadrature stops too early.

It integrates eq. 10 (constr_3), in units of lr², to an absolute tolerance larger than the integral. So an estimate from
21 nodes stays, and what it sees of the spike in the weight depends on where a candidate lies between two of them.
"""

import numpy as np

from autowarm.schedule import Profile
from autowarm.schedule.shapes import DECAYS, WARMUPS


def authors_peak_gap(
    gap0: float, *, lr: float, div: float, kappa: float, sigma_f2: float = 1e3, warmup: str = "linear",
    decay: str = "cosine",
) -> float:  # fmt: skip
    """Return the authors' Δ' for the arguments of `autowarm.schedule.calibrate`; here lr matters, too.

    Example:
        >>> [round(authors_peak_gap(first - 3.3, lr=1e-3, div=100, kappa=46848), 2) for first in (10.98, 10.99)]
        [3.19, 3.78]
    """
    from scipy.integrate import quad  # slow to import, and most runs choose no Δ' so

    def objective(peak: float) -> float:
        def integrand(gap: float) -> float:
            rise = 1 / div + (1 - 1 / div) * WARMUPS[warmup]((gap - peak) / (gap0 - peak)) if gap >= peak else 0.0
            wanted = lr * (rise or DECAYS[decay](1 - gap / peak))
            return float(np.exp(-((gap - peak) ** 2) * kappa / (2 * sigma_f2)) * (profile(gap) - wanted) ** 2)

        profile = Profile(lr, div, gap0, peak)
        return float(quad(integrand, 0.0, gap0, full_output=1)[0])  # asked for more, scipy does not warn

    return float(min(np.linspace(0.01, gap0 - 0.01, 500), key=objective))
