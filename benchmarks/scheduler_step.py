"""What a scheduler's step costs on the host, like against like: a float rate, then a tensor rate.

    python benchmarks/scheduler_step.py

Interleaved in rounds within one process; medians over the rounds.
"""

import statistics
import time
import warnings

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from autowarm import AdaptiveWarmup, Lion

STEPS, ROUNDS = 400, 15


def optimizer(lr: float | torch.Tensor) -> Lion:
    w = nn.Parameter(torch.zeros(2, 2))
    w.grad = torch.ones(2, 2)
    return Lion([w], lr=lr)


def microseconds(scheduler: LRScheduler, loss: torch.Tensor | None) -> float:
    """Of one step; the optimizer's own is not counted, though its hook, by which ours counts updates, is."""
    clock, opt = getattr(scheduler, "_clock", None), scheduler.optimizer
    opt._opt_called = True  # spares PyTorch's schedulers their warning
    started = time.perf_counter()
    for _ in range(STEPS):
        if clock is None:
            scheduler.step()
        else:
            clock._made[0] = 1
            scheduler.step(loss)
    return (time.perf_counter() - started) / STEPS * 1e6


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for kind in ("float", "tensor"):
        times: dict[str, list[float]] = {"CosineAnnealingLR": [], "warm-up": [], "decay": []}
        for _ in range(ROUNDS):
            lr = (lambda: 0.01) if kind == "float" else (lambda: torch.tensor(0.01))
            times["CosineAnnealingLR"].append(microseconds(CosineAnnealingLR(optimizer(lr()), STEPS), None))
            warming = AdaptiveWarmup(optimizer(lr()), 10 * STEPS)
            loss = torch.tensor(5.0)
            microseconds(warming, loss)
            times["warm-up"].append(microseconds(warming, loss))
            decaying = AdaptiveWarmup(optimizer(lr()), 10 * STEPS, max_warmup=1e-9)
            microseconds(decaying, loss)
            times["decay"].append(microseconds(decaying, loss))
        base = statistics.median(times["CosineAnnealingLR"])
        for name, values in times.items():
            middle = statistics.median(values)
            print(f"{kind:6s} lr  {name:18s} {middle:6.1f} µs  {middle / base:4.2f}×")


if __name__ == "__main__":
    main()
