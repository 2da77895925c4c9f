"""The study of bad batches under `skip_outliers`: its stored rows, and what the page says of them."""

import csv
import io

from studies.recovery.veto import LONG, plan, veto_table

from ..conftest import said, stored


def test_the_stored_rows_are_those_of_the_plan_and_show_what_the_page_says() -> None:
    rows = stored("veto")
    assert all(run.planned in rows for run in plan())
    table = list(csv.reader(io.StringIO(veto_table(rows))))[1:]
    bad = {optimizer: [float(x) for x in cells] for what, optimizer, *cells in table if what == "bad batch"}
    costs = {optimizer: cells[0] for optimizer, cells in bad.items()}
    assert all(with_it <= 0.5 for _, _, with_it, _, _ in bad.values())  # the criterion, written before the runs
    most = max(worst for _, _, _, worst, _ in bad.values())
    healthy = [float(cells[-1]) for what, _, *cells in table if what.startswith("none")]
    assert max(healthy) <= 1.0  # likewise
    long = [rows[run.planned]["skipped"] for run in plan() if run.fault.cell.steps == LONG]
    assert sum(long) == 1
    assert (
        f"costs {costs['adamw']}% (AdamW) to {costs['normsgd']}% (normSGD) of the progress, and at most {most}% with "
        f"it. Of {len(long)} healthy runs of 4,000 updates one lost one"
    ) in said("optimizers.md")
    assert (min(costs.values()), max(costs.values())) == (costs["adamw"], costs["normsgd"])
