"""A search with a trainer's own loss, as docs/which-rate.md has it, finds what a plain loop finds."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Trainer

from autowarm import Muon, find_rate
from autowarm.integrations.lightning import pl

from .transformers.test_transformers import make_args

DATA = torch.randn(640, 8, generator=torch.Generator().manual_seed(3))
BATCH = 16


class Net(nn.Module):
    """As transformers takes it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
        y = self.layers(x)
        return {"loss": (y - x).square().mean(), "logits": y}


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.net(batch)["loss"]
        self.log("loss", loss)  # which Lightning leaves out where no trainer is attached
        return loss


def search(model: nn.Module, step: Any) -> tuple[np.ndarray, list[bytes]]:
    start = 0

    def closure() -> torch.Tensor:
        nonlocal start
        start += BATCH
        return step(DATA[start - BATCH : start])

    found = find_rate(model, Muon.from_model(model, lr=0.01), closure, steps=40)
    return found.losses, [p.detach().numpy().tobytes() for p in model.parameters()]


def backward(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss


def test_by_a_trainers_own_loss(tmp_path: Path) -> None:
    net, module, trained = Net(), Module(), Net()
    untouched = [p.detach().numpy().tobytes() for p in net.parameters()]
    plain, after = search(net, lambda batch: backward(net(batch)["loss"]))
    assert after == untouched
    by_lightning, after = search(module, lambda batch: backward(module.training_step(batch, 0)))
    assert after == untouched
    trainer = Trainer(trained, make_args(tmp_path))
    by_transformers, after = search(trained, lambda batch: backward(trainer.compute_loss(trained, {"x": batch})))
    assert after == untouched
    assert np.array_equal(by_lightning, plain)
    assert np.array_equal(by_transformers, plain)
