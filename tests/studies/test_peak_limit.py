"""The judgement of a limit of the peak: what is copied, and what the table says."""

import csv

from studies import bench, peak_limit
from studies.entries import DEFAULT
from studies.rows import PlannedRow, Rows

from .conftest import row_of


def rows_of(losses: dict[str, list[float]]) -> Rows:
    """Made-up rows of the MLP at 1,000 updates: the losses at the seven rates."""
    part = bench.PLAN[0]
    return Rows(
        row_of(PlannedRow("cells", cell, name, seed), loss)
        for name, some in losses.items()
        for seed in (60, 61)
        for optimizer in bench.OPTIMIZERS
        for cell, loss in zip(bench.cells("mlp", optimizer, part.steps), some, strict=True)
    )


def test_the_table_says_what_a_limit_costs_and_what_it_saves() -> None:
    rows = rows_of({
        DEFAULT: [3.0, 2.0, 1.5, 1.0, 2.0, 3.0, 4.0],
        "peak limit 2.5": [3.0, 2.0, 1.5, 1.0, 1.2, 1.4, 1.6],
        "peak limit 2": [3.0, 2.0, 1.5, 1.04, 1.1, 1.2, 1.3],
    })  # fmt: skip
    lines = [[*line.values()] for line in csv.DictReader(peak_limit.judgement_table(rows).splitlines())]
    assert [line[1:8] for line in lines] == [
        ["60", "no limit", "4", "0.00 (0.0)", "1.000", "2.000", "3.000"],
        ["60", "peak limit 2.5", "4", "0.00 (0.0)", "0.200", "0.400", "0.600"],
        ["60", "peak limit 2", "4", "1.00 (1.0)", "0.100", "0.200", "0.300"],
        ["61", "no limit", "4", "0.00 (0.0)", "1.000", "2.000", "3.000"],
        ["61", "peak limit 2.5", "4", "0.00 (0.0)", "0.200", "0.400", "0.600"],
    ]
    assert lines[1][8].startswith("-1.60")
