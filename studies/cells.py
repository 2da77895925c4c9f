"""The settings ("cells") of the warm-up study, each chosen before its first adaptive run, and their peak rates.

The rates were tuned without any adaptive run: for each task, optimizer and horizon, the rows of the part "tuning" hold
a grid of rates under a hand-set linear warm-up, and the best one counts. Cells use that rate, a third of it or three
times it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autowarm.lab.analysis.statistics import Losses

from .rows import Cell, Rows
from .statistics import Seeds, choose, mean_loss

FAMILIES = {
    **dict.fromkeys(("lm-small", "lm-middle", "lm-large", "post-norm"), "language"),
    **dict.fromkeys(("llama", "llama-x8", "llama-long", "llama-bytes"), "language"),
    **dict.fromkeys(("vit", "swin", "swin-x8"), "vision"),
    "mlp": "MLP",
    "factor": "deep linear",
    **dict.fromkeys(("tune-near", "tune-far", "tune-near-lora", "tune-far-lora"), "fine-tuning"),
    **dict.fromkeys(("unsmoothed", "cnn", "autoencoder", "regression", "copier", "policy"), "fresh"),
    **dict.fromkeys(("recurrent", "graph", "flow", "contrastive", "series", "bytes-192"), "unseen"),
}
OPTIMIZERS = ("muon", "lion", "signsgd", "normsgd", "adamw")

# The study's names of schedules. "linear 0.1" is a hand-set linear warm-up over 10 % of the run, then a cosine.
DEFAULT, PAPER = "default", "paper"
EARLIER = "earlier default"  # Δ' calibrated from κ, half of the run at most, a test of noise before the loss counts
HAND_SET = ("linear 0", "linear 0.02", "linear 0.05", "linear 0.1", "linear 0.2", "linear 0.4")
# A wider grid that brackets the optimum. It adds longer warm-ups, and warm-ups that start at a tenth of the peak, as
# the default does.
FAIR = (*HAND_SET, "linear 0.6", "linear 0.8", *(f"tenth {share:g}" for share in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)))

SEEDS = Seeds(choice=(0, 1), test=(10, 11, 12, 13, 14))


@dataclass(frozen=True)
class Setting:
    """A cell whose hand-set warm-ups have been run: some seeds choose the best of them, others test the choice."""

    cell: Cell
    hand_set: Sequence[str]
    seeds: Seeds

    def default_is_run(self, rows: Rows, seeds: Sequence[int]) -> bool:
        """Whether the default has been run on these seeds."""
        return {*seeds} <= rows.runs("cells", self.cell, DEFAULT).keys()

    def losses(self, rows: Rows) -> dict[str, Losses]:
        """The losses of the hand-set warm-ups on the seeds that choose."""
        return {name: rows.losses("cells", self.cell, name, self.seeds.choice) for name in self.hand_set}

    def best(self, rows: Rows) -> str:
        """The best hand-set warm-up on the seeds that choose."""
        return choose(self.losses(rows), self.seeds.choice)

    def target(self, rows: Rows) -> float:
        """Algorithm 1's f*, a little below the best mean loss: better than users can know. Infinite if all diverged."""
        return 0.95 * min(mean_loss(losses, self.seeds.choice) for losses in self.losses(rows).values())


# For each task and number of steps: the multiples of the tuned rate at which each optimizer is run. Horizons of 1000
# and 4000 steps are left out if a run takes more than half a minute.
_PLAN: dict[tuple[str, int], dict[str, tuple[float, ...]]] = {
    ("lm-small", 200): dict.fromkeys(OPTIMIZERS, (1,)),
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
    ("mlp", 200): dict.fromkeys(OPTIMIZERS, (1,)),
    ("mlp", 1000): {"muon": (3,), "adamw": (1 / 3, 3)},
    ("mlp", 4000): {"muon": (1,), "normsgd": (1,), "adamw": (1,)},
    ("factor", 200): {"lion": (1,), "normsgd": (3,)},
    ("factor", 1000): {"muon": (1, 3), "lion": (1,), "signsgd": (1,), "normsgd": (1, 3), "adamw": (1, 3)},
    ("factor", 4000): {"muon": (1 / 3,), "adamw": (1 / 3,)},
    ("llama", 200): dict.fromkeys(OPTIMIZERS, (1,)),
    ("llama", 1000): {"muon": (1,), "lion": (1,), "adamw": (1,)},
    ("llama-x8", 200): dict.fromkeys(OPTIMIZERS, (1,)),
    ("swin", 200): dict.fromkeys(OPTIMIZERS, (1,)),
    ("swin", 1000): {"muon": (1,), "adamw": (1,)},
    ("swin-x8", 200): {"muon": (1,), "adamw": (1,)},
}  # fmt: skip

