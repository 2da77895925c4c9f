"""What people use instead of a tuned warm-up: two schedules, and two optimizers that have no schedule to set.

WSD and GreedyLR drive the cell's own optimizer at the cell's own rate. Schedule-Free AdamW and Prodigy take the place
of AdamW; the first has its rate tuned on AdamW's grid, the second has none.
"""

from cells import cells, tuned
from run import Cell

__all__ = ["PEER_TUNING", "SCHEDULES", "peer_cells", "scheduled"]

SCHEDULES = ("wsd", "greedy")
_GRID = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)  # AdamW's
# AdamW at its tuned rate, where a run is short.
_INSTEAD = (
    ("lm-small", 200), ("lm-small", 1000), ("lm-middle", 200), ("mlp", 200), ("mlp", 4000), ("factor", 1000),
    ("llama", 200), ("llama", 1000), ("llama-x8", 200), ("swin", 200),
)  # fmt: skip
PEER_TUNING = [Cell(task, "schedule-free", steps, lr) for task, steps in _INSTEAD for lr in _GRID]


def peer_cells() -> list[Cell]:
    """The two optimizers, Schedule-Free at its best rate; the peers' tuning must have been run."""
    rates = tuned(PEER_TUNING)
    return [
        cell
        for task, steps in _INSTEAD
        for cell in (
            Cell(task, "schedule-free", steps, rates[task, "schedule-free", steps]),
            Cell(task, "prodigy", steps, 1.0),
        )
    ]


def scheduled() -> list[Cell]:
    """The cells in which WSD and GreedyLR are run: those whose runs are short."""
    return [
        c for c in cells()
        if (c.steps == 200 and c.task in ("lm-small", "llama", "llama-x8", "vit", "swin", "mlp", "factor"))
        or (c.steps == 1000 and c.task in ("mlp", "factor", "llama"))
    ]  # fmt: skip
