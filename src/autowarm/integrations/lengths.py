"""Warnings of a trainer's run that is shorter or longer than the schedule's."""

import math
import warnings

from ..schedule import AdaptiveWarmup
from ..schedule.shapes import is_flat


def warn_at_start(scheduler: AdaptiveWarmup, left: float, why: str = "") -> None:
    """Warn if a trainer has more or fewer updates left than its schedule. Infinity: nobody knows how many."""
    total, updates = scheduler.total_steps, scheduler.last_epoch
    if total is None or math.isinf(left) or _alike(int(left), total - updates, total):
        return
    planned = total - updates
    happens = (
        "it will stop before the rate has decayed"
        if left < planned
        else f"its last {int(left) - planned} updates will be made at the rate where the schedule ends"
    )
    warnings.warn(
        f"the trainer will make {int(left)} more updates, but {planned} are left of the schedule's "
        f"total_steps={total}, so {happens}{why}. Make the schedule as long as the run, or call its "
        f"extend({updates + int(left)}) before training",
        stacklevel=3,
    )


def warn_at_end(scheduler: AdaptiveWarmup) -> None:
    """Warn if a trainer's run has ended before its schedule, or after it."""
    total, updates = scheduler.total_steps, scheduler.last_epoch
    if total is None or _alike(updates, total, total):
        return
    # Once it has warmed up, a flat schedule may end at any time.
    if updates < total and scheduler.phase == "decay" and is_flat(scheduler._plan.decay):
        return
    share = f"{scheduler.metrics()['share']:.0%}".replace("%", " %")
    over = f", the last {updates - total} of them at this rate" if updates > total else ""
    warnings.warn(
        f"the run ended at {share} of the peak rate after {updates} of total_steps={total} updates{over}. To train "
        "on, call the schedule's extend(total_steps); to stop early, call its decay_now(steps) first",
        stacklevel=3,
    )


def _alike(one: int, other: int, total: int) -> bool:
    # Some loops make one update more than planned, and a GradScaler skips a few.
    return abs(one - other) <= max(1, total // 100)
