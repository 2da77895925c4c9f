"""Replays a log: the runs that `read` finds, or arrays, through both readings."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from .drive import as_recorded, closed_loop
from .log import Log, LogError, make_log
from .read import read
from .result import Replay


def replay(
    log: str | os.PathLike[str] | Log | tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike],
    *,
    total_steps: int | None = None,
    run: str | None = None,
    loss: str | None = None,
    step: str | None = None,
    lr: str | None = None,
    first_loss: float | None = None,
    schedule: Callable[..., Any] | None = None,
    whole: bool = True,
    **options: Any,
) -> Replay:
    """Show where `AdaptiveWarmup` would have ended a past run's warm-up, beside the warm-up that was used.

    The losses go to the real scheduler in two readings:

    - *as recorded*: each logged loss at its own update;
    - *closed loop*: the recorded run gives the loss as a function L(S) of the summed rate S = Σ lr, which we read at
      each update at the S that our schedule has reached. This assumes that the loss depends on how far the rates have
      taken the weights, and not on how fast: to first order this holds, but it cannot show that a rate is too high, and
      it says less the further our rates are from those that were used.

    If the log has a loss only every few updates, the others are interpolated, with noise of the curve's own size.

    Args:
        log: a file or folder that `read` understands, one of its `Log` objects, or arrays (steps, losses) or (steps,
            losses, rates).
        total_steps: T, if the run was planned to be longer than its log; None takes it from the file, or the last step.
        run: the name of the run, or a part of it, if the file holds several.
        loss, step, lr: the names of columns; None finds them by the usual names.
        first_loss: the loss at update 1, for a log that begins later, such as ln(vocabulary) for a language model.
        schedule: makes the scheduler from an optimizer, total_steps and the options; None is `AdaptiveWarmup`.
        whole: whether to go on after the warm-up, to have the rates of the whole run; False takes less time.
        options: further arguments of the scheduler, such as ``max_warmup``, or ``trained=True`` for fine-tuning, which
            a log does not show.

    Raises:
        LogError: the log cannot be read, or has no run or several of that name; it is a `ValueError`.
        ValueError: an option is out of range, or one that only a file needs comes with a `Log` or arrays.

    Example:
        >>> import numpy as np
        >>> import autowarm
        >>> steps = np.arange(1, 1001)
        >>> losses = 2 + 8 * np.exp(-steps / 100)
        >>> rates = 1e-3 * np.minimum(1, steps / 200)  # a hand-set warm-up of 200 updates
        >>> found = autowarm.replay((steps, losses, rates))
        >>> found.used_warmup, found.reading.ended_by_loss
        (200, True)
        >>> found.recorded.warmup_steps < found.closed_loop.warmup_steps < 400
        True
    """
    of_file = {"run": run, "loss": loss, "step": step, "lr": lr}
    if isinstance(log, Log):
        _refuse(of_file | {"total_steps": total_steps, "first_loss": first_loss}, "a Log: pass its file instead")
        chosen = log
    elif isinstance(log, tuple):
        _refuse(of_file, "arrays: pass the steps, losses and rates that you mean")
        steps, losses, rates = (*log, None)[:3]
        chosen = make_log("log", steps, losses, None if rates is None else steps, rates, total_steps=total_steps,
                          first_loss=first_loss)  # fmt: skip
    else:
        found = read(log, loss=loss, step=step, lr=lr, total_steps=total_steps, first_loss=first_loss)
        chosen = _chosen(found, run, log)
    if schedule is None:
        from ..schedule import AdaptiveWarmup

        schedule = AdaptiveWarmup
    make = partial(schedule, **options)
    looped = None if chosen.rates is None else closed_loop(chosen, make, whole=whole)
    return Replay(chosen, as_recorded(chosen, make, whole=whole), looped)


def _refuse(options: dict[str, Any], why: str) -> None:
    given = [f"{name}=" for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{', '.join(given)} cannot be used with {why}")


def _chosen(logs: list[Log], run: str | None, place: Any) -> Log:
    matching = [log for log in logs if log.name == run] or [log for log in logs if run is None or run in log.name]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(repr(log.name) for log in logs[:10]) + (", …" if len(logs) > 10 else "")
    found = "several runs" if run is None else f"{len(matching) or 'no'} runs with {run!r} in their names"
    raise LogError(f"{place}: {found}; name one with run= (--run), or pass one of autowarm.logs.read's: {names}")
