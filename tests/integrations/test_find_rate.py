"""A search by the trainers' own steps: it finds what a plain loop finds, and training is the same without it."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from lightning.pytorch.callbacks import BaseFinetuning, GradientAccumulationScheduler
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric
from transformers import Trainer

from autowarm import AdaptiveWarmup, Muon
from autowarm import find_rate as plain_find_rate
from autowarm.integrations import lightning, transformers
from autowarm.integrations.lightning import WarmupCallback, pl
from autowarm.integrations.transformers import WarmupTrainer

from .llama import make_data, make_model
from .test_lightning import QUIET, Around
from .test_transformers import make_args

DATA = torch.randn(640, 8, generator=torch.Generator().manual_seed(3))
BATCH, LR = 16, 0.01


class Net(nn.Module):
    """As transformers and Lightning take it."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 8)
        )

    def forward(self, x: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
        y = self.layers(x)
        return {"loss": (y - x).square().mean(), "logits": y}


class Module(Around):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__(Net(dropout), lambda net: AdaptiveWarmup(Muon.from_model(net, lr=LR), 10))


def content(model: nn.Module) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]


def plain(accumulation: int, clip: float) -> np.ndarray:
    """The same search in a loop of one's own; without dropout, whose masks depend on what was drawn before."""
    net, start = Net(dropout=0.0), 0

    def closure() -> torch.Tensor:
        nonlocal start
        total = torch.zeros(())
        for _ in range(accumulation):
            loss = net(DATA[start : start + BATCH])["loss"] / accumulation
            loss.backward()
            total += loss.detach()
            start = (start + BATCH) % len(DATA)
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        return total

    return plain_find_rate(net, Muon.from_model(net, lr=LR), closure, steps=60).losses


def trainer_of(**options: Any) -> pl.Trainer:
    return pl.Trainer(**{"max_steps": 10, "accelerator": "cpu", "callbacks": [WarmupCallback()], **QUIET} | options)


class InOrder(WarmupTrainer):
    """The data in its own order, as the plain loop has it."""

    def _get_train_sampler(self, *args: Any, **options: Any) -> Any:
        return torch.utils.data.SequentialSampler(DATA)


def hf_trainer(
    folder: Path, accumulation: int = 1, clip: float = 0.0, kind: type[WarmupTrainer] = WarmupTrainer,
    model: nn.Module | None = None, lr: float = LR,
) -> WarmupTrainer:  # fmt: skip
    options = {"learning_rate": lr, "max_grad_norm": clip, "save_strategy": "no", "remove_unused_columns": False}
    args = make_args(folder, accumulation, max_steps=10, per_device_train_batch_size=BATCH, **options)
    return kind(model or Net(), args, optim="muon", train_dataset=[{"x": row} for row in DATA])


def by_lightning(folder: Path, accumulation: int = 1, clip: float = 0.0, dropout: float = 0.1) -> Any:
    """A model, the search for its rate, and its training."""
    module, loader = Module(dropout), DataLoader(DATA, BATCH)
    trainer = trainer_of(accumulate_grad_batches=accumulation, gradient_clip_val=clip or None)
    return module, partial(lightning.find_rate, trainer, module, loader), lambda: trainer_of().fit(module, loader)


def by_transformers(folder: Path, accumulation: int = 1, clip: float = 0.0, dropout: float = 0.1) -> Any:
    kind = WarmupTrainer if dropout else InOrder  # its own order is random
    trainer = hf_trainer(folder, accumulation, clip, kind, Net(dropout))
    return trainer.model, partial(transformers.find_rate, trainer), trainer.train


with_each_trainer = pytest.mark.parametrize("trainer", [by_lightning, by_transformers])


