"""Choosing and judging on made-up losses whose right answers are known: by hand, by scipy's tests, or by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from autowarm.lab.analysis.statistics import Estimate, differences
from studies.statistics import (
    Seeds,
    by_family,
    by_task,
    choose,
    discoveries,
    exceeds,
    excess,
    leave_one_out,
    mean_loss,
    no_worse,
    p_value,
    rate_sensitivity,
    ratios,
    regrets,
)

INF = math.inf


def by_seed(*losses: float) -> dict[int, float]:
    return dict(enumerate(losses))


def test_the_p_value_agrees_with_scipys_t_test():
    values = np.random.default_rng(0).normal(0.3, 1.0, 7)
    assert p_value(Estimate(tuple(values))) == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue)
    assert p_value(Estimate((0.04, 0.06))) > 0.05  # five standard errors from zero, and two seeds show nothing


def test_one_seed_gives_no_verdict():
    one = Estimate((-5.0,))
    assert (p_value(one), no_worse(one, 0.1), exceeds(one)) == (None,) * 3


def test_equal_runs_are_equal_and_equal_differences_are_certain():
    same = Estimate((0.0, 0.0, 0.0))
    assert (p_value(same), exceeds(same), no_worse(same, 0.01), no_worse(same, 0.0)) == (1.0, False, True, False)
    apart = Estimate((0.5, 0.5, 0.5))
    assert (p_value(apart), exceeds(apart, 0.1), no_worse(apart, 0.1)) == (0.0, True, False)


def test_two_standard_errors_and_a_tolerance():
    assert exceeds(Estimate((0.0, 0.2, 0.4))) is False  # 0.2 ± 0.1155
    found = Estimate((0.1, 0.2, 0.3))  # 0.2 ± 0.0577
    assert exceeds(found) is True
    assert exceeds(found, tolerance=0.21) is False


def test_two_standard_errors_of_two_seeds_would_cover_far_less():
    draws = np.random.default_rng(2).normal(0.0, 1.0, (1500, 2))
    covered = np.mean([not exceeds(Estimate(tuple(row))) and not exceeds(Estimate(tuple(-row))) for row in draws])
    assert covered < 0.75


@pytest.mark.parametrize("seeds", [3, 6])
def test_non_inferiority_has_its_size_at_the_margin_and_power_below_it(seeds):
    random = np.random.default_rng(seeds)

    def shown(truth: float, repeats: int) -> float:
        draws = random.normal(truth, 0.4, (repeats, seeds))
        return float(np.mean([no_worse(Estimate(tuple(row)), 0.5) for row in draws]))

    assert shown(0.5, 1500) == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 1500))
    assert shown(1.0, 200) <= 0.01
    assert shown(-1.0, 200) > 0.9


def test_non_inferiority_agrees_with_scipys_one_sided_test():
    values = np.random.default_rng(3).normal(0.1, 0.2, 8)
    theirs = stats.ttest_1samp(values, 0.3, alternative="less")
    bound = theirs.confidence_interval(0.95).high  # where the p value is 5 %
    found = Estimate(tuple(values))
    assert no_worse(found, 0.3) == (theirs.pvalue <= 0.05)
    assert (no_worse(found, bound - 1e-6), no_worse(found, bound + 1e-6)) == (False, True)


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
        fair.append(differences({seed: ours[seed] for seed in (1, 2)}, best, ceiling=INF).mean)
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


def test_ratios_are_paired_and_a_diverged_run_counts_twice():
    assert ratios({0: 3.3, 1: 2.7, 5: 1.0}, {0: 3.0, 1: 2.0}).values == pytest.approx((0.1, 0.35))
    found = ratios(by_seed(INF, 3.0, INF, 9.0), by_seed(3.0, INF, INF, 3.0))
    assert (found.values, found.diverged) == ((1.0, -0.5, 0.0, 1.0), 3)


def test_what_has_no_ratio_is_refused():
    with pytest.raises(ValueError, match="`math.inf`"):
        ratios(by_seed(math.nan), by_seed(1.0))
    with pytest.raises(ValueError, match="positive losses, got -1"):
        ratios(by_seed(1.0), by_seed(-1.0))
    for reference in (0.0, -1.0, INF, math.nan):
        with pytest.raises(ValueError, match="finite positive reference"):
            excess([1.0], reference)
    with pytest.raises(ValueError, match="at least one loss"):
        excess([], 1.0)


def test_the_regret_of_a_fixed_choice():
    options = {"none": by_seed(3.0, 3.6), "10 %": by_seed(3.1, 2.9), "40 %": by_seed(INF, 3.0)}
    found = regrets(options, (0, 1), also={"adaptive": by_seed(2.85, 2.85)})
    assert found == pytest.approx({"none": 0.1, "10 %": 0.0, "40 %": 0.5, "adaptive": -0.05})
    with pytest.raises(ValueError, match="finite positive reference"):
        regrets({"none": by_seed(INF)}, (0,), {})


def test_rate_sensitivity_is_the_mean_excess_over_the_rates():
    assert rate_sensitivity({0.001: 3.3, 0.003: 3.0, 0.01: 3.6, 0.03: INF}) == pytest.approx((0.1 + 0.2 + 1.0) / 4)
    assert rate_sensitivity({0.1: 3.0, 1.0: 3.0}) == 0.0


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
