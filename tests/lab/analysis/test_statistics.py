"""Estimates on made-up losses whose right answers are known."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from autowarm.lab.analysis.statistics import Estimate, same_mean

INF = math.inf


def test_an_estimate_agrees_with_scipys_t_test():
    values = np.random.default_rng(0).normal(0.3, 1.0, 7)
    ours, theirs = Estimate(tuple(values)), stats.ttest_1samp(values, 0.0)
    assert ours.mean == pytest.approx(values.mean())
    assert ours.stderr == pytest.approx(stats.sem(values))
    assert ours.interval(0.9) == pytest.approx(tuple(theirs.confidence_interval(0.9)))


def test_two_seeds_use_the_t_quantile_of_one_degree_of_freedom():
    low, high = Estimate((0.0, 2.0)).interval()  # 1 ± 12.706·1
    assert (low, high) == pytest.approx((1 - 12.7062, 1 + 12.7062), abs=1e-4)
    # Two seeds agree on a difference five standard errors from zero, and still nothing is shown.
    two = Estimate((0.04, 0.06))
    assert two.mean / two.stderr == pytest.approx(5)
    assert two.outcome == "undecided"


def test_one_seed_decides_nothing():
    one = Estimate((-5.0,))
    assert one.mean == -5.0
    assert (one.stderr, one.interval()) == (None, None)
    assert one.outcome == "undecided"


@pytest.mark.parametrize("values", [(), (1.0, INF), (math.nan,)])
def test_an_estimate_refuses_values_it_has_no_mean_of(values):
    with pytest.raises(ValueError, match="at least one value|must be finite"):
        Estimate(values)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(-0.03, -0.0001, "better"), (-0.03, 0.0001, "undecided"), (-0.0001, 0.03, "undecided"), (0.0001, 0.03, "worse")],
)
def test_the_outcome_is_the_side_of_zero_on_which_the_interval_lies(low, high, outcome):
    centre, reach = (low + high) / 2, (high - low) / 2
    spread = reach / 12.706204736432095  # two values, x̄ ± spread
    found = Estimate((centre - spread, centre + spread))
    assert found.interval() == pytest.approx((low, high))
    assert found.outcome == outcome


def test_equal_runs_are_equal_and_equal_differences_are_certain():
    assert Estimate((0.0, 0.0, 0.0)).outcome == "undecided"
    assert Estimate((0.5, 0.5, 0.5)).outcome == "worse"


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_intervals_cover_the_truth_as_often_as_they_say(seeds):
    draws = np.random.default_rng(seeds).normal(0.3, 1.7, (1500, seeds))
    covered = {0.95: 0, 0.8: 0}
    for row in draws:
        found = Estimate(tuple(row))
        for level in covered:
            low, high = found.interval(level)
            covered[level] += low <= 0.3 <= high
    for level, count in covered.items():
        assert count / len(draws) == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / len(draws)))


@given(arrays(float, (2, 5), elements=st.floats(-10, 10)))
def test_of_two_rows_the_f_test_is_the_paired_t_test(values: np.ndarray) -> None:
    assume(np.std(values[0] - values[1]) > 1e-6)
    assert same_mean(values) == pytest.approx(stats.ttest_rel(*values).pvalue, rel=1e-6, abs=1e-12)


@given(arrays(float, (4, 3), elements=st.floats(-10, 10)), arrays(float, 3, elements=st.floats(-10, 10)))
def test_what_columns_have_in_common_does_not_matter(values: np.ndarray, common: np.ndarray) -> None:
    assume(np.std(values - values.mean(0) - values.mean(1, keepdims=True)) > 1e-3)
    assert same_mean(values + common) == pytest.approx(same_mean(values), rel=1e-6, abs=1e-12)


def test_of_rows_with_the_same_mean_one_in_twenty_seems_to_differ() -> None:
    generator = np.random.default_rng(0)
    found = [same_mean(generator.standard_normal((4, 4)) + generator.standard_normal(4)) < 0.05 for _ in range(2000)]
    assert 0.035 < np.mean(found) < 0.065  # three standard errors


def test_rows_without_noise() -> None:
    assert same_mean([[1.0, 2.0], [1.0, 2.0]]) == 1.0
    assert same_mean([[1.0, 2.0], [2.0, 3.0]]) == 0.0
