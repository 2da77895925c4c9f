"""Two more studies: fine-tuning, and tasks that no rule was developed on. Planned before their first runs.

"fine-tuning" continues from a trained LLaMA, on text near to or far from the old one, with all weights or with LoRA.
The best warm-ups are short there, so a warm-up over half of the run is costly. "fresh" has six tasks unlike all others.
"""

from collections.abc import Sequence

from ..cells import OPTIMIZERS
from ..rows import Rows
from ..statistics import Seeds
from .grid import Grid, hand_set_grid
from .horizon import RATES
from .warm_up import Stage

_SEEDS = Seeds((0, 1), (10, 11, 12, 13, 14))


def _rates(rows: Rows, task: str, optimizer: str) -> Sequence[float]:
    """The rates to try: trained weights need lower rates than new ones, such as LoRA's."""
    tuned = task.startswith("tune-") and not task.endswith("-lora")
    return [lr / 10 for lr in RATES[optimizer]] if tuned else RATES[optimizer]


FINE_TUNING = Grid(
    ("tune-near", "tune-far", "tune-near-lora", "tune-far-lora"), (100, 300, 1000), ("adamw", "muon", "lion"), _rates,
    hand_set_grid(0.03, 0.1, 0.5), _SEEDS,
)  # fmt: skip
FRESH = Grid(
    ("unsmoothed", "cnn", "autoencoder", "regression", "copier", "policy"), (200, 1000), OPTIMIZERS, _rates,
    hand_set_grid(0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8), _SEEDS,
)  # fmt: skip

_ALL = ("tuning", "hand", "tested", "default")
FINE_TUNING_STAGES: dict[str, Stage] = FINE_TUNING.stages(*_ALL)
FRESH_STAGES: dict[str, Stage] = FRESH.stages(*_ALL)
