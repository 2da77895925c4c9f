"""Choosing and judging on made-up losses whose right answers are known, by hand or by simulation."""

import math

import pytest

from studies.statistics import Seeds, choose, mean_loss, regret

INF = math.inf


def by_seed(*losses: float) -> dict[int, float]:
    return dict(enumerate(losses))


def test_seeds_that_chose_do_not_judge() -> None:
    assert Seeds((0, 1), (2,)).test == (2,)
    for choice, test in (((0, 1), (1, 2)), ((), (1,)), ((0,), ())):
        with pytest.raises(ValueError, match=r"must not judge|at least one seed"):
            Seeds(choice, test)


def test_the_best_is_chosen_by_its_mean_and_the_first_of_equals_wins() -> None:
    options = {"a": by_seed(1.0, 3.0), "b": by_seed(2.0, 2.0), "c": by_seed(0.0, INF)}
    assert choose(options, (0, 1)) == "a"
    assert choose(options, (0,)) == "c"
    assert mean_loss(options["c"], (0, 1)) == INF


def test_a_missing_seed_is_named() -> None:
    with pytest.raises(ValueError, match=r"no loss for the seeds \[2\], only for \[0, 1\]"):
        mean_loss(by_seed(1.0, 2.0), (0, 2))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("shift", [0.0, -7.0])
def test_regret_is_a_share_of_the_progress_whatever_the_losss_unit_and_zero(scale: float, shift: float) -> None:
    loss, best, first = (scale * x + shift for x in (1.2, 1.0, 5.0))
    assert regret(loss, best, first) == pytest.approx(5.0)
    assert regret(best, best, first) == 0.0
    assert regret(first, best, first) == pytest.approx(100.0)
    assert regret(INF, best, first) == pytest.approx(100.0)  # a run that diverged has made no progress
