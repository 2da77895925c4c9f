"""What README, notebook and evidence say in words: of longer runs, fine-tuning, the forecast of f*, repeated runs."""

import csv
import math
import statistics
from pathlib import Path

from studies.cells import DEFAULT, PAPER, RAMP_ALONE, SEEDS, cells
from studies.pages.fair import rule_regrets
from studies.pages.grids import GRIDS, judged, share_left
from studies.pages.tables import family_means
from studies.plans import horizon, transfer
from studies.rows import Rows
from studies.statistics import by_task
from studies.verdicts import judge

DOCS = Path(__file__).parents[2] / "docs"
STUDIES = DOCS / "data" / "studies"
HORIZONS = GRIDS["horizon"]


def said(page: str) -> str:
    """A page's text in one line."""
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def short(span: str) -> str:
    """A range of percentages without a space in it."""
    return span.replace(" to ", "–").replace(" %", "%")


def test_the_loss_ends_every_warm_up_on_bytes_and_the_clock_on_tokens() -> None:
    found = judged(Rows.load(STUDIES / "horizon.jsonl"), HORIZONS)
    for v in found:
        assert set(v.ended) == {"loss" if v.cell.task == "llama-bytes" else "clock"}
    tokens, some = ([v for v in found if v.cell.task == task] for task in horizon.TASKS)
    assert all(v.passed for v in tokens)
    passed, left = f"in {sum(v.passed for v in some)} of", share_left(some)
    runs, lengths = sum(v.ended["loss"] for v in some), [100 * v.warmup for v in some]
    evidence, notebook = said("evidence.md"), said("notebook.md")
    for text, sentence in (
        (said("../README.md"), f"our small LLaMA ends at {left} of its first loss, and the loss"),
        (said("../README.md"), f"all {runs} warm-ups in runs of 1,000 to 64,000 updates, after {min(lengths):.0f} to "
                               f"{max(lengths):.0f} % of the run. {passed.capitalize()} these {len(some)} settings"),
        (evidence, f"the default passes in all {len(tokens)} settings"),
        (evidence, f"the default passes {passed} {len(some)}."),
        (evidence, f"bytes leave {left} of the first loss"),
        (notebook, f"ends at {short(left)}."),
    ):  # fmt: skip
        assert sentence in text


def test_the_pages_say_where_the_default_fails_on_bytes() -> None:
    rows = Rows.load(STUDIES / "horizon.jsonl")
    ours, ramp = (
        [v for v in judged(rows, HORIZONS, form) if v.cell.task == "llama-bytes"] for form in (DEFAULT, RAMP_ALONE)
    )
    short, long = (v for v in ours if not v.passed)
    assert [(v.cell.optimizer, v.cell.steps) for v in (short, long)] == [("normsgd", 4000), ("normsgd", 64_000)]
    evidence, readme = said("evidence.md"), said("../README.md")
    assert f"normSGD at 4,000 updates (+{100 * short.mean:.1f} %)" in evidence
    assert f"after {100 * short.warmup:.0f} % of the run and {100 * float(short.best.split()[1]):.0f} % is" in evidence
    assert f"at 64,000 (+{100 * long.mean:.1f} %)" in evidence
    assert short == max(ours, key=lambda v: v.mean)
    assert f"The worst is {100 * short.mean:.1f} % behind (normSGD, 4,000 updates)" in readme
    worst = max(v.mean for v in ours if v.cell.steps >= 16_000)
    assert f"from 16,000 updates on, the worst is {100 * worst:.1f} % behind" in readme
    failed = sorted(v.cell.optimizer for v in ramp if not v.passed)
    assert failed == ["adamw", "muon", "muon", "muon", "normsgd"]
    worst = max(v.mean for v in ramp)
    assert f"but by at most {100 * worst:.1f} %. It is ahead of the default at 1,000 and 4,000 updates, by " in evidence
    behind = [
        100 * statistics.fmean(a.mean - b.mean for a, b in zip(ours, ramp, strict=True) if a.cell.steps == steps)
        for steps in (1000, 4000, 16_000, 64_000)
    ]
    assert f"4,000 updates, by {behind[0]:.1f} and {behind[1]:.1f} %, and level or behind in longer runs" in evidence
    assert max(behind[2:]) < 0.05


def test_the_claims_say_how_near_algorithm_1_comes_in_long_runs() -> None:
    rows = Rows.load(STUDIES / "horizon.jsonl")
    behind = {}
    for grid in (horizon.LONG, horizon.LONGEST):
        found = judged(rows, (grid,))
        assert all(row["ended_by"] == "loss" for v in found for row in rows.runs("cells", v.cell, PAPER).values())
        costs = [100 * (v.regret[PAPER] - v.regret[v.best]) for v in found]
        behind[grid.horizons[0]] = f"{min(costs):.1f} to {max(costs):.1f} %"
    claim = f"every run leaves warm-up, {behind[16_000]} behind; over 64,000, {behind[64_000]}"
    assert claim in said("data/tables/claims.csv")
    assert f"{behind[16_000]} behind, and at 64,000 {behind[64_000]}" in said("evidence.md")


