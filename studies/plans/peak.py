"""The study of ``peak="auto"``: compare the peak rate found inside a run with a tuned one. Planned before its runs.

The search rule was developed on one group of tasks and is judged on the other. Rates are tuned under the default
schedule, on a grid with a factor of 2. We compare the search with the tuned rate, with one common rate for all tasks
of an optimizer, and, in place of AdamW, with optimizers that promise to need no rate.
"""

from dataclasses import replace

from ..cells import AUTO, DEFAULT, GUESS, TUNING_SEED
from ..rows import PlannedRow, Rows
from ..statistics import Seeds
from .grid import Grid
from .warm_up import Stage

GUESSES = (1e-6, 1e-3, 10.0)  # other lr, which must not change the result
RATES = {
    "muon": tuple(2.0**k for k in range(-10, -2)),
    "lion": tuple(2.0**k for k in range(-13, -4)),
    "signsgd": tuple(2.0**k for k in range(-12, -3)),
    "normsgd": tuple(2.0**k for k in range(-9, 1)),
    "adamw": tuple(2.0**k for k in range(-12, -2)),
}
COMMON = {"muon": 2e-2, "lion": 3e-4, "signsgd": 1e-3, "normsgd": 2e-2, "adamw": 1e-3}
"""The rates that people usually start with."""

WITHOUT_RATE = {"prodigy": 1.0, "d-adaptation": 1.0, "schedule-free": 2.5e-3, "dog": 1.0}
"""The optimizers that promise to need no rate, with their authors' settings."""
PART, SEEDS = "peak", (10, 11, 12)


def _grid(tasks: tuple[str, ...], horizons: tuple[int, ...]) -> Grid:
    seeds = Seeds(choice=(TUNING_SEED,), test=SEEDS)
    return Grid(tasks, horizons, tuple(RATES), lambda rows, task, optimizer: RATES[optimizer], (), seeds, DEFAULT)


JUDGED = _grid(("unsmoothed", "cnn", "autoencoder", "regression", "copier", "policy"), (200, 1000))
DEVELOPED_ON = _grid(("llama", "lm-small", "mlp", "factor", "vit", "post-norm", "swin"), (200, 1000))
# Larger ones of the same kinds; the largest with the two optimizers that the warm-up study trains it with.
LARGER = (
    _grid(("lm-middle", "llama-x8", "swin-x8"), (200,)),
    replace(_grid(("lm-large",), (200,)), optimizers=("muon", "lion")),
)


def _tested(grid: Grid, rows: Rows) -> list[PlannedRow]:
    """In each setting: the tuned rate, the search, the common rate, the rate-free optimizers, and other guesses."""
    found = []
    for cell in grid.cells(rows):
        tried = [(cell, DEFAULT), (replace(cell, lr=GUESS), AUTO), (replace(cell, lr=COMMON[cell.optimizer]), DEFAULT)]
        if cell.optimizer == "adamw":
            tried += [(replace(cell, optimizer=name, lr=lr), "own") for name, lr in WITHOUT_RATE.items()]
        found += [PlannedRow(PART, one, schedule, seed) for one, schedule in tried for seed in SEEDS]
        found += [PlannedRow(PART, replace(cell, lr=guess), AUTO, SEEDS[0]) for guess in GUESSES]
    return found


def _stages(grid: Grid, prefix: str) -> dict[str, Stage]:
    return {f"{prefix}tuning": grid.tuning, f"{prefix}tested": lambda rows: _tested(grid, rows)}


STAGES = (
    _stages(JUDGED, "")
    | _stages(DEVELOPED_ON, "developed-on-")
    | _stages(LARGER[0], "larger-")
    | _stages(LARGER[1], "largest-")
)
"""About six CPU-hours in all."""
