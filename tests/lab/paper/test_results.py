"""What the page on the paper says of runs with the paper's numbers of steps is what the stored results say."""

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[3] / "docs"


def runs(sweep: str) -> list[dict[str, Any]]:
    """The stored runs of a sweep."""
    found: list[dict[str, Any]] = json.loads((DOCS / "data" / "horizon" / f"{sweep}.json").read_text())["runs"]
    return found


def along(sweep: str, key: str, kind: str) -> dict[float, dict[str, Any]]:
    """The runs under one schedule, by the value of a key."""
    return {run["cell"][key]: run for run in runs(sweep) if run["schedule"] == kind}


def spread(some: list[dict[str, Any]]) -> str:
    """How far the highest loss of these runs is above the lowest."""
    losses = [run["val_loss"] for run in some]
    return f"{100 * (max(losses) / min(losses) - 1):.1f}"


def said() -> str:
    return " ".join((DOCS / "paper.md").read_text(encoding="utf-8").split())


def test_what_the_ablations_of_f_star_and_the_variance_show() -> None:
    paper, ours = (along("ablation-target-loss", "schedule.target_loss", kind) for kind in ("paper", "adaptive"))
    assert max(paper, key=lambda value: paper[value]["val_loss"]) == 0
    lengths = [run["warmup_steps"] for value, run in ours.items() if value > 0]
    paper_spread, our_spread = (spread([run for value, run in some.items() if value > 0]) for some in (paper, ours))
    assert f"its loss varies by {paper_spread} % and the default's by {our_spread} %" in said()
    assert f"shrinks from {max(lengths):,} to {min(lengths)} updates" in said()
    variances = [list(along("ablation-variance", "schedule.sigma_f2", kind).values()) for kind in ("paper", "adaptive")]
    assert f"over σ_F² by {spread(variances[0])} and {spread(variances[1])} %" in said()
    hand = [run for run in runs("ablation-variance") if run["schedule"] == "linear"]
    best = min(hand, key=lambda run: run["val_loss"])
    assert f"Hand-set lengths vary by {spread(hand)} %" in said()
    assert best["warmup_steps"] == 0.02 * 64_000
    others = [*paper.values(), *ours.values(), *variances[0], *variances[1]]
    assert all(run["val_loss"] > best["val_loss"] for run in others)


def test_what_the_ablation_of_the_form_shows() -> None:
    behind: dict[str, list[float]] = {"adaptive": [], "paper": []}
    forms = dict.fromkeys(run["cell"]["name"] for run in runs("ablation-schedule"))
    for form in forms:
        some = [run for run in runs("ablation-schedule") if run["cell"]["name"] == form]
        best = min((run for run in some if run["schedule"] == "linear"), key=lambda run: run["val_loss"])
        assert best["warmup_steps"] == 0.02 * 64_000
        for run in some:
            if run["schedule"] in behind:
                behind[run["schedule"]].append(100 * (run["val_loss"] / best["val_loss"] - 1))
    assert len(forms) == 6
    ours, paper = (f"{min(some):.1f} to {max(some):.1f} %" for some in behind.values())
    assert f"the default {ours} and Algorithm 1 {paper} behind it" in said()
    assert f"[{ours} behind 2 % by hand]" in (DOCS / "data" / "tables" / "claims.csv").read_text(encoding="utf-8")


def test_what_the_other_methods_and_swin_show() -> None:
    assert [run["cell"]["name"] for run in runs("baselines") if run["diverged"]] == ["d-adaptation"]
    assert "D-Adaptation diverged" in said()
    wrong = [round(352 * (1 - run["metric"]["accuracy"])) for run in runs("swin")]
    assert max(wrong) == 4
    assert "at most four of 352 images wrong" in said()
