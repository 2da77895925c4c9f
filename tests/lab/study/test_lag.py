"""What the notebook says of an average of the loss that lags behind it, held to the stored rows.

In `lag.jsonl`, "corrected" schedules average over 1 % of the run with a correction for the start, as the default did;
"lagging" ones start at f(x0).
"""

import math
import re
import statistics
from pathlib import Path

from autowarm.lab.study import horizon
from autowarm.lab.study.cells import FAIR, FAMILIES
from autowarm.lab.study.rows import Cell, Rows

DOCS = Path(__file__).parents[3] / "docs"
STUDIES = DOCS / "data" / "studies"
FORMS = (
    "corrected", "corrected min_warmup=0.1", "corrected smoothing=0.1", "corrected smoothing=0.3",
    "lagging smoothing=0.05", "lagging smoothing=0.1",
)  # fmt: skip
SEED = 0


def test_the_notebooks_table_of_averages() -> None:
    tried = Rows.load(STUDIES / "lag.jsonl")
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
    section = (DOCS / "notebook.md").read_text(encoding="utf-8").split("## 2026-11-25 · ")[1]
    table = [re.findall(r"[+-]\d\.\d\d", line) for line in section.splitlines() if line.startswith("| over")]
    assert [[language, factor, mlp, worst] for language, worst, factor, mlp in table] == lines
