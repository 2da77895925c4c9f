"""Plans the runs of the study in stages. Each stage is a function of the rows of earlier stages."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

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
    cells,
    peer_cells,
    scheduled_cells,
)
from ..rows import Cell, PlannedRow, Rows
from ..statistics import choose, mean_loss

Stage = Callable[[Rows], list[PlannedRow]]

PEER_SCHEDULES = ("wsd", "greedy")


def _planned(part: str, some: Iterable[Cell], schedules: Iterable[str], seeds: Sequence[int]) -> list[PlannedRow]:
    """Order the runs by seed, so that an interrupted stage leaves complete comparisons."""
    chosen, names = list(some), list(schedules)
    return [PlannedRow(part, cell, name, seed) for seed in seeds for name in names for cell in chosen]


def _seconds(rows: Rows, cell: Cell) -> float:
    return min(row["seconds"] for row in rows.runs("cells", cell, HAND_SET[0], SEEDS.choice).values())


def _quickest_first(rows: Rows) -> list[Cell]:
    return sorted(cells(rows), key=lambda cell: _seconds(rows, cell))


def tuning(rows: Rows) -> list[PlannedRow]:
    """The runs that tune the peak rates, under a hand-set warm-up."""
    return _planned("tuning", TUNING, [TUNING_SCHEDULE], [TUNING_SEED])


def hand(rows: Rows, some: Iterable[Cell] | None = None) -> list[PlannedRow]:
    """The grid of hand-set warm-ups, on the seeds of the choice."""
    return _planned("cells", some or cells(rows), FAIR, SEEDS.choice)


def compare(rows: Rows, some: Iterable[Cell] | None = None) -> list[PlannedRow]:
    """The default and the best hand-set warm-up on the seeds of the test, and the default on those of the choice."""
    found = []
    for cell in some or _quickest_first(rows):
        best = choose({name: rows.losses("cells", cell, name, SEEDS.choice) for name in FAIR}, SEEDS.choice)
        found += _planned("cells", [cell], [DEFAULT, best], SEEDS.test)
        found += _planned("cells", [cell], [DEFAULT], SEEDS.choice)
    return found


def paper(rows: Rows, some: Iterable[Cell] | None = None) -> list[PlannedRow]:
    """Algorithm 1, given an f* a little below the best loss of any hand-set warm-up: better than a user can know."""
    return [
        PlannedRow("cells", cell, PAPER, seed, target_loss=target)
        for cell in some or _quickest_first(rows)
        if math.isfinite(target := algorithm_1_target(rows, cell))  # if all diverged, there is no f* to give
        for seed in SEEDS.choice
    ]


def algorithm_1_target(rows: Rows, cell: Cell) -> float:
    """f* for Algorithm 1; infinite if every hand-set length diverged."""
    losses = (rows.losses("cells", cell, name, SEEDS.choice) for name in HAND_SET)
    return 0.95 * min(mean_loss(some, SEEDS.choice) for some in losses)


def peer_tuning(rows: Rows) -> list[PlannedRow]:
    """The runs that tune the rates of Schedule-Free AdamW and RAdam."""
    return _planned("tuning", PEER_TUNING, ["own"], [TUNING_SEED])


def peers(rows: Rows) -> list[PlannedRow]:
    """What people use instead: Schedule-Free AdamW, RAdam and Prodigy in place of AdamW; untuned, WSD and GreedyLR."""
    instead = _planned("peers", [cell for cell, _ in peer_cells(rows)], ["own"], SEEDS.test)
    adamw = dict.fromkeys(ours for _, ours in peer_cells(rows))
    return (
        instead
        + _planned("cells", adamw, ["untuned"], SEEDS.test)
        + _planned("cells", scheduled_cells(rows), PEER_SCHEDULES, SEEDS.test)
    )


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
