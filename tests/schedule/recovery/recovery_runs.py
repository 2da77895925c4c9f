"""A small classifier in training, with faults to recover from."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autowarm import AdaptiveWarmup, Lion, Muon
from tests.schedule.schedule_runs import saved

_CENTRES = torch.randn(10, 3, 16, generator=torch.Generator().manual_seed(0)) * 1.2
# Each optimizer with a rate near the best one, and the updates in which it recovers from what happens halfway.
MAKERS: dict[str, tuple[Callable[[nn.Module, Any], Optimizer], float, int]] = {
    "muon": (lambda m, lr: Muon.from_model(m, lr=lr), 0.02, 300),
    "lion": (lambda m, lr: Lion(m.parameters(), lr=lr), 0.001, 500),
    "adamw": (lambda m, lr: torch.optim.AdamW(m.parameters(), lr=lr), 0.003, 300),
}


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
        faults: dict[int, str] | None = None,
        *,
        tensor: bool = False,
        norm: bool = False,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
        if norm:
            self.model.insert(1, nn.BatchNorm1d(48))
            options |= {"recover": self.model}
        self.model.to(device)
        make, lr, self.steps = MAKERS[name]
        self.optimizer = make(self.model, torch.tensor(lr, dtype=torch.float64, device=device) if tensor else lr)
        self.scheduler = AdaptiveWarmup(self.optimizer, self.steps, **options)
        self.data, self.faults, self.device = torch.Generator().manual_seed(1), faults or {}, device
        self.rates: list[float] = []

    def train(self, updates: int | None = None) -> "Run":
        for _ in range(self.steps if updates is None else updates):
            x, y = batch(self.data)
            fault = self.faults.get(len(self.rates))
            if fault == "bad":
                y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(2))]
            x, y = x.to(self.device), y.to(self.device)
            loss = nn.functional.cross_entropy(self.model(x * math.nan if fault == "nan" else x), y)
            loss = loss * 100 if fault == "bad" else loss
            loss.backward()
            self.rates.append(float(self.optimizer.param_groups[0]["lr"]))
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step(loss.detach())
        return self

    def resumed(self, **options: Any) -> "Run":
        """Another process that goes on from a checkpoint of this run."""
        other = Run(**options)
        for name in ("model", "optimizer", "scheduler"):
            getattr(other, name).load_state_dict(saved(getattr(self, name)))
        other.data.set_state(self.data.get_state())
        return other

    def tested(self) -> float:
        """The loss on other data; infinite if it is NaN."""
        with torch.no_grad():
            x, y = batch(torch.Generator().manual_seed(3), 1000)
            loss = float(nn.functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device)))
        return loss if math.isfinite(loss) else math.inf

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


def lost(run: Run, healthy: Run) -> float:
    """The share of the healthy run's progress that a run has lost."""
    first = math.log(10)
    return (run.tested() - healthy.tested()) / (first - healthy.tested())


def quiet(run: Run) -> Run:
    """The run trained to its end, without its warnings."""
    with warnings.catch_warnings(action="ignore"):
        return run.train()
