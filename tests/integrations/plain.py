"""Plain loops, to whose rates and weights those of the trainers are held."""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from autowarm import AdaptiveWarmup

__all__ = ["rates_of", "train"]
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
