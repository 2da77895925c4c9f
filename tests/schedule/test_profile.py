"""η(Δ): its constraints, its shape and its two forms, for every ρ and over the whole range it is promised for."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autowarm.schedule import Profile
from autowarm.schedule.core import eta_share

rhos = st.one_of(st.sampled_from([1.5, 2.0, 3.0]), st.floats(1.01, 20.0))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    gap0 = 10 ** draw(st.floats(-6, 6))
    lr = 10 ** draw(st.floats(-8, 2))
    div = 1 + 10 ** draw(st.floats(-6, 4))
    near_zero = 10 ** draw(st.floats(-4, -0.5))
    share = draw(st.sampled_from([near_zero, 1 - near_zero]))
    return Profile(lr, div, gap0, share * gap0, draw(rhos))


@given(profiles(), st.floats(-12, 12))
def test_bounds(profile: Profile, decades: float) -> None:
    share = 10.0 ** (decades / max(1.0, profile.rho - 1))  # to the power ρ − 1 within floating point
    assert 0 < profile(share * profile.gap0) <= profile.lr


@given(profiles())
def test_constraints(profile: Profile) -> None:
    assert profile(profile.peak_gap) == profile.lr
    assert profile(profile.gap0) == pytest.approx(profile.lr / profile.div, rel=1e-12)
    # η'(Δ') = 0: the same at equal small distances either side, to second order.
    h = 1e-4 * min(profile.peak_gap, profile.gap0 - profile.peak_gap)
    slope = (profile(profile.peak_gap + h) - profile(profile.peak_gap - h)) / (2 * h)
    assert abs(slope) * profile.peak_gap <= 1e-3 * profile.lr


@given(profiles(), st.floats(0, 1), st.floats(0, 1))
def test_rises_to_the_peak_then_falls(profile: Profile, a: float, b: float) -> None:
    low, high = sorted((a, b))
    above = [profile.peak_gap + s * (profile.gap0 - profile.peak_gap) for s in (low, high)]
    below = [s * profile.peak_gap for s in (low, high)]
    tiny = 1e-12 * profile.lr
    assert profile(above[0]) >= profile(above[1]) - tiny
    assert profile(below[0]) <= profile(below[1]) + tiny


@given(profiles(), st.floats(1e-6, 1))
def test_it_is_the_papers_quotient(profile: Profile, share: float) -> None:
    """Δ/(K0 + K1Δ + KρΔ^ρ), by the three requirements as a linear system: no closed form, no cancellation."""
    with mp.workdps(150):
        lr, div, first, peak, rho = map(mp.mpf, (profile.lr, profile.div, profile.gap0, profile.peak_gap, profile.rho))
        rows = [[1, peak, peak**rho], [1, first, first**rho], [1, 0, (1 - rho) * peak**rho]]
        K0, K1, K_rho = mp.lu_solve(mp.matrix(rows), mp.matrix([peak / lr, first * div / lr, 0]))
        gap = mp.mpf(share * profile.gap0)
        assert profile(float(gap)) == pytest.approx(float(gap / (K0 + K1 * gap + K_rho * gap**rho)), rel=1e-9)
        assert pytest.approx(float(K0), rel=1e-9) == profile.K0
        assert pytest.approx(float(K_rho), rel=1e-9) == profile.K_rho
        parts = float(1 / lr + rho * K0 / ((rho - 1) * peak))
        assert abs(profile.K1 - float(K1)) <= 1e-9 * parts  # it is a difference of two terms


@given(profiles(), st.floats(0.01, 2))
def test_rho_2_is_the_rules_profile_and_the_papers_closed_form(any_rho: Profile, share: float) -> None:
    lr, div, gap0, peak = any_rho.lr, any_rho.div, any_rho.gap0, any_rho.peak_gap
    profile = Profile(lr, div, gap0, peak)
    assert profile(share * gap0) == pytest.approx(lr * eta_share(share * gap0, gap0, peak, div), rel=1e-12)
    scale = lr * (gap0 - peak) ** 2
    assert pytest.approx(gap0 * peak**2 * (div - 1) / scale, rel=1e-12) == profile.K0
    assert profile.K_rho == pytest.approx(gap0 * (div - 1) / scale, rel=1e-12)


@given(profiles())
def test_arrays_are_elementwise(profile: Profile) -> None:
    gaps = profile.gap0 * np.array([-1.0, 0.0, 1e-9, 0.3, 1.0, 1e6])
    one_by_one = [profile(float(gap)) for gap in gaps]
    assert profile(gaps).tolist() == pytest.approx(one_by_one, rel=1e-12)
    assert one_by_one[:2] == [0.0, 0.0]
