"""Ranks with losses of their own, in real processes."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion
from tests.programs import Launcher, results

STAGES = ["stage", "stage steady", "stage frozen", "late stage tensor"]
SAME = ["plain", "nan", "missing", "tensor", "tensor nan", "late", *STAGES]
DIFFERENT = {
    "settings": ["settings", "version", "function", "extended", "tensor extended", "peak"],
    "rates": ["base_lrs", "tensor base_lrs", "stage base_lrs", "stage frozen base_lrs"],
    "steps": ["steps", "skipped", "tensor steps", "late steps"],
}


@pytest.fixture(scope="module")
def ranks(rank_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict]]:
    """What two gloo ranks saw, by scenario; one pair of processes serves all, for starting them is what takes time."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    scenarios = [*SAME, *DIFFERENT["settings"], *DIFFERENT["rates"], *DIFFERENT["steps"]]
    rank_launcher.run_ranks(2, [Path(__file__).parent / "reduce_ranks.py", folder, *scenarios])
    return results(folder)


@pytest.mark.parametrize("scenario", SAME)
def test_rates_are_the_same_to_the_bit(scenario: str, ranks: list[dict[str, dict]]) -> None:
    a, b = ranks[0][scenario], ranks[1][scenario]
    assert a == b
    assert a["error"] is None
    assert len(set(a["rates"])) > 20


def test_the_mean_is_weighted_over_ranks(ranks: list[dict[str, dict]]) -> None:
    w = nn.Parameter(torch.zeros(2, 2))
    w.grad = torch.ones(2, 2)
    opt = Lion([w], lr=0.01)
    alone = AdaptiveWarmup(opt, 60)
    rates = []
    for t in range(40):
        base = 1 + 9 * math.exp(-t / 20)
        opt.step()
        alone.step((base - 0.3 * math.sin(t) + 2 * (base + 0.3 * math.sin(t))) / 3)
        rates += alone.get_last_lr()
    assert ranks[0]["plain"]["rates"] == pytest.approx(rates, rel=1e-9)


@pytest.mark.parametrize(
    ("scenario", "what"),
    [(scenario, what) for what, scenarios in DIFFERENT.items() for scenario in scenarios],
)
def test_ranks_that_disagree_fail_together(scenario: str, what: str, ranks: list[dict[str, dict]]) -> None:
    for seen in ranks:
        assert f"ranks disagree: AdaptiveWarmup has different {what}" in seen[scenario]["error"]
