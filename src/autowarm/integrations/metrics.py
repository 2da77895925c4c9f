"""What the adapters log, the one line that they print, and the one warning."""

import math
import warnings

from ..schedule import AdaptiveWarmup

__all__ = ["EndOfWarmup", "loggable_metrics"]


def loggable_metrics(scheduler: AdaptiveWarmup) -> dict[str, float]:
    """Return `AdaptiveWarmup.metrics` in a form that every logger accepts: numbers only, named ``autowarm/…``.

    The phase is 1 in decay, and 0 in warm-up. Values that are text or not yet known are left out.

    Example:
        >>> import torch
        >>> from autowarm import AdaptiveWarmup, Lion
        >>> from autowarm.integrations.metrics import loggable_metrics
        >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=1e-2)
        >>> metrics = loggable_metrics(AdaptiveWarmup(opt, 100))
        >>> metrics["autowarm/phase"], metrics["autowarm/lr"]
        (0, 0.001)
    """
    metrics = scheduler.metrics()
    numbers = metrics | {"phase": int(metrics["phase"] == "decay")}
    return {f"autowarm/{name}": value for name, value in numbers.items() if isinstance(value, int | float)}


class EndOfWarmup:
    """Says once that a schedule's warm-up has ended, and nothing of one that ended in an earlier process."""

    def __init__(self) -> None:
        self._warming = False

    def __call__(self, scheduler: AdaptiveWarmup) -> str | None:
        """The line, at the first call after the end; to be called at every update."""
        before, self._warming = self._warming, scheduler.phase == "warmup"
        if self._warming or not before:
            return None
        state = scheduler._state
        of = "" if state.total_steps is None else f" of {state.total_steps}"
        why = {"loss": "the loss", "clock": "the time limit"}.get(str(state.ended_by), str(state.ended_by))
        share = ""
        if state.average is not None and state.gap0 is not None and state.target_loss is not None:
            first, end = state.gap0 + state.target_loss, state.target_loss + (state.peak_gap or 0.0)
            share = f": the averaged loss was at {state.average / first:.0%} of its start ({end / first:.0%} ends it)"
        return f"warm-up ended at update {state.warmup_steps}{of} by {why}{share}"


def warn_at_start(scheduler: AdaptiveWarmup, left: float) -> None:
    """Warn if a trainer has more or fewer updates left than its schedule. Infinity: nobody knows how many."""
    total, updates = scheduler.total_steps, scheduler.last_epoch
    # Some loops make one update more than planned, and a GradScaler skips a few.
    if total is None or math.isinf(left) or abs(left - (planned := total - updates)) <= max(1, total // 100):
        return
    happens = "it will stop before the rate has decayed"
    if left > planned:
        happens = f"its last {int(left) - planned} updates will be made at the rate where the schedule ends"
    warnings.warn(
        f"the trainer will make {int(left)} more updates, but {planned} are left of the schedule's "
        f"total_steps={total}, so {happens}. Make the schedule as long as the run, or call its "
        f"extend({updates + int(left)}) before training. If the run resumed, was the schedule saved with the model?",
        stacklevel=3,
    )
