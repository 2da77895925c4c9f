"""Plans the runs of the study in stages. Each stage is a function of the rows of earlier stages."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from ..cells import (
    DEFAULT,
    FAIR,
    HAND_SET,
    PAPER,
    PEER_TUNING,
    SEEDS,
    TUNING,
    TUNING_SCHEDULE,
    TUNING_SEED,
    Setting,
    cells,
    peer_cells,
    scheduled_cells,
)
from ..rows import Cell, PlannedRow, Rows

Stage = Callable[[Rows], list[PlannedRow]]


def _planned(part: str, some: Collection[Cell], schedules: Sequence[str], seeds: Sequence[int]) -> list[PlannedRow]:
    """Order the runs by seed, so that an interrupted stage leaves complete comparisons."""
    return [PlannedRow(part, cell, name, seed) for seed in seeds for name in schedules for cell in some]


def _quickest_first(rows: Rows) -> list[Cell]:
    def seconds(cell: Cell) -> float:
        return min(row["seconds"] for row in rows.runs("cells", cell, HAND_SET[0], SEEDS.choice).values())

    return sorted(cells(rows), key=seconds)


def tuning(rows: Rows) -> list[PlannedRow]:
    """The runs that tune the peak rates, under a hand-set warm-up."""
    return _planned("tuning", TUNING, [TUNING_SCHEDULE], [TUNING_SEED])


def hand(rows: Rows, some: Sequence[Cell] | None = None) -> list[PlannedRow]:
    """The grid of hand-set warm-ups, on the seeds of the choice."""
    return _planned("cells", some or cells(rows), FAIR, SEEDS.choice)


def compare(rows: Rows, some: Sequence[Cell] | None = None) -> list[PlannedRow]:
    """The default and the best hand-set warm-up on the seeds of the test, and the default on those of the choice."""
    found = []
    for cell in some or _quickest_first(rows):
        found += _planned("cells", [cell], [DEFAULT, Setting(cell, FAIR, SEEDS).best(rows)], SEEDS.test)
        found += _planned("cells", [cell], [DEFAULT], SEEDS.choice)
    return found


def paper(rows: Rows, some: Sequence[Cell] | None = None) -> list[PlannedRow]:
    """Algorithm 1, which is told f*, on the seeds of the choice."""
    return [
        PlannedRow("cells", cell, PAPER, seed, target)
        for cell in some or _quickest_first(rows)
        if math.isfinite(target := Setting(cell, HAND_SET, SEEDS).target(rows))
        for seed in SEEDS.choice
    ]


def peer_tuning(rows: Rows) -> list[PlannedRow]:
    """The runs that tune the rates of Schedule-Free AdamW and RAdam."""
    return _planned("tuning", PEER_TUNING, ["own"], [TUNING_SEED])


def peers(rows: Rows) -> list[PlannedRow]:
    """What people use instead: Schedule-Free AdamW, RAdam and Prodigy in place of AdamW; untuned, WSD and GreedyLR."""
    instead, adamw = zip(*peer_cells(rows), strict=True)
    return [
        *_planned("peers", instead, ["own"], SEEDS.test),
        *_planned("cells", dict.fromkeys(adamw), ["untuned"], SEEDS.test),
        *_planned("cells", scheduled_cells(rows), ["wsd", "greedy"], SEEDS.test),
    ]


def missing(rows: Rows, stages: Mapping[str, Stage] | None = None) -> list[PlannedRow]:
    """The planned runs that have not been made, of the first stage that has any; later stages may depend on them."""
    for stage in (STAGES if stages is None else stages).values():
        if left := [run for run in stage(rows) if run not in rows]:
            return left
    return []


STAGES: dict[str, Stage] = {
    stage.__name__.replace("_", "-"): stage for stage in (tuning, hand, compare, paper, peer_tuning, peers)
}
"""The stages in the order in which they build on each other; about fifteen CPU-hours in all."""

CELL_STAGES = (hand, compare, paper)
"""The stages that make a single cell again. Call each with rows that lack the runs of this cell, and ``[cell]``."""
