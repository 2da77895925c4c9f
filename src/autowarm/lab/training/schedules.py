"""Learning-rate schedules from their configs: ours, the hand-set one, and those of other packages."""

from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from autowarm import AdaptiveWarmup
from autowarm.schedule import Calibration
from autowarm.schedule.shapes import DECAYS, WARMUPS

from ..config import ScheduleConfig, UsageError
from ..errors import as_usage_error
from ..registry import SCHEDULES

# Raises from lr/div to lr take log(div)/log(1/factor) ≈ 90 steps of GreedyLR, each after a row of better losses; with
# this share of the run as the row, the way up takes about a tenth of the run, if the loss falls all the while.
_GREEDY_ROWS = 800
_WSD_WARMUP, _WSD_DECAY = 0.1, 0.2  # shares of the run


def wsd_tenth(p: float) -> float:
    """WSD as in the paper's ablation: flat, then linear to 0 over the last tenth of the decay."""
    return min(1.0, 10.0 * (1.0 - p))


_DECAYS = {**DECAYS, "wsd-tenth": wsd_tenth}


def hand_set(
    step: int, warmup_steps: int, total_steps: int, div: float | None = None, warmup: str = "linear",
    decay: str = "cosine",
) -> float:  # fmt: skip
    """The hand-set baseline as a share of the peak rate, for the update with index ``step`` from 0.

    The first update has the share 1/div, or 1/(warmup_steps + 1) for None, which starts from 0 in equal steps.

    Example:
        >>> [round(hand_set(step, 3, 10), 2) for step in range(5)]
        [0.25, 0.5, 0.75, 1.0, 0.95]
    """
    rising = step < warmup_steps
    p = step / warmup_steps - 1 if rising else min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    first = 1 / (warmup_steps + 1 if div is None else div)
    return float(first + (1 - first) * WARMUPS[warmup](-p) if rising else _DECAYS[decay](p))


def make_scheduler(optimizer: Optimizer, config: ScheduleConfig, steps: int, model: nn.Module | None = None) -> Any:
    """The configured schedule over ``steps`` updates; UsageError if it objects to its settings.

    Where it recovers, it restores the model's buffers, too.
    """
    if recovers(config):
        config = replace(config, options={**config.options, "recover": model or True})
    with as_usage_error("schedule: "):
        return resolve_name(SCHEDULES[config.kind].place)(optimizer, config, steps)


def lower(scheduler: Any, optimizer: Optimizer, peaks: list[Any]) -> None:
    """Go on with these peak rates, which are no higher than those so far; UsageError for a schedule that has none."""
    if not isinstance(scheduler, LRScheduler):
        raise UsageError(f"schedule: {type(scheduler).__name__} cannot go on at another rate, so from no other run")
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        group["lr"] *= peak / group["initial_lr"]
        group["initial_lr"] = peak
    scheduler.base_lrs = peaks


def recovers(config: ScheduleConfig) -> bool:
    """Whether the schedule goes back to a healthy run after a broken update."""
    return SCHEDULES[config.kind].ours and config.options.get("recover") is True


def warmup_length(config: ScheduleConfig, scheduler: Any, updates: int) -> int:
    """How many of so many updates were made in warm-up; all of them where an adaptive run never left it."""
    if not SCHEDULES[config.kind].ours:
        return config.warmup_steps or 0
    return int(scheduler.warmup_steps) if scheduler.phase == "decay" else updates


# What the registry names. Each makes a schedule of so many updates; all share this signature.


def adaptive(
    optimizer: Optimizer, config: ScheduleConfig, steps: int, make: Any = AdaptiveWarmup, **more: Any
) -> AdaptiveWarmup:
    scheduler: AdaptiveWarmup = make(
        optimizer, total_steps=steps, target_loss=config.target_loss, peak_gap=config.peak_gap, warmup=config.warmup,
        decay=_DECAYS[config.decay], **config.options, **({} if config.div is None else {"div": config.div}), **more,
    )  # fmt: skip
    return scheduler


def paper(optimizer: Optimizer, config: ScheduleConfig, steps: int) -> AdaptiveWarmup:
    calibration = Calibration(sigma_f2=config.sigma_f2) if config.peak_gap is None else None
    return adaptive(optimizer, config, steps, AdaptiveWarmup.paper, calibration=calibration)


def linear(optimizer: Optimizer, config: ScheduleConfig, steps: int) -> LRScheduler:
    shape = config.warmup_steps or 0, steps, config.div, config.warmup, config.decay
    return LambdaLR(optimizer, lambda step: hand_set(step, *shape))


def untuned(optimizer: Optimizer, config: ScheduleConfig, steps: int) -> LRScheduler:
    """Untuned linear warm-up (Ma & Yarats 2021), which scales down a cosine from the first update.

    It is as long as Adam's second moments take to settle, 2/(1 − β2) updates. Lion's second β is of its momentum.
    """
    match optimizer.defaults:
        case {"betas": (_, beta2), "eps": _} if beta2 < 1:
            length = 2 / (1 - beta2)
            return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / length) * hand_set(step, 0, steps))
    name = type(optimizer).__name__
    raise ValueError(f"untuned warms up for 2/(1 − β2) updates of Adam's second moments; {name} keeps none")


def constant(optimizer: Optimizer, config: ScheduleConfig, steps: int) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: 1.0)


def greedy(optimizer: Optimizer, config: ScheduleConfig, steps: int) -> Any:
    """Transformers' GreedyLR, from lr/div up to lr; it is stepped with the loss."""
    from transformers.optimization import GreedyLR

    peaks = [float(group["lr"]) for group in optimizer.param_groups]
    lows = [lr / (config.div or 100.0) for lr in peaks]
    for group, low in zip(optimizer.param_groups, lows, strict=True):
        group["lr"] = low
    return GreedyLR(optimizer, patience=steps // _GREEDY_ROWS, min_lr=lows, max_lr=peaks, smooth=True)


def wsd(optimizer: Optimizer, config: ScheduleConfig, steps: int) -> LRScheduler:
    """Transformers' warmup-stable-decay."""
    from transformers import get_wsd_schedule

    warmup, decay = max(1, int(_WSD_WARMUP * steps)), round(_WSD_DECAY * steps)
    return get_wsd_schedule(optimizer, warmup, decay, num_training_steps=steps, decay_type="1-sqrt")
