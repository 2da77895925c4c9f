"""Two real processes (gloo) under DDP: one curve, one suggestion, and nothing left behind on either."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Launcher, rank_environment


@pytest.fixture(scope="module")
def ranks(rank_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    environments = [rank_environment(rank, 2, port=0) for rank in (0, 1)]
    ended = rank_launcher.run_together([Path(__file__).parent / "search_ranks.py", folder], environments)
    assert {one.status for one in ended} == {0}, "".join(one.stderr for one in ended)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_ranks_find_the_same_by_the_mean_of_their_losses(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    for key in ("losses", "suggestion", "interval", "reason", "rate", "spoilt"):
        assert first[key] == second[key]
    assert first["reason"] is None
    means = [(a + b) / 2 for a, b in zip(first["own"], second["own"], strict=True)]
    assert first["losses"] == pytest.approx(means, rel=1e-9)
    assert first["own"] != second["own"]


def test_nothing_is_left_behind_on_either(ranks: list[dict[str, Any]]) -> None:
    assert [seen["same"] for seen in ranks] == [True, True]


def test_a_loss_that_is_not_finite_ends_both(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["spoilt"] == 31


def test_a_bad_batch_on_one_is_dropped_on_both(ranks: list[dict[str, Any]]) -> None:
    assert [seen["bad once"] for seen in ranks] == [[20, 21]] * 2


def test_different_arguments_are_an_error_on_both(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        assert "ranks disagree: find_rate has different settings on them" in seen["error"]
