"""What the notebook says of an average of the loss that lags behind it, held to the stored rows.

In `lag.jsonl`, "corrected" schedules average over 1 % of the run with a correction for the start, as the default does;
"lagging" ones start at f(x0), which the present code cannot.
"""

import math
import re
import statistics
from pathlib import Path

from autowarm.lab.analysis.markdown import percent
from autowarm.lab.study import horizon, transfer
from autowarm.lab.study.cells import BOUNDED, DEFAULT, FAIR, FAMILIES, HAND_SET, SEEDS, cells
from autowarm.lab.study.pages.grids import judged
from autowarm.lab.study.rows import Cell, Rows
from autowarm.lab.study.verdicts import ALL_SEEDS, Verdict, judge

DOCS = Path(__file__).parents[3] / "docs"
STUDIES = DOCS / "data" / "studies"
FORMS = (
    "corrected", "corrected min_warmup=0.1", "corrected smoothing=0.1", "corrected smoothing=0.3",
    "lagging smoothing=0.05", "lagging smoothing=0.1",
)  # fmt: skip
BYTES = (FORMS[0], FORMS[1], FORMS[4])
SEED, NEW_SEEDS = 0, (20, 21, 22, 23, 24)


def all_tried() -> Rows:
    """The rows of the trial, and those of the horizon study on bytes."""
    stored = [row for row in Rows.load(STUDIES / "horizon.jsonl") if row["schedule"] in (DEFAULT, BOUNDED)]
    bytes_ = [row for row in stored if row["cell"]["task"] == "llama-bytes"]
    renamed = [{**row, "schedule": row["schedule"].replace(DEFAULT, FORMS[0])} for row in bytes_]
    return Rows([*renamed, *Rows.load(STUDIES / "lag.jsonl")])


def test_the_notebooks_table_of_averages() -> None:
    tried = all_tried()
    hand = {name: Rows.load(STUDIES / f"{name}.jsonl") for name in ("horizon", "warm-up")}
    chosen = {Cell(**row["cell"]) for row in tried if row["schedule"] == FORMS[-1] and row["seed"] == SEED}
    behind: dict[str, dict[str, list[float]]] = {form: {} for form in FORMS}
    for cell in chosen:
        study, names = ("horizon", horizon.HAND_SET) if cell.task == "llama-bytes" else ("warm-up", FAIR)
        best = min(hand[study].losses("cells", cell, name).get(SEED, math.inf) for name in names)
        for form in FORMS:
            found = tried.losses("cells", cell, form)[SEED]
            behind[form].setdefault(FAMILIES[cell.task], []).append(100 * (found / best - 1))
    assert {family: len(costs) for family, costs in behind[FORMS[0]].items()} == {
        "language": 13, "deep linear": 12, "MLP": 11
    }  # fmt: skip
    lines = [
        [*(f"{statistics.fmean(costs[family]):+.2f}" for family in ("language", "deep linear", "MLP")),
         f"{max(costs['language']):+.2f}"]
        for costs in behind.values()
    ]  # fmt: skip
    entry = (DOCS / "notebook.md").read_text(encoding="utf-8").split("## 2026-11-25 · ")[1]
    table = [re.findall(r"[+-]\d\.\d\d", line) for line in entry.splitlines() if line.startswith("| over")]
    assert [[language, factor, mlp, worst] for language, worst, factor, mlp in table] == lines


def under(study: str, form: str) -> Rows:
    """A study's rows, with a form's runs as the default's where there are any."""
    tried = [row for row in all_tried() if row["schedule"] == form]
    mine = {task for task, family in FAMILIES.items() if (family == "fresh") == (study == "fresh")}
    runs = [{**row, "schedule": DEFAULT} for row in tried if row["cell"]["task"] in mine]
    return Rows([*Rows.load(STUDIES / f"{study}.jsonl"), *runs])


def section() -> str:
    text = (DOCS / "notebook.md").read_text(encoding="utf-8").split("## 2026-11-25 · May the average")[1]
    return " ".join(text.split("\n## ")[0].split())


