"""What README, notebook and evidence say in words: of longer runs, fine-tuning, the forecast of f*, repeated runs."""

from pathlib import Path

from autowarm.lab.study import horizon, transfer
from autowarm.lab.study.cells import DEFAULT, FAMILIES, cells
from autowarm.lab.study.pages.grids import judged, share_left
from autowarm.lab.study.pages.tables import family_means
from autowarm.lab.study.rows import Rows
from autowarm.lab.study.verdicts import judge

DOCS = Path(__file__).parents[3] / "docs"
STUDIES = DOCS / "data" / "studies"


def test_the_loss_ends_every_warm_up_on_bytes_and_the_clock_on_tokens() -> None:
    found = judged(Rows.load(STUDIES / "horizon.jsonl"), (horizon.SHORT, horizon.LONG, horizon.LONGEST))
    for v in found:
        assert set(v.ended) == {"gap" if v.cell.task == "llama-bytes" else "max_warmup"}
        assert v.passed
    short = [v for v in found if (v.cell.task, v.cell.steps) == ("llama-bytes", 1000)]
    runs, lengths = sum(v.ended["gap"] for v in short), [100 * v.warmup for v in short]
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    assert f"our small LLaMA ends at {share_left(short)} of its first loss" in readme
    evidence, notebook = ((DOCS / name).read_text(encoding="utf-8") for name in ("evidence.md", "notebook.md"))
    left = share_left(v for v in found if v.cell.task == "llama-bytes")
    assert f"where {left} of the first loss is left" in " ".join(evidence.split())
    assert f"ends at {left}." in notebook
    assert f"all {runs} warm-ups, after {min(lengths):.0f} to {max(lengths):.0f} % of 1,000 updates" in readme


def test_the_advice_for_fine_tuning_passes_where_the_default_does_not() -> None:
    rows, part = Rows.load(STUDIES / "fine-tuning.jsonl"), (transfer.FINE_TUNING,)
    assert all(set(v.ended) == {"max_warmup"} for v in judged(rows, part))
    default, advised = (judged(rows, part, schedule) for schedule in (DEFAULT, transfer.ADVISED))
    passed = [sum(v.passed for v in some) for some in (advised, default)]
    said = f"passes in {passed[0]} of these {len(default)} settings, the default in {passed[1]}"
    assert said in " ".join((DOCS / "evidence.md").read_text(encoding="utf-8").split())


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
    said = [", ".join(f"{mean[family]:+.{1 if family == 'vision' else 2}f}" for mean in means) for family in families]
    assert f"| {' | '.join(pair.replace('-', '−') + ' %' for pair in said)} |" in text


def test_the_evidence_says_where_repeated_warm_ups_end() -> None:
    stored, again = (Rows.load(STUDIES / f"{name}.jsonl") for name in ("warm-up", "repeated"))
    ends = []
    for row in again:
        cell = next(cell for cell in cells(stored) if cell.name == _name(row))
        before = stored.runs("cells", cell, DEFAULT, [row["seed"]])[row["seed"]]
        ends.append((row["warmup_steps"] - before["warmup_steps"], row["ended_by"], before["ended_by"], cell.task))
    changed = [end for end in ends if end[0]]
    later = [end for end in changed if FAMILIES[end[3]] == "deep linear"]
    assert (len(ends), len(ends) - len(changed), len(later)) == (58, 49, 8)
    assert all(0 < end[0] <= 5 for end in later)
    assert [end[1:3] for end in changed if end not in later] == [("max_warmup", "gap")]


def _name(row: dict) -> str:
    cell = row["cell"]
    return f"{cell['task']}.{cell['optimizer']}.{cell['steps']}.{cell['lr']:g}"
