"""Six unseen tasks, written down before their first run, for a rule that had seen the five of `transfer.FRESH`.

Six tasks (`studies.tasks.unseen`) under five optimizers, 1,000 updates each. The peak rate is the best of five under a
hand-set warm-up of 10 % on the tuning seed, which favours 10 %. Then the default and four hand-set ones run on three
seeds that took no part in the tuning. About eight CPU-hours at most.

Judged by the rule of `regret`: a warm-up's loss less that of the best hand-set one, as a share of the progress, in the
mean over the three seeds. The default holds what it promises if, over the 30 settings, its mean is at most 0.25 % above
that of 10 % and its worst setting is below that of 10 %. Whatever comes out goes on the page.
"""

from dataclasses import dataclass

from ..cells import DEFAULT, OPTIMIZERS
from ..rows import PlannedRow, Rows
from ..statistics import Seeds
from .grid import Grid
from .transfer import rates
from .warm_up import Stage

TASKS = ("recurrent", "graph", "flow", "contrastive", "series", "bytes-192")


@dataclass(frozen=True)
class Unseen(Grid):
    """The grid of the new tasks; a setting's runs are planned together, so that a part of them is complete settings."""

    def runs(self, rows: Rows) -> list[PlannedRow]:
        """The default and the hand-set warm-ups on the seeds that judge."""
        return self._planned(self.cells(rows), [DEFAULT, *self.hand_set], self.seeds.choice)


UNSEEN = Unseen(
    TASKS, (1_000,), OPTIMIZERS, rates, ("linear 0", "linear 0.02", "linear 0.1", "linear 0.4"),
    Seeds((20, 21, 22), (30, 31, 32)),
)  # fmt: skip
STAGES: dict[str, Stage] = UNSEEN.stages("tuning", "runs")
