"""One run of the bed: a cell, a schedule, a seed → a row of numbers."""

import math
import re
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from tasks import TASKS
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD, SignSGD
from autowarm.lab.config import ScheduleConfig
from autowarm.lab.training.optimizers import hand_set
from autowarm.lab.training.peers import evaluating, make_greedy

__all__ = ["OPTIMIZERS", "Cell", "run"]


@dataclass(frozen=True, order=True)
class Cell:
    """A task trained by an optimizer for so many steps at a peak rate."""

    task: str
    optimizer: str
    steps: int
    lr: float

    @property
    def name(self) -> str:
        return f"{self.task}.{self.optimizer}.{self.steps}.{self.lr:g}"


def _beta(steps: int, longest: float, shortest: float = 10) -> float:
    """The β whose memory is 2 % of the run, within bounds.

    A momentum that remembers half the run is no test of a warm-up (see the notebook on Lion's β2).
    """
    return 1 - 1 / min(longest, max(shortest, 0.02 * steps))


OPTIMIZERS = {
    "muon": lambda model, lr, T: Muon.from_model(model, lr=lr, momentum=_beta(T, 20), weight_decay=0.0),
    "lion": lambda model, lr, T: Lion(model.parameters(), lr=lr, betas=(0.9, _beta(T, 100, shortest=20))),
    "signsgd": lambda model, lr, T: SignSGD(model.parameters(), lr=lr, momentum=_beta(T, 10)),
    "normsgd": lambda model, lr, T: NormSGD(model.parameters(), lr=lr, momentum=_beta(T, 20)),
    "adamw": lambda model, lr, T: AdamW(
        model.parameters(), lr=lr, betas=(0.9, _beta(T, 1000)), weight_decay=0.0, fused=True
    ),
}


