"""On made-up losses whose right answers are known: by hand, by scipy's own tests, or by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from autowarm.lab.analysis.statistics import (
    CAP,
    Estimate,
    Seeds,
    by_family,
    by_task,
    choose,
    differences,
    discoveries,
    excess,
    leave_one_out,
    mean_loss,
    rate_sensitivity,
    ratios,
    regrets,
)

INF = math.inf


def by_seed(*losses: float) -> dict[int, float]:
    return dict(enumerate(losses))


# One estimate


def test_an_estimate_agrees_with_scipys_t_test():
    values = np.random.default_rng(0).normal(0.3, 1.0, 7)
    ours, theirs = Estimate(tuple(values)), stats.ttest_1samp(values, 0.0)
    assert ours.mean == pytest.approx(values.mean())
    assert ours.stderr == pytest.approx(stats.sem(values))
    assert ours.p_value == pytest.approx(theirs.pvalue)
    assert ours.interval(0.9) == pytest.approx(tuple(theirs.confidence_interval(0.9)))


def test_two_seeds_use_the_t_quantile_of_one_degree_of_freedom():
    low, high = Estimate((0.0, 2.0)).interval()  # 1 ± 12.706·1
    assert (low, high) == pytest.approx((1 - 12.7062, 1 + 12.7062), abs=1e-4)
    # Two seeds agree on a difference five standard errors from zero, and still nothing is shown.
    two = Estimate((0.04, 0.06))
    assert two.mean / two.stderr == pytest.approx(5)
    assert two.outcome() == "undecided"
    assert two.p_value > 0.05


def test_one_seed_gives_no_verdict():
    one = Estimate((-5.0,))
    assert one.mean == -5.0
    assert (one.stderr, one.interval(), one.p_value, one.non_inferiority(0.1), one.exceeds()) == (None,) * 5
    assert one.outcome(0.02) == "no verdict"


@pytest.mark.parametrize("values", [(), (1.0, INF), (math.nan,)])
def test_an_estimate_refuses_values_it_has_no_mean_of(values):
    with pytest.raises(ValueError, match="at least one value|must be finite"):
        Estimate(values)


@pytest.mark.parametrize(
    ("low", "high", "margin", "outcome"),
    [
        (-0.03, -0.01, 0.0, "better"),
        (-0.03, 0.005, 0.005, "no worse"),
        (-0.03, 0.0051, 0.005, "undecided"),
        (0.001, 0.004, 0.005, "no worse"),
        (0.001, 0.004, 0.0, "worse"),
        (0.001, 0.009, 0.005, "undecided"),
        (0.006, 0.009, 0.005, "worse"),
    ],
)
def test_the_outcome_is_where_the_interval_lies(low, high, margin, outcome):
    centre, reach = (low + high) / 2, (high - low) / 2
    spread = reach / 12.706204736432095  # two values, x̄ ± spread
    found = Estimate((centre - spread, centre + spread))
    assert found.interval() == pytest.approx((low, high))
    assert found.outcome(margin + 1e-12) == outcome


def test_a_margin_below_zero_is_refused():
    with pytest.raises(ValueError, match="at least 0, got -0.1"):
        Estimate((1.0, 2.0)).outcome(-0.1)


def test_equal_runs_are_equal_and_equal_differences_are_certain():
    same = Estimate((0.0, 0.0, 0.0))
    assert (same.p_value, same.outcome(), same.exceeds()) == (1.0, "no worse", False)
    assert same.non_inferiority(0.01).shown
    assert not same.non_inferiority(0.0).shown
    apart = Estimate((0.5, 0.5, 0.5))
    assert (apart.p_value, apart.outcome(0.1), apart.exceeds(0.1)) == (0.0, "worse", True)
    assert not apart.non_inferiority(0.1).shown


def test_two_standard_errors_and_a_tolerance():
    found = Estimate((0.0, 0.2, 0.4))  # 0.2 ± 0.1155
    assert found.exceeds() is False
    assert found.exceeds(errors=1.5) is True
    assert found.exceeds(tolerance=0.21, errors=1.5) is False


# Simulation: the stated error rates are met


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


def test_two_standard_errors_of_two_seeds_would_cover_far_less():
    draws = np.random.default_rng(2).normal(0.0, 1.0, (1500, 2))
    covered = np.mean([not Estimate(tuple(row)).exceeds() and not Estimate(tuple(-row)).exceeds() for row in draws])
    assert covered < 0.75


def test_paired_intervals_cover_what_unpaired_noise_would_hide():
    """Seeds differ by 1.0, schedules by 0.1 ± 0.02 on the same seed: pairing finds it in five seeds."""
    random = np.random.default_rng(1)
    found = 0
    for _ in range(300):
        common = random.normal(3.0, 1.0, 5)
        reference = by_seed(*(common + random.normal(0, 0.02, 5)))
        ours = by_seed(*(common - 0.1 + random.normal(0, 0.02, 5)))
        found += differences(ours, reference).outcome() == "better"
    assert found > 290


@pytest.mark.parametrize("seeds", [3, 6])
def test_non_inferiority_has_its_size_at_the_margin_and_power_below_it(seeds):
    random = np.random.default_rng(seeds)

    def shown(truth: float, repeats: int) -> float:
        draws = random.normal(truth, 0.4, (repeats, seeds))
        return float(np.mean([Estimate(tuple(row)).non_inferiority(0.5).shown for row in draws]))

    assert shown(0.5, 1500) == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 1500))
    assert shown(1.0, 200) <= 0.01
    assert shown(-1.0, 200) > 0.9


def test_non_inferiority_agrees_with_scipys_one_sided_test():
    values = np.random.default_rng(3).normal(0.1, 0.2, 8)
    found = Estimate(tuple(values)).non_inferiority(0.3)
    theirs = stats.ttest_1samp(values, 0.3, alternative="less")
    assert found.p_value == pytest.approx(theirs.pvalue)
    assert found.bound == pytest.approx(theirs.confidence_interval(0.95).high)
    assert found.shown == (found.bound <= 0.3)


def test_false_discoveries_stay_below_the_level():
    """100 tests, of which 80 have nothing to find: uncorrected, a third of the discoveries would be false."""
    random = np.random.default_rng(4)
    corrected, naive, power = [], [], []
    for _ in range(300):
        null = random.uniform(size=80)
        true = 2 * stats.norm.sf(np.abs(random.normal(3.0, 1.0, 20)))
        p = [*map(float, null), *map(float, true)]
        found = np.array(discoveries(p, 0.1))
        corrected.append(found[:80].sum() / max(1, found.sum()))
        naive.append((null <= 0.1).sum() / ((null <= 0.1).sum() + (true <= 0.1).sum()))
        power.append(found[80:].mean())
    assert np.mean(corrected) <= 0.1
    assert np.mean(naive) > 0.25
    assert np.mean(power) > 0.5


# Choosing and judging


def test_seeds_that_chose_do_not_judge():
    with pytest.raises(ValueError, match=r"must not judge: \[1\]"):
        Seeds(choice=(0, 1), test=(1, 2))
    with pytest.raises(ValueError, match="both choice and test need"):
        Seeds(choice=(), test=(1,))


def test_the_best_of_a_noisy_grid_is_judged_without_the_luck_that_chose_it():
    """Ten equal options and our own, equal too. On the choosing seed the best looks better; on the others it is not."""
    random = np.random.default_rng(5)
    lucky, fair, loo = [], [], []
    for _ in range(400):
        options = {k: by_seed(*random.normal(10.0, 1.0, 3)) for k in range(10)}
        ours = by_seed(*random.normal(10.0, 1.0, 3))
        best = options[choose(options, seeds=(0,))]
        lucky.append(ours[0] - best[0])
        fair.append(differences({seed: ours[seed] for seed in (1, 2)}, best).mean)
        loo.append(leave_one_out(ours, options).mean)
    assert np.mean(lucky) > 1.0
    assert abs(np.mean(fair)) < 4 * np.std(fair) / 20
    assert abs(np.mean(loo)) < 0.01 + 4 * np.std(loo) / 20  # ratios of noise are a little above one in the mean


def test_the_best_is_chosen_by_its_mean_and_the_first_of_equals_wins():
    assert choose({"a": by_seed(1, 3), "b": by_seed(2, 1), "c": by_seed(0, 3)}, (0, 1)) == "b"
    assert choose({"a": by_seed(1, 2), "b": by_seed(2, 1)}, (0, 1)) == "a"
    assert choose({"a": by_seed(0, INF), "b": by_seed(9, 9)}, (0, 1)) == "b"
    assert choose({"a": by_seed(INF), "b": by_seed(INF)}, (0,)) == "a"


def test_a_missing_seed_is_named():
    assert mean_loss(by_seed(1, 2, 6), (0, 1, 2)) == 3
    with pytest.raises(ValueError, match=r"seeds \[7\], only for \[0, 1\]"):
        mean_loss(by_seed(1, 2), (0, 7))


def test_each_seed_is_held_against_what_was_best_on_the_others():
    options = {"a": by_seed(1.0, 4.0, 4.0), "b": by_seed(3.0, 2.0, 2.0)}
    # Without seed 0 b is best (2 < 4), without 1 or 2 a is (2.5 = 2.5, the first of equals).
    assert leave_one_out(by_seed(3.3, 4.0, 4.4), options).values == pytest.approx((0.1, 0.0, 0.1))
    with pytest.raises(ValueError, match=r"two seeds, got \[0\]"):
        leave_one_out(by_seed(1.0), options)


# Differences, and runs that diverged


def test_differences_are_paired_and_in_the_unit_asked_for():
    ours, reference = {0: 3.3, 1: 2.7, 5: 1.0}, {1: 3.0, 0: 3.0, 7: 1.0}
    assert differences(ours, reference).values == pytest.approx((0.3, -0.3))
    assert differences(ours, reference, unit="reference").values == pytest.approx((0.1, -0.1))
    assert differences(ours, reference, unit=2.0).values == pytest.approx((0.15, -0.15))
    assert ratios(ours, {0: 3.0, 1: 2.0}).values == pytest.approx((0.1, 0.35))


def test_a_diverged_run_counts_as_the_stated_multiple_and_is_said():
    found = differences(by_seed(INF, 3.0), by_seed(3.0, INF), unit="reference")
    assert found.values == pytest.approx((CAP - 1, 1 - CAP))
    assert found.diverged == 2
    assert differences(by_seed(INF, 3.0), by_seed(INF, 3.0)).values == (0.0, 0.0)
    assert differences(by_seed(100.0), by_seed(3.0)).values == (3.0,)  # no run counts as more than a diverged one
    assert differences(by_seed(INF), by_seed(3.0), ceiling=5.0).values == (2.0,)
    assert ratios(by_seed(INF, 3.0, INF, 9.0), by_seed(3.0, INF, INF, 3.0)).values == (1.0, -0.5, 0.0, 1.0)
    assert ratios(by_seed(INF, 3.0, INF, 9.0), by_seed(3.0, INF, INF, 3.0)).diverged == 3


def test_without_a_finite_reference_the_unit_has_to_be_given():
    with pytest.raises(ValueError, match="give `unit` and `ceiling`"):
        differences(by_seed(3.0), by_seed(INF), unit="reference")
    found = differences(by_seed(3.0, INF), by_seed(INF, INF), unit=6.0, ceiling=12.0)
    assert found.values == (-1.5, 0.0)


def test_what_has_no_ratio_is_refused():
    with pytest.raises(ValueError, match="`math.inf`"):
        differences(by_seed(math.nan), by_seed(1.0))
    with pytest.raises(ValueError, match="positive losses, got -1"):
        ratios(by_seed(1.0), by_seed(-1.0))
    for reference in (0.0, -1.0, INF, math.nan):
        with pytest.raises(ValueError, match="finite positive reference"):
            excess([1.0], reference)
    with pytest.raises(ValueError, match="at least one loss"):
        excess([], 1.0)


# Over options, rates, tasks


def test_the_regret_of_a_fixed_choice():
    options = {"none": by_seed(3.0, 3.6), "10 %": by_seed(3.1, 2.9), "40 %": by_seed(INF, 3.0)}
    found = regrets(options, (0, 1), also={"adaptive": by_seed(2.85, 2.85)})
    assert found == pytest.approx({"none": 0.1, "10 %": 0.0, "40 %": 0.5, "adaptive": -0.05})
    with pytest.raises(ValueError, match="finite positive reference"):
        regrets({"none": by_seed(INF)}, (0,))


def test_rate_sensitivity_is_the_mean_excess_over_the_range():
    losses = {0.001: 3.3, 0.003: 3.0, 0.01: 3.6, 0.03: INF}
    assert rate_sensitivity(losses, 0.001, 0.01) == pytest.approx((0.1 + 0.0 + 0.2) / 3)
    assert rate_sensitivity(losses, 0.01, 0.03) == pytest.approx((0.2 + 1.0) / 2)  # the best lies outside
    assert rate_sensitivity(losses, 0.01, 0.03, ceiling=4.5) == pytest.approx((0.2 + 0.5) / 2)
    assert rate_sensitivity({0.1: 3.0, 1.0: 3.0}, 0.1, 1.0) == 0.0
    with pytest.raises(ValueError, match="no rate lies between 1 and 2"):
        rate_sensitivity(losses, 1, 2)


def test_each_task_counts_once_however_often_it_was_run():
    values = {("lm", k): 0.0 for k in range(18)} | {("post-norm", 0): 0.01, ("vit", 0): 0.04, ("vit", 1): 0.02}
    family = {"lm": "language", "post-norm": "language", "vit": "vision"}
    found = by_family(values, lambda s: family[s[0]], lambda s: s[0])
    assert list(found) == ["language", "vision"]
    assert found["language"].mean == pytest.approx(0.005)
    assert found["vision"].mean == pytest.approx(0.03)
    assert found["vision"].interval() is None  # one task says nothing of other tasks
    assert by_task(values, lambda s: s[0]).mean == pytest.approx((0.0 + 0.01 + 0.03) / 3)


def test_discoveries_are_benjamini_and_hochbergs():
    p = [0.01, 0.02, 0.03, 0.04, 0.5]  # bounds 0.01, 0.02, 0.03, 0.04, 0.05: four stand together
    assert discoveries(p) == [True, True, True, True, False]
    assert discoveries([0.02, 0.03, 0.5, 0.6, 0.7]) == [False] * 5
    assert discoveries([None, 0.04, None]) == [False, True, False]
    assert discoveries([]) == []


def test_below_zero_a_diverged_run_is_worse_than_its_reference() -> None:
    found = differences({0: math.inf, 1: -3.0}, {0: -2.0, 1: -2.0}, unit="reference")
    assert found.values == (1.0, -0.5)
