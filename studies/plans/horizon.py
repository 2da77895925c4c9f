"""The horizon study: a small LLaMA from 1,000 to 64,000 steps, with settings chosen before its first run.

In a run of a few hundred steps, a warm-up has no time to follow the loss; the paper's own runs take 8,000 to 128,000.
For each horizon the study asks which hand-set length is best (from zero to 80 % of the run and from two starts), at
which horizon Algorithm 1 stops stalling, and what ends the default's warm-up.

There are two tasks. The tokens of "llama-long" come from a vocabulary of 512, and more than half of the first loss is
left at the end: a model this small cannot get further. In the paper's runs 30 % is left. "llama-bytes" is the same
network on bytes, and a third of the first loss is left after 4,000 steps, almost as in a large model. It was added
after the shorter horizons of "llama-long", where the clock ends every warm-up, and it alone goes on to 16,000 and
64,000 steps.

A run of 16,000 steps takes one to two minutes, and one of 64,000 steps takes three to eight. At these horizons we try
only the best rate of the previous horizon and its neighbours, and one seed chooses. At 64,000 steps the grid of
warm-ups is coarser. Three seeds test at every horizon, because one says nothing about chance.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..rows import Rows
from ..statistics import Seeds
from .grid import Grid, hand_set_grid
from .warm_up import Stage

TASKS = ("llama-long", "llama-bytes")
RATES = {
    "muon": (0.001, 0.003, 0.01, 0.03, 0.1),
    "lion": (0.0001, 0.0003, 0.001, 0.003, 0.01),
    "signsgd": (0.0003, 0.001, 0.003, 0.01, 0.03),  # in `transfer` alone
    "normsgd": (0.003, 0.01, 0.03, 0.1, 0.3),
    "adamw": (0.0003, 0.001, 0.003, 0.01, 0.03),
}


def _rates_beside_the_best_of(shorter: Grid) -> Callable[[Rows, str, str], Sequence[float]]:
    """The rate that is best at the longest horizon of a grid, and its neighbours."""

    def rates(rows: Rows, task: str, optimizer: str) -> Sequence[float]:
        [longest] = replace(shorter, tasks=(task,), horizons=shorter.horizons[-1:], optimizers=(optimizer,)).cells(rows)
        place = RATES[optimizer].index(longest.lr)
        return RATES[optimizer][max(0, place - 1) : place + 2]

    return rates


SHORT = Grid(
    TASKS, (1_000, 4_000), ("muon", "lion", "normsgd", "adamw"), lambda rows, task, optimizer: RATES[optimizer],
    hand_set_grid(0.02, 0.1, 0.2, 0.4, 0.8), Seeds((0, 1), (10, 11, 12)),
)  # fmt: skip
LONG = replace(
    SHORT, tasks=TASKS[1:], horizons=(16_000,), rates=_rates_beside_the_best_of(SHORT), seeds=Seeds((0,), (10, 11, 12))
)
LONGEST = replace(
    LONG, horizons=(64_000,), rates=_rates_beside_the_best_of(LONG), hand_set=hand_set_grid(0.02, 0.1, 0.4, 0.8)
)

GRIDS = (SHORT, LONG, LONGEST)
_ALL = ("tuning", "hand", "paper", "tested", "default")
STAGES: dict[str, Stage] = (
    SHORT.stages(*_ALL) | LONG.stages(*_ALL, prefix="long-") | LONGEST.stages(*_ALL, prefix="longest-")
)
"""About twenty CPU-hours in all, of which the horizon of 64,000 steps takes almost half."""