def _schedule_free(model: nn.Module, lr: float, steps: int) -> Optimizer:
    """Its authors' defaults, and a warm-up as they advise."""
    from schedulefree import AdamWScheduleFree

    return AdamWScheduleFree(model.parameters(), lr=lr, warmup_steps=max(1, steps // 20))


def _prodigy(model: nn.Module, lr: float, steps: int) -> Optimizer:
    """Its author's defaults, of which the rate 1 is one."""
    from prodigyopt import Prodigy

    return Prodigy(model.parameters(), lr=lr)


# With a schedule of their own, "own": none, and a cosine.
OWN = {"schedule-free": _schedule_free, "prodigy": _prodigy}


def linear_warmup(optimizer: Optimizer, steps: int, share: float) -> LambdaLR:
    """A ramp of share·T updates to the peak, then a cosine to 0; the first update is at lr/(share·T)."""
    warmup = round(share * steps)

    def rate(update: int) -> float:
        if update < warmup:
            return (update + 1) / (warmup + 1)
        return 0.5 * (1 + math.cos(math.pi * (update - warmup) / max(1, steps - warmup)))

    return LambdaLR(optimizer, rate)


def make_schedule(name: str, optimizer: Optimizer, steps: int, target_loss: float | None, first_loss: float) -> Any:
    """By name.

    "linear 0.1", "paper", "default", or "default key=value …" with arguments of `AdaptiveWarmup`, of which fstar is f*
    in parts of the first loss. "hand 0.1 cosine wsd" is a hand-set one of any form, from a hundredth of the peak.
    "wsd" and "greedy" are transformers': a warm-up of 10 %, a plateau and a decay over the last 20 % as 1 − √; GreedyLR
    as the laboratory sets it. "own" is what goes with an optimizer of `OWN`.
    """
    kind, *options = name.split()
    if kind == "linear":
        return linear_warmup(optimizer, steps, float(options[0]))
    if kind == "hand":
        share, warmup, decay = float(options[0]), options[1], options[2]
        return LambdaLR(optimizer, lambda update: hand_set(update, round(share * steps), steps, 100.0, warmup, decay))
    if kind == "own":
        cosine = type(optimizer).__name__ == "Prodigy"
        return linear_warmup(optimizer, steps, 0.0) if cosine else LambdaLR(optimizer, lambda _: 1.0)
    if kind == "wsd":
        from transformers import get_wsd_schedule

        decay = round(0.2 * steps)
        return get_wsd_schedule(optimizer, max(1, steps // 10), decay, num_training_steps=steps, decay_type="1-sqrt")
    if kind == "greedy":
        return make_greedy(optimizer, ScheduleConfig(kind="greedy"), steps)
    given = {key: _value(text) for key, text in (option.split("=") for option in options)}
    if kind == "paper":
        return AdaptiveWarmup.paper(optimizer, steps, target_loss=target_loss, **given)
    if "fstar" in given:
        given["target_loss"] = given.pop("fstar") * first_loss
    return AdaptiveWarmup(optimizer, total_steps=steps, **given)


def run(
    cell: Cell,
    schedule: str,
    seed: int,
    target_loss: float | None = None,
    order: int | None = None,
    curve: list[tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """Train once.

    Args:
        cell: what.
        schedule: see `make_schedule`.
        seed: of the initial weights, and of the data's order.
        target_loss: f* for Algorithm 1, which must be told.
        order: seed of the data's order, if it is not to be ``seed``.
        curve: takes each update's rate, in parts of the peak, and loss.

    Returns:
        A row for the results: losses, divergence, where the warm-up ended, seconds.
    """
    task = TASKS[cell.task]
    torch.manual_seed(seed)
    model: nn.Module = task.build()
    optimizer = (OPTIMIZERS | OWN)[cell.optimizer](model, cell.lr, cell.steps)
    if hasattr(optimizer, "train"):
        optimizer.train()  # Schedule-Free trains at other weights than it is judged at
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            first_loss = task.loss(model, *task.batch(seed if order is None else order, 0)).item()
        scheduler = make_schedule(schedule, optimizer, cell.steps, target_loss, first_loss)
        started = time.perf_counter()
        losses = []
        for step in range(cell.steps):
            loss = task.loss(model, *task.batch(seed if order is None else order, step))
            losses.append(loss.item())
            if curve is not None:
                curve.append((optimizer.param_groups[0]["lr"] / cell.lr, losses[-1]))
            if not math.isfinite(losses[-1]):
                break
            loss.backward()
            optimizer.step()
            scheduler.step(*_seen(scheduler, loss))
            optimizer.zero_grad()
        seconds = time.perf_counter() - started
    with torch.no_grad(), evaluating(optimizer):
        val_loss = task.held_out(model)
    diverged = not math.isfinite(losses[-1] + val_loss) or val_loss > losses[0]
    adaptive = isinstance(scheduler, AdaptiveWarmup)
    return {
        "schedule": schedule,
        "seed": seed,
        "val_loss": val_loss if math.isfinite(val_loss) else None,
        "train_loss": _mean(losses[-max(1, cell.steps // 20) :]),
        "first_loss": losses[0],
        "diverged": diverged,
        "warmup_steps": scheduler.warmup_steps if adaptive else _hand_set_steps(schedule, cell.steps),
        "ended_by": scheduler.ended_by if adaptive else None,
        "warnings": sorted(
            {re.sub(r"\s+", " ", str(w.message)) for w in said if "sign geometry" not in str(w.message)}
        ),
        "seconds": round(seconds, 2),
    }


def _value(text: str) -> Any:
    if text == "None":
        return None
    return text if text.isalpha() else float(text)


def _seen(scheduler: Any, loss: Tensor) -> list[Any]:
    """What the scheduler's step is told."""
    if isinstance(scheduler, LambdaLR):
        return []
    return [loss] if isinstance(scheduler, AdaptiveWarmup) else [loss.item()]


def _hand_set_steps(schedule: str, steps: int) -> int | None:
    kind, *options = schedule.split()
    return round(float(options[0]) * steps) if kind in ("linear", "hand") else None


def _mean(values: list[float]) -> float | None:
    mean = sum(values) / len(values)
    return mean if math.isfinite(mean) else None
