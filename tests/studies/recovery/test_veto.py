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
    assert {optimizer: cells[0] for optimizer, cells in bad.items()} == {
        "muon": 1.9,
        "lion": 4.7,
        "normsgd": 4.9,
        "adamw": 1.5,
    }
    assert all(worst <= 0.2 for _, _, _, worst, _ in bad.values())
    assert all(float(cells[-1]) == 0.0 for what, _, *cells in table if what == "none")  # no false alarm
    page = " ".join((DOCS / "optimizers.md").read_text(encoding="utf-8").split())
    assert "costs Muon 1.9%, Lion 4.7%, normSGD 4.9% and AdamW 1.5% of the progress, and at most 0.2% with it" in page
    healthy = [float(cells[-1]) for what, _, *cells in table if "4,000" in what]
    assert f"Healthy runs of 4,000 updates lost up to {max(healthy):.0f} to it." in page
