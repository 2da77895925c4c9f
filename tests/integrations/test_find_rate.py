"""`find_rate` on what trainers hold: it finds what a plain loop finds, and leaves all as it was."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

from autowarm import AdaptiveWarmup, Muon, find_rate
from autowarm.integrations.transformers import WarmupTrainer

from .test_lightning import Around
from .test_transformers import make_args

DATA = torch.randn(1280, 8, generator=torch.Generator().manual_seed(3))
BATCH, LR = 16, 0.01


class Net(nn.Module):
    """As transformers and Lightning take it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
        y = self.layers(x)
        return {"loss": (y - x).square().mean(), "logits": y}


Search = tuple[nn.Module, Any, Iterator[Any], Callable[[Any], torch.Tensor], Callable[[torch.Tensor], Any]]


def plain(folder: Path) -> Search:
    """A model, its optimizer, its batches, a batch's loss, and what takes its gradients."""
    net = Net()
    return net, Muon.from_model(net, lr=LR), iter(DATA.split(BATCH)), lambda x: net(x)["loss"], torch.Tensor.backward


def transformers(folder: Path) -> Search:
    class InOrder(WarmupTrainer):
        def _get_train_sampler(self, *args: Any, **options: Any) -> Any:
            return SequentialSampler(DATA)

    net, options = Net(), {"per_device_train_batch_size": BATCH, "remove_unused_columns": False}
    trainer = InOrder(net, make_args(folder, max_steps=10, **options), train_dataset=[{"x": row} for row in DATA])
    batches = iter(trainer.get_train_dataloader())
    return net, Muon.from_model(net, lr=LR), batches, lambda batch: net(**batch)["loss"], torch.Tensor.backward


def lightning(folder: Path) -> Search:
    module = Around(Net(), lambda net: AdaptiveWarmup(Muon.from_model(net, lr=LR), 10))
    batches, optimizer = iter(DataLoader(DATA, BATCH)), Muon.from_model(module, lr=LR)
    return module, optimizer, batches, lambda batch: module.training_step(batch, 0), torch.Tensor.backward


def accelerate(folder: Path) -> Search:
    net, accelerator = Net(), Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(net, Muon.from_model(net, lr=LR))
    return net, optimizer, iter(DATA.split(BATCH)), lambda x: model(x)["loss"], accelerator.backward


def losses_of(search: Search) -> np.ndarray:
    model, optimizer, batches, loss_of, backward = search

    def closure() -> torch.Tensor:
        loss = loss_of(next(batches))
        backward(loss)
        return loss

    return find_rate(model, optimizer, closure, steps=60).losses


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("of_trainer", [transformers, lightning, accelerate])
def test_what_trainers_hold_gives_what_a_plain_loop_gives(of_trainer: Callable[[Path], Search], tmp_path: Path) -> None:
    search = of_trainer(tmp_path)
    before = [tensor.clone() for tensor in search[0].state_dict().values()]
    # As far as rates are small: at high ones rounding in another order grows.
    np.testing.assert_allclose(losses_of(search)[:25], losses_of(plain(tmp_path))[:25], rtol=1e-3)
    assert all(map(torch.equal, search[0].state_dict().values(), before))


@pytest.mark.usefixtures("fresh_accelerate")
def test_accelerates_own_scaler_outlives_a_bad_batch() -> None:
    Accelerator(cpu=True)  # whose own scaler needs a GPU
    net, scaler = Net(), torch.amp.GradScaler("cpu")
    inner = Muon.from_model(net, lr=LR)
    optimizer, batches = AcceleratedOptimizer(inner, scaler=scaler), iter(enumerate(DATA.split(BATCH)))

    def closure() -> torch.Tensor:
        i, x = next(batches)
        loss = net(x)["loss"] * (float("nan") if i == 10 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(inner)  # as clipping does
        return loss

    search = find_rate(net, optimizer, closure, steps=20, highest=1e-3)
    assert len(search.losses) == 20
    assert np.isfinite(search.losses).all()
