"""Plain loops, to whose rates and weights those of the trainers are held, and one with Accelerate."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from autowarm import AdaptiveWarmup

__all__ = ["accelerated", "rates_of", "train"]
STEPS = 12


def rates_of(sched: AdaptiveWarmup, updates: Iterable[Sequence[tuple[float, float]]]) -> list[float]:
    """The rate of each update, in which the schedule observes these losses with these weights."""
    rates = []
    for observed in updates:
        rates.append(sched.get_last_lr()[0])
        for loss, weight in observed:
            sched.observe(loss, weight=weight)
        sched.optimizer.step()
        sched.step()
    return rates


def train(
    model: nn.Module, opt: Optimizer, micro_loss: Callable[[nn.Module, int], Tensor], micro_batches: int,
    weight: Callable[[int], float] = lambda i: 1,
) -> list[float]:  # fmt: skip
    """The rates of twelve updates, the last of them in the decay; micro-batches are told by their number."""
    sched, rates = AdaptiveWarmup(opt, STEPS), []
    for t in range(STEPS):
        rates.append(sched.get_last_lr()[0])
        for i in range(micro_batches * t, micro_batches * (t + 1)):
            loss = micro_loss(model, i)
            (loss / micro_batches).backward()
            sched.observe(loss, weight=weight(i))
        opt.step()
        sched.step()
        opt.zero_grad()
    assert sched.phase == "decay"
    return rates


def accelerated(
    accelerator: Any, model: nn.Module, opt: Any, sched: Any, micro_loss: Callable[[nn.Module, int], Tensor],
    micro_batches: Iterable[int], weight: Callable[[int], float] = lambda i: 1,
) -> list[float]:  # fmt: skip
    """The rate after each update, where ``sched`` is a `WarmupScheduler`."""
    rates = []
    for i in micro_batches:
        with accelerator.accumulate(model):
            loss = micro_loss(model, i)
            accelerator.backward(loss)
            opt.step()
            sched.step(loss, weight=weight(i))
            opt.zero_grad()
        if accelerator.sync_gradients:
            rates.append(sched.get_last_lr()[0])
    return rates
