"""What the default would have cost the paper's authors, from the points of their figures."""

import pytest

from autowarm.lab.paper.published import Published, points
from studies import published
from studies.published import cost, length, model, needed, rule

HAND, ADAPTIVE = points()


def test_every_setting_of_the_authors_is_there() -> None:
    assert len(HAND) == len(ADAPTIVE) == 24
    assert sum(map(len, HAND.values())) == 225
    assert min(loss for _, loss in HAND[Published("124M", 32, 64_000, "muon")]) == 3.47124


@pytest.mark.parametrize("setting", HAND, ids=str)
def test_the_model_of_the_loss_ends_where_the_authors_best_run_does(setting: Published) -> None:
    alpha, s0 = model(setting)
    last = published.FLOOR + (published.FIRST_LOSS - published.FLOOR) * (1 + setting.steps / 2 / s0) ** -alpha
    assert last == pytest.approx(min(loss for _, loss in HAND[setting]), abs=1e-6)


def test_the_model_predicts_the_one_switch_that_the_authors_logged() -> None:
    assert published.switch() == pytest.approx(11_972, rel=0.1)


def test_a_length_costs_what_the_authors_run_of_that_length_did() -> None:
    setting = Published("124M", 32, 64_000, "muon")
    assert cost(setting, 2_000) == 0.0
    assert cost(setting, 400) == pytest.approx(3.49408 - 3.47124)
    assert 3.48748 - 3.47124 < cost(setting, 447) < 3.49408 - 3.47124


@pytest.mark.parametrize("setting", [one for one in HAND if one.optimizer == "lion"], ids=str)
def test_no_run_under_lion_would_leave_its_warm_up_where_theirs_diverged(setting: Published) -> None:
    updates, _ = length(setting, rule(setting))
    assert updates >= 0.95 * needed(setting)[0]
    assert cost(setting, updates) < 0.01