@with_each_trainer
@pytest.mark.parametrize(("accumulation", "clip"), [(1, 0.0), (2, 0.5)])
def test_a_trainer_finds_what_a_plain_loop_finds(trainer: Any, accumulation: int, clip: float, tmp_path: Path) -> None:
    model, search, _ = trainer(tmp_path, accumulation, clip, dropout=0.0)
    was, drawn = content(model), torch.get_rng_state()
    found = search(steps=60)
    assert content(model) == was
    assert torch.equal(torch.get_rng_state(), drawn)
    # As far as rates are small: at high ones rounding in another order grows.
    np.testing.assert_allclose(found.losses[:25], plain(accumulation, clip)[:25], rtol=1e-3)


@with_each_trainer
def test_a_trainer_trains_afterwards_as_if_nothing_had_been(trainer: Any, tmp_path: Path) -> None:
    contents = []
    for searching in (True, False):
        model, search, train = trainer(tmp_path)
        torch.manual_seed(7)
        if searching:
            search(steps=30)
        train()
        contents.append(content(model))
    assert contents[0] == contents[1]


@pytest.mark.parametrize("longest", [-1, 10])
def test_lightning_searches_with_the_accumulation_that_a_callback_sets(longest: int) -> None:
    def search(**options: Any) -> Any:
        trainer = trainer_of(max_steps=longest, max_epochs=5, **{"callbacks": []} | options)
        return lightning.find_rate(trainer, Module(dropout=0.0), DataLoader(DATA, BATCH), steps=25)

    found = search(callbacks=[GradientAccumulationScheduler({0: 4, 3: 2})])
    np.testing.assert_array_equal(found.losses, search(accumulate_grad_batches=4).losses)
    assert found.total_steps == (3 * 10 + 2 * 20 if longest == -1 else longest)  # of 40 micro-batches each


@pytest.mark.parametrize("kind", [list, lambda loaders: dict(zip("ab", loaders, strict=True))], ids=["list", "dict"])
def test_lightning_searches_on_several_loaders_as_it_trains(kind: Any) -> None:
    class Several(Module):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            one, other = batch.values() if isinstance(batch, dict) else batch
            return (self.net(one)["loss"] + self.net(other)["loss"]) / 2

    def search(module: Module, loaders: Any) -> np.ndarray:
        return lightning.find_rate(trainer_of(), module, loaders, steps=60).losses

    # The shorter one begins again. The same batch twice is the batch once, as far as rates are small.
    assert len(search(Several(), kind([DataLoader(DATA, BATCH), DataLoader(DATA[:48], BATCH)]))) > 25
    twice = search(Several(dropout=0.0), kind([DataLoader(DATA, BATCH), DataLoader(DATA, BATCH)]))
    np.testing.assert_allclose(twice[:25], plain(1, 0.0)[:25], rtol=1e-3)


class Freezing(BaseFinetuning):
    def freeze_before_training(self, module: Any) -> None:
        self.freeze(module.net.layers[0])

    def finetune_function(self, *args: Any) -> None: ...


class Awkward(Module):
    """It skips batches, needs no index, keeps a metric, validates, and trains what a callback has not frozen."""

    seen = validated = 0

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()

    def training_step(self, batch: torch.Tensor) -> torch.Tensor | None:  # type: ignore[override]
        self.seen += 1
        loss = self.net(batch)["loss"]
        self.mean.update(loss.detach())
        return None if self.seen % 3 == 0 else loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.validated += 1

    def val_dataloader(self) -> DataLoader:
        return DataLoader(DATA, BATCH)

    def configure_optimizers(self) -> Any:
        return Muon([p for p in self.net.parameters() if p.requires_grad and p.ndim == 2], lr=LR)


def test_lightning_searches_on_an_awkward_module_and_leaves_it_as_it_was() -> None:
    module, trainer = Awkward(), trainer_of()
    trainer.callbacks.append(Freezing())
    checks = trainer.num_sanity_val_steps
    assert len(lightning.find_rate(trainer, module, DataLoader(DATA, BATCH), steps=30).losses) >= 10
    assert all(p.requires_grad for p in module.parameters())
    assert (module.validated, trainer.num_sanity_val_steps) == (0, checks)
    assert (module.mean.update_count, module.mean.weight) == (0, 0.0)