def test_told_the_chance_loss_the_default_passes_in_fine_tuning() -> None:
    rows, part = Rows.load(STUDIES / "fine-tuning.jsonl"), (transfer.FINE_TUNING,)
    assert all(set(v.ended) == {"clock"} for v in judged(rows, part))
    default, told, advised = (judged(rows, part, form) for form in (DEFAULT, transfer.CHANCE, transfer.ADVISED))
    passed = [sum(v.passed for v in some) for some in (told, default, advised)]
    assert f"passes in {passed[0]} of these {len(default)} settings, untold in {passed[1]}" in said("evidence.md")
    assert f"`max_warmup=0.1` passes in {passed[2]}." in said("evidence.md")
    shares = [100 * row["first_loss"] / math.log(512) for row in rows]
    left = f"{min(shares):.0f} to {max(shares):.0f} %"
    assert f"{left} of it" in said("evidence.md")
    assert f"{short(left)} of it" in said("notebook.md")


def test_the_evidence_says_how_the_default_does_on_fresh_tasks() -> None:
    rows = Rows.load(STUDIES / "fresh.jsonl")
    found = judged(rows, (transfer.FRESH,))
    assert f"passes in {sum(v.passed for v in found)} of {len(found)} settings, but most" in said("evidence.md")
    progress, loss = (
        {name: by_task(costs, lambda cell: cell.task).mean for name, costs in some.items()}
        for some in (rule_regrets(rows, found, transfer.FRESH.hand_set, (0, 1), unit) for unit in (True, False))
    )
    assert [name for name, cost in progress.items() if cost < progress["default"]] == ["40 %", "half from lr/10"]
    assert {name for name, cost in loss.items() if cost < loss["default"]} >= {"none", "5 %"}
    assert max(loss, key=loss.__getitem__) == "half from lr/10"
    early = [v for v in found if (v.cell.task, v.cell.steps) == ("autoencoder", 1000) and not v.passed]
    ends = [100 * v.warmup for v in early]
    assert (len(early), {v.best for v in early}) == (3, {"tenth 0.8"})
    sentence = f"the warm-up after {min(ends):.0f} to {max(ends):.0f} % of 1000 updates, and 80 % is best"
    assert sentence in said("evidence.md")


def test_the_notebook_says_what_the_forecast_cost() -> None:
    stored = Rows.load(STUDIES / "warm-up.jsonl")
    others = [row for row in stored if (row["part"], row["schedule"]) != ("cells", DEFAULT)]
    forecast = Rows([*others, *Rows.load(STUDIES / "forecast.jsonl")])
    text = (DOCS / "notebook.md").read_text(encoding="utf-8")
    means = []
    for rows in (forecast, stored):
        learnt = [v for cell in cells(stored) if cell.optimizer != "muon" and (v := judge(rows, cell)).learnt]
        assert f"study's {len(learnt)} settings without Muon" in text
        means.append({family: 100 * mean.mean for family, mean in family_means(learnt, lambda v: v.mean).items()})
    families = ("language", "vision", "MLP", "deep linear")
    for name, mean in zip(("forecast", "0.3·f(x0)"), means, strict=True):
        shown = (f"{mean[family]:+.{1 if family == 'vision' else 2}f}%".replace("-", "−") for family in families)
        assert f"| {name} | {' | '.join(shown)} |" in text


def test_readme_names_the_setting_where_the_default_alone_diverges() -> None:
    rows, words = Rows.load(STUDIES / "warm-up.jsonl"), {2: "two", 10: "ten"}
    found = []
    for v in (judge(rows, cell) for cell in cells(rows)):
        ours, theirs = (rows.runs("cells", v.cell, name) for name in (DEFAULT, v.best))
        tested = (theirs.keys() & ours.keys()) - set(SEEDS.choice)
        diverged = [sum(runs[seed]["diverged"] for seed in tested) for runs in (ours, theirs)]
        if v.learnt and diverged[0] > diverged[1]:
            found.append((v.cell.task, v.cell.optimizer, words[diverged[0]], words[len(tested)], diverged[1]))
    assert found == [("swin-x8", "adamw", "two", "ten", 0)]
    assert "diverged on two of ten seeds, and the best hand-set warm-up on none" in said("../README.md")


def test_the_default_forgives_a_wrong_rate_no_more_than_a_hand_set_length() -> None:
    assert "No more than hand-set warm-ups do." in said("evidence.md")
    with (STUDIES.parent / "tables" / "sensitivity.csv").open(encoding="utf-8", newline="") as file:
        *_, everywhere = csv.DictReader(file)
    assert everywhere["optimizer, %"] == "*all*"
    assert all(float(everywhere["default"]) >= float(everywhere[name]) for name in ("5 %", "40 %"))
