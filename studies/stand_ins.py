"""Makes the runs of the paper's sweeps that were stored with other settings than the paper's, and puts them in.

    python -m studies.stand_ins            make what is left, one run at a time, and store a row as each finishes
    python -m studies.stand_ins --list     say what is left
    python -m studies.stand_ins --merge    put finished cells into docs/data/horizon

A cell's rows replace the stored ones once all of its runs are made. After a merge, delete the cell from ``OUTDATED`` in
tests/lab/paper/test_results.py, let that file's tests say which sentences of docs/paper.md have changed, and draw the
figures: ``python docs/figures.py table-main warmup-sweep-124M warmup-sweep-210M swin table-swin``.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autowarm.lab.analysis.results import _to_json
from autowarm.lab.analysis.summary import summarise
from autowarm.lab.config import Point, SweepConfig
from autowarm.lab.config.build import build, read_yaml
from autowarm.lab.execution.engine import plan
from autowarm.lab.files import write_json
from autowarm.lab.training.loop import train

ROWS, STORED = Path("docs/data/studies/stand-ins.jsonl"), Path("docs/data/horizon")
SMALL, LARGE = "warmup-sweep-124M", "warmup-sweep-210M"
BY_HAND, ALL = ("paper", "linear"), ("paper", "linear", "adaptive")
# Sweep, cells (None for all), schedules, seed: the most important first, as many as the hours allow. Of the hand-set
# lengths, seeds beside 0 have the one that was best with 0.
PLAN: list[tuple[str, list[str] | None, tuple[str, ...], int]] = [
    *((sweep, [cell], BY_HAND, 0) for sweep in (SMALL, LARGE)
      for cell in ("normsgd-32-1B", "normsgd-4-1B", "normsgd-32-2.1B")),
    *((SMALL, ["normsgd-32-1B"], BY_HAND, seed) for seed in (1, 2)),
    (SMALL, ["normsgd-4-2.1B"], BY_HAND, 0),
    *((SMALL, ["normsgd-4-1B"], BY_HAND, seed) for seed in (1, 2)),
    *((sweep, None, ("adaptive",), 0) for sweep in (SMALL, LARGE)),
    (SMALL, ["muon-32-1B", "muon-32-2.1B"], BY_HAND, 0),
    (LARGE, ["muon-32-1B", "muon-32-2.1B", "muon-4-1B"], BY_HAND, 0),
    *((sweep, None, ("adaptive",), 0) for sweep in ("ablation-schedule", "ablation-target-loss")),
    ("baselines", ["muon-adaptive", "adamw-adaptive"], ("adaptive",), 0),
    ("swin", ["rate-0.003"], ALL, 0),
    ("swin", ["rate-0.001", "rate-0.01"], ALL, 0),
]  # fmt: skip
HOURS = 10.0  # of one CPU, in all


def preset(sweep: str) -> SweepConfig:
    values, source = read_yaml(f"horizon/{sweep}")
    return build(SweepConfig, values, str(source))


def points() -> Iterator[tuple[str, Point]]:
    for sweep, cells, schedules, seed in PLAN:
        for point in dataclasses.replace(preset(sweep), seeds=[seed]).points():
            kind, length = point.run.schedule.kind, point.run.schedule.warmup_steps
            wanted = (cells is None or point.cell in cells) and kind in schedules
            if wanted and (not seed or kind != "linear" or length == best(sweep, point.cell)):
                yield sweep, point


def best(sweep: str, cell: str) -> int | None:
    """The hand-set length that was best in this cell with seed 0."""
    same = [row["row"] for row in rows() if (row["sweep"], row["cell"], row["seed"]) == (sweep, cell, 0)]
    hand = {row["val_loss"]: row["warmup_steps"] for row in same if row["schedule"] == "linear"}
    return hand[min(hand)] if hand else None


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()] if ROWS.exists() else []


def make(store: Path) -> None:
    """Make what is left of the plan; finished runs and unfinished ones in the store go on from there."""
    made = {(row["sweep"], row["name"]) for row in rows()}
    spent = sum(row["cpu_s"] for row in rows())
    for sweep, point in points():
        if (sweep, point.name) in made:
            continue
        if spent > HOURS * 3600:
            print(f"{HOURS:g} CPU-hours are spent")
            return
        [one] = plan([point], store)
        wall, cpu = time.time(), time.process_time()
        if not one.finished:
            train(point.run, one.folder)
        used = {"cpu_s": round(time.process_time() - cpu, 1), "wall_s": round(time.time() - wall, 1)}
        row = {"sweep": sweep, "name": point.name, "cell": point.cell, "seed": point.run.seed, **used, "row": one.row()}
        with ROWS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        made.add((sweep, point.name))
        spent += used["cpu_s"]
        print(sweep, point.name, one.row()["val_loss"], used, flush=True)


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    length = row["warmup_steps"] if row["schedule"] == "linear" else None
    return row["cell"]["name"], row["schedule"], length, row["seed"]


def merge(sweep: str, folder: Path = STORED) -> list[str]:
    """Put the rows of complete cells of hand-set lengths and Algorithm 1 into a stored sweep; returns the cells."""
    path, config = folder / f"{sweep}.json", preset(sweep)
    stored = json.loads(path.read_text(encoding="utf-8"))
    new = {key(row["row"]): row["row"] for row in rows() if row["sweep"] == sweep and row["seed"] == 0}
    wanted: dict[str, set[Any]] = {}
    for point in config.points():
        if point.run.schedule.kind in BY_HAND:
            about = point.run.schedule
            length = about.warmup_steps if about.kind == "linear" else None
            wanted.setdefault(point.cell, set()).add((point.cell, about.kind, length, 0))
    complete = [cell for cell, keys in wanted.items() if keys and keys <= new.keys()]
    if complete:
        like = stored["runs"][0].keys()
        fresh = {at: {name: row[name] for name in like if name in row} for at, row in new.items() if at[0] in complete}
        ours = [row for row in stored["runs"] if row["cell"]["name"] not in complete or row["schedule"] == "adaptive"]
        rest = {id(row) for row in ours}
        runs = [row if id(row) in rest else fresh.pop(key(row), None) for row in stored["runs"]]
        cells = json.loads(json.dumps(dataclasses.asdict(config)))["cells"]
        stored["config"]["cells"] |= {cell: cells[cell] for cell in complete}
        later = [row for row in fresh.values() if row["schedule"] != "adaptive"]
        stored["runs"] = [row for row in runs if row is not None] + later
        stored["summary"] = [_to_json(one) for one in summarise(stored["runs"])]
        write_json(path, stored)
    return complete


def main(words: list[str]) -> None:
    if words == ["--list"]:
        made = {(row["sweep"], row["name"]) for row in rows()}
        left = [(sweep, point.name) for sweep, point in points() if (sweep, point.name) not in made]
        print(*(f"{sweep}  {name}" for sweep, name in left), f"{len(made)} made, {len(left)} left", sep="\n")
    elif words == ["--merge"]:
        for sweep in dict.fromkeys(sweep for sweep, *_ in PLAN):
            print(sweep, *(merge(sweep) or ["nothing new"]))
    else:
        make(Path("runs/stand-ins"))


if __name__ == "__main__":
    main(sys.argv[1:])
