"""Plans the runs of the study in stages. Each stage is a function of the rows of earlier stages."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..cells import (
    DEFAULT,
    EXTRA_SEEDS,
    FAIR,
    HAND_SET,
    PAPER,
    PEER_TUNING,
    RAMP_ALONE,
    SEEDS,
    TUNING,
    TUNING_SCHEDULE,
    TUNING_SEED,
    cells,
    form_cells,
    peer_cells,
    quick_cells,
    scheduled_cells,
    sensitivity_cells,
)
from ..rows import Cell, PlannedRow, Rows
from ..statistics import choose, mean_loss
from ..verdicts import hand_set, judge

Stage = Callable[[Rows], list[PlannedRow]]

STUDY_SEEDS = (30, 31, 32)
TARGETS = (0.0, 0.15, 0.45, 0.6)  # f* as a share of f(x0); the default takes 0.3
# The default with one part changed. With f* = -1e6 the gap never falls, so the ramp acts alone.
PARTS = (
    "max_warmup=None", "fstar=-1e6", "smoothing=0", "div=100", "div=3", "max_warmup=0.2", "max_warmup=0.8",
    "sigma_f2=1e2", "sigma_f2=1e4",
)  # fmt: skip
# The six forms (warm-up, decay) of the paper's ablation (c), and the lengths of the hand-set warm-ups to compare with.
FORMS = (
    ("linear", "cosine"), ("linear", "linear"), ("cosine", "cosine"), ("cosine", "linear"), ("linear", "wsd"),
    ("linear", "wso"),
)  # fmt: skip
FORM_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)
PEER_SCHEDULES = ("wsd", "greedy")
SENSITIVITY = ("linear 0", "linear 0.05", "linear 0.4", RAMP_ALONE, DEFAULT)
ORDERS = tuple(range(100, 110))


def hand_set_forms(warmup: str, decay: str) -> list[str]:
    """The hand-set schedules of a form (a warm-up and a decay)."""
    return [f"hand {share:g} {warmup} {decay}" for share in FORM_SHARES]


def adaptive_form(warmup: str, decay: str) -> str:
    """The default in a form. If the decay has a stable phase, the ramp is shorter, as we advise."""
    shorter = " max_warmup=0.2" if decay in ("wsd", "wso") else ""
    return f"{DEFAULT} warmup={warmup} decay={decay}{shorter}"


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
    return _planned("cells", some or cells(rows), HAND_SET, SEEDS.choice)


def compare(rows: Rows, some: Iterable[Cell] | None = None) -> list[PlannedRow]:
    """The default and the best hand-set warm-up on the seeds of the test, and the default on those of the choice."""
    found = []
    for cell in some or _quickest_first(rows):
        found += _planned("cells", [cell], [DEFAULT, _best(rows, cell)], SEEDS.test)
        found += _planned("cells", [cell], [DEFAULT], SEEDS.choice)
    return found


def more(rows: Rows) -> list[PlannedRow]:
    """Five more test seeds for both, in the cells whose comparison does not count after the first five."""
    unsure = [cell for cell in cells(rows) if not judge(rows, cell, SEEDS).counted]
    return [run for cell in unsure for run in _planned("cells", [cell], [DEFAULT, _best(rows, cell)], EXTRA_SEEDS)]


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
    return 0.95 * min(mean_loss(losses, SEEDS.choice) for losses in hand_set(rows, cell).values())


def parts(rows: Rows) -> list[PlannedRow]:
    """The default without one of its parts, with a changed number, or with another f*."""
    changed = [*PARTS, *(f"fstar={share:g}" for share in TARGETS)]
    return _planned("parts", quick_cells(rows), [DEFAULT, *(f"{DEFAULT} {part}" for part in changed)], STUDY_SEEDS)


def forms(rows: Rows) -> list[PlannedRow]:
    """The default in the paper's six forms, and hand-set warm-ups of several lengths in each form."""
    schedules = [name for form in FORMS for name in (*hand_set_forms(*form), adaptive_form(*form))]
    return _planned("forms", form_cells(rows), schedules, STUDY_SEEDS)


def fair(rows: Rows) -> list[PlannedRow]:
    """The rest of the wider grid `FAIR`, and the ramp alone, on the seeds of the choice."""
    more = [name for name in FAIR if name not in HAND_SET]
    return [
        run for cell in _quickest_first(rows) for run in _planned("cells", [cell], [*more, RAMP_ALONE], SEEDS.choice)
    ]


def fair_tested(rows: Rows) -> list[PlannedRow]:
    """The best of the wider grid, the ramp alone and a warm-up of 5 %, on the seeds of the test."""
    found = []
    for cell in _quickest_first(rows):
        best = choose(hand_set(rows, cell, FAIR), SEEDS.choice)
        found += _planned("cells", [cell], sorted({best, RAMP_ALONE, "linear 0.05"}), SEEDS.test)
    return found


def sensitivity(rows: Rows) -> list[PlannedRow]:
    """The default, its ramp alone and three hand-set lengths, at a third to ten times the tuned rate."""
    rates = [cell for some in sensitivity_cells(rows).values() for cell in some]
    return _planned("sensitivity", rates, SENSITIVITY, SEEDS.choice)


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


def orders(rows: Rows) -> list[PlannedRow]:
    """The same initial weights with ten orders of the data, to see where warm-up ends."""
    chosen = [cell for cell in cells(rows) if cell.steps == 1000 and cell.task in ("mlp", "factor")]
    return [PlannedRow("orders", cell, DEFAULT, 0, order=order) for cell in chosen for order in ORDERS]


def missing(rows: Rows, stages: Mapping[str, Stage] | None = None) -> list[PlannedRow]:
    """The planned runs that have not been made, of the first stage that has any; later stages may depend on them."""
    for stage in (STAGES if stages is None else stages).values():
        if left := [run for run in stage(rows) if run not in rows]:
            return left
    return []


def _best(rows: Rows, cell: Cell) -> str:
    return choose(hand_set(rows, cell), SEEDS.choice)


STAGES: dict[str, Stage] = {
    stage.__name__.replace("_", "-"): stage
    for stage in (
        tuning,
        hand,
        compare,
        more,
        paper,
        parts,
        forms,
        peer_tuning,
        peers,
        orders,
        sensitivity,
    )
}
"""The stages that the pages need, in the order in which they build on each other; about twelve CPU-hours in all."""

FAIR_STAGES: dict[str, Stage] = {"fair": fair, "fair-tested": fair_tested}
"""A wider grid, to run after all of `STAGES`; about five CPU-hours."""

CELL_STAGES = (hand, compare, paper)
"""The stages that make a single cell again. Call each with rows that lack the runs of this cell, and ``[cell]``."""
