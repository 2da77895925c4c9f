"""The Δ' that the paper's authors chose: eq. 10 (constr_3) by the quadrature of their script."""

import numpy as np
from scipy.integrate import quad

from autowarm.schedule import Profile
from autowarm.schedule.shapes import DECAYS, WARMUPS


def target_share(gap: float, gap0: float, peak_gap: float, div: float) -> float:
    """η_trgt(Δ)/lr of the paper's eq. 10 (constr_3), linear up to Δ' and a cosine from there."""
    if gap > peak_gap:
        return 1 / div + (1 - 1 / div) * float(WARMUPS["linear"]((gap - peak_gap) / (gap0 - peak_gap)))
    return float(DECAYS["cosine"](1 - gap / peak_gap))


def authors_peak_gap(gap0: float, *, lr: float, div: float, kappa: float, sigma_f2: float = 1e3) -> float:
    """Return the Δ' that the script of the paper's authors chooses, whose quadrature stops too early.

    It integrates eq. 10 (constr_3), in units of lr², to an absolute tolerance larger than the integral. So an estimate
    from 21 nodes stays, and what it sees of the spike in the weight depends on where a candidate lies between two.
    """

    def objective(peak: float) -> float:
        def integrand(gap: float) -> float:
            wanted = lr * target_share(gap, gap0, peak, div)
            return float(np.exp(-((gap - peak) ** 2) * kappa / (2 * sigma_f2)) * (profile(gap) - wanted) ** 2)

        profile = Profile(lr, div, gap0, peak)
        return float(quad(integrand, 0.0, gap0, full_output=1)[0])  # asked for more, scipy does not warn

    return float(min(np.linspace(0.01, gap0 - 0.01, 500), key=objective))
