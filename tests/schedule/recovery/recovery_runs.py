"""A small classifier in training, with faults to recover from."""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD, SpikeGuard
from tests.schedule.schedule_runs import saved

_CENTRES = torch.randn(10, 3, 16, generator=torch.Generator().manual_seed(0)) * 1.2
# Each optimizer with a rate near the best one, and the updates in which it recovers from what happens halfway.
MAKERS: dict[str, tuple[Callable[[nn.Module, Any], Optimizer], float, int]] = {
    "muon": (lambda m, lr: Muon.from_model(m, lr=lr), 0.02, 300),
    "lion": (lambda m, lr: Lion(m.parameters(), lr=lr), 0.001, 500),
    "adamw": (lambda m, lr: torch.optim.AdamW(m.parameters(), lr=lr), 0.003, 300),
    "normsgd": (lambda m, lr: NormSGD(m.parameters(), lr=lr), 0.1, 300),
}


def halfway(name: str, fault: str, batches: int = 1) -> dict[int, str]:
    """So many faults in a row, in the middle of a run."""
    middle = MAKERS[name][2] // 2
    return dict.fromkeys(range(middle, middle + batches), fault)


def batch(generator: torch.Generator, size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around three centres for each of ten classes."""
    y = torch.randint(10, (size,), generator=generator)
    which = torch.randint(3, (size,), generator=generator)
    return _CENTRES[y, which] + torch.randn(size, 16, generator=generator), y


class Run:
    """A classifier in training; ``faults`` maps updates to "bad" (labels shuffled, loss × 100) or "nan"."""

    def __init__(
        self,
        name: str = "adamw",
        rate: float = 1.0,
        faults: dict[int, str] | None = None,
        *,
        tensor: bool = False,
        norm: bool = False,
        device: str = "cpu",
        seed: int = 0,
        **options: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
        if norm:
            self.model.insert(1, nn.BatchNorm1d(48))
            options |= {"recover": self.model}
        self.device = device
        self.model.to(device)
        make, lr, self.steps = MAKERS[name]
        lr *= rate
        self.optimizer = make(self.model, torch.tensor(lr, dtype=torch.float64, device=device) if tensor else lr)
        self.schedule(self.steps, **options)
        self.data, self.faults, self.made = torch.Generator().manual_seed(seed + 1), faults or {}, 0
        self.rates: list[float] = []

    def schedule(self, steps: int, **options: Any) -> None:
        self.scheduler = self.watcher = AdaptiveWarmup(self.optimizer, steps, **options)

    def parts(self) -> list[Any]:
        """Everything with a state."""
        return [self.model, self.optimizer, self.scheduler]

    @property
    def recoveries(self) -> list[Any]:
        return self.watcher.recoveries if self.watcher else []

    def used(self) -> list[float]:
        """The rate of each update, as the optimizer finds it."""
        return self.rates

    def train(self, updates: int | None = None) -> "Run":
        for _ in range(self.steps if updates is None else updates):
            self.watch(self.update())
        return self

    def watch(self, loss: torch.Tensor | None = None) -> None:
        """What a loop does after each update."""
        self.scheduler.step(loss)

    def update(self) -> torch.Tensor:
        x, y = batch(self.data)
        fault = self.faults.get(self.made)
        if fault == "bad":
            y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(2))]
        x, y = x.to(self.device), y.to(self.device)
        loss = nn.functional.cross_entropy(self.model(x * math.nan if fault == "nan" else x), y)
        loss = loss * 100 if fault == "bad" else loss
        loss.backward()
        self.rates.append(float(self.optimizer.param_groups[0]["lr"]))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.made += 1
        return loss.detach()

    def resumed(self, **options: Any) -> "Run":
        """Another process that goes on from a checkpoint of this run."""
        other = type(self)(**options)
        for mine, theirs in zip(self.parts(), other.parts(), strict=True):
            theirs.load_state_dict(saved(mine))
        other.data.set_state(self.data.get_state())
        other.made = self.made
        return other

    def tested(self) -> float:
        """The loss on other data; infinite if it is NaN."""
        with torch.no_grad():
            x, y = batch(torch.Generator().manual_seed(3), 1000)
            loss = float(nn.functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device)))
        return loss if math.isfinite(loss) else math.inf

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


class Beside(Run):
    """A run under PyTorch's cosine; ``recover=False`` leaves the guard out."""

    def schedule(self, steps: int, recover: Any = True, **options: Any) -> None:
        self.scheduler: Any = lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.guard = self.watcher = SpikeGuard(self.optimizer, steps, recover=recover, **options) if recover else None
        self._used: list[float] = []
        self.optimizer.register_step_pre_hook(lambda opt, *_: self._used.append(float(opt.param_groups[0]["lr"])))

    def used(self) -> list[float]:
        return self._used

    def watch(self, loss: torch.Tensor | None = None) -> None:
        self.scheduler.step()
        if self.guard is not None:
            self.guard.step(loss)


@functools.cache
def healthy(kind: Callable[..., Run], name: str = "adamw", **options: Any) -> Run:
    """The run without fault and without a guard."""
    return kind(name, recover=False, **options).train()


def same_weights(a: Run, b: Run) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.weights(), b.weights(), strict=True))


def lost(run: Run, healthy: Run) -> float:
    """The share of the healthy run's progress that a run has lost."""
    first = math.log(10)
    return (run.tested() - healthy.tested()) / (first - healthy.tested())


def quiet(run: Run) -> Run:
    """The run trained to its end, without its warnings."""
    with warnings.catch_warnings(action="ignore"):
        return run.train()
