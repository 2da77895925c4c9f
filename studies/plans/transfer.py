"""Two more studies: fine-tuning, and tasks that no rule was developed on. Planned before their first runs.

"fine-tuning" continues from a trained LLaMA, on text near to or far from the old one, with all weights or with LoRA.
The best warm-ups are short there, so a warm-up over half of the run is costly. "fresh" has six tasks unlike all others.

The stage "limits" of fine-tuning asked whether the tenth of the run that the default allowed trained weights
("limit 0.1") is too long, as it seemed under Lion. A loss that hardly falls leaves the ramp from lr/10 alone, so
"tenth 0.03" is the default with a limit of 3 %. Judged, by a rule written before its first run, on three seeds of the
test: the limit with the lowest mean cost over the 36 settings, in percent of the loss, wins if its worst setting is not
worse than a tenth's. Of a tenth, 5 % and 3 %, the last won, and is the default's limit.
"""

from collections.abc import Sequence

from ..cells import DEFAULT, OPTIMIZERS
from ..rows import PlannedRow, Rows
from ..statistics import Seeds
from .grid import Grid, hand_set_grid
from .horizon import RATES
from .warm_up import Stage

_SEEDS = Seeds((0, 1), (10, 11, 12, 13, 14))


def rates(rows: Rows, task: str, optimizer: str) -> Sequence[float]:
    """The rates to try: trained weights need lower rates than new ones, such as LoRA's."""
    tuned = task.startswith("tune-") and not task.endswith("-lora")
    return [lr / 10 for lr in RATES[optimizer]] if tuned else RATES[optimizer]


FINE_TUNING = Grid(
    ("tune-near", "tune-far", "tune-near-lora", "tune-far-lora"), (100, 300, 1000), ("adamw", "muon", "lion"), rates,
    hand_set_grid(0.03, 0.1, 0.5), Seeds(_SEEDS.choice, _SEEDS.test[:3]),
)  # fmt: skip
FRESH = Grid(
    ("unsmoothed", "cnn", "autoencoder", "regression", "copier", "policy"), (200, 1000), OPTIMIZERS, rates,
    hand_set_grid(0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8), _SEEDS,
)  # fmt: skip

SHORTER, EARLIER = ("tenth 0.03", "tenth 0.05"), "limit 0.1"


def with_default(rows: Rows) -> Rows:
    """The rows of fine-tuning, with those of 3 % as the default's, which has the same rates if losses hardly fall."""
    return Rows([*rows, *({**row, "schedule": DEFAULT} for row in rows if row["schedule"] == SHORTER[0])])


def _limits(rows: Rows) -> list[PlannedRow]:
    """Longest warm-ups of trained weights, seed by seed, so that a part of the runs is a complete design."""
    return [
        PlannedRow("cells", cell, name, seed)
        for seed in FINE_TUNING.seeds.test
        for cell in FINE_TUNING.cells(rows)
        for name in (*SHORTER, EARLIER)
    ]


FINE_TUNING_STAGES: dict[str, Stage] = FINE_TUNING.stages("tuning", "hand", "tested") | {"limits": _limits}
FRESH_STAGES: dict[str, Stage] = FRESH.stages("tuning", "hand", "tested", "default")
