"""Does a warm-up that sets itself match the best of those set by hand? One command a stage; finished runs are kept.

python benchmarks/schedules all         # every stage below but the last, in order: about ten CPU-hours
python benchmarks/schedules tune        # peak rates, from hand-set warm-ups
python benchmarks/schedules hand        # the hand-set grid
python benchmarks/schedules default     # the default, on the seeds of the comparison and of the choice
python benchmarks/schedules best        # the best hand-set warm-up, on the seeds of the comparison
python benchmarks/schedules more        # five more seeds for the two, where the standard error is above 0.5 %
python benchmarks/schedules paper       # Algorithm 1, told an f* from the hand-set runs
python benchmarks/schedules targets     # the default under other values of f*, in the cheaper cells
python benchmarks/schedules parts       # the default without one of its parts, in the cheaper cells
python benchmarks/schedules forms       # the paper's six forms of schedule, against hand-set lengths of each
python benchmarks/schedules fixed       # warm-ups of 1 % and 50 %, for their regret
python benchmarks/schedules peers       # what people use instead: WSD, GreedyLR, Schedule-Free AdamW, Prodigy
python benchmarks/schedules orders      # the same weights, ten orders of the data: where does warm-up end?
python benchmarks/schedules page        # docs/schedules.md
python benchmarks/schedules proof       # docs/evidence.md, and the headline of README.md
python benchmarks/schedules cell NAME   # every run of one cell, made again into a folder of its own
"""

import difflib
import math
import sys

from cells import (
    HAND_SET,
    MORE_SEEDS,
    MORE_SHARES,
    RESULTS,
    SELECTION_SEEDS,
    TEST_SEEDS,
    TUNING,
    TUNING_SCHEDULE,
    TUNING_SEED,
    cells,
)
from page import write
from peers import PEER_TUNING, SCHEDULES, peer_cells, scheduled
from proof import write_proof
from run import Cell, run
from store import Job, make, rows, workers
from studies import (
    FORMS,
    ORDERS,
    PARTS,
    STUDY_SEEDS,
    TARGETS,
    adaptive_of,
    cheap,
    form_cells,
    hand_of,
    seconds,
)
from verdict import DEFAULT, best_share, judge

from autowarm.lab.files import write_json

CELLS = RESULTS / "cells"


def tune() -> None:
    make([(cell, TUNING_SCHEDULE, TUNING_SEED, None) for cell in TUNING], RESULTS / "tuning")


def hand(chosen: list[Cell] | None = None, folder=CELLS) -> None:
    grid = HAND_SET.values()
    make([(c, name, seed, None) for seed in SELECTION_SEEDS for name in grid for c in chosen or cells()], folder)


def default(chosen: list[Cell] | None = None, folder=CELLS) -> None:
    seeds = (*TEST_SEEDS, *SELECTION_SEEDS)
    make([(c, DEFAULT, seed, None) for seed in seeds for c in chosen or cells()], folder)


def best(chosen: list[Cell] | None = None, folder=CELLS) -> None:
    make([_best(c, seed, folder) for seed in TEST_SEEDS for c in chosen or cells()], folder)


def compare() -> None:
    """Both, the cheaper cells first."""
    jobs = []
    for c in sorted(cells(), key=seconds):
        jobs += [job for seed in TEST_SEEDS for job in ((c, DEFAULT, seed, None), _best(c, seed, CELLS))]
        jobs += [(c, DEFAULT, seed, None) for seed in SELECTION_SEEDS]
    make(jobs, CELLS)


def more() -> None:
    unsure = [cell for cell in cells() if (v := judge(CELLS, cell)).learnt and not v.counted]
    for seed in MORE_SEEDS:
        make([job for c in unsure for job in (_best(c, seed, CELLS), (c, DEFAULT, seed, None))], CELLS)