def test_the_notebook_says_why_the_counts_refuse_it() -> None:
    before, after = (under("warm-up", form) for form in (FORMS[0], FORMS[4]))
    passed, rise = [], {}
    for seeds, names in ((ALL_SEEDS, HAND_SET), (SEEDS, FAIR)):
        found = [[judge(rows, cell, seeds, names) for cell in cells(rows)] for rows in (before, after)]
        old, new = ([v for v in some if v.learnt] for some in found)
        passed.append((sum(v.passed for v in new), sum(v.passed for v in old)))
        if names == HAND_SET:
            for a, b in zip(old, new, strict=True):
                rise.setdefault(FAMILIES[a.cell.task], []).append(100 * (b.mean - a.mean))
    (six, of_six), (fourteen, of_fourteen) = passed
    fresh = [judged(under("fresh", form), (transfer.FRESH,)) for form in (FORMS[0], FORMS[4])]
    count = [sum(v.passed for v in some) for some in fresh]
    text = section()
    assert f"{six} settings pass instead of {of_six} (against fourteen hand-set warm-ups {fourteen} instead of " in text
    assert f"instead of {of_fourteen}), and {count[1]} fresh ones instead of {count[0]}" in text
    (mlp, error), (factor, _), (vision, _) = (mean_and_error(rise[kind]) for kind in ("MLP", "deep linear", "vision"))
    assert f"The MLP rises by {mlp:.2f} ± {error:.2f} %, deep linear networks by {factor:.2f} %; " in text
    assert f"vision falls by {-vision:.2f} %." in text
    assert f"{factor:.1f}" == "0.1"  # the lower of two on the evidence page


def test_the_notebook_says_what_it_gains_on_bytes_and_why_it_is_refused() -> None:
    grids = (horizon.SHORT, horizon.LONG, horizon.LONGEST)
    forms = {form: [v for v in judged(under("horizon", form), grids) if v.cell.task == "llama-bytes"] for form in BYTES}
    old, _, new = forms.values()
    long = {form: [v for v in some if v.cell.steps >= 16_000] for form, some in forms.items()}
    of_old, of_bounded, (mean, worst) = map(extent, long.values())
    mine = long[FORMS[4]]
    text = section()
    assert f"On bytes it passes in {sum(v.passed for v in new)} of the {len(new)} settings, and in " in text
    assert f"in {sum(v.passed for v in mine)} of the {len(mine)} from 16,000 updates on" in text
    (before, worst_before), (after, worst_after) = extent(old), extent(new)
    assert f"falls from {before} to {after} %, the worst from {worst_before} to {worst_after} %" in text
    assert f"the mean is {mean} % and the worst {worst} %; under `min_warmup=0.1` they are {of_bounded[0]} and " in text
    assert f"and {of_bounded[1]} %, under the default {of_old[0]} and {of_old[1]} %" in text
    runs, lengths = sum(v.ended["gap"] for v in mine), [100 * v.warmup for v in mine]
    assert runs == sum(v.ended.total() for v in mine)
    assert f"all {runs} of these warm-ups, after {min(lengths):.0f} to {max(lengths):.0f} % of the run" in text


def test_the_notebook_says_what_new_seeds_show() -> None:
    tried = Rows.load(STUDIES / "lag.jsonl")
    new = {Cell(**row["cell"]) for row in tried if row["seed"] in NEW_SEEDS}
    rise: dict[str, list[float]] = {}
    for cell in new:
        old, ours = (tried.losses("cells", cell, form, NEW_SEEDS) for form in (FORMS[0], FORMS[4]))
        rise.setdefault(FAMILIES[cell.task], []).append(
            statistics.fmean(100 * (ours[seed] / old[seed] - 1) for seed in NEW_SEEDS)
        )
    factor, mlp = (mean_and_error(rise[family]) for family in ("deep linear", "MLP"))
    assert factor[0] > max(0.1, 2 * factor[1])
    evidence = " ".join((DOCS / "evidence.md").read_text(encoding="utf-8").split())
    assert f"costs deep linear networks 0.1 to {factor[0]:.1f} %." in evidence
    text = f"deep linear networks rise by {factor[0]:.2f} ± {factor[1]:.2f} %. The MLP rises by {mlp[0]:.2f} ± "
    assert text + f"{mlp[1]:.2f} %." in section()


def extent(some: list[Verdict]) -> tuple[str, str]:
    """The mean and the worst difference, in percent."""
    return percent(statistics.fmean(v.mean for v in some)), percent(max(v.mean for v in some))


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
