"""A small classifier in training, with faults to recover from."""

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD

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
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
        if norm:
            self.model.insert(1, nn.BatchNorm1d(48))
            options |= {"model": self.model}
        self.device = device
        self.model.to(device)
        make, lr, self.steps = MAKERS[name]
        lr *= rate
        self.optimizer = make(self.model, torch.tensor(lr, dtype=torch.float64, device=device) if tensor else lr)
        self.schedule(self.steps, **options)
        self.data, self.faults, self.made = torch.Generator().manual_seed(1), faults or {}, 0
        self.rates: list[float] = []

    def schedule(self, steps: int, **options: Any) -> None:
        self.scheduler = AdaptiveWarmup(self.optimizer, steps, **options)

    def parts(self) -> list[Any]:
        """Everything with a state."""
        return [self.model, self.optimizer, self.scheduler]

    def train(self, updates: int | None = None) -> "Run":
        for _ in range(self.steps if updates is None else updates):
            self.scheduler.step(self.update())
        return self

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
        buffer = io.BytesIO()
        torch.save([x.state_dict() for x in self.parts()], buffer)
        buffer.seek(0)
        other = type(self)(**options)
        for x, state in zip(other.parts(), torch.load(buffer, weights_only=True), strict=True):
            x.load_state_dict(state)
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


def lost(run: Run, healthy: Run) -> float:
    """The share of the healthy run's progress that a run has lost."""
    first = math.log(10)
    return (run.tested() - healthy.tested()) / (first - healthy.tested())


def quiet(run: Run) -> Run:
    """The run trained to its end, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run.train()
