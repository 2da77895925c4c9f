"""Choosing and judging on made-up losses whose right answers are known, by hand or by simulation."""

import math

import pytest

from studies.statistics import Seeds, regret

INF = math.inf


def by_seed(*losses: float) -> dict[int, float]:
    return dict(enumerate(losses))


def test_seeds_that_chose_do_not_judge() -> None:
    assert Seeds((0, 1), (2,)).test == (2,)
    for choice, test in (((0, 1), (1, 2)), ((), (1,)), ((0,), ())):
        with pytest.raises(ValueError, match=r"must not judge|at least one seed"):
            Seeds(choice, test)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("shift", [0.0, -7.0])
def test_regret_is_a_share_of_the_progress_whatever_the_losss_unit_and_zero(scale: float, shift: float) -> None:
    loss, best, first = (scale * x + shift for x in (1.2, 1.0, 5.0))
    assert regret(loss, best, first) == pytest.approx(5.0)
    assert regret(best, best, first) == 0.0
    assert regret(first, best, first) == pytest.approx(100.0)
    assert regret(INF, best, first) == pytest.approx(100.0)  # a run that diverged has made no progress
