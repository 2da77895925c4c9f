"""Steps of 2 and of 4 real processes (gloo); the checks are functions of `steps`, `agreement`, `placements`
and `tests/rate/search_ranks.py`."""

from pathlib import Path

import pytest

from tests.optim.ranks.checks import SIZES
from tests.optim.ranks.program import CHECKS
from tests.programs import Launcher, results


@pytest.fixture(scope="module")
def outcomes(rank_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict]:
    """By check and number of ranks: how many cases they made, and which of them are wrong on a rank."""
    folder = tmp_path_factory.mktemp("ranks")
    rank_launcher.run_ranks(max(SIZES), [Path(__file__).parent / "program.py", folder])
    by_check = {key: {"cases": 0, "wrong": []} for key in CHECKS}
    for rank, outcomes in enumerate(results(folder, max(SIZES))):
        for name, size, cases, wrong in outcomes:
            by_check[name, size]["cases"] += cases
            by_check[name, size]["wrong"] += [f"rank {rank}: {case}" for case in wrong]
    return by_check


@pytest.mark.parametrize(("check", "size"), CHECKS)
def test_ranks(outcomes: dict, check: str, size: int) -> None:
    assert outcomes[check, size]["cases"]
    assert not outcomes[check, size]["wrong"]
