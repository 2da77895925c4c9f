"""The study of horizons: one small LLaMA from 1,000 to 64,000 steps, chosen before the first of its runs.

At a few hundred steps a warm-up by the loss has no time to be one; the paper's own runs take 8,000 to 128,000. For
each horizon the study asks which hand-set length is best, from zero to 80 % of the run and from two starts, where
Algorithm 1 stops stalling, and what ends the default's warm-up. A run of 64,000 steps takes minutes, so there the rates
next to the best one at 16,000 are tried, and one seed chooses and one tests.
"""

from collections.abc import Sequence

from ..analysis.statistics import Seeds
from .grid import Grid, hand_set_grid
from .plan import Stage
from .rows import Rows

__all__ = ["HORIZONS", "LONG", "SHORT", "STAGES"]

TASK = "llama-long"
OPTIMIZERS = ("muon", "lion", "normsgd", "adamw")
HORIZONS = (1_000, 4_000, 16_000, 64_000)
RATES = {
    "muon": (0.001, 0.003, 0.01, 0.03, 0.1),
    "lion": (0.0001, 0.0003, 0.001, 0.003, 0.01),
    "normsgd": (0.003, 0.01, 0.03, 0.1, 0.3),
    "adamw": (0.0003, 0.001, 0.003, 0.01, 0.03),
}
HAND_SET = hand_set_grid(0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)


def _all_rates(rows: Rows, task: str, steps: int, optimizer: str) -> Sequence[float]:
    return RATES[optimizer]


def _rates_nearby(rows: Rows, task: str, steps: int, optimizer: str) -> Sequence[float]:
    """Those next to the best one at the horizon before, and that."""
    best = next(c.lr for c in SHORT.cells(rows) if (c.optimizer, c.steps) == (optimizer, HORIZONS[-2]))
    place = RATES[optimizer].index(best)
    return RATES[optimizer][max(0, place - 1) : place + 2]


SHORT = Grid((TASK,), HORIZONS[:-1], OPTIMIZERS, _all_rates, HAND_SET, Seeds((0, 1), (10, 11, 12)))
LONG = Grid((TASK,), HORIZONS[-1:], OPTIMIZERS, _rates_nearby, HAND_SET, Seeds((0,), (10,)))

_ALL = ("tuning", "hand", "paper", "tested", "default")
STAGES: dict[str, Stage] = SHORT.stages(*_ALL) | LONG.stages(*_ALL, prefix="long-")
"""About ten CPU-hours in all, of which the horizon of 64,000 steps takes more than half."""
