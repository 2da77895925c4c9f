"""From a config to an optimizer and a schedule."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

import autowarm
from autowarm.schedule.shapes import DECAYS, WARMUPS

from .config import LabError, OptimizerConfig, ScheduleConfig
from .peers import PEERS, make_greedy, make_peer

_CLASSES = {"muon": "Muon", "lion": "Lion", "signsgd": "SignSGD", "normsgd": "NormSGD"}


def hand_set(
    step: int, warmup_steps: int, total_steps: int, div: float, warmup: str = "linear", decay: str = "cosine"
) -> float:
    """The hand-set baseline as a share of the peak rate, for the update with index `step` from 0."""
    if step < warmup_steps:
        return 1 / div + (1 - 1 / div) * float(WARMUPS[warmup](1 - step / warmup_steps))
    return float(DECAYS[decay](min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))))


def make_optimizer(model: nn.Module, config: OptimizerConfig, process_group: Any = None) -> Optimizer:
    """The configured optimizer over the model's parameters, grouped by the library.

    Args:
        model: the network.
        config: which optimizer; its option `dtype` goes by torch's name, "float64".
        process_group: ranks that hold copies of the model and share Muon's work.
    """
    options = dict(config.options)
    try:
        if config.name in PEERS:
            return make_peer(model, config)
        if "dtype" in options:
            options["dtype"] = getattr(torch, str(options["dtype"]))
        if config.name == "muon" and process_group is not None:
            options["process_group"] = process_group
        optimizer: Optimizer = getattr(autowarm, _CLASSES[config.name]).from_model(
            model, lr=config.lr, weight_decay=config.weight_decay, **options
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise LabError(
            f"optimizer: lr {config.lr}, weight_decay {config.weight_decay} and options {config.options} do not suit "
            f"{config.name}: {error}"
        ) from None
    return optimizer


def make_scheduler(optimizer: Optimizer, config: ScheduleConfig, steps: int) -> LRScheduler:
    """The configured schedule over `steps` updates."""
    if config.kind == "linear":
        warmup = config.warmup_steps or 0
        div = config.div or 100.0
        return LambdaLR(optimizer, lambda step: hand_set(step, warmup, steps, div, config.warmup, config.decay))
    if config.kind == "constant":
        return LambdaLR(optimizer, lambda step: 1.0)
    if config.kind == "greedy":
        greedy: LRScheduler = make_greedy(optimizer, config, steps)
        return greedy
    make: Callable[..., LRScheduler] = autowarm.AdaptiveWarmup
    if config.kind == "paper":
        make = autowarm.AdaptiveWarmup.paper
    with _explained():
        return make(
            optimizer, total_steps=steps, target_loss=config.target_loss, sigma_f2=config.sigma_f2,
            peak_gap=config.peak_gap, warmup=config.warmup, decay=config.decay,
            **({} if config.div is None else {"div": config.div}),
        )  # fmt: skip


def advance(scheduler: LRScheduler, loss: Tensor) -> None:
    """One scheduler step; a loss is given to the schedules that look at it."""
    if isinstance(scheduler, autowarm.AdaptiveWarmup):
        with _explained():
            scheduler.step(loss)
    elif isinstance(scheduler, LRScheduler):
        scheduler.step()
    else:
        scheduler.step(loss.item())  # GreedyLR is no LRScheduler and goes by the loss


@contextmanager
def _explained() -> Iterator[None]:
    """A schedule's objection to its settings, as something the user can put right."""
    try:
        yield
    except ValueError as error:
        raise LabError(f"schedule: {error}") from None
