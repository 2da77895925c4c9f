"""Two real processes (gloo) under DDP: one curve, one suggestion, and nothing left behind on either."""

from pathlib import Path

import pytest

from tests.programs import Launcher, results


def test_ranks_find_the_same_by_the_mean_of_their_losses(rank_launcher: Launcher, tmp_path: Path) -> None:
    rank_launcher.run_ranks(2, [Path(__file__).parent / "search_ranks.py", tmp_path])
    first, second = ranks = results(tmp_path)
    for key in ("losses", "suggestion", "interval", "reason", "rate", "spoilt"):
        assert first[key] == second[key]
    assert first["reason"] is None
    means = [(a + b) / 2 for a, b in zip(first["own"], second["own"], strict=True)]
    assert first["losses"] == pytest.approx(means, rel=1e-9)
    assert first["own"] != second["own"]
    assert [seen["same"] for seen in ranks] == [True, True]  # nothing is left behind
    assert first["spoilt"] == 31  # a loss that is not finite ends both
    assert [seen["bad once"] for seen in ranks] == [(20, 21)] * 2  # a bad batch on one is dropped on both
    for seen in ranks:
        assert "ranks disagree: find_rate has different settings on them" in seen["error"]