@pytest.mark.parametrize(
    ("longest", "automatic", "message"),
    [(10, False, "needs automatic optimization"), (0, True, "stopped before its first update")],
)
def test_lightning_says_what_it_cannot_search_on(longest: int, automatic: bool, message: str) -> None:
    module = Module()
    module.automatic_optimization = automatic
    with pytest.raises(ValueError, match=message):
        lightning.find_rate(trainer_of(max_steps=longest), module, DataLoader(DATA, BATCH))


def test_a_trainer_that_makes_its_models_keeps_the_one_that_it_has(tmp_path: Path) -> None:
    trainer = hf_trainer(tmp_path)
    trainer.model_init, model = (lambda: Net()), trainer.model
    transformers.find_rate(trainer, steps=20)
    assert trainer.model is model
    assert trainer.optimizer is None
    assert not trainer.is_in_train


@pytest.mark.parametrize("kind", [Trainer, WarmupTrainer])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_given_optimizer_gets_its_rates_back(as_tensor: bool, kind: type[Trainer], tmp_path: Path) -> None:
    net, args = Net(), hf_trainer(tmp_path).args
    rate: Any = torch.tensor(1.0) if as_tensor else 1.0
    optimizer = torch.optim.AdamW([{"params": [p]} for p in net.parameters()], lr=rate)
    optimizer.param_groups[1]["initial_lr"] = 0.5
    trainer = kind(net, args, train_dataset=[{"x": row} for row in DATA], optimizers=(optimizer, None))
    transformers.find_rate(trainer, steps=20)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0] * 6
    assert (optimizer.param_groups[0]["lr"] is rate) or not as_tensor
    assert [group.get("initial_lr") for group in optimizer.param_groups] == [None, 0.5, *[None] * 4]


def test_the_trainers_noise_in_embeddings_ends_with_the_search(tmp_path: Path) -> None:
    model, data = make_model(), make_data(256)
    args = make_args(tmp_path, max_steps=3, save_strategy="no", neftune_noise_alpha=5.0)
    transformers.find_rate(WarmupTrainer(model, args, optim="muon", train_dataset=data), steps=20)
    model.train()
    ids = data[0]["input_ids"][None]
    assert torch.equal(model(ids).logits, model(ids).logits)


@pytest.mark.usefixtures("fresh_accelerate")
def test_accelerate_needs_nothing_but_the_prepared_optimizer() -> None:
    accelerator, bare = Accelerator(cpu=True), Net(dropout=0.0)
    model, optimizer = accelerator.prepare(bare, Muon.from_model(bare, lr=LR))
    was, batches = content(bare), iter(DATA.split(BATCH) * 2)

    def closure() -> torch.Tensor:
        loss = model(next(batches))["loss"]
        accelerator.backward(loss)
        return loss

    found = plain_find_rate(model, optimizer, closure, steps=60)
    assert content(bare) == was
    np.testing.assert_allclose(found.losses[:25], plain(1, 0.0)[:25], rtol=1e-3)


@pytest.mark.usefixtures("fresh_accelerate")
def test_accelerates_own_scaler_outlives_a_bad_batch() -> None:
    Accelerator(cpu=True)  # whose own scaler needs a GPU
    net, scaler = Net(dropout=0.0), torch.amp.GradScaler("cpu")
    inner = Muon.from_model(net, lr=LR)
    optimizer, batches = AcceleratedOptimizer(inner, scaler=scaler), iter(enumerate(DATA.split(BATCH) * 2))

    def closure() -> torch.Tensor:
        i, x = next(batches)
        loss = net(x)["loss"] * (float("nan") if i == 10 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(inner)  # as clipping does
        return loss

    found = plain_find_rate(net, optimizer, closure, steps=20, highest=1e-3)
    assert len(found.losses) == 20
    assert np.isfinite(found.losses).all()
