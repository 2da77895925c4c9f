"""A warning of a trainer's run that is shorter or longer than the schedule's."""

import math
import warnings

from ..schedule import AdaptiveWarmup


def warn_at_start(scheduler: AdaptiveWarmup, left: float) -> None:
    """Warn if a trainer has more or fewer updates left than its schedule. Infinity: nobody knows how many."""
    total, updates = scheduler.total_steps, scheduler.last_epoch
    # Some loops make one update more than planned, and a GradScaler skips a few.
    if total is None or math.isinf(left) or abs(left - (total - updates)) <= max(1, total // 100):
        return
    planned = total - updates
    happens = (
        "it will stop before the rate has decayed"
        if left < planned
        else f"its last {int(left) - planned} updates will be made at the rate where the schedule ends"
    )
    warnings.warn(
        f"the trainer will make {int(left)} more updates, but {planned} are left of the schedule's "
        f"total_steps={total}, so {happens}. Make the schedule as long as the run, or call its "
        f"extend({updates + int(left)}) before training. If the run resumed, was the schedule saved with the model?",
        stacklevel=3,
    )
