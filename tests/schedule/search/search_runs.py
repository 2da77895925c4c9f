"""Runs that search for their peak rate, of each kind of optimizer, for the tests of ``peak="auto"``."""

import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD, SignSGD
from autowarm.optim import Together

STEPS = 120  # of which a search takes up to 30
Maker = Callable[[nn.Module, float], Optimizer]
MAKERS: dict[str, Maker] = {
    "muon": lambda m, lr: Muon.from_model(m, lr=lr),
    "muon, tensor lr": lambda m, lr: Muon.from_model(m, lr=torch.tensor(lr, dtype=torch.float64)),
    "lion": lambda m, lr: Lion(m.parameters(), lr=lr),
    "signsgd": lambda m, lr: SignSGD(m.parameters(), lr=lr),
    "normsgd": lambda m, lr: NormSGD(m.parameters(), lr=lr),
    "adamw": lambda m, lr: torch.optim.AdamW(m.parameters(), lr=lr),
    "together": lambda m, lr: Together(
        torch.optim.Muon([p for p in m.parameters() if p.ndim == 2], lr=lr),
        torch.optim.AdamW([p for p in m.parameters() if p.ndim != 2], lr=lr / 2),
    ),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def batches() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(512, 8, generator=generator)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x[:, :1] - 1).square().mean()


class Run:
    """A model in training, batch by batch."""

    def __init__(self, make: Maker = MAKERS["muon"], lr: float = 0.01, steps: int = STEPS, **options: Any) -> None:
        self.model, self.data = make_model(), batches()
        self.optimizer = make(self.model, lr)
        self.scheduler = AdaptiveWarmup(self.optimizer, steps, **({"peak": "auto"} | options))
        self.rates: list[float] = []

    def update(self) -> torch.Tensor:
        loss = loss_of(self.model, next(self.data))
        loss.backward()
        self.rates.append(float(self.optimizer.param_groups[0]["lr"]))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self, updates: int) -> "Run":
        for _ in range(updates):
            self.scheduler.step(self.update())
        return self

    def search(self) -> "Run":
        """To the end of the search."""
        while self.scheduler.phase == "search":
            self.train(1)
        return self

    def follow(self, losses: list[float]) -> None:
        """Updates with these losses, the last of which goes on."""
        for i in range(40):
            self.update()
            self.scheduler.step(losses[min(i, len(losses) - 1)])

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def saved(self) -> dict[str, Any]:
        buffer = io.BytesIO()
        state = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler")}
        torch.save(state, buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=True)
