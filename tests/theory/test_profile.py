import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autowarm.schedule import Profile
from autowarm.theory import PowerProfile

rhos = st.floats(1.01, 20.0)
shares = st.floats(0.01, 0.99)  # Δ'/Δ0
divs = st.floats(1.1, 1e4)


@given(rho=rhos, share=shares, div=divs, gap0=st.floats(0.01, 100.0), at=st.floats(1e-3, 2.0))
def test_closed_forms_solve_the_three_requirements(rho, share, div, gap0, at):
    profile = PowerProfile(rho, 1e-3, div, gap0, share * gap0)
    with mpmath.workdps(60):
        # The requirements as a linear system in K0, K1 and Kρ, without the closed forms.
        peak, first = mpmath.mpf(profile.peak_gap), mpmath.mpf(gap0)
        lr, power = mpmath.mpf(profile.lr), mpmath.mpf(rho)
        rows = [[1, peak, peak**power], [1, first, first**power], [1, 0, (1 - power) * peak**power]]
        K0, K1, K_rho = mpmath.lu_solve(mpmath.matrix(rows), mpmath.matrix([peak / lr, first * div / lr, 0]))
        gap = mpmath.mpf(at * gap0)
        expected = float(gap / (K0 + K1 * gap + K_rho * gap**power))
        parts = float(1 / lr + power * K0 / ((power - 1) * peak))
    assert pytest.approx(float(K0), rel=1e-11) == profile.K0
    assert profile.K_rho == pytest.approx(float(K_rho), rel=1e-11)
    assert pytest.approx(float(K1), rel=0, abs=1e-11 * parts) == profile.K1  # it is a difference of two terms
    assert profile(at * gap0) == pytest.approx(expected, rel=1e-11)


@given(share=shares, div=divs, gap0=st.floats(0.01, 100.0))
def test_rho_2_is_the_schedules_profile(share, div, gap0):
    ours, paper = PowerProfile(2.0, 1e-3, div, gap0, share * gap0), Profile(1e-3, div, gap0, share * gap0)
    assert (ours.K0, ours.K_rho) == pytest.approx((paper.K0, paper.K2), rel=1e-12)
    gaps = gap0 * np.linspace(0, 2, 41)
    np.testing.assert_allclose(ours(gaps), paper(gaps), rtol=1e-12)


@given(rho=rhos, share=shares, div=divs)
def test_the_rate_rises_to_its_peak_and_falls(rho, share, div):
    profile = PowerProfile(rho, 2.0, div, 1.0, share)
    assert profile(share) == 2.0
    assert profile(1.0) == pytest.approx(2.0 / div, rel=1e-13)
    below, above = profile(np.linspace(0, share, 30)), profile(np.linspace(share, 1, 30))
    assert np.all(np.diff(below) >= 0)
    assert np.all(np.diff(above) <= 0)
    assert below[0] == 0.0


@given(rho=rhos, more=st.floats(1.01, 3.0), share=shares, at=shares)
def test_a_larger_rho_broadens_the_peak(rho, more, share, at):
    narrow, broad = (PowerProfile(r, 1.0, 100.0, 1.0, share) for r in (rho, rho * more))
    assert narrow(at) <= broad(at) * (1 + 1e-12)


@pytest.mark.parametrize("distance", [1e-2, 1e-4])
@pytest.mark.parametrize("rho", [1.001, 1.5, 3.0, 40.0])
def test_a_peak_beside_the_first_gap(rho, distance):
    profile = PowerProfile(rho, 1.0, 10.0, 1.0, 1 - distance)
    with mpmath.workdps(60):
        r, power = 1 / mpmath.mpf(profile.peak_gap), mpmath.mpf(rho)
        h = r ** (power - 1) + (power - 1) / r - power
        expected = float((power - 1) * mpmath.mpf(profile.peak_gap) * 9 / h)
    accuracy = 1e-15 / distance  # r itself has a rounding error
    assert pytest.approx(expected, rel=accuracy) == profile.K0
    gaps = np.linspace(1 - 2 * distance, 1, 1001)
    assert np.all(profile(gaps) <= 1.0)


def test_golden_values():
    profile = PowerProfile(rho=3.0, lr=1.0, div=10.0, gap0=2.0, peak_gap=1.0)
    # h(2) = 4 + 1 − 3 = 2, so Kρ = 9/2, K0 = 2Kρ = 9 and K1 = 1 − 3Kρ = −12.5: η(2) = 2/(9 − 25 + 36) = 1/10.
    assert (profile.K0, profile.K1, profile.K_rho) == pytest.approx((9.0, -12.5, 4.5), rel=1e-14)
    assert profile(2.0) == pytest.approx(0.1, rel=1e-14)
    assert profile(0.5) == pytest.approx(0.5 / (9 - 6.25 + 4.5 / 8), rel=1e-14)


def test_no_gap_is_too_small_or_too_large():
    profile = PowerProfile(3.0, 1.0, 10.0, 2.0, 1.0)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(profile(np.array([-1.0, 0.0])), [0.0, 0.0])
        assert profile(1e-300) == pytest.approx(1e-300 / 9, rel=1e-12)
        assert profile(1e200) == profile(math.inf) == 0.0
    assert isinstance(profile(1.5), float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rho": 1.0}, "no peak"),
        ({"rho": math.inf}, "above 1 and finite"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"div": 1.0}, "div must be above 1"),
        ({"gap0": math.nan}, "gap0 must be above 0"),
        ({"peak_gap": 2.0}, "between 0 and gap0"),
        ({"rho": 2000.0}, "beyond floating point"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        PowerProfile(**({"rho": 2.0, "lr": 1.0, "div": 10.0, "gap0": 2.0, "peak_gap": 1.0} | change))
