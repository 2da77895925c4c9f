"""The sentences of docs/which-rate.md against the stored searches and the rates that were tuned."""

import json
import statistics
from pathlib import Path

from studies.pages.which_rate import SEARCHES, compared, tuned_rates

DOCS = Path(__file__).parents[3] / "docs"


def test_the_text() -> None:
    tuned, found = tuned_rates(DOCS / "data"), {}
    for kind, file in SEARCHES.items():
        rows = [json.loads(line) for line in (DOCS / "data" / "find-rate" / file).read_text().splitlines()]
        found[kind], _ = compared(rows, tuned)
    text = " ".join((DOCS / "which-rate.md").read_text().split())
    assert f"the median is {statistics.median(found['judged on']):.2f} times the tuned rate" in text
    assert max(found["judged on"]) <= 1.3
    assert f"{max(found['developed on']):.0f} times the tuned rate" in text
