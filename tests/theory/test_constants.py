import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autowarm.theory import Smoothness

positive = st.floats(1e-3, 1e3)


def test_a_gap_too_large_for_a_float_gives_infinity():
    assert Smoothness(2.0, 1.0, 1.0, 1.0)(1e200) == math.inf
    assert Smoothness(2.0, 1.0, 1.0, 0.0)(1e200) == 1e200


@given(rho=st.floats(1.05, 30.0), K0=positive, K1=positive, K_rho=positive)
def test_peak_rate_is_the_maximum_of_the_rate(rho, K0, K1, K_rho):
    K = Smoothness(rho, K0, K1, K_rho)
    assert K.peak_gap / K(K.peak_gap) == pytest.approx(K.peak_rate, rel=1e-12)
    gaps = K.peak_gap * np.geomspace(1e-3, 1e3, 2001)
    assert np.all(gaps / K(gaps) <= K.peak_rate * (1 + 1e-12))
    assert K.lambda_max == pytest.approx(math.sqrt(8 / K.peak_rate), rel=1e-12)


def test_where_there_is_no_peak_the_rate_approaches_one_as_the_gap_grows_or_falls():
    for constants, gap, rate in (
        ((2.0, 1.0, 4.0, 0.0), math.inf, 0.25),  # decay only
        ((1.0, 1.0, 4.0, 4.0), math.inf, 0.125),
        ((0.5, 1.0, 4.0, 9.0), math.inf, 0.25),
        ((0.5, 1.0, 0.0, 9.0), math.inf, math.inf),
        ((3.0, 0.0, 0.0, 1.0), 0.0, math.inf),  # warm-up only
        ((3.0, 0.0, 4.0, 1.0), 0.0, 0.25),
    ):
        assert (Smoothness(*constants).peak_gap, Smoothness(*constants).peak_rate) == (gap, rate), constants


@given(rho=st.floats(0.1, 1.7), L0=positive, L_rho=positive, gradient=st.floats(1e-6, 1e6))
def test_lemma_covers_every_gradient_norm(rho, L0, L_rho, gradient):
    # What (ρ, L0, Lρ)-smoothness allows at this gradient norm, at the least gap it can have there.
    curvature = L0 + L_rho * gradient**rho
    least_gap = gradient**2 / (2 * curvature)
    K = Smoothness.from_gradient_norm(rho, L0, L_rho)
    assert K.rho == pytest.approx(rho / (2 - rho))
    assert curvature <= K(least_gap) * (1 + 1e-12)


@given(rho=st.floats(0.5, 1.5), L0=positive, L_rho=positive)
def test_lemma_loses_no_more_than_its_proof(rho, L0, L_rho):
    # A factor 2 at the minimum, and 2^{ρ/(2−ρ)} far from it.
    K = Smoothness.from_gradient_norm(rho, L0, L_rho)
    assert K(0.0) == 2 * L0
    far = (1e12 * L0 / L_rho) ** (1 / rho)
    curvature = L0 + L_rho * far**rho
    assert K(far**2 / (2 * curvature)) / curvature == pytest.approx(2 ** (rho / (2 - rho)), rel=1e-3)
