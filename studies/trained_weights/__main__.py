"""Make parts of the table again."""

import argparse
import csv
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from autowarm.lab.analysis.markdown import comma_separated

from . import __doc__ as about
from .packages import NEW
from .rows import Row, initialisation_rows, later_rows, new_rows, shipped_rows, trained_rows
from .training import TASKS

TABLE = Path(__file__).parents[2] / "docs" / "data" / "tables" / "trained-weights.csv"
COLUMNS = ("part", "half", "name", "optimizer", "updates", "loss", "truth", "says", "evidence", "score", "threshold")

PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "initialisations": initialisation_rows,
    **{task: partial(trained_rows, task) for task in TASKS},
    "later": later_rows,
    **{package: partial(new_rows, package) for package in NEW},
}


def write(rows: list[dict[str, Any]]) -> None:
    order = [*PARTS, "shipped"]
    rows = sorted(rows, key=lambda row: order.index(row["part"]))
    TABLE.write_text(comma_separated(COLUMNS, ([row.get(c, "") for c in COLUMNS] for row in rows)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--weights", type=Path, metavar="FOLDER", help="unpacked wheels that ship weights")
    given = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    parts = {name: PARTS[name] for name in given.parts or ([] if given.weights else PARTS)}
    if given.weights:
        parts["shipped"] = lambda: shipped_rows(given.weights)
    for name, make in parts.items():
        kept = [row for row in csv.DictReader(TABLE.open()) if row["part"] != name] if TABLE.exists() else []
        made: list[dict[str, Any]] = []
        for one in make():  # written as they come: the families take minutes
            made.append(one)
            write(kept + made)
        wrong = [row for row in made if row["says"] != row["truth"]]
        print(f"{name}: {len(wrong)} of {len(made)} wrong", flush=True)
        for one in wrong:
            print("   ", *(f"{one[c]}" for c in COLUMNS if c in one))


if __name__ == "__main__":
    main()
