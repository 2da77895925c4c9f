"""Takes a rank without further inputs through the steps of the others, within `torch.distributed.algorithms.Join`."""

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

if TYPE_CHECKING:
    from ..scheduler import PhaseScheduler

__all__ = ["Joined"]


class Joined(JoinHook):
    """What a scheduler's rank does once it has no more inputs: it goes on with the losses of the others."""

    def __init__(self, scheduler: "PhaseScheduler") -> None:
        self._scheduler = scheduler

    def main_hook(self) -> None:
        ranks = self._scheduler._ranks
        ranks.joined = True
        try:
            self._scheduler.step()
        finally:
            ranks.joined = False

    def post_hook(self, is_last_joiner: bool) -> None:
        # In the order of Algorithm 1 the last update is still to be counted, by every rank.
        made = torch.tensor(self._scheduler._clock.made, device=self._scheduler.join_device)
        dist.all_reduce(made, op=dist.ReduceOp.MAX, group=self._scheduler.join_process_group)
        self._scheduler._clock.made = int(made)
