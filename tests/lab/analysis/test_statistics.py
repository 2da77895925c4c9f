"""Estimates on made-up losses whose right answers are known."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from autowarm.lab.analysis.statistics import Estimate, against_best

INF = math.inf


@pytest.mark.parametrize("count", [2, 3, 7, 10])
def test_an_estimate_agrees_with_scipys_t_test(count: int) -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, count)
    ours, reference = Estimate(tuple(values)), stats.ttest_1samp(values, 0.0)
    assert ours.mean == pytest.approx(values.mean())
    assert ours.stderr == pytest.approx(stats.sem(values))
    for level in (0.8, 0.9, 0.95):
        assert ours.interval(level) == pytest.approx(tuple(reference.confidence_interval(level)))


@pytest.mark.parametrize("values", [(), (1.0, INF), (math.nan,)])
def test_an_estimate_refuses_values_it_has_no_mean_of(values):
    with pytest.raises(ValueError, match="at least one value, and all finite"):
        Estimate(values)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_against_a_single_length_it_is_the_paired_t_test(seeds: int) -> None:
    ours, reference = np.random.default_rng(seeds).normal(2.0, 0.1, (2, seeds))
    expected = stats.ttest_rel(ours, reference).confidence_interval()
    assert against_best(ours, reference, []).interval() == pytest.approx(tuple(expected))


def test_noise_is_pooled_over_schedules_and_only_the_lower_end_pays_for_the_choice() -> None:
    losses = np.random.default_rng(1).normal(2.0, 0.1, (4, 5)) + np.arange(5)  # what a seed adds cancels
    actual = against_best(losses[0], losses[1], losses[2:])
    plain = losses - np.arange(5)
    rest = plain - plain.mean(0) - plain.mean(1, keepdims=True) + plain.mean()
    error = math.sqrt(2 / 5 * np.sum(rest**2) / 12)
    assert actual.stderr == pytest.approx(error)
    low, high = actual.interval()
    assert actual.mean - low == pytest.approx(stats.t.ppf(1 - 0.025 / 3, 12) * error)
    assert high - actual.mean == pytest.approx(stats.t.ppf(0.975, 12) * error)


@pytest.mark.parametrize("other", [(9.0, 2.0, 40.0), (math.inf, 2.0, 3.0)])
def test_a_length_far_behind_counts_as_tried_but_not_for_the_noise(other: tuple[float, ...]) -> None:
    three = [1.0, 1.2, 1.1], [1.1, 1.0, 1.2], [1.2, 1.2, 1.3]
    near, all_of_them = against_best(*three[:2], three[2:]), against_best(*three[:2], [three[2], other])
    assert all_of_them.stderr == pytest.approx(near.stderr)
    assert (near.choices, all_of_them.choices) == (2, 3)


TWO = 2 * math.sqrt(2)  # two standard deviations of the difference in one seed, where a run's noise has one


@pytest.mark.parametrize(
    ("default", "lengths", "outcome", "least", "most"),
    [
        (0, [0] * 6, "undecided", 0.95, 1), (0, [0, 5, 5, 5], "undecided", 0.95, 1), (0, [0, 9], "undecided", 0.95, 1),
        (0, [0, 1, 2, 4, 8, 16], "undecided", 0.95, 1),
        (-TWO, [0] * 6, "better", 0.8, 1), (-TWO, [0, 9, 9, 9], "better", 0.8, 1), (-TWO, [0, 0], "better", 0.8, 1),
        (TWO, [0] * 6, "worse", 0.8, 1), (TWO, [0] + [9] * 5, "worse", 0.8, 1), (TWO, [0, 2, 4], "worse", 0.78, 1),
        (TWO, [0], "worse", 0.7, 0.8),  # nothing to pool: four seeds are too few
    ],
)  # fmt: skip
def test_four_seeds_are_rarely_wrong_and_see_two_standard_deviations(
    default: float, lengths: list[float], outcome: str, least: float, most: float
) -> None:
    """The promise of the module, over 1,500 comparisons; the best length is chosen on the seeds at hand."""
    generator, counts = np.random.default_rng(0), Counter()
    for _ in range(1500):
        seeds = 10 * generator.standard_normal(4)
        losses = generator.standard_normal((len(lengths) + 1, 4)) + np.array([[default, *lengths]]).T + seeds
        ours, *hand_set = losses
        best, *others = sorted(hand_set, key=np.mean)
        counts[against_best(ours, best, others).outcome] += 1
    assert least <= counts[outcome] / 1500 <= most


def test_as_many_seeds_are_proposed_as_would_decide() -> None:
    actual = Estimate((0.01, 0.03, -0.01, 0.02))
    many = actual.seeds_to_decide
    assert actual.outcome == "undecided"
    assert actual.interval(count=many - 1)[0] <= 0 < actual.interval(count=many)[0]
    spread = actual.stderr * 2 * math.sqrt((many - 1) / many)
    again = Estimate(tuple(actual.mean + spread * (-1) ** i for i in range(many)))  # of the same mean and spread
    assert again.interval() == pytest.approx(actual.interval(count=many))
    assert Estimate((0.001, 0.5, -0.5)).seeds_to_decide is None
    assert Estimate((1.0,)).seeds_to_decide is None
