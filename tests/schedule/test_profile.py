"""η(Δ): its constraints, its shape and its two forms, over the whole range it is promised for."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autowarm.schedule import Profile


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    gap0 = 10 ** draw(st.floats(-6, 6))
    lr = 10 ** draw(st.floats(-8, 2))
    div = 1 + 10 ** draw(st.floats(-6, 4))
    near_zero = 10 ** draw(st.floats(-4, -0.5))
    share = draw(st.sampled_from([near_zero, 1 - near_zero]))
    return Profile(lr, div, gap0, share * gap0)


positive = st.floats(-12, 12).map(lambda e: 10.0**e)


@given(profiles(), positive)
def test_bounds(profile: Profile, share: float) -> None:
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
    """Δ/(K0 + K1Δ + K2Δ²) by the closed forms of App. "K_012", in 50 digits: in double precision it cancels."""
    with mp.workdps(50):
        lr, div, d0, d1 = map(mp.mpf, (profile.lr, profile.div, profile.gap0, profile.peak_gap))
        scale = lr * (d0 - d1) ** 2
        K0 = d0 * d1**2 * (div - 1) / scale
        K1 = (d0**2 - 2 * d0 * d1 * div + d1**2) / scale
        K2 = d0 * (div - 1) / scale
        gap = mp.mpf(share * profile.gap0)
        assert profile(float(gap)) == pytest.approx(float(gap / (K0 + K1 * gap + K2 * gap**2)), rel=1e-9)
        assert pytest.approx(float(K0), rel=1e-9) == profile.K0
        assert pytest.approx(float(K2), rel=1e-9) == profile.K2
        assert abs(profile.K1 - float(K1)) <= 1e-9 * (1 / profile.lr + 2 * profile.K2 * profile.peak_gap)


def test_K1_is_negative_at_the_customary_div_and_K_positive_all_the_same() -> None:
    profile = Profile(1e-3, 100.0, 7.68, 2.47)
    assert profile.K1 < 0
    gaps = np.linspace(0, 7.68, 1000)
    assert (profile.K0 + profile.K1 * gaps + profile.K2 * gaps**2 > 0).all()


@given(profiles())
def test_arrays_and_tensors_are_elementwise(profile: Profile) -> None:
    gaps = profile.gap0 * np.array([-1.0, 0.0, 1e-9, 0.3, 1.0, 1e6])
    one_by_one = [profile(float(gap)) for gap in gaps]
    assert profile(gaps).tolist() == pytest.approx(one_by_one, rel=1e-12)
    assert profile(torch.tensor(gaps)).tolist() == pytest.approx(one_by_one, rel=1e-12)
    assert one_by_one[:2] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"lr": math.inf}, "lr must be positive and finite, got inf"),
        ({"div": 1.0}, "div must be greater than 1 and finite, got 1.0"),
        ({"gap0": -2.0}, "first gap .* must be positive and finite, got -2.0"),
        ({"gap0": math.nan}, "first gap .* got nan"),
        ({"peak_gap": 0.0}, "peak_gap must lie between 0 and the first gap 8.0, got 0.0"),
        ({"peak_gap": 8.0}, "peak_gap must lie between 0 and the first gap 8.0, got 8.0"),
    ],
)
def test_bad_numbers(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Profile(**({"lr": 1e-3, "div": 100.0, "gap0": 8.0, "peak_gap": 2.0} | change))
