"""The objective against 20-digit quadrature, and Δ' against the values worked out for the paper's setup."""

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autowarm.schedule import calibrate, objective

F0 = 10.98  # the authors' LLaMA-124M
KAPPA = {"muon": 46848, "muon-split": 65280, "lion": 123568128}


def reference(
    peak_gap: float, gap0: float, div: float, sigma: float, warmup: str, decay: str, rho: float = 2.0
) -> float:
    """The integral as it is written in the paper, split at every length it has."""
    with mp.workdps(20):
        d1, d0, v, s = map(mp.mpf, (peak_gap, gap0, div, sigma))

        def shape(name: str, u: mp.mpf) -> mp.mpf:
            return {
                "linear": u,
                "cosine": (1 - mp.cos(mp.pi * u)) / 2,
                "wsd": min(mp.mpf(1), u / mp.mpf("0.2")),
                "wso": mp.mpf(1),
                "1-sqrt": 1 - mp.sqrt(1 - u),
                "power": u**2,
            }[name]

        def bend(r: mp.mpf) -> mp.mpf:
            with mp.workdps(60):  # it cancels at 1
                return (r**rho - 1 - rho * (r - 1)) / r

        def integrand(d: mp.mpf) -> mp.mpf:
            eta = 1 / (1 + (v - 1) * bend(d / d1) / bend(d0 / d1)) if d > 0 else mp.mpf(0)
            rising = 1 / v + (1 - 1 / v) * shape(warmup, (d0 - d) / (d0 - d1))
            target = rising if d >= d1 else shape(decay, d / d1)
            return mp.exp(-(((d - d1) / s) ** 2) / 2) * (eta - target) ** 2

        low, high = max(mp.mpf(0), d1 - 40 * s), min(d0, d1 + 40 * s)
        peak_width = mp.sqrt(d1 * (d0 - d1) ** 2 / ((v - 1) * d0))
        near_zero = (v - 1) * d0 / (d0 - d1) ** 2 * d1**2
        splits = {low, high, d1, d1 / 5}
        for factor in (0.01, 0.1, 0.3, 1, 2, 3, 6, 10, 20):
            splits |= {d1 + sign * factor * scale for sign in (-1, 1) for scale in (s, peak_width)}
        splits |= {near_zero * mp.mpf(10) ** k for k in range(-8, 4)} | {d1 * mp.mpf(2) ** -k for k in range(1, 20)}
        return float(mp.quad(integrand, sorted(x for x in splits if low <= x <= high)))


objective_arguments = given(
    gap0=st.floats(-3, 2).map(lambda e: 10.0**e),
    peak_share=st.one_of(st.floats(-4, -0.001).map(lambda e: 10.0**e), st.floats(1e-4, 1 - 1e-4)),
    div=st.floats(-3, 4).map(lambda e: 1 + 10.0**e),
    sigma_share=st.floats(-7, 3).map(lambda e: 10.0**e),
    warmup=st.sampled_from(["linear", "cosine"]),
    decay=st.sampled_from(["linear", "cosine", "wsd", "wso", "1-sqrt", "power"]),
    rho=st.sampled_from([1.5, 2.0, 3.0]),
)


@pytest.mark.long
@objective_arguments
@settings(max_examples=20)
def test_objective_is_right_to_1e_8(
    gap0: float, peak_share: float, div: float, sigma_share: float, warmup: str, decay: str, rho: float
) -> None:
    peak_gap, sigma = peak_share * gap0, sigma_share * gap0
    numbers: dict[str, Any] = {"div": div, "kappa": 1 / sigma**2, "sigma_f2": 1.0, "rho": rho}
    value = objective([peak_gap], gap0, target=f"{warmup}-{decay}", **numbers)[0]
    assert value == pytest.approx(reference(peak_gap, gap0, div, sigma, warmup, decay, rho), rel=1e-8)


@pytest.mark.parametrize(
    ("kappa", "target_loss", "sigma_f2", "peak_gap"),
    [
        ("muon", 3.3, 1e3, 2.470),
        ("lion", 3.4, 1e3, 0.777),
        ("muon-split", 3.3, 1e3, 2.50),
        ("muon", 3.3, 500.0, 2.52),  # half of it gives eq. 10 as printed
        ("lion", 3.4, 500.0, 0.409),
    ],
)
def test_worked_values_of_the_papers_setup(kappa: str, target_loss: float, sigma_f2: float, peak_gap: float) -> None:
    gap0 = F0 - target_loss
    profile = calibrate(gap0, lr=1e-3, div=100.0, kappa=KAPPA[kappa], sigma_f2=sigma_f2)
    # Candidates stand gap0/1001 apart.
    assert profile.peak_gap == pytest.approx(peak_gap, abs=gap0 / 1001)


@pytest.mark.parametrize("rho", [1.5, 2.0, 3.0])
def test_the_candidate_chosen_is_the_best_of_all(rho: float) -> None:
    gap0, numbers = 7.68, {"div": 100.0, "kappa": KAPPA["muon"], "rho": rho}
    profile = calibrate(gap0, lr=1e-3, candidates=8, **numbers)
    assert (profile.rho, profile.div, profile.gap0) == (rho, 100.0, gap0)
    candidates = gap0 * np.arange(1, 9) / 9
    assert profile.peak_gap == candidates[objective(candidates, gap0, **numbers).argmin()]


@given(st.floats(-9, 3).map(lambda e: 10.0**e), st.sampled_from(list(KAPPA.values())))
@settings(max_examples=20)
def test_the_peak_rate_does_not_matter(lr: float, kappa: float) -> None:
    one, other = (calibrate(7.68, lr=peak, div=100.0, kappa=kappa).peak_gap for peak in (lr, 1.0))
    assert one == other


@pytest.mark.parametrize(
    ("target", "other"),
    [("linear-1-sqrt", ("linear", "1-sqrt")), ("linear-cosine", ("linear", lambda p: (1 + math.cos(math.pi * p)) / 2))],
)
def test_a_target_by_name_by_names_and_by_functions(target: str, other: Any) -> None:
    one, two = (objective([[2.0, 3.0]], 8.0, div=10.0, kappa=100.0, target=given) for given in (target, other))
    assert one.shape == (1, 2)
    assert two == pytest.approx(one, rel=1e-9)
