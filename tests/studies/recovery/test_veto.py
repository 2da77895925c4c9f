"""The study of bad batches under `skip_outliers`: its stored rows, and what the page says of them."""

import csv
import io
from pathlib import Path

from studies.recovery.veto import plan, veto_table
from studies.rows import Rows

DOCS = Path(__file__).parents[3] / "docs"


def test_the_stored_rows_are_those_of_the_plan_and_show_what_the_page_says() -> None:
    rows = Rows.load(DOCS / "data" / "studies" / "veto.jsonl")
    assert all(run.planned in rows for run in plan())
    table = list(csv.reader(io.StringIO(veto_table(rows))))[1:]
    bad = {optimizer: [float(x) for x in cells] for what, optimizer, *cells in table if what == "bad batch"}
    costs = {optimizer: cells[0] for optimizer, cells in bad.items()}
    assert all(with_it <= 0.5 for _, _, with_it, _, _ in bad.values())  # the criterion, written before the runs
    most = max(worst for _, _, _, worst, _ in bad.values())
    healthy = [float(cells[-1]) for what, _, *cells in table if what.startswith("none")]
    assert max(healthy) == 0.0
    page = " ".join((DOCS / "optimizers.md").read_text(encoding="utf-8").split())
    assert (
        f"costs {costs['adamw']}% (AdamW) to {costs['normsgd']}% (normSGD) of the progress, and at most {most}% with "
        "it. No update of 40 healthy runs of 4,000 was skipped"
    ) in page
    assert (min(costs.values()), max(costs.values())) == (costs["adamw"], costs["normsgd"])
