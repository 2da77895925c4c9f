"""How much of a long warm-up is the lag of the average, and whether a shorter average is as good. Planned beforehand.

The default averages the loss over 5 % of the run, so that one lucky batch decides nothing; over 16,000 updates that is
800, over 64,000 it is 3,200, and more than half of the warm-up is their lag. "average 250" is the default with an
average over 250 updates, as in a run of 5,000. In the realistic bed (`realistic`), Muon and AdamW run 16,000 updates at
the rates tuned for the default and at three times those, on two seeds, and 64,000 at the tuned rates on one; about two
CPU-hours.

Judged by a rule written before the first run: the cost of an average is its loss less the default's on the same seed,
as a share of the default's progress. The shortest average whose mean cost over the six settings is at most 0.1 %, and
which costs no setting more than 0.5 %, becomes the bound of the default's average; if none is, 5 % stays.
"""

from ..cells import DEFAULT
from ..rows import Cell, PlannedRow
from .realistic import PART, TASK
from .warm_up import Stage

TUNED = {"muon": 0.003, "adamw": 0.01}
"""The rates that the realistic bed tuned for the default, over 16,000 updates as over 64,000."""
SEEDS = (50, 51)
AVERAGES = (250, 500, 1_000)  # updates; over 16,000 the last is longer than the default's


def runs(steps: int) -> list[PlannedRow]:
    """All runs of a length, seed by seed."""
    factors, seeds = ((1, 3), SEEDS) if steps == 16_000 else ((1,), SEEDS[:1])
    names = [DEFAULT, *(f"average {updates}" for updates in AVERAGES if updates < 0.05 * steps)]
    return [
        PlannedRow(PART, Cell(TASK, optimizer, steps, float(f"{factor * lr:.3g}")), name, seed)
        for seed in seeds
        for factor in factors
        for optimizer, lr in TUNED.items()
        for name in names
    ]


STAGES: dict[str, Stage] = {"16000": lambda _: runs(16_000), "64000": lambda _: runs(64_000)}