def paper(chosen: list[Cell] | None = None, folder=CELLS) -> None:
    """Algorithm 1, told an f* a little below the best loss that any hand-set run reached: better than one can know."""
    jobs: list[Job] = []
    for c in chosen or sorted(cells(), key=seconds):
        best = min(best_share(folder, c)[1].values())
        if math.isfinite(best):  # where nothing is learnt there is nothing to tell it
            jobs += [(c, "paper", seed, 0.95 * best) for seed in SELECTION_SEEDS]
    make(jobs, folder)


def targets() -> None:
    names = [DEFAULT, *(f"{DEFAULT} fstar={share:g}" for share in TARGETS)]
    make([(c, name, seed, None) for seed in STUDY_SEEDS for name in names for c in cheap()], RESULTS / "targets")


def parts() -> None:
    names = [DEFAULT, *(f"{DEFAULT} {part}" for part in PARTS)]
    make([(c, name, seed, None) for seed in STUDY_SEEDS for name in names for c in cheap()], RESULTS / "parts")


def forms() -> None:
    names = [name for form in FORMS for name in (*hand_of(form), adaptive_of(*form))]
    make([(c, name, seed, None) for seed in STUDY_SEEDS for name in names for c in form_cells()], RESULTS / "forms")


def fixed() -> None:
    cheapest_first = sorted(cells(), key=seconds)
    names = [f"linear {share:g}" for share in MORE_SHARES]
    make([(c, name, seed, None) for c in cheapest_first for name in names for seed in SELECTION_SEEDS], CELLS)


def peers() -> None:
    make([(cell, "own", TUNING_SEED, None) for cell in PEER_TUNING], RESULTS / "tuning")
    make([(c, "own", seed, None) for seed in TEST_SEEDS for c in peer_cells()], RESULTS / "peers")
    make([(c, name, seed, None) for seed in TEST_SEEDS for name in SCHEDULES for c in scheduled()], CELLS)


def orders() -> None:
    chosen = [c for c in cells() if c.steps == 1000 and c.task in ("mlp", "factor")]
    table = []
    with workers(2) as pool:
        for c in chosen:
            found = list(pool.map(run, *zip(*[(c, DEFAULT, 0, None, 100 + k) for k in range(10)], strict=True)))
            table.append(
                {
                    "cell": c.name,
                    "warmup_steps": [r["warmup_steps"] for r in found],
                    "ended_by": [r["ended_by"] for r in found],
                }
            )
            print(table[-1], flush=True)
    write_json(ORDERS, table)


def cell(name: str) -> None:
    by_name = {c.name: c for c in cells()}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, 3) or sorted(by_name)[:3]
        sys.exit(f"there is no cell {name!r}; docs/schedules.md lists them, such as {', '.join(near)}")
    chosen = by_name[name]
    folder = RESULTS / "again"
    for stage in (hand, default, best, paper):
        stage([chosen], folder)
    for where, there in (("kept", CELLS), ("made again", folder)):
        v = judge(there, chosen)
        print(f"{where}: best hand-set share {v.best:g}, difference {100 * v.difference:+.2f} ± {100 * v.stderr:.2f} %")
    kept, again = rows(CELLS, chosen), rows(folder, chosen)
    equal = sum(key in kept and kept[key]["val_loss"] == row["val_loss"] for key, row in again.items())
    print(f"{equal} of {len(again)} runs are equal to the bit; the kept ones may have more seeds")


def _best(c: Cell, seed: int, folder) -> Job:
    return c, HAND_SET[best_share(folder, c)[0]], seed, None


STAGES = (tune, hand, default, best, compare, more, paper, targets, parts, forms, fixed, peers, orders, cell)
ALL = (tune, hand, compare, more, paper, targets, parts, forms, fixed, peers, orders, write, write_proof)


def everything() -> None:
    for stage in ALL:
        stage()


if __name__ == "__main__":
    stages = {stage.__name__: stage for stage in STAGES} | {"page": write, "proof": write_proof, "all": everything}
    if len(sys.argv) < 2 or sys.argv[1] not in stages:
        sys.exit(__doc__)
    stages[sys.argv[1]](*sys.argv[2:])
