import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autowarm.theory import (
    Smoothness,
    decay_only_rate,
    theorem_1_bound,
    theorem_1_rate,
    theorem_2_bound,
    theorem_2_rate,
    theorem_3_bound,
    theorem_3_uniform_bound,
    weight_decay_limit,
)

K = Smoothness(1.7, 2.0, 0.3, 5.0)
positive = st.floats(1e-2, 1e2)
RATES = np.linspace(0, 2, 200001)  # around the best one, which is at 1


def least(upper_bound, rate):
    """Whether the rate minimises the proof's upper bound on Δ^{t+1}."""
    values = upper_bound(rate * RATES)
    return RATES[np.argmin(values)] == pytest.approx(1, abs=1e-4)


@given(gap=positive, D=positive)
def test_theorem_1_rate_minimises_the_proofs_bound(gap, D):
    assert least(lambda eta: gap - gap / D * eta + K(gap) / 2 * eta**2, theorem_1_rate(gap, K, D))


@given(gap=positive, lam=positive)
def test_theorem_2_rate_minimises_the_proofs_bound(gap, lam):
    assert least(lambda eta: gap - lam * gap * eta + 4 * K(gap) * eta**2, theorem_2_rate(gap, K, lam))


@given(gap=st.floats(1e-6, 3.0), D=positive)
def test_decay_only_is_never_faster(gap, D):
    slow = decay_only_rate(gap, K, D, gap0=3.0)
    assert slow <= theorem_1_rate(gap, K, D) * (1 + 1e-12)
    assert slow == pytest.approx(gap / D / (2.0 + 0.3 * 3 + 5 * 3**1.7))


def test_rates_take_arrays_and_vanish_at_the_minimum():
    gaps = np.array([0.0, 0.5, 2.0])
    for rate in (
        lambda gap: theorem_1_rate(gap, K, 2.0),
        lambda gap: theorem_2_rate(gap, K, 0.5),
        lambda gap: decay_only_rate(gap, K, 2.0, 3.0),
    ):
        np.testing.assert_allclose(rate(gaps), [rate(float(gap)) for gap in gaps], rtol=1e-13)
        assert rate(gaps)[0] == 0.0
    assert theorem_1_rate(0.0, Smoothness(2.0, 0.0, 0.0, 1.0), 1.0) == 0.0  # K(0) = 0


@given(st.lists(positive, min_size=1, max_size=8), positive)
def test_bounds_at_every_horizon(curvatures, D):
    bounds = [
        theorem_1_bound(np.array(curvatures), D),
        theorem_2_bound(np.array(curvatures), 1 / D),
        theorem_3_bound(np.array(curvatures), D),
    ]
    for T in range(1, len(curvatures) + 1):
        total = math.fsum(curvatures[:T])
        squares = math.fsum(k**2 for k in curvatures[:T])
        expected = [2 * D**2 * total / T**2, 16 * D**2 * total / T**2, D**2 * math.sqrt(squares) / T]
        assert [bound[T - 1] for bound in bounds] == pytest.approx(expected)


def test_theorem_3_bounds_of_constant_curvature_and_of_several_paths():
    np.testing.assert_allclose(theorem_3_uniform_bound(K, 3.0, 2.0, 5), 9 * K(2.0) / np.sqrt(np.arange(1, 6)))
    two = theorem_3_bound(np.array([[3.0, 1.0], [5.0, 7.0]]), D=2.0)  # of which the squares are averaged
    np.testing.assert_allclose(two, [4 * math.sqrt(17), 2 * math.sqrt(17 + 25)])


def test_weight_decay_limit():
    assert weight_decay_limit(3.0, 5.0) == 0.2
    assert weight_decay_limit(5.0, 3.0) == 0.2
    assert weight_decay_limit(0.0, 0.0) == math.inf
    assert weight_decay_limit(1e-9, 0.0, K) == K.lambda_max
    assert weight_decay_limit(3.0, 5.0, K) == 0.2
