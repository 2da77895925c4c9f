"""The realistic bed: a LLaMA on bytes with weight decay 0.1 and gradients clipped to 1, as people train.

Every warm-up has a peak rate of its own: a short warm-up may want a lower rate than a long one, and a comparison at one
rate would hide what that choice is worth. Rates are tuned on one seed, and three other seeds judge. A rule of ours is
tuned as a length is. Longer runs try fewer lengths, each at the best rate of the next shorter horizon and at the next
lower one. At 64,000 steps the tuning seed judges, too.

The figure that judges is regret as a share of progress: the mean loss over the test seeds, less that of the best
hand-set warm-up of the setting, over the first loss less that best loss.
"""

from collections.abc import Sequence
from functools import partial

from ..cells import HAND_SET as CHOSEN_FROM
from ..rows import Cell, PlannedRow, Rows
from .horizon import RATES
from .warm_up import Stage

PART, TASK = "realistic", "llama-bytes"
OPTIMIZERS = ("muon", "lion", "adamw", "normsgd")
HAND_SET = (*CHOSEN_FROM, "tenth 0.5")
FEWER = ("linear 0", "linear 0.02", "linear 0.1", "linear 0.4", "tenth 0.5")  # from 16,000 steps on
TUNING_SEED, TEST_SEEDS = 100, (40, 41, 42)


def hand_set(steps: int) -> Sequence[str]:
    """The hand-set warm-ups that runs of so many steps are judged by."""
    return HAND_SET if steps == 4_000 else FEWER


def _rates(rows: Rows, optimizer: str, steps: int, schedule: str) -> Sequence[float]:
    """The rates to try: all at 4,000 steps, then the best of the next shorter horizon and the next lower one."""
    every = RATES[optimizer]
    if steps == 4_000:
        return every
    shorter = 4_000 if steps == 16_000 else 16_000
    place = every.index(best_rate(rows, optimizer, shorter, schedule))
    return every[max(0, place - 1) : place + 1]


def best_rate(rows: Rows, optimizer: str, steps: int, schedule: str) -> float:
    """The rate with the lowest loss on the tuning seed; of two equally good ones, the lower."""
    tried = _rates(rows, optimizer, steps, schedule)
    losses = {
        lr: rows.losses(PART, Cell(TASK, optimizer, steps, lr), schedule, [TUNING_SEED])[TUNING_SEED] for lr in tried
    }
    return min(losses, key=lambda lr: (losses[lr], lr))


def _tuning(steps: int, schedules: Sequence[str], rows: Rows) -> list[PlannedRow]:
    return [
        PlannedRow(PART, Cell(TASK, optimizer, steps, lr), schedule, TUNING_SEED)
        for schedule in schedules
        for optimizer in OPTIMIZERS
        for lr in _rates(rows, optimizer, steps, schedule)
    ]


def _tested(steps: int, schedules: Sequence[str], rows: Rows) -> list[PlannedRow]:
    return [
        PlannedRow(PART, Cell(TASK, optimizer, steps, best_rate(rows, optimizer, steps, schedule)), schedule, seed)
        for seed in TEST_SEEDS
        for schedule in schedules
        for optimizer in OPTIMIZERS
    ]


def stages_of(schedules: Sequence[str], fewer: Sequence[str]) -> dict[str, Stage]:
    """The stages that these schedules need: tuning and test to 16,000 steps, and tuning alone at 64,000."""
    return {
        "tuning-4000": partial(_tuning, 4_000, schedules),
        "tested-4000": partial(_tested, 4_000, schedules),
        "tuning-16000": partial(_tuning, 16_000, fewer),
        "tested-16000": partial(_tested, 16_000, fewer),
        "tuning-64000": partial(_tuning, 64_000, fewer),
    }


STAGES: dict[str, Stage] = stages_of(("default", *HAND_SET), ("default", *FEWER))
"""What the pages show; a rule that is only compared is run by `stages_of`."""
