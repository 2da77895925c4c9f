"""A scheduler to try, and a training loop around it."""

import io
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion

PEAK = 0.01


def make_optimizer(lr: float | torch.Tensor = PEAK) -> Lion:
    """Its updates change nothing, for there is no gradient; they count all the same."""
    return Lion([nn.Parameter(torch.zeros(4, 4))], lr=lr)


def rate(tensor: bool, lr: float = PEAK) -> float | torch.Tensor:
    """A tensor is in double precision, so that its rates are those of a number."""
    return torch.tensor(lr, dtype=torch.float64) if tensor else lr


def group(tensor: bool = False, lr: float = PEAK, **options: Any) -> dict[str, Any]:
    p = nn.Parameter(torch.zeros(4, 4))
    p.grad = torch.ones(4, 4)
    return {"params": [p], "lr": rate(tensor, lr), **options}


every_lr = pytest.mark.parametrize("tensor", [False, True], ids=["float lr", "tensor lr"])


def made(tensor: bool = False, total_steps: int | None = 100, **options: Any) -> AdaptiveWarmup:
    return AdaptiveWarmup(make_optimizer(rate(tensor)), total_steps, **options)


def falling(start: float = 10.0, end: float = 1.0, pace: float = 30.0) -> Callable[[int], float]:
    return lambda t: end + (start - end) * math.exp(-t / pace)


def run(
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    losses: Callable[[int], float | None],
    steps: Iterable[int],
    order: str = "after",
    gradient: Callable[[torch.Tensor, int], torch.Tensor] | None = None,
) -> list[float]:
    """Train; returns the rate of every update."""
    opt, rates = scheduler.optimizer, []
    for t in steps:
        if gradient is not None:
            for p in (p for group in opt.param_groups for p in group["params"] if p.requires_grad):
                p.grad = gradient(p, t)
        loss = losses(t)
        told = () if loss is None else (torch.tensor(loss, dtype=torch.float64),)
        if order == "before":
            scheduler.step(*told)
        rates.append(float(opt.param_groups[0]["lr"]))
        opt.step()
        if order == "after":
            scheduler.step(*told)
    return rates


def saved(thing: Any) -> dict:
    """Its state, as another process loads it."""
    buffer = io.BytesIO()
    torch.save(thing.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)