# The rates tried in the tuning, under a warm-up of 10 %.
_GRID = {
    "muon": (0.001, 0.003, 0.01, 0.03, 0.1),
    "lion": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03),
    "signsgd": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03),
    "normsgd": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "adamw": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
}
# Tuned with fewer steps because the runs are expensive: the best rate moves little and the grid is coarse.
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

# The settings with short runs, in which we replace AdamW at its tuned rate by Schedule-Free AdamW, RAdam and Prodigy.
_INSTEAD_OF_ADAMW = (
    ("lm-small", 200), ("lm-small", 1000), ("lm-middle", 200), ("mlp", 200), ("mlp", 4000), ("factor", 1000),
    ("llama", 200), ("llama", 1000), ("llama-x8", 200), ("swin", 200),
)  # fmt: skip
_TUNED_PEERS = ("schedule-free", "radam")
PEER_TUNING = [
    Cell(task, peer, steps, lr) for peer in _TUNED_PEERS for task, steps in _INSTEAD_OF_ADAMW for lr in _GRID["adamw"]
]


def title(schedule: str) -> str:
    """The title of a schedule on a page; that of a hand-set warm-up is its length in percent of the run."""
    match schedule.split():
        case ["linear" | "tenth" as start, share]:
            length = f"{100 * float(share):g}%" if float(share) else "none"
            return length if start == "linear" else f"{length} from lr/10"
        case _:
            return "Algorithm 1" if schedule == PAPER else schedule


def tuned_rates(rows: Rows, grid: Iterable[Cell], schedule: str) -> Mapping[tuple[str, str, int], float]:
    """The best rate for each (task, optimizer, steps); of two equally good rates, the lower one.

    Raises:
        LabError: a run of the grid has not been made.
    """
    best: dict[tuple[str, str, int], tuple[float, float]] = {}
    for cell in grid:
        loss = rows.losses("tuning", cell, schedule, [TUNING_SEED])[TUNING_SEED]
        key = cell.task, cell.optimizer, cell.steps
        best[key] = min(best.get(key, (math.inf, math.inf)), (loss, cell.lr))
    return {key: lr for key, (_, lr) in best.items()}


def cells(rows: Rows) -> list[Cell]:
    """All cells, with rates that are multiples of the tuned ones."""
    rates = tuned_rates(rows, TUNING, TUNING_SCHEDULE)
    found = []
    for (task, steps), plan in _PLAN.items():
        for optimizer, factors in plan.items():
            tuned = rates[task, optimizer, _TUNED_AT.get((task, steps), steps)]
            found += [Cell(task, optimizer, steps, float(f"{factor * tuned:.3g}")) for factor in factors]
    return found


def settings(rows: Rows) -> list[Setting]:
    """The cells with what they are judged by."""
    return [Setting(cell, FAIR, SEEDS) for cell in cells(rows)]


def scheduled_cells(rows: Rows) -> list[Cell]:
    """The cells with short runs, in which we run WSD and GreedyLR."""
    return [
        cell for cell in cells(rows)
        if (cell.steps == 200 and cell.task in ("lm-small", "llama", "llama-x8", "vit", "swin", "mlp", "factor"))
        or (cell.steps == 1000 and cell.task in ("mlp", "factor", "llama"))
    ]  # fmt: skip


def peer_cells(rows: Rows) -> list[tuple[Cell, Cell]]:
    """Pairs of cells: a peer at its best rate, or Prodigy, which needs none, and AdamW at its tuned rate."""
    ours, theirs = tuned_rates(rows, TUNING, TUNING_SCHEDULE), tuned_rates(rows, PEER_TUNING, "own")
    return [
        (Cell(task, optimizer, steps, lr), Cell(task, "adamw", steps, ours[task, "adamw", steps]))
        for task, steps in _INSTEAD_OF_ADAMW
        for optimizer, lr in (*((peer, theirs[task, peer, steps]) for peer in _TUNED_PEERS), ("prodigy", 1.0))
    ]
