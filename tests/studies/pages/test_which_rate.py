"""The sentences of docs/which-rate.md against the stored searches and the rates that were tuned."""

import csv
import io
import json
import statistics

from studies import second_stage
from studies.pages.which_rate import SEARCHES, compared, tuned_rates

from ..conftest import DOCS, said, stored


def test_the_text() -> None:
    tuned, found = tuned_rates(DOCS / "data"), {}
    for kind, file in SEARCHES.items():
        rows = [json.loads(line) for line in (DOCS / "data" / "find-rate" / file).read_text().splitlines()]
        found[kind], _ = compared(rows, tuned)
    text = said("which-rate.md")
    assert f"the median is {statistics.median(found['judged on']):.2f} times the tuned rate" in text
    assert max(found["judged on"]) <= 1.3
    assert f"{max(found['developed on']):.0f} times the tuned rate" in text


def test_what_the_page_says_of_a_second_stage() -> None:
    rows, found = stored("second-stage"), second_stage.searches(DOCS / "data")
    alone, after = csv.DictReader(io.StringIO(second_stage.second_stage_table(rows, found)))
    assert float(after["progress lost, mean %"]) > float(alone["progress lost, mean %"])  # so that it is not kept
    higher = sum(one.chosen(rows) > 2 * one.suggestion for one in found)
    assert higher > 0.8 * len(found)
    text = said("which-rate.md")
    assert f"they lose up to {float(after['worst %']):.0f}% of the progress ([{len(found)} searches]" in text
    assert f"loses more than 3% in {alone['more than 3% lost in']}, where" in text
