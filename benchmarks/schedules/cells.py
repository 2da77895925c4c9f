"""The list of cells, and the rates they are run at.

Rates come from `results/tuning/`: for each task, optimizer and horizon the best of a grid under a hand-set linear
warm-up, none of it adaptive. A cell is run at that rate, at three times and at a third of it.
"""

import math
from functools import cache
from pathlib import Path

from run import Cell
from store import rows

__all__ = [
    "HAND_SET",
    "MORE_SEEDS",
    "MORE_SHARES",
    "RESULTS",
    "SELECTION_SEEDS",
    "TEST_SEEDS",
    "TUNING",
    "cells",
    "tuned",
]

RESULTS = Path(__file__).parent / "results"
HAND_SET = {share: f"linear {share:g}" for share in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)}
# Not among those that the best is chosen from: asked for later, to see what they cost as one choice for all cells.
MORE_SHARES = (0.01, 0.5)
SELECTION_SEEDS = (0, 1)  # choose the best hand-set warm-up
TEST_SEEDS = (10, 11, 12, 13, 14)  # compare it with the default, paired
MORE_SEEDS = (15, 16, 17, 18, 19)  # once, where five leave a standard error above the tolerance

# Task and steps, then at which multiples of the tuned rate each optimizer is run.
_PLAN: dict[tuple[str, int], dict[str, tuple[float, ...]]] = {
    ("lm-small", 200): {"muon": (1,), "lion": (1,), "signsgd": (1,), "normsgd": (1,), "adamw": (1,)},
    ("lm-small", 1000): {
        "muon": (1 / 3, 1, 3), "lion": (1 / 3, 1, 3), "signsgd": (1,), "normsgd": (1, 3), "adamw": (1, 3)
    },
    ("lm-small", 4000): {"muon": (1,), "lion": (1,)},
    ("lm-middle", 200): {"muon": (1, 3), "lion": (1,), "signsgd": (1,), "normsgd": (1,), "adamw": (1,)},
    ("lm-large", 200): {"muon": (1,), "lion": (1,)},
    ("post-norm", 200): {"muon": (1,), "adamw": (1, 3)},
    ("post-norm", 1000): {"muon": (1,), "signsgd": (1,), "normsgd": (1,), "adamw": (1, 3)},
    ("vit", 200): {"muon": (1, 3)},
    ("vit", 1000): {"muon": (1, 3), "lion": (1,), "signsgd": (1,), "normsgd": (1,), "adamw": (1, 3)},
    ("mlp", 200): {"muon": (1,), "lion": (1,), "signsgd": (1,), "normsgd": (1,), "adamw": (1,)},
    ("mlp", 1000): {"muon": (3,), "adamw": (1 / 3, 3)},
    ("mlp", 4000): {"muon": (1,), "normsgd": (1,), "adamw": (1,)},
    ("factor", 200): {"lion": (1,), "normsgd": (3,)},
    ("factor", 1000): {"muon": (1, 3), "lion": (1,), "signsgd": (1,), "normsgd": (1, 3), "adamw": (1, 3)},
    ("factor", 4000): {"muon": (1 / 3,), "adamw": (1 / 3,)},
    ("llama", 200): {"muon": (1,), "lion": (1,), "signsgd": (1,), "normsgd": (1,), "adamw": (1,)},
    ("llama", 1000): {"muon": (1,), "lion": (1,), "adamw": (1,)},
    ("llama-x8", 200): {"muon": (1,), "lion": (1,), "signsgd": (1,), "normsgd": (1,), "adamw": (1,)},
    ("swin", 200): {"muon": (1,), "lion": (1,), "signsgd": (1,), "normsgd": (1,), "adamw": (1,)},
    ("swin", 1000): {"muon": (1,), "adamw": (1,)},
    ("swin-x8", 200): {"muon": (1,), "adamw": (1,)},
}  # fmt: skip

# The grid the rate is tuned on: a warm-up of 10 %, one seed of its own.
_GRID = {
    "muon": (0.001, 0.003, 0.01, 0.03, 0.1),
    "lion": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03),
    "signsgd": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03),
    "normsgd": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "adamw": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
}
# Tuned at fewer steps where a run is dear: the best rate moves little and the grid is coarse.
_TUNED_AT = {("lm-small", 4000): 1000}
TUNING = sorted(
    {
        Cell(task, optimizer, _TUNED_AT.get((task, steps), steps), lr)
        for (task, steps), plan in _PLAN.items()
        for optimizer in plan
        for lr in _GRID[optimizer]
    }
)
TUNING_SEED, TUNING_SCHEDULE = 100, "linear 0.1"


def tuned(grid: list[Cell] = TUNING) -> dict[tuple[str, str, int], float]:
    """The best rate by (task, optimizer, steps)."""
    best: dict[tuple[str, str, int], tuple[float, float]] = {}
    for cell in grid:
        for row in rows(RESULTS / "tuning", cell).values():
            key = cell.task, cell.optimizer, cell.steps
            loss = math.inf if row["val_loss"] is None else row["val_loss"]
            best[key] = min(best.get(key, (math.inf, 0.0)), (loss, cell.lr))
    return {key: lr for key, (_, lr) in best.items()}


@cache
def cells() -> list[Cell]:
    """All cells; `tune` must have been run."""
    rates = tuned()
    return [
        Cell(
            task, optimizer, steps, float(f"{factor * rates[task, optimizer, _TUNED_AT.get((task, steps), steps)]:.3g}")
        )
        for (task, steps), plan in _PLAN.items()
        for optimizer, factors in plan.items()
        for factor in factors
    ]
